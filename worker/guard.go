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

	"taskguard/internal/delivery"
	"taskguard/internal/env"
	"taskguard/internal/taskauth"
	"taskguard/internal/taskqueue"
	"taskguard/internal/telemetry"
	"taskguard/orchestrator"
	"taskguard/repo"
)

// Guard guards the kinds of work of one service. It is safe for concurrent use; Shutdown ends
// it.
type Guard struct {
	options   Options
	db        *repo.Database
	any       *repo.Analyses   // of any collection, for Health
	queue     *taskqueue.Queue // nil: none
	server    *delivery.Server
	telemetry *telemetry.Telemetry
	instance  string
	unchecked bool // how callers are checked is unknown

	work       context.Context //nolint:containedctx // of all runs; ends in Shutdown
	stop       context.CancelCauseFunc
	background sync.WaitGroup
	ready      sync.Once

	mu    sync.Mutex
	kinds map[string]*guarded
}

// guarded is a kind and what guards it.
type guarded struct {
	Kind
	analyses *repo.Analyses
	guard    *delivery.Guard
}

// Open connects to Firestore and the queue. It makes no call to them, but asks Google's
// metadata server for what o leaves open. It refuses what FromEnv refuses; its errors name
// the field and the variable.
func Open(ctx context.Context, o Options) (*Guard, error) {
	o, err := o.filled()
	if err != nil {
		return nil, fmt.Errorf("worker: options: %w", err)
	}
	if o.Project == "" {
		if o.Project, err = env.ProjectHere(ctx, o.Emulator); err != nil {
			return nil, fmt.Errorf("worker: options: %w", problem{"Project", err})
		}
	}
	g := &Guard{options: o, instance: instance(ctx), kinds: map[string]*guarded{}}
	auth, known, err := o.authenticator()
	if err != nil {
		return nil, fmt.Errorf("worker: options: %w", err)
	}
	g.unchecked = !known
	if g.telemetry, err = newTelemetry(o); err != nil {
		return nil, err
	}
	if g.db, err = repo.Connect(ctx, o.Project, g.store(Kind{}), o.FirestoreOptions...); err != nil {
		return nil, err
	}
	if g.any, err = g.db.Analyses(g.store(Kind{})); err != nil {
		return nil, errors.Join(fmt.Errorf("worker: options: %w", err), g.db.Close())
	}
	if o.Queue != (Queue{}) {
		if g.queue, err = taskqueue.Open(ctx, o.Queue, o.QueueOptions...); err != nil {
			return nil, errors.Join(err, g.db.Close())
		}
	}
	g.work, g.stop = context.WithCancelCause(context.WithoutCancel(ctx))
	g.server = delivery.NewServer(g.work, o.Log, auth)
	g.server.MaxRuns = o.MaxRuns
	if keys, ok := auth.(*taskauth.Verifier); ok {
		g.background.Go(func() { keys.Run(g.work) })
	}
	return g, nil
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
		Database: o.Database, Collection: k.Collection, Emulator: o.Emulator, Fields: k.Fields, Policy: o.Lock, MaxRunTime: o.MaxRunTime,
		Pessimistic: o.Pessimistic, Keep: o.Keep, Log: o.Log,
	}
}

// of returns what guards a kind. Two kinds of one Guard have different names, paths and
// collections: else a delivery of one could be handled as the other's.
func (g *Guard) of(k Kind) (*guarded, error) {
	if cmp.Or(k.Name, analysis) == analysis {
		k.Collection = cmp.Or(k.Collection, g.options.Collection)
	}
	k, err := k.Filled()
	if err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	is := g.kinds[k.Name]
	if is == nil {
		for _, other := range g.kinds {
			if other.Path == k.Path || other.Collection == k.Collection {
				return nil, fmt.Errorf("worker: kind %q has the path or the collection of kind %q", k.Name, other.Name)
			}
		}
		if is, err = g.newGuarded(k, g.store(k)); err != nil {
			return nil, fmt.Errorf("worker: kind %q: %w", k.Name, err)
		}
		g.kinds[k.Name] = is
	}
	if !is.same(k) {
		return nil, fmt.Errorf("worker: kind %q differs from the kind of this name that is in use", k.Name)
	}
	return is, nil
}

