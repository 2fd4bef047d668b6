package local

import (
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
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"taskguard/cmd/internal/cli"
	doclock "taskguard/cmd/internal/doclockservice"
	"taskguard/cmd/internal/operate"
	"taskguard/emulator/cloudtasks"
	"taskguard/internal/clock"
	"taskguard/worker"
)

const (
	// restartDelay is how long after its end a worker is replaced.
	restartDelay = time.Second
	// recoveryTimeout limits one call of recovery, as Cloud Scheduler's deadline does.
	recoveryTimeout = time.Minute
	// spread is the part of its wait by which the queue delays a retry at random.
	spread = 0.25
)

// local is an emulated cloud with workers that stays up.
type local struct {
	workerCloud
	router

	c         *cli.Call
	documents bool // serve the document lock too

	locks, console string // URLs of pages; locks is empty without the document lock
}

// Local keeps an emulated cloud and workers up until Ctrl-C.
func Local(lookup cli.Lookup) *cobra.Command {
	var o localOptions
	cmd := &cobra.Command{
		Use: "local", GroupID: cli.TryIt, Args: cli.Args(0, 0),
		Short: "Run everything on this machine until Ctrl-C: workers, console",
		Long: "An emulated cloud, workers and the console. Data stays in memory. " +
			"It prints exports for another terminal.",
		Example: "taskguard local\nANALYZER=exec:./transcribe taskguard local --workers 4",
		Annotations: cli.Reads("ANALYZER (builtin:document), ANALYZER_ENV and ANALYZER_OUTPUT; " +
			"ANALYSES_COLLECTION; the worker's LOCK_…, MAX_…, " +
			"RUN_TIMEOUT, CHECKPOINT_INTERVAL, STALL_TIMEOUT, RETRY_…, CONCURRENCY_… and KEEP_FINISHED; " +
			"with --documents, the document lock's DOCUMENT_LOCK_TTL, DOCUMENT_LOCKS_COLLECTION, LOCKS_PER_SESSION, " +
			"SOCKETS_PER_SESSION, SESSION_SECRET, PUSHER_APP_KEY, PUSHER_APP_SECRET, PUSHER_CHANNEL, " +
			"PUSHER_EVENT_NAMESPACE, ALLOWED_ORIGINS and AUTHORIZE_URL"),
		RunE: cli.Bind(lookup, o.serve),
	}
	flags := cmd.Flags()
	flags.IntVar(&o.port, "port", 8580, "Firestore's `port`; the next five serve Cloud Tasks, the workers, "+
		"the keys of the tokens, the document lock and the console; 0: any free ones")
	flags.IntVar(&o.workers, "workers", 2, "`how many` workers")
	flags.DurationVar(&o.every, "recover-every", time.Minute, "how often recovery is called, as Cloud Scheduler would")
	flags.BoolVar(&o.documents, "documents", false,
		"also serve the document lock, with a page to try in two browser tabs")
	o.command.takesLogs(cmd)
	cli.TakesJSON(cmd, "print the environment as one JSON document; progress goes to standard error")
	return cmd
}

// localOptions are the flags of local.
type localOptions struct {
	port, workers int
	every         time.Duration
	documents     bool
	command       command // with --logs
}

// serve serves all of local until ctx ends.
func (o *localOptions) serve(ctx context.Context, c *cli.Call, _ []string) error {
	switch err := checkPort(o.port, 6); {
	case err != nil:
		return err
	case o.workers < 1:
		return cli.UsageError("--workers: want at least 1")
	case o.every <= 0:
		return cli.UsageError("--recover-every: want more than 0")
	}
	if err := o.command.checkLogs(c); err != nil {
		return err
	}

	l := &local{c: c, documents: o.documents}
	l.command, l.show = o.command, c.Progress()
	warnOfMisspelt(c)
	defer l.close()
	addressOf := func(i int) string { return address("127.0.0.1", o.port, i) }
	if err := l.serveAll(ctx, addressOf, o.workers, o.every); ctx.Err() == nil {
		return err
	}
	return nil // Ctrl-C is how it ends
}

