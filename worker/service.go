package worker

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync"
	"time"

	"cloud.google.com/go/compute/metadata"
	"github.com/labstack/echo/v4"
	"go.opentelemetry.io/otel/metric"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"
	"golang.org/x/sync/semaphore"

	"taskguard/internal/delivery"
	"taskguard/internal/env"
	"taskguard/internal/taskqueue"
	"taskguard/internal/telemetry"
	"taskguard/repo"
)

// Open connects to Firestore and the queue, and makes no call to them yet. It asks Google's metadata
// server for the instance's id, and for the Project if that is not set. Open checks the same settings
// as FromEnv. Its errors name the field and the variable.
func Open(ctx context.Context, o Options) (*Guard, error) {
	o, err := o.complete()
	if err != nil {
		return nil, fmt.Errorf("worker: options: %w", err)
	}
	if o.Project == "" {
		if o.Project, err = env.ProjectHere(ctx, o.Emulator); err != nil {
			return nil, fmt.Errorf("worker: options: Project, %w", err)
		}
	}
	g := &Guard{
		options: o, instance: instance(ctx),
		records: map[string]bool{}, reported: map[string]*repo.Analyses{},
		large: semaphore.NewWeighted(1), places: delivery.NewPlaces(o.MaxRuns),
	}
	if g.auth, err = o.authenticator(); err != nil {
		return nil, fmt.Errorf("worker: options: %w", err)
	}
	if g.telemetry, err = newTelemetry(o); err != nil {
		return nil, err
	}
	if err := g.connect(ctx); err != nil {
		return nil, err
	}

	g.disconnect = sync.OnceValue(g.close)
	g.work, g.stop = context.WithCancelCause(context.WithoutCancel(ctx))
	g.route()
	return g, nil
}

// connect makes the clients of Firestore and of the queue.
func (g *Guard) connect(ctx context.Context) (err error) {
	o, records := g.options, g.storeOptions(Kind{Collection: recordsCollection})
	if g.db, err = repo.Connect(ctx, o.Project, records, o.FirestoreOptions...); err != nil {
		return err
	}

	if g.probe, err = g.db.Analyses(records); err != nil {
		err = fmt.Errorf("worker: options: %w", err)
	} else if o.Queue != (Queue{}) {
		g.queue, err = taskqueue.Open(ctx, o.Queue, o.QueueOptions...)
	}
	if err != nil {
		return errors.Join(err, g.db.Close())
	}
	g.reported[recordsCollection] = g.probe
	return nil
}

func newTelemetry(o Options) (*telemetry.Telemetry, error) {
	if o.MeterProvider == nil && o.TracerProvider == nil {
		return nil, nil //nolint:nilnil // a nil Telemetry records nothing
	}
	return telemetry.New(
		cmp.Or[metric.MeterProvider](o.MeterProvider, metricnoop.NewMeterProvider()),
		cmp.Or[trace.TracerProvider](o.TracerProvider, tracenoop.NewTracerProvider()))
}

// Recovery returns the handler of POST /internal/tasks/recover, which Cloud Scheduler calls. It enqueues each orphaned
// document of the kinds that have a handler.
func (g *Guard) Recovery() http.Handler { return g.recovery() }

// Health returns the handler of /health/live, which answers 200, and of /health/ready, which answers 503 until
// Firestore has answered, and again after Shutdown was called.
func (g *Guard) Health() http.Handler {
	g.awaitReady()
	return g.newEcho()
}

// awaitReady asks Firestore in the background until it has answered.
func (g *Guard) awaitReady() {
	g.ready.Do(func() { g.background.Go(func() { g.lifecycle.AwaitReady(g.work, g.probe.Ping) }) })
}

// Routes returns one handler for all routes: Handler at the Path of each work, Recovery, Health, and at
// /internal/self-test a run of the first work on Options.SelfTest. It answers other paths and methods in JSON too. Its
// error says which work has no Run and no Start, has a Start without a Queue, or belongs to another Guard, or that
// nothing checks the callers.
func (g *Guard) Routes(works ...*Work) (http.Handler, error) {
	if refusing, ok := g.auth.(always); ok && refusing.err != nil {
		return nil, refusing.err
	}
	for _, work := range works {
		if work == nil || work.service != g {
			return nil, errors.New("worker: routes: use what Register of this Guard has returned")
		}
		if err := work.runs(); err != nil {
			return nil, err
		}
	}

	for i, work := range works {
		g.echo.POST(work.Path, work.Echo())
		if i == 0 {
			g.echo.POST("/internal/self-test", echo.WrapHandler(g.selfTest(work.runner, work.analyzer())))
		}
	}
	g.awaitReady()
	return g.echo, nil
}

// The parts at the end of a stop that are reserved for what follows.
const (
	answerTime = 500 * time.Millisecond // for sending the answers
	// actsTime is for the end of a run whose act has been cut off: a handler that cleans up, a program that
	// ignores SIGTERM, and the commits of the act and of the release. It is counted from the end, not from
	// the beginning, so that acts get all the time that a longer stop has.
	actsTime = 2 * time.Second
)

// stopTime is how long a stop takes for which nobody has set a deadline: of a Run whose context ends.
const stopTime = 8 * time.Second

// stopBefore returns the times of a stop that ends at the deadline.
func stopBefore(deadline time.Time) *delivery.StopError {
	return &delivery.StopError{Deadline: deadline.Add(-answerTime), Acts: deadline.Add(-actsTime)}
}

// Shutdown accepts no more deliveries and cancels the runs. It waits until they have released their locks, enqueued
// their next deliveries and answered, or until ctx ends. An act inside Once and a handler inside Idempotent are
// cancelled only two seconds before ctx's deadline.
//
// Give Shutdown at least 8 s, because a program that ignores SIGTERM takes 5 s, and call it before the HTTP server's
// own Shutdown, so that the answers are sent. A run that has not ended by then keeps its lock until the lock expires;
// the error has the number of such runs. A second call waits too, and changes nothing.
func (g *Guard) Shutdown(ctx context.Context) error {
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(time.Minute)
	}
	g.stop(stopBefore(deadline))

	var err error
	if left := g.lifecycle.Drain(ctx); left > 0 {
		err = fmt.Errorf("worker: %d runs are still going: their locks are kept until they expire", left)
	}

	g.background.Wait()
	return errors.Join(err, g.disconnect())
}

// close closes the connections.
func (g *Guard) close() error {
	err := g.db.Close()
	if g.queue != nil {
		err = errors.Join(err, g.queue.Close())
	}
	return err
}

// instance returns the text with which the owner of each delivery begins. It does not use the
// hostname, which all instances on Cloud Run share.
func instance(ctx context.Context) string {
	revision := cmp.Or(os.Getenv("K_REVISION"), os.Getenv("CLOUD_RUN_EXECUTION")) // of a service, or of a job
	if revision == "" {
		return "local/" + rand.Text()[:8]
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	id, err := metadata.InstanceIDWithContext(ctx)
	if err != nil {
		id = rand.Text()
	}
	return revision + "/" + id[:min(16, len(id))]
}
