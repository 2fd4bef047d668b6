package worker

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/labstack/echo/v4"

	"taskguard/internal/telemetry"
	"taskguard/repo"
)

// Work is a registered kind of work: its handlers, and the methods that submit work. The embedded Kind has the defaults
// of its empty fields. Call its function Run as Kind.Run, because Work has a method Run. A Work is safe for concurrent
// use, until its Guard's Shutdown.
type Work struct {
	Kind
	collection
	service *Guard
}

// Register adds a kind of work to the Guard. Leave out Run in a program that only submits or operates on documents, and
// for handlers of [Work.PubSub] and [Work.Eventarc] that only enqueue.
//
// Each kind of a Guard needs its own name, path and collection: otherwise a delivery of one could be handled as the
// other's. The error says which field to change. A kind with a Run needs a check of its callers; see Options.Auth. The
// name do is for an Operator on the records of Do in Collection. These have no deliveries, so Run and Submit are
// refused. After Shutdown the error is ErrStopping.
func (g *Guard) Register(k Kind) (*Work, error) {
	if cmp.Or(k.Name, analysis) == analysis {
		k.Collection = cmp.Or(k.Collection, g.options.Collection)
	}
	k, err := k.Filled()
	switch {
	case err != nil:
		return nil, err
	case g.work.Err() != nil:
		return nil, fmt.Errorf("worker: kind %q: %w", k.Name, ErrStopping)
	case k.Name == recordsName && (k.Run != nil || k.Start != nil):
		return nil, errors.New("worker: kind \"do\": the records of Do have no Run: their callers do the work")
	case k.Name == recordsName:
		return g.recordsWork(k)
	case strings.HasSuffix(g.options.Queue.TargetURL, k.Path):
		return nil, fmt.Errorf("worker: Queue.TargetURL, TASK_TARGET_URL: want it without %s, the path of kind %q, "+
			"which tasks add", k.Path, k.Name)
	case (k.Run != nil || k.Start != nil) && g.auth == (always{errNoAuth}):
		return nil, errNoAuth
	}

	o := g.options
	o.NoHTTP = o.NoHTTP || k.Start != nil // then no delivery waits for the run
	o.RunTimeout = cmp.Or(k.RunTimeout, o.RunTimeout)
	if err = k.checkKeys(o); err != nil {
		return nil, fmt.Errorf("worker: kind %q: %w", k.Name, err)
	}
	work := &Work{Kind: k, service: g}
	work.collection, err = g.collection(k, g.storeOptions(k))
	if err = errors.Join(append(o.check(), err)...); err != nil {
		return nil, fmt.Errorf("worker: kind %q: %w", k.Name, err)
	}
	if err = g.add(work); err != nil {
		return nil, err
	}
	return work, nil
}

// recordsWork returns the Work of the records of Do in the Collection of k.
func (g *Guard) recordsWork(k Kind) (*Work, error) {
	records, err := g.openRecords(DoOptions{Collection: k.Collection})
	if err != nil {
		return nil, fmt.Errorf("worker: kind %q: %w", k.Name, err)
	}
	return &Work{k, records, g}, nil
}

// MustRegister is like Register, and panics on an error.
func (g *Guard) MustRegister(k Kind) *Work {
	work, err := g.Register(k)
	if err != nil {
		panic(err)
	}
	return work
}

// add adds work to the Guard, unless another kind or the records of Do have its name, path or collection.
func (g *Guard) add(work *Work) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, other := range g.works {
		switch {
		case other.Name == work.Name, other.Path == work.Path, other.Collection == work.Collection:
			return fmt.Errorf("worker: kind %q has the name, the path or the collection of kind %q",
				work.Name, other.Name)
		case other.keyCollection() == work.Collection, work.keyCollection() == other.Collection:
			return fmt.Errorf("worker: kinds %q and %q: the Collection of one has the keys of the other",
				work.Name, other.Name)
		}
	}
	if g.records[work.Collection] || g.records[work.keyCollection()] {
		return fmt.Errorf("worker: kind %q has the collection of records of Do", work.Name)
	}
	g.works = append(g.works, work)
	return nil
}