// serveAll starts everything, waits for ctx, and stops the workers.
func (l *local) serveAll(ctx context.Context, addressOf func(i int) string, workers int, every time.Duration) error {
	cores := max(1, runtime.GOMAXPROCS(0)/workers)                       // for each worker; a run may use a core
	l.limit = l.c.Environment().Integer("MAX_RUNS", cores, 1, 1_000_000) // configureWorkers reports a wrong value
	atOnce := min(workers*l.limit, 1000)
	if err := l.start(addressOf, &l.router, atOnce, cloudtasks.Options{Spread: spread}); err != nil {
		return err
	}
	if err := l.configureWorkers(ctx); err != nil {
		return err
	}
	if err := l.servePages(ctx, addressOf(4), addressOf(5)); err != nil {
		return err
	}

	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer func() {
		cancel()
		running.Wait()
		l.stopWorkers()
	}()
	if err := l.startWorkers(ctx, workers); err != nil {
		return err
	}
	if err := l.printHead(); err != nil {
		return err
	}
	l.showWorkers()
	l.show.Print("at most %s at once, as MAX_RUNS is %d", cli.Count(atOnce, "run"), l.limit)
	if l.c.Value("ANALYZER") == "" {
		l.show.Print("the analyzer is builtin:document; set ANALYZER to run yours")
	}

	for _, w := range l.workers {
		running.Go(func() { l.supervise(ctx, w) })
	}
	running.Go(func() { l.callRecovery(ctx, every) })
	running.Go(func() { l.warnOfAnalyzer(ctx) })
	<-ctx.Done()
	l.show.Print("stopping the workers, which release their locks")
	return nil
}

// configureWorkers sets the command of the workers, with the variables of passedOn.
func (l *local) configureWorkers(ctx context.Context) (err error) {
	l.observe = func(d *delivery) {
		if ctx.Err() == nil { // deliveries fail while local stops
			l.show.Print("%v", d)
		}
	}
	l.command.stderr, l.command.log = l.c.Err, l.showRecord
	l.command.env, err = l.workerEnvironment(l.given(passedOn))
	return err
}

// showRecord prints what a line of a worker's log says about a run.
func (l *local) showRecord(w *process, r *record) {
	switch {
	case r.Stderr:
		for line := range strings.Lines(r.Message) {
			l.show.Print("%s stderr: %s", r.AnalysisID, strings.TrimRight(line, "\r\n"))
		}
	case r.Problem != "":
		l.show.Print("%s: %s: %s", r.AnalysisID, r.Message, r.Problem)
	case r.Message == runMessage && r.Continues:
		l.show.Print("%s continues on %v, token %d", r.AnalysisID, w, r.Token)
	case r.Message == runMessage:
		l.show.Print("%s runs on %v, token %d", r.AnalysisID, w, r.Token)
	}
}

// variables returns the environment for a program in another terminal. With TASK_AUTH=none it
// suits cmd/worker too.
func (l *local) variables() map[string]string {
	vars := l.clientVariables()
	maps.Copy(vars, l.given(append(slices.Clone(settings), "DOCUMENT_LOCKS_COLLECTION")))
	return vars
}

// given returns the named variables that are set in the environment of local.
func (l *local) given(names []string) map[string]string {
	vars := map[string]string{}
	for _, name := range names {
		if value := l.c.Value(name); value != "" {
			vars[name] = value
		}
	}
	return vars
}

// lockVariables are the variables of the document lock.
var lockVariables = []string{
	"DOCUMENT_LOCK_TTL", "DOCUMENT_LOCKS_COLLECTION", "LOCKS_PER_SESSION", "SOCKETS_PER_SESSION", "SESSION_SECRET",
	"PUSHER_APP_KEY", "PUSHER_APP_SECRET", "PUSHER_CHANNEL", "PUSHER_EVENT_NAMESPACE", "ALLOWED_ORIGINS",
	"AUTHORIZE_URL",
}

// servePages serves the console and, if it is wanted, the document lock.
func (l *local) servePages(ctx context.Context, locksAt, consoleAt string) (err error) {
	if l.documents {
		if l.locks, err = l.serveLocks(locksAt); err != nil {
			return err
		}
	}
	l.console, err = l.serveConsole(ctx, consoleAt)
	return err
}

// serveLocks serves the document lock on the same Firestore, and returns the URL of its page.
// Without SESSION_SECRET its sessions end with this process.
func (l *local) serveLocks(address string) (string, error) {
	env := map[string]string{
		"GOOGLE_CLOUD_PROJECT": project, cli.FirestoreEmulator: l.firestore,
		"SESSION_SECRET": rand.Text() + rand.Text(),
	}
	maps.Copy(env, l.given(lockVariables))
	cfg, err := doclock.ParseConfig(lookup(env))
	if err != nil {
		return "", cli.EnvironmentError{Err: err}
	}
	serve := func(ctx context.Context, listener net.Listener) error {
		return doclock.Serve(ctx, cfg, listener, slog.New(slog.DiscardHandler))
	}
	return l.servePage("the document lock", address, serve)
}

