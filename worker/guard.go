package worker

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
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
	"taskguard/internal/lifecycle"
	"taskguard/internal/taskqueue"
	"taskguard/internal/telemetry"
	"taskguard/repo"
)

// Guard guards the kinds of work of one service. It is safe for concurrent use. Shutdown ends it.
type Guard struct {
	options   Options
	db        *repo.Database
	probe     *repo.Analyses   // for Health
	queue     *taskqueue.Queue // nil: none
	telemetry *telemetry.Telemetry
	instance  string
	auth      Authenticator
	echo      *echo.Echo // has the routes of Routes
	// lifecycle counts the runs. A run begins when its request has been read, and ends when its
	// answer has been written.
	lifecycle *lifecycle.Lifecycle

	// work is the context of all runs. It ends in Shutdown, with the cause ErrStopping. A client
	// that hangs up does not end its run.
	work       context.Context //nolint:containedctx // see above
	stop       context.CancelCauseFunc
	background sync.WaitGroup
	ready      sync.Once

	mu       sync.Mutex
	kinds    map[string]*guarded       // by name
	records  map[string]bool           // the collections of Do
	reported map[string]*repo.Analyses // those, and the default one
	handled  []*delivery.Guard         // of the kinds that have a handler

	large *semaphore.Weighted // see delivery.Guard
}

// guarded is a kind with its documents and the guard of its deliveries.
type guarded struct {
	Kind
	analyses *repo.Analyses
	guard    *delivery.Guard
}

// Open connects to Firestore and the queue, without a call to them yet. It asks Google's metadata
// server for a Project that is not set, and for the id of the instance. It refuses what FromEnv
// refuses; its errors name the field and the variable.
func Open(ctx context.Context, o Options) (*Guard, error) {
	o, err := o.filled()
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
		kinds: map[string]*guarded{}, records: map[string]bool{}, reported: map[string]*repo.Analyses{},
		large: semaphore.NewWeighted(1),
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

	g.work, g.stop = context.WithCancelCause(context.WithoutCancel(ctx))
	g.route()
	return g, nil
}

