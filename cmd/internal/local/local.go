package local

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"taskguard/cmd/internal/cli"
	doclock "taskguard/cmd/internal/doclockservice"
	"taskguard/cmd/internal/operate"
	"taskguard/emulator/cloudtasks"
	"taskguard/lease/analysislock"
	"taskguard/worker"
)

const (
	// localStopGrace covers a worker's own 8 s for releasing its locks.
	localStopGrace = 9 * time.Second
	// restartDelay is how long after its end a worker is replaced.
	restartDelay = time.Second
	// recoveryTimeout limits one call of recovery, as Cloud Scheduler's deadline does.
	recoveryTimeout = time.Minute
	// spread is the part of its wait by which a retry is delayed at random.
	spread = 0.25
	// ports is how many ports local uses, from --port on.
	ports = 6
)

// local is an emulated cloud that stays up.
type local struct {
	cloud

	c       *cli.Call
	show    *cli.Progress
	command command
	router  *router
	runs    int           // limit of the runs at once on a worker
	every   time.Duration // the interval between calls of recovery
}

// Local keeps an emulated cloud and workers up until Ctrl-C.
func Local(ctx context.Context, c *cli.Call) error {
	port := c.Flags.Int("port", 8580, "Firestore's `port`; the next five are those of Cloud Tasks, the workers, "+
		"the keys of the tokens, the document lock and the console; 0: any free ones")
	workers := c.Flags.Int("workers", 2, "`how many` workers")
	every := c.Flags.Duration("recover-every", time.Minute, "how often recovery is called, as Cloud Scheduler would")
	c.TakesJSON("print the environment as one JSON document; progress goes to standard error")
	if _, err := c.Parse(0, 0); err != nil {
		return err
	}
	switch {
	case *port < 0 || *port > 65536-ports:
		return cli.UsageError(fmt.Sprintf("--port %d: want 0 to %d", *port, 65536-ports))
	case *workers < 1:
		return cli.UsageError("--workers: want at least 1")
	case *every <= 0:
		return cli.UsageError("--recover-every: want more than 0")
	}

	cores := max(1, runtime.GOMAXPROCS(0) / *workers) // of each worker; a run may use a whole one
	l := &local{c: c, show: c.Progress(), every: *every}
	l.runs = c.Environment().Integer("MAX_RUNS", cores, 1, 1_000_000) // configureWorkers reports a wrong value
	l.limit = min(*workers*l.runs, 1000)
	warnOfMisspelt(c.Err, os.Environ())
	err := l.usePlace(ctx, c, l.show)
	if err == nil {
		err = l.run(ctx, *port, *workers)
	}
	if ctx.Err() != nil && errors.Is(err, context.Cause(ctx)) {
		return nil // Ctrl-C is how it ends
	}
	return err
}

// run starts everything, waits for ctx, and leaves nothing running.
func (l *local) run(ctx context.Context, port, workers int) error {
	defer l.close()
	locks, console, err := l.startServers(ctx, func(i int) string {
		if port == 0 {
			return loopback
		}
		return net.JoinHostPort("127.0.0.1", strconv.Itoa(port+i))
	})
	if err != nil {
		return err
	}

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var running sync.WaitGroup
	started, err := startProcesses(ctx, workers, l.command, l.show)
	l.router.add(started...)
	for _, w := range started {
		running.Go(func() { l.supervise(ctx, w) })
	}
	if err == nil {
		l.show.Print("the queue delivers at most %d at once, as MAX_RUNS is %d", l.limit, l.runs)
		running.Go(func() { l.callRecovery(ctx) })
		err = l.printEnvironment(locks, console)
	}
	if err != nil {
		cancel()
	}

	<-ctx.Done()
	l.show.Print("stopping the workers, which release their locks")
	running.Wait()
	return err
}

// startServers starts the servers of this process, and returns the URLs of the document
// lock's page and of the console. address returns the address of the server with the number i.
func (l *local) startServers(ctx context.Context, address func(i int) string) (locks, console string, err error) {
	front, err := cli.Listen("the workers' address", address(2))
	if err != nil {
		return "", "", err
	}
	l.target = "http://" + front.Addr().String()
	l.router = &router{limit: l.runs, observe: func(e exchange) { l.showDelivery(ctx, e) }}
	if err := l.start(ctx, address, cloudtasks.Options{Spread: spread}); err != nil {
		return "", "", errors.Join(err, front.Close())
	}
	l.serveHTTP(front, &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: "http", Host: "workers.localhost"}) },
		Transport: l.router,
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			http.Error(w, err.Error(), http.StatusBadGateway)
		},
	})
	if err := l.configureWorkers(ctx); err != nil {
		return "", "", err
	}
	if locks, err = l.serveLocks(address(4)); err != nil {
		return "", "", err
	}
	console, err = l.serveConsole(ctx, address(5))
	return locks, console, err
}