// serveConsole serves the console of the same Firestore, with changes allowed, and returns
// its URL.
func (l *local) serveConsole(ctx context.Context, address string) (string, error) {
	log := slog.New(slog.NewTextHandler(l.c.Err, &slog.HandlerOptions{Level: slog.LevelWarn}))
	c := &cli.Call{Streams: l.c.Streams, Lookup: lookup(l.variables())}
	page, err := operate.NewConsole(ctx, c, operate.ConsoleOptions{Write: true, Log: log})
	if err != nil {
		return "", err
	}
	return l.servePage("the console", address, page.Serve)
}

// servePage runs a server until close, and returns its URL.
func (l *local) servePage(title, address string, serve func(context.Context, net.Listener) error) (string, error) {
	ctx, cancel := context.WithCancel(context.Background())
	host, err := l.serve(title, address, func(listener net.Listener) error {
		if err := serve(ctx, listener); err != nil {
			l.show.Print("%s: ended: %v", title, err)
		}
		return nil
	}, cancel)
	if err != nil {
		return "", err
	}
	return "http://" + host + "/", nil
}

// supervise restarts a worker each time it ends, until ctx ends.
func (l *local) supervise(ctx context.Context, w *process) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.done:
		}
		if !clock.Sleep(ctx, restartDelay) {
			return
		}

		next, err := startProcess(ctx, w.number, l.command)
		switch {
		case err == nil:
			l.replace(w, next)
			l.show.Print("%v ended; it serves again on %s, process %d", w, next.address, next.pid())
			w = next
		case ctx.Err() == nil:
			l.show.Print("%v ended, and cannot be started again: %v", w, err)
		}
	}
}

// callRecovery calls the workers' recovery until ctx ends, as Cloud Scheduler does.
func (l *local) callRecovery(ctx context.Context, every time.Duration) {
	for clock.Sleep(ctx, every) {
		r, err := l.recoverOnce(ctx)
		switch {
		case ctx.Err() != nil:
		case err != nil:
			l.show.Print("recovery: %v", err)
		case r.Booked > 0:
			l.show.Print("recovery found %d orphaned, enqueued %d", r.Found, r.Booked)
		}
	}
}

// recoverOnce calls recovery with a token.
func (l *local) recoverOnce(ctx context.Context) (r worker.Recovery, err error) {
	token, tokenErr := l.issuer.Token(caller, l.target)
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, l.target+"/internal/tasks/recover", http.NoBody)
	if err = errors.Join(err, tokenErr); err != nil {
		return r, err
	}
	request.Header.Set("Authorization", "Bearer "+token)

	client := http.Client{Transport: toWorkers, Timeout: recoveryTimeout}
	response, err := client.Do(request)
	if err != nil {
		return r, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		answer, _ := io.ReadAll(io.LimitReader(response.Body, 1024)) // its reason
		return r, fmt.Errorf("answered %d %s", response.StatusCode, answer)
	}
	err = json.NewDecoder(response.Body).Decode(&r)
	return r, err
}

// printHead prints what its user can do next, and the environment for another terminal.
func (l *local) printHead() error {
	vars := l.variables()
	if l.c.JSON {
		head := map[string]any{"environment": vars, "console": l.console}
		if l.documents {
			head["doclock"] = l.locks
		}
		return l.c.PrintJSON(head)
	}

	self, input := cli.Program(), "JSON"
	if l.c.Value("ANALYZER") == "" { // builtin:document
		input = `'{"text": "one two two"}'`
	}
	head := "In another terminal, run the exports below. Then:\n\n" +
		"  submit  " + self + " submit --input " + input + " --wait\n" +
		"  watch   " + l.console + " or " + self + " status\n" +
		"  stop    Ctrl-C here, which deletes the data\n"
	if l.documents {
		head += "  locks   open " + l.locks + " in two tabs\n"
	}
	_, err := fmt.Fprintf(l.c.Out, "%s\n%s\n", head, cli.Exports(vars))
	return err
}
