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
	"sync"
	"time"

	"taskguard/cmd/taskguard/fleet"
	"taskguard/cmd/worker/service"
	"taskguard/emulator/cloudtasks"
)

// localStopGrace covers a worker's own 8 s for releasing its locks.
const localStopGrace = 9 * time.Second

// locality is a local cloud that stays up.
type locality struct {
	c     *call
	place place
	cloud emulated
	fleet *fleet.Fleet
	show  *display
	front *http.Server
}

// local keeps an emulated cloud and workers up until Ctrl-C.
func local(ctx context.Context, c *call) (err error) {
	port := c.flags.Int("port", 8580, "Firestore's `port`; Cloud Tasks takes the next, the workers' front the one after; 0: any free ones")
	workers := c.flags.Int("workers", 2, "how `many` workers")
	c.takesJSON("print the environment as one JSON document; progress goes to standard error")
	if _, err := c.parse(0, 0); err != nil {
		return err
	}
	if *port < 0 || *port > 65535-2 {
		return usageError(fmt.Sprintf("--port %d: want 0 to %d", *port, 65535-2))
	}
	if *workers < 1 {
		return usageError("--workers: want at least 1")
	}
	l := &locality{c: c, place: place{
		project: c.value("GOOGLE_CLOUD_PROJECT"), collection: c.value("ANALYSES_COLLECTION"), emulator: c.value(firestoreEmulator),
	}}
	if err := checkEmulator(firestoreEmulator, l.place.emulator); err != nil {
		return environmentError{err}
	}
	if l.place.emulator == "" || l.place.project == "" {
		l.place.project = "demo-taskguard"
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

// run starts everything, waits for ctx, and leaves nothing running.
func (l *locality) run(ctx context.Context, port, workers int) (err error) {
	defer l.cloud.close()
	address := func(i int) string {
		if port == 0 {
			return "127.0.0.1:0"
		}
		return net.JoinHostPort("127.0.0.1", strconv.Itoa(port+i))
	}
	if l.place.emulator == "" {
		if l.place.emulator, err = l.cloud.serveFirestore(address(0)); err != nil {
			return err
		}
	}
	if err := l.cloud.startTasks(ctx, demoQueue, cloudtasks.Options{}); err != nil {
		return err
	}
	tasks, err := l.cloud.serveTasks(address(1))
	if err != nil {
		return err
	}
	front, err := listen("the workers' front", address(2))
	if err != nil {
		return err
	}
	defer front.Close()
	l.fleet = &fleet.Fleet{Observe: l.runBegins}
	if l.fleet.Command, err = l.command(); err != nil {
		return err
	}
	defer l.fleet.Stop(localStopGrace)
	started, err := l.fleet.AddAll(ctx, workers)
	if err != nil {
		return err
	}
	router := fleet.NewRouter(started, l.delivered)
	defer l.serve(front, router)()
	if err := l.tell(started, l.variables(tasks, front.Addr().String())); err != nil {
		return err
	}
	return l.supervise(ctx, router, started)
}

// command starts a worker with those of the caller's variables that concern it.
func (l *locality) command() (fleet.Command, error) {
	more := map[string]string{}
	for _, name := range []string{"ANALYZER", "LOCK_TTL", "LOCK_HEARTBEAT", "MAX_ATTEMPTS", "RUN_TIMEOUT", "LOG_LEVEL"} {
		more[name] = l.c.value(name)
	}
	command, _, err := workerCommand(l.place, more)
	if err != nil {
		return command, err
	}
	more["TASK_AUTH"], more["FIRESTORE_EMULATOR_HOST"] = "none", l.place.emulator
	if _, err := service.ParseConfig(func(name string) (string, bool) { v, ok := more[name]; return v, ok }); err != nil {
		return command, environmentError{err}
	}
	return command, nil
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

func (l *locality) delivered(v fleet.Delivery) {
	switch {
	case v.AnalysisID == "":
	case v.Status == 0:
		l.show.note(bad, "%s no answer from %v", v.AnalysisID, v.Worker)
	case v.Skip():
		l.show.note(plain, "%s skipped by %v: %s", v.AnalysisID, v.Worker, v.Reason)
	case v.Result != "":
		l.show.note(plain, "%s %s, by %v", v.AnalysisID, v.Result, v.Worker)
	default:
		l.show.note(bad, "%s %v answered %d %s", v.AnalysisID, v.Worker, v.Status, v.Reason)
	}
}