// showDelivery prints the end of a delivery.
func (l *local) showDelivery(ctx context.Context, e exchange) {
	isRecovery := e.analysisID == "" && !e.answer.Rejected
	if isRecovery || ctx.Err() != nil { // deliveries fail while local stops
		return
	}

	text := e.String()
	if e.answer.Reason == "lock_lost" {
		a, err := l.analyses.Summary(ctx, e.analysisID)
		if err == nil && a.Error != nil && a.Error.Code == analysislock.Cancelled {
			text = fmt.Sprintf("%s; its run on %v has ended", a.Error.Message, e.worker)
		}
	}
	l.show.Print("%s %s", cmp.Or(e.analysisID, "a task without an analysis_id:"), text)
}

// variables returns the environment for a program in another terminal. With TASK_AUTH=none it
// suits cmd/worker too.
func (l *local) variables() map[string]string {
	vars := l.clientVariables()
	more := []string{"ANALYSES_COLLECTION", "LOCK_TTL", "RUN_TIMEOUT", "KEEP_FINISHED", "DOCUMENT_LOCKS_COLLECTION"}
	for _, name := range more {
		if value := l.c.Value(name); value != "" {
			vars[name] = value
		}
	}
	return vars
}

// configureWorkers makes the command that starts workers, with the variables of passedOn.
func (l *local) configureWorkers(ctx context.Context) (err error) {
	more := map[string]string{}
	for _, name := range passedOn {
		more[name] = l.c.Value(name)
	}
	l.command, err = l.workerCommand(more)
	l.command.runs = func(r run) { l.showRun(ctx, r) }
	l.command.ignored = func(id, problem string) { l.show.Print("%s: %s", id, problem) }
	l.command.stderr = func(id, text string) {
		for line := range strings.Lines(text) {
			l.show.Print("%s stderr: %s", id, strings.TrimRight(line, "\r\n"))
		}
	}
	return err
}

// showRun prints the begin of a run.
func (l *local) showRun(ctx context.Context, r run) {
	verb, at := "runs", ""
	if r.Continues {
		verb = "continues"
		if a, err := l.analyses.Summary(ctx, r.AnalysisID); err == nil && a.Progress.Percent() >= 0 {
			at = fmt.Sprintf(", at %d %%", a.Progress.Percent())
		}
	}
	l.show.Print("%s %s on %v, token %d%s", r.AnalysisID, verb, r.worker, r.Token, at)
}

// lockVariables are the variables of the document lock.
var lockVariables = []string{
	"DOCUMENT_LOCK_TTL", "DOCUMENT_LOCKS_COLLECTION", "LOCKS_PER_SESSION", "SOCKETS_PER_SESSION", "SESSION_SECRET",
	"PUSHER_APP_KEY", "PUSHER_APP_SECRET", "PUSHER_CHANNEL", "PUSHER_EVENT_NAMESPACE", "ALLOWED_ORIGINS",
}

// warnOfMisspelt reports variables whose names are similar to those that local reads.
func warnOfMisspelt(w io.Writer, environ []string) {
	known := slices.Concat(workerVariables, lockVariables)
	for _, variable := range environ {
		name, _, _ := strings.Cut(variable, "=")
		i := slices.IndexFunc(known, func(k string) bool {
			return len(k) > len("PORT") && cli.Similar(k, strings.ToUpper(name))
		})
		if i >= 0 && !slices.Contains(known, name) {
			cli.Print(w, "taskguard local: the variable %s is not read: did you mean %s?\n", name, known[i])
		}
	}
}

// serveLocks serves the document lock on the same Firestore, and returns the URL of its page.
// Without SESSION_SECRET its sessions end with this process.
func (l *local) serveLocks(address string) (string, error) {
	env := map[string]string{
		"GOOGLE_CLOUD_PROJECT": l.place.Project, cli.FirestoreEmulator: l.place.Emulator,
		"SESSION_SECRET": rand.Text() + rand.Text(),
	}
	for _, name := range lockVariables {
		env[name] = cmp.Or(l.c.Value(name), env[name])
	}
	cfg, err := doclock.ParseConfig(lookup(env))
	if err != nil {
		return "", cli.EnvironmentError{Err: err}
	}
	serve := func(ctx context.Context, listener net.Listener) error {
		return doclock.Serve(ctx, cfg, listener, slog.New(slog.DiscardHandler))
	}
	return l.serve("the document lock, to be tried in two tabs", address, serve)
}