// keyCollection returns the collection of the records of the keys; empty: runs are not limited.
func (w *Work) keyCollection() string {
	if w.analyses.Keys == nil {
		return ""
	}
	return repo.KeyCollection(w.Collection)
}

// WithoutRun returns w for handlers of [Work.PubSub] and [Work.Eventarc] that only enqueue a delivery to Path, where
// the queue then runs the work. Cloud Tasks waits 30 minutes for an answer, and Pub/Sub at most 10.
func (w *Work) WithoutRun() *Work {
	booking := *w
	booking.Kind.Run, booking.Start = nil, nil
	return &booking
}

// Echo returns the handler of Cloud Tasks' deliveries, for POST in an Echo. For each delivery it acquires the lock,
// calls the kind's Run and answers, as docs/reference.md describes. With a Start it calls that instead, without the
// lock. It answers 500 without both, and with a Start but no Queue.
func (w *Work) Echo() echo.HandlerFunc { return echo.WrapHandler(w.Handler()) }

// Handler is like Echo, for net/http.
func (w *Work) Handler() http.Handler { return w.taskHandler(parseTask, w.runs()) }

// runs returns an error unless a delivery of this kind runs the work, or starts its run elsewhere. Without a
// Queue nobody would find a started run that dies.
func (w *Work) runs() error {
	switch {
	case w.Start != nil && w.runner.Queue == nil:
		return fmt.Errorf("worker: kind %q has a Start, which needs Options.Queue, TASK_QUEUE", w.Name)
	case w.Kind.Run == nil && w.Start == nil:
		return fmt.Errorf("worker: kind %q has no Run", w.Name)
	}
	return nil
}

// PubSub returns the handler of a Pub/Sub push subscription with wrapped messages of at most 1 MiB. A message has the
// id of an existing document in its attribute IDField or in its data, a JSON object with that field. It is handled like
// a task of Handler: a 200 acknowledges it, and after any other answer Pub/Sub delivers it again, by the subscription's
// retry policy. A message that can never succeed is acknowledged, and logged as rejected.
//
// Pub/Sub waits for the answer until the acknowledgement deadline, 10 s by default and at most 600 s, and then delivers
// the message again. The work does not run twice, but without a Queue the deliveries repeat during the run. Set
// RunTimeout to less than the deadline, or use [Work.WithoutRun], so that a message only enqueues a delivery to Path.
// Without a Run and a Queue each message is answered 500.
//
// The subscription's token must pass Options.Auth.
func (w *Work) PubSub() http.Handler { return w.pushHandler(parseMessage) }

// Eventarc is like PubSub, for the event google.cloud.firestore.document.v1.created of documents that other programs
// create in Collection, in the binary mode of CloudEvents. Other events, and events of another project or database, are
// logged as rejected. Eventarc delivers by Pub/Sub, so the same limits apply. The id is in a header, so a document
// whose id begins or ends with a space is not found.
func (w *Work) Eventarc() http.Handler {
	o := w.service.options
	return w.pushHandler(parseEvent(o.Project, cmp.Or(o.Database, "(default)"), w.Collection))
}

func (w *Work) pushHandler(parse parser) http.Handler {
	err := w.runs()
	if w.runner.Queue != nil { // it books
		err = nil
	}
	return w.taskHandler(parse, err)
}

// taskHandler returns the route for tasks or messages of this kind. parse extracts the delivery from the
// request. With an err, the handler can neither run nor book the work, and answers 500. From now on, recovery
// includes the kind.
func (w *Work) taskHandler(parse parser, err error) http.Handler {
	g := w.service
	g.mu.Lock()
	defer g.mu.Unlock()
	if w.Name != recordsName && !slices.Contains(g.handled, w.runner) {
		g.handled = append(g.handled, w.runner)
	}

	serve := (*call).deliver
	if err != nil {
		serve = func(c *call) { c.reply(internalError, err) }
	}
	return &route{
		guard: g, name: telemetry.Delivery, runner: w.runner, analyzer: w.analyzer(), start: w.Start,
		parse: parse, serve: serve,
	}
}
