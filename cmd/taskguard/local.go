package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"taskguard/cmd/taskguard/fleet"
	"taskguard/cmd/worker/service"
	"taskguard/emulator/cloudtasks"
)

// localStopGrace covers a worker's own 8 s for releasing its locks.
const localStopGrace = 9 * time.Second

// lastPort leaves room for the ports after it.
const lastPort = 65535 - 5

// locality is a local cloud that stays up.
type locality struct {
	c       *call
	place   place
	cloud   emulated
	route   route
	every   time.Duration // between two calls of recovery
	fleet   *fleet.Fleet
	show    *display
	front   *http.Server
	page    string // the document lock's
	console string // its page
}

// local keeps an emulated cloud and workers up until Ctrl-C.
func local(ctx context.Context, c *call) (err error) {
	port := c.flags.Int("port", 8580, "Firestore's `port`; the next five are Cloud Tasks', the workers' front's, that of the page with the keys of its tokens, the document lock's and the console's; 0: any free ones")
	workers := c.flags.Int("workers", 2, "how `many` workers")
	every := c.flags.Duration("recover-every", time.Minute, "how often recovery is called, as Cloud Scheduler would")
	c.takesJSON("print the environment as one JSON document; progress goes to standard error")
	if _, err := c.parse(0, 0); err != nil {
		return err
	}
	if *port < 0 || *port > lastPort {
		return usageError(fmt.Sprintf("--port %d: want 0 to %d", *port, lastPort))
	}
	if *workers < 1 {
		return usageError("--workers: want at least 1")
	}
	if *every <= 0 {
		return usageError("--recover-every: want more than 0")
	}
	l := &locality{c: c, every: *every}
	if l.place, err = c.localPlace(); err != nil {
		return err
	}
	progress := c.out
	if c.json {
		progress = c.err
	}
	l.show = newDisplay(progress, c.lookup, nil)
	defer l.show.close()
	if l.place.emulator != "" {
		l.show.note(strong, usingEmulator, l.place.emulator)
		if err := l.place.answers(ctx); err != nil {
			return err
		}
	}
	err = l.run(ctx, *port, *workers)
	if ctx.Err() != nil && errors.Is(err, context.Cause(ctx)) {
		return nil // Ctrl-C is how it ends
	}
	return err
}

// localPlace is where the analyses of local are. The embedded Firestore has no
// address yet.
func (c *call) localPlace() (place, error) {
	p := place{
		project: c.value("GOOGLE_CLOUD_PROJECT"), collection: c.value("ANALYSES_COLLECTION"), emulator: c.value(firestoreEmulator),
	}
	if err := checkEmulator(firestoreEmulator, p.emulator); err != nil {
		return p, environmentError{err}
	}
	if p.emulator == "" || p.project == "" {
		p.project = "demo-taskguard"
	}
	return p, nil
}

// run starts everything, waits for ctx, and leaves nothing running.
func (l *locality) run(ctx context.Context, port, workers int) error {
	defer l.cloud.close()
	address := func(i int) string {
		if port == 0 {
			return loopback
		}
		return net.JoinHostPort("127.0.0.1", strconv.Itoa(port+i))
	}
	front, err := l.startCloud(ctx, address)
	if err != nil {
		return err
	}
	defer front.Close()
	l.fleet = &fleet.Fleet{Observe: l.runBegins}
	if l.fleet.Command, err = l.command(); err != nil {
		return err
	}
	stopLocks, err := l.serveLocks(ctx, address(4))
	if err != nil {
		return err
	}
	defer stopLocks()
	stopConsole, err := l.serveConsole(ctx, address(5))
	if err != nil {
		return err
	}
	defer stopConsole()
	defer l.fleet.Stop(localStopGrace)
	started, err := l.fleet.AddAll(ctx, workers)
	if err != nil {
		return err
	}
	router := fleet.NewRouter(started, l.delivered)
	defer l.serve(front, router)()
	if err := l.tell(started, l.variables()); err != nil {
		return err
	}
	return l.supervise(ctx, router, started)
}

// startCloud starts what the workers need, and listens where they will be
// called. address is that of the part with the number i.
func (l *locality) startCloud(ctx context.Context, address func(i int) string) (front net.Listener, err error) {
	if l.place.emulator == "" {
		if l.place.emulator, err = l.cloud.serveFirestore(address(0)); err != nil {
			return nil, err
		}
	}
	if l.route.keys, err = l.cloud.serveKeys(address(3)); err != nil {
		return nil, err
	}
	if err := l.cloud.startTasks(ctx, cloudtasks.Options{}); err != nil {
		return nil, err
	}
	if l.route.tasks, err = l.cloud.serveTasks(address(1)); err != nil {
		return nil, err
	}
	if front, err = listen("the workers' front", address(2)); err != nil {
		return nil, err
	}
	l.route.target = "http://" + front.Addr().String()
	return front, nil
}

