package worker

import (
	"cmp"
	"context"
	"sync"

	"github.com/labstack/echo/v4"
	"golang.org/x/sync/semaphore"

	"taskguard/internal/delivery"
	"taskguard/internal/lifecycle"
	"taskguard/internal/taskqueue"
	"taskguard/internal/telemetry"
	"taskguard/repo"
)

// Guard guards the kinds of work of one service. It is safe for concurrent use. Shutdown ends it.
type Guard struct {
	options   Options
	db        *repo.Database
	probe     *repo.Analyses   // answers Health whether Firestore can be reached
	queue     *taskqueue.Queue // nil without a Queue in the Options
	telemetry *telemetry.Telemetry
	instance  string // begins the owner of each lock
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
	disconnect func() error // closes the connections, once

	mu       sync.Mutex
	works    []*Work                   // the registered kinds
	records  map[string]bool           // the collections that Do has used
	reported map[string]*repo.Analyses // these collections and the default one
	handled  []*delivery.Runner        // the kinds that recovery books, which have a handler

	large  *semaphore.Weighted // see delivery.Runner
	places *delivery.Places    // MaxRuns of them, for the deliveries of all kinds
}

// collection has the documents of a kind, or the records of Do, and handles their deliveries.
type collection struct {
	analyses *repo.Analyses
	runner   *delivery.Runner
}

// storeOptions returns the options of a kind's collection.
func (g *Guard) storeOptions(k Kind) repo.Options {
	o := g.options
	return repo.Options{
		Database: o.Database, Emulator: o.Emulator, Collection: k.Collection, Fields: k.Fields,
		Policy: o.Lock, MaxRunTime: o.MaxRunTime, Keep: o.Keep, Log: o.Log, Concurrency: k.concurrency(o),
	}
}

// collection returns the documents of the kind k. options configures them.
func (g *Guard) collection(k Kind, options repo.Options) (c collection, err error) {
	analyses, err := g.db.Analyses(options)
	if err != nil {
		return c, err
	}
	o := g.options
	c = collection{analyses, &delivery.Runner{
		Names: delivery.TaskNames{IDField: k.IDField, Path: k.Path},
		Locks: analyses, Orphans: analyses, Oldest: analyses.OldestUnfinished,
		Scope: analyses.Path(), Instance: g.instance,
		RunTimeout: cmp.Or(k.RunTimeout, o.RunTimeout), StallTimeout: o.StallTimeout,
		CheckpointInterval: o.CheckpointInterval,
		RetryMin:           o.RetryMin, RetryMax: o.RetryMax, Large: g.large, Log: o.Log, Telemetry: g.telemetry,
	}}
	if options.Concurrency != nil {
		c.runner.Keys, c.runner.HoldKeys = analyses, options.Concurrency.Hold
		c.runner.Parked, c.runner.Keyless = analyses.CountParked, &delivery.Keyless{}
	}
	if k.Name != analysis {
		c.runner.Names.Kind, c.runner.Telemetry = k.Name, g.telemetry.OfKind(k.Name)
	}
	if g.queue != nil {
		c.runner.Queue = g.queue
	}
	return c, nil
}