// serveConsole serves the console of the same Firestore, with changes allowed, and returns
// its URL.
func (l *local) serveConsole(ctx context.Context, address string) (string, error) {
	log := slog.New(slog.NewTextHandler(l.c.Err, &slog.HandlerOptions{Level: slog.LevelWarn}))
	c := cli.NewCall(cli.Command{}, nil, l.c.Streams, lookup(l.variables()))
	page, err := operate.NewConsole(ctx, c, operate.ConsoleOptions{Write: true, Log: log})
	if err != nil {
		return "", err
	}
	return l.serve("the console, with all analyses", address, page.Serve)
}

// serve runs a server until close, and returns its URL.
func (l *local) serve(what, address string, serve func(context.Context, net.Listener) error) (string, error) {
	listener, err := cli.Listen(what, address)
	if err != nil {
		return "", err
	}
	page := "http://" + listener.Addr().String() + "/"
	l.show.Print("%s: %s", what, page)
	ctx, cancel := context.WithCancel(context.Background())
	l.cloud.run(func() {
		if err := serve(ctx, listener); err != nil {
			l.show.Print("%s: ended: %v", what, err)
		}
	}, cancel)
	return page, nil
}

// supervise starts a worker that has ended again, and stops it when ctx ends.
func (l *local) supervise(ctx context.Context, w *process) {
	for {
		select {
		case <-ctx.Done():
			w.stop(localStopGrace)
			return
		case <-w.done:
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(restartDelay):
		}

		next, err := startProcess(ctx, w.number, l.command)
		switch {
		case err == nil:
			l.router.replace(w, next)
			l.show.Print("%v ended; it serves again on %s, process %d", w, next.address, next.pid())
			w = next
		case ctx.Err() == nil:
			l.show.Print("%v ended, and cannot be started again: %v", w, err)
		}
	}
}

// callRecovery calls the workers' recovery with a token until ctx ends, as Cloud
// Scheduler does.
func (l *local) callRecovery(ctx context.Context) {
	due := time.NewTicker(l.every)
	defer due.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-due.C:
		}
		r, err := l.recoverOnce(ctx)
		switch {
		case ctx.Err() != nil:
		case err != nil:
			l.show.Print("recovery: %v", err)
		case r.Booked > 0:
			l.show.Print("recovery found %d orphaned, booked %d", r.Found, r.Booked)
		}
	}
}

func (l *local) recoverOnce(ctx context.Context) (r worker.Recovery, err error) {
	ctx, cancel := context.WithTimeout(ctx, recoveryTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, l.target+"/internal/tasks/recover", http.NoBody)
	if err != nil {
		return r, err
	}
	token, err := l.issuer.Token(caller, l.target)
	if err != nil {
		return r, err
	}
	request.Header.Set("Authorization", "Bearer "+token)

	response, err := l.router.RoundTrip(request)
	if err != nil {
		return r, err
	}
	defer func() { _ = response.Body.Close() }()
	answer, err := io.ReadAll(response.Body) // the router has bounded it
	switch {
	case err != nil:
		return r, err
	case response.StatusCode != http.StatusOK:
		return r, fmt.Errorf("answered %d %s", response.StatusCode, answer)
	}
	err = json.Unmarshal(answer, &r)
	return r, err
}

// printEnvironment prints the environment for another terminal.
func (l *local) printEnvironment(locks, console string) error {
	vars := l.variables()
	if l.c.JSON {
		return l.c.PrintJSON(map[string]any{"environment": vars, "doclock": locks, "console": console})
	}
	self := quote(os.Args[0])
	if strings.Contains(self, "go-build") { // go run deletes the directory in which it has built this program
		self = "go run ./cmd/taskguard"
	}
	_, err := io.WriteString(l.c.Out, exports(vars, self))
	return err
}

// exports returns commands for a shell in another terminal. self is the command that starts
// this program.
func exports(vars map[string]string, self string) string {
	text := "In another terminal:\n\n"
	for _, name := range slices.Sorted(maps.Keys(vars)) {
		text += "  export " + name + "=" + quote(vars[name]) + "\n"
	}
	return text + "\nand then:\n\n  " + self + " submit FILE… --wait\n\n" +
		"or status, unlock ID, unlock --room ROOM, cancel ID, requeue ID, delete ID, recover instead of submit. " +
		"Ctrl-C ends local and deletes its data. Unset the variables afterwards.\n\n"
}

// plainWord matches words that a shell does not change.
var plainWord = regexp.MustCompile(`^[A-Za-z0-9_./:=@%+,-]+$`)

// quote returns text as one word of a POSIX shell.
func quote(text string) string {
	if plainWord.MatchString(text) {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}