// command starts a worker with those of the caller's variables that concern it.
func (l *locality) command() (fleet.Command, error) {
	more := map[string]string{}
	for _, name := range append(telemetry(), "ANALYZER", "ANALYZER_OUTPUT", "LOCK_TTL", "LOCK_HEARTBEAT", "MAX_ATTEMPTS", "MAX_RUNS", "RUN_TIMEOUT", "FIRESTORE_TRANSACTIONS", "LOG_LEVEL") {
		more[name] = l.c.value(name)
	}
	command, _, err := workerCommand(l.place, l.route, more)
	if err != nil {
		return command, err
	}
	command.Stderr = l.wrote
	_, err = service.ParseConfig(func(name string) (string, bool) { return valueIn(command.Env, name) })
	if err != nil {
		return command, environmentError{err}
	}
	return command, nil
}

// telemetry are the variables that say where the workers' metrics and traces go.
func telemetry() []string {
	return []string{
		"OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_HEADERS", "OTEL_SERVICE_NAME",
		"OTEL_RESOURCE_ATTRIBUTES", "OTEL_TRACES_SAMPLER", "OTEL_TRACES_SAMPLER_ARG",
	}
}

// serve answers on front for the workers, as Cloud Run's front end does. The
// function that it returns ends that.
func (l *locality) serve(front net.Listener, router *fleet.Router) (stop func()) {
	l.front = &http.Server{
		ReadHeaderTimeout: 10 * time.Second,
		Handler: &httputil.ReverseProxy{
			Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: "http", Host: "workers.localhost"}) },
			Transport: router,
			ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
				http.Error(w, err.Error(), http.StatusBadGateway)
			},
		},
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug),
	}
	var serving sync.WaitGroup
	serving.Go(func() { _ = l.front.Serve(front) }) // returns with Close
	return func() {
		_ = l.front.Close() // the listener's error is of no use any more
		serving.Wait()
	}
}

// supervise replaces each worker that ends, until ctx does.
func (l *locality) supervise(ctx context.Context, router *fleet.Router, workers []*fleet.Worker) error {
	var watching sync.WaitGroup
	defer watching.Wait()
	for _, w := range workers {
		l.show.note(plain, "%v serves on %s, process %d", w, w.Address, w.PID)
		watching.Go(func() {
			for w := w; w != nil; {
				select {
				case <-ctx.Done():
					return
				case <-w.Done():
					w = l.replace(ctx, router, w)
				}
			}
		})
	}
	watching.Go(func() { l.callRecovery(ctx) })
	<-ctx.Done()
	return nil
}

// replace starts a worker in the place of one that has ended; nil: ctx ended.
func (l *locality) replace(ctx context.Context, router *fleet.Router, old *fleet.Worker) *fleet.Worker {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Second):
		}
		w, err := l.fleet.Add(ctx)
		if err == nil {
			router.Replace(old, w)
			l.show.note(bad, "%v ended; %v serves on %s, process %d, in its place", old, w, w.Address, w.PID)
			return w
		}
		if ctx.Err() == nil {
			l.show.note(bad, "%v ended, and no other starts: %v", old, err)
		}
	}
}

func (l *locality) runBegins(r fleet.Run) {
	l.show.note(plain, "%s runs on %v, token %d", r.AnalysisID, r.Worker, r.Token)
}

// wrote shows what an analyzer has written to standard error.
func (l *locality) wrote(id, text string) {
	for line := range strings.Lines(text) {
		l.show.note(plain, "%s stderr: %s", id, strings.TrimRight(line, "\r\n"))
	}
}

func (l *locality) delivered(v fleet.Delivery) {
	cause := ""
	if v.Error != "" {
		cause = ": " + squeeze(v.Error, 500)
	}
	switch {
	case v.AnalysisID == "":
	case v.Status == 0:
		l.show.note(bad, "%s no answer from %v", v.AnalysisID, v.Worker)
	case v.Skip():
		l.show.note(plain, "%s delivered to %v: %s", v.AnalysisID, v.Worker, skipped(v))
	case v.Result != "":
		l.show.note(plain, "%s %s, by %v%s", v.AnalysisID, v.Result, v.Worker, cause)
	default:
		l.show.note(bad, "%s %v answered %d %s%s", v.AnalysisID, v.Worker, v.Status, v.Reason, cause)
	}
}