// connect makes the clients of Firestore and of the queue.
func (g *Guard) connect(ctx context.Context) (err error) {
	o := g.options
	if g.db, err = repo.Connect(ctx, o.Project, g.store(Kind{}), o.FirestoreOptions...); err != nil {
		return err
	}
	if g.probe, err = g.db.Analyses(g.store(Kind{})); err != nil {
		return errors.Join(fmt.Errorf("worker: options: %w", err), g.db.Close())
	}
	if g.reported[recordsCollection], err = g.db.Analyses(g.store(Kind{Collection: recordsCollection})); err != nil {
		return errors.Join(err, g.db.Close())
	}
	if o.Queue == (Queue{}) {
		return nil
	}
	if g.queue, err = taskqueue.Open(ctx, o.Queue, o.QueueOptions...); err != nil {
		return errors.Join(err, g.db.Close())
	}
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

// store returns the options of a kind's collection.
func (g *Guard) store(k Kind) repo.Options {
	o := g.options
	return repo.Options{
		Database: o.Database, Emulator: o.Emulator, Collection: k.Collection, Fields: k.Fields,
		Policy: o.Lock, MaxRunTime: o.MaxRunTime, Keep: o.Keep, Log: o.Log,
	}
}

// register returns the guarded kind k, and adds it if it is new. Two kinds of one Guard have
// different names, paths and collections: otherwise a delivery of one could be handled as the
// other's.
func (g *Guard) register(k Kind) (*guarded, error) {
	if cmp.Or(k.Name, analysis) == analysis {
		k.Collection = cmp.Or(k.Collection, g.options.Collection)
	}
	k, err := k.Filled()
	switch {
	case err != nil:
		return nil, err
	case k.Name == recordsName:
		return nil, fmt.Errorf("worker: kind %q: the name is that of the records of Do", k.Name)
	case strings.HasSuffix(g.options.Queue.TargetURL, k.Path):
		return nil, fmt.Errorf("worker: Queue.TargetURL, TASK_TARGET_URL: want it without %s, the path of kind %q, "+
			"which tasks add", k.Path, k.Name)
	}

	g.mu.Lock()
	defer g.mu.Unlock()
	if known := g.kinds[k.Name]; known != nil {
		if !known.same(k) {
			return nil, fmt.Errorf("worker: kind %q differs from the kind of this name that is in use", k.Name)
		}
		return known, nil
	}

	for _, other := range g.kinds {
		if other.Path == k.Path || other.Collection == k.Collection {
			return nil, fmt.Errorf("worker: kind %q has the path or the collection of kind %q", k.Name, other.Name)
		}
	}
	if g.records[k.Collection] {
		return nil, fmt.Errorf("worker: kind %q has the collection of records of Do", k.Name)
	}
	o := g.options
	o.RunTimeout = cmp.Or(k.RunTimeout, o.RunTimeout)
	kind, err := g.newGuarded(k, g.store(k))
	if err = errors.Join(append(o.check(), err)...); err != nil {
		return nil, fmt.Errorf("worker: kind %q: %w", k.Name, err)
	}
	g.kinds[k.Name] = kind
	return kind, nil
}

// newGuarded guards the kind k. store configures its documents.
func (g *Guard) newGuarded(k Kind, store repo.Options) (*guarded, error) {
	analyses, err := g.db.Analyses(store)
	if err != nil {
		return nil, err
	}
	o := g.options
	kind := &guarded{Kind: k, analyses: analyses, guard: &delivery.Guard{
		Kind:  delivery.Kind{IDField: k.IDField, Path: k.Path},
		Locks: analyses, Orphans: analyses, Oldest: analyses.OldestUnfinished,
		Scope: analyses.Path(), Instance: g.instance,
		RunTimeout: cmp.Or(k.RunTimeout, o.RunTimeout), StallTimeout: o.StallTimeout,
		CheckpointInterval: o.CheckpointInterval,
		RetryMin:           o.RetryMin, RetryMax: o.RetryMax, Large: g.large, Log: o.Log, Telemetry: g.telemetry,
	}}
	if k.Name != analysis {
		kind.guard.Kind.Name, kind.guard.Telemetry = k.Name, g.telemetry.OfKind(k.Name)
	}
	if g.queue != nil {
		kind.guard.Queue = g.queue
	}
	return kind, nil
}

// mustRegister is like register, for a handler of k. It panics with register's error, if
// needsRun is true and k has no Run, or if nothing checks the callers.
func (g *Guard) mustRegister(k Kind, needsRun bool) *guarded {
	kind, err := g.register(k)
	switch {
	case err != nil:
		panic(err.Error())
	case k.Run == nil && needsRun:
		panic(fmt.Sprintf("worker: kind %q has no Run", kind.Name))
	}
	g.mustCheckCallers()
	return kind
}

// mustCheckCallers panics if nothing checks the callers of a handler.
func (g *Guard) mustCheckCallers() {
	if g.options.Auth == nil && g.options.Emulator == "" {
		panic("worker: nothing checks the callers: set Options.Auth, or Options.Queue with a Caller")
	}
}

// Echo returns the handler of Cloud Tasks' deliveries of k, for POST in an Echo. For each, it
// acquires the lock, calls Run and then answers, as docs/reference.md describes. Echo panics if k
// is not usable.
func (g *Guard) Echo(k Kind) echo.HandlerFunc {
	return g.deliveries(g.mustRegister(k, true).guard, k.analyzer(), readTask)
}

// Handler is like Echo, for net/http.
func (g *Guard) Handler(k Kind) http.Handler { return handler(g.Echo(k)) }

// Recovery returns the handler of POST /internal/tasks/recover, for Cloud Scheduler: it books
// a delivery for each orphaned document of the kinds that have a handler. It panics if nothing
// checks the callers.
func (g *Guard) Recovery() http.Handler {
	g.mustCheckCallers()
	return handler(g.recovery())
}

// Health returns the handler of /health/live, which answers 200, and /health/ready, which
// answers 503 until Firestore has answered, and from Shutdown on.
func (g *Guard) Health() http.Handler {
	g.awaitReady()
	return g.newEcho()
}

// awaitReady asks Firestore in the background until it has answered.
func (g *Guard) awaitReady() {
	g.ready.Do(func() { g.background.Go(func() { g.lifecycle.AwaitReady(g.work, g.probe.Ping) }) })
}

// Routes returns a handler of all routes: Handler at the path of each kind, Recovery, Health,
// and at /internal/self-test a run of the first kind on Options.SelfTest. It answers other
// paths and methods in JSON too.
func (g *Guard) Routes(kinds ...Kind) http.Handler {
	g.mustCheckCallers()
	for i := range kinds {
		kind, analyzer := g.mustRegister(kinds[i], true), kinds[i].analyzer()
		g.echo.POST(kind.Path, g.deliveries(kind.guard, analyzer, readTask))
		if i == 0 {
			g.echo.POST("/internal/self-test", g.selfTest(kind.guard, analyzer))
		}
	}
	g.awaitReady()
	return g.echo
}

// handler returns h as a handler of net/http.
func handler(h echo.HandlerFunc) http.Handler {
	e := echo.New()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = h(e.NewContext(r, w)) // it answers its errors itself
	})
}

// answerTime is the part of a stop that is reserved for sending the answers.
const answerTime = 500 * time.Millisecond

// Shutdown takes no more deliveries, cancels the runs, and waits until they have released
// their locks, booked their next deliveries and answered, or until ctx ends. Give it at
// least 8 s: a program that ignores SIGTERM takes 5 s. A run that has not ended by then keeps
// its lock until the lock expires; the error has the number of such runs. Call Shutdown once,
// before the HTTP server is shut down, so that the answers are sent.
func (g *Guard) Shutdown(ctx context.Context) error {
	stop := &delivery.StopError{Deadline: time.Now().Add(time.Minute)}
	if deadline, ok := ctx.Deadline(); ok {
		stop.Deadline = deadline.Add(-answerTime)
	}
	g.stop(stop)

	var err error
	if left := g.lifecycle.Drain(ctx); left > 0 {
		err = fmt.Errorf("worker: %d runs are still going: their locks are kept until they expire", left)
	}

	g.background.Wait()
	if g.queue != nil {
		err = errors.Join(err, g.queue.Close())
	}
	return errors.Join(err, g.db.Close())
}

// instance returns the text with which the owner of each delivery begins. It does not use the
// hostname, which all instances on Cloud Run share.
func instance(ctx context.Context) string {
	revision := os.Getenv("K_REVISION")
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