// newGuarded returns what guards a kind whose documents are in the store.
func (g *Guard) newGuarded(k Kind, store repo.Options) (*guarded, error) {
	analyses, err := g.db.Analyses(store)
	if err != nil {
		return nil, err
	}
	o, is := g.options, &guarded{Kind: k, analyses: analyses}
	o.RunTimeout = cmp.Or(k.RunTimeout, o.RunTimeout)
	for _, p := range o.check() {
		return nil, p
	}
	is.guard = &delivery.Guard{
		Kind: delivery.Kind{Name: k.Name, IDField: k.IDField, Path: k.Path}, Locks: analyses, Orphans: analyses, Oldest: analyses.OldestUnfinished,
		Instance: g.instance, RunTimeout: o.RunTimeout, CheckpointInterval: o.CheckpointInterval, StallTimeout: o.StallTimeout,
		RetryMin: o.RetryMin, RetryMax: o.RetryMax, Log: o.Log, Telemetry: g.telemetry,
	}
	if k.Name != analysis {
		is.guard.Telemetry = g.telemetry.OfKind(k.Name)
	}
	if g.queue != nil {
		is.guard.Queue = g.queue
	}
	return is, nil
}

// handled returns the guard of a handler, which runs k.Run, or only books deliveries. It
// panics if the kind cannot be handled.
func (g *Guard) handled(k Kind, books bool) *delivery.Guard {
	is, err := g.of(k)
	switch {
	case err != nil:
		panic(err.Error())
	case k.Run == nil && !books:
		panic(fmt.Sprintf("worker: kind %q has no Run", is.Name))
	}
	g.mustCheckCallers()
	guard := *is.guard
	guard.Analyzer = orchestrator.AnalyzerFunc(k.Run)
	return &guard
}

// mustCheckCallers panics if nothing checks the callers of a handler.
func (g *Guard) mustCheckCallers() {
	if g.unchecked {
		panic("worker: nothing checks the callers: set Options.Auth, or Options.Queue with a Caller")
	}
}

// Echo returns the handler of Cloud Tasks' deliveries of k, for POST in an Echo. A delivery
// is acquired, run and answered as docs/reference.md describes; the answer is sent after the
// run has ended. Echo panics if k is not usable.
func (g *Guard) Echo(k Kind) echo.HandlerFunc {
	return g.server.Deliveries(g.handled(k, false), delivery.CloudTasks)
}

// Handler is like Echo, for net/http.
func (g *Guard) Handler(k Kind) http.Handler { return handler(g.Echo(k)) }

// Recovery returns the handler of POST /internal/tasks/recover, for Cloud Scheduler: it books
// a delivery for each orphaned document of the kinds that have a handler. It panics if nothing
// checks the callers.
func (g *Guard) Recovery() http.Handler {
	g.mustCheckCallers()
	return handler(g.server.Recovery())
}

// Health returns the handler of /health/live, which answers 200, and /health/ready, which
// answers 503 until Firestore has answered, and from Shutdown on.
func (g *Guard) Health() http.Handler {
	ping := func(ctx context.Context) error { return env.Located(g.options.Emulator, g.any.Ping(ctx)) }
	g.ready.Do(func() { g.background.Go(func() { g.server.AwaitReady(g.work, ping) }) })
	return g.server
}

// Routes returns a handler of all routes: Handler at the path of each kind, Recovery, Health,
// and at /internal/self-test a run of the first kind on Options.SelfTest. It answers other
// paths and methods in JSON too.
func (g *Guard) Routes(kinds ...Kind) http.Handler {
	for i := range kinds {
		guard := g.handled(kinds[i], false)
		if g.server.Route(guard); i == 0 {
			g.server.RouteSelfTest(guard, g.options.SelfTest)
		}
	}
	return g.Health()
}

// handler returns h as a handler of net/http.
func handler(h echo.HandlerFunc) http.Handler {
	e := echo.New()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = h(e.NewContext(r, w)) // it answers its errors itself
	})
}

// answerTime is the part of a stop that is left for the answers.
const answerTime = 500 * time.Millisecond

// Shutdown takes no more deliveries, cancels the runs, and waits until they have released
// their locks, booked their next deliveries and answered, or until ctx ends. Give it at
// least 8 s: a program that ignores SIGTERM takes 5. A run that is still going then keeps its
// lock until that expires; the error says how many do. Shutdown is called once, before the
// HTTP server is shut down, which sends the answers.
func (g *Guard) Shutdown(ctx context.Context) error {
	stop := &delivery.StopError{Deadline: time.Now().Add(time.Minute)}
	if deadline, ok := ctx.Deadline(); ok {
		stop.Deadline = deadline.Add(-answerTime)
	}
	g.stop(stop)
	var err error
	if left := g.server.Drain(ctx); left > 0 {
		err = fmt.Errorf("worker: %d runs are still going: their locks are kept until they expire", left)
	}
	g.background.Wait()
	if g.queue != nil {
		err = errors.Join(err, g.queue.Close())
	}
	return errors.Join(err, g.db.Close())
}

// instance returns the beginning of the owner of each delivery. The hostname is the
// same on every replica of Cloud Run, so it is not part of it.
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
