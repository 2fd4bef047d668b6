package delivery

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"taskguard/internal/taskqueue"
	"taskguard/internal/telemetry"
	"taskguard/lease"
	"taskguard/lease/analysislock"
)

// OrphanFinder finds orphaned analyses, and marks those for which a delivery is booked;
// repo.Analyses does.
type OrphanFinder interface {
	// Orphaned returns readings of up to limit unfinished analyses that only another delivery
	// can finish and for which no delivery is booked. more reports that there may be others.
	Orphaned(ctx context.Context, limit int) (due []lease.Cell[analysislock.Analysis], more bool, err error)
	// MarkDue records that the next attempt may begin now, and returns that time. It
	// returns lease.ErrConflict if the analysis is no longer orphaned. If its document has no
	// room for that, the error is lease.ErrRefused, or analysislock.ErrUnrecordable, which
	// reports that the analysis is now FAILED.
	MarkDue(ctx context.Context, read lease.Cell[analysislock.Analysis]) (next time.Time, err error)
}

const (
	recoverLimit = 10_000 // analyses that one call books
	// recoverTimeout limits a call; the next call is due in a minute.
	recoverTimeout = 50 * time.Second
	maxBookings    = 32 // at the same time
)

// Recovery is the result of a call of Recover.
type Recovery struct {
	Found  int  `json:"found"`  // orphaned analyses, without those that could not be marked
	Booked int  `json:"booked"` // deliveries that this call booked for them
	More   bool `json:"more"`   // there may be others, for the next call
	// Oldest is the age of the oldest unfinished analysis; zero: there is none, or it is unknown.
	Oldest time.Duration `json:"-"`
}

// measureOldest returns the age of the oldest unfinished analysis, or zero if there is none. An
// error does not stop the recovery: the age is then zero too.
func (g *Guard) measureOldest(ctx context.Context) time.Duration {
	oldest, _, err := g.Oldest(ctx)
	if err != nil {
		g.Log.WarnContext(ctx, "the age of the oldest unfinished analysis is unknown", "error", err)
		return 0
	}
	age := oldest.Age(oldest.ReadAt)
	g.Telemetry.Record(ctx, telemetry.OldestAge, age.Seconds())
	return age
}

// ErrNoQueue is Recover's error without a Queue.
var ErrNoQueue = errors.New("worker: no queue is configured: TASK_QUEUE is not set")

// Recover books a delivery for each orphaned analysis: one whose worker died after its
// delivery was acknowledged, one whose booked delivery was lost, or one that was never
// delivered. It marks each first, so that neither it nor another call finds it again within
// one TTL. A booking that fails does not delay the others; Recover returns the first error
// with the result. It takes at most 50 s; the next call books the rest. It is safe for
// concurrent use.
func (g *Guard) Recover(ctx context.Context) (Recovery, error) {
	if g.Queue == nil {
		return Recovery{}, ErrNoQueue
	}
	ctx, cancel := context.WithTimeout(ctx, recoverTimeout)
	defer cancel()

	due, more, err := g.Orphans.Orphaned(ctx, recoverLimit)
	r := Recovery{Found: len(due), More: more}
	if err != nil && len(due) == 0 {
		return r, fmt.Errorf("worker: recover: %w", err)
	}

	var booked, skipped atomic.Int64
	var booking errgroup.Group
	booking.SetLimit(maxBookings)
	if g.Oldest != nil {
		booking.Go(func() error {
			r.Oldest = g.measureOldest(ctx)
			return nil
		})
	}
	for i := range due {
		booking.Go(func() error {
			ok, err := g.rebook(ctx, due[i])
			switch {
			case ok:
				booked.Add(1)
			case err == nil:
				skipped.Add(1)
			}
			return err
		})
	}
	err = errors.Join(err, booking.Wait())

	r.Booked, r.Found = int(booked.Load()), len(due)-int(skipped.Load())
	g.Telemetry.Record(ctx, telemetry.Stuck, float64(r.Found))
	g.Telemetry.Record(ctx, telemetry.Recoveries, float64(r.Booked))
	if err != nil {
		r.More = true
		return r, fmt.Errorf("worker: recover: %w", err)
	}
	return r, nil
}

// RecoverAll calls Recover of all guards at once, and adds their results.
func RecoverAll(ctx context.Context, guards []*Guard) (all Recovery, err error) {
	results, errs := make([]Recovery, len(guards)), make([]error, len(guards))
	var calls sync.WaitGroup
	for i, g := range guards {
		calls.Go(func() {
			if results[i], errs[i] = g.Recover(ctx); errs[i] != nil && g.Kind.other() != "" {
				errs[i] = fmt.Errorf("kind %q: %w", g.Kind.Name, errs[i])
			}
		})
	}
	calls.Wait()

	for _, r := range results {
		all.Found += r.Found
		all.Booked += r.Booked
		all.More = all.More || r.More
		all.Oldest = max(all.Oldest, r.Oldest)
	}
	return all, errors.Join(errs...)
}

// rebook marks an orphaned analysis, and books its next attempt for now. Without an error, ok is
// false if the analysis is no longer orphaned, or if its full document could not be marked.
func (g *Guard) rebook(ctx context.Context, read lease.Cell[analysislock.Analysis]) (ok bool, err error) {
	id := read.Doc.ID
	next, err := g.Orphans.MarkDue(ctx, read)
	switch {
	case errors.Is(err, lease.ErrConflict):
		return false, nil
	case errors.Is(err, analysislock.ErrUnrecordable):
		g.Log.ErrorContext(ctx, "analysis FAILED: its document is full",
			"analysis_id", id, "code", analysislock.Unrecordable)
		return false, nil
	case errors.Is(err, lease.ErrRefused):
		g.Log.WarnContext(ctx, "analysis not recovered: its document is full", "analysis_id", id)
		return false, nil
	}
	if err == nil {
		_, err = g.Book(ctx, id, taskqueue.Task{Name: g.nextName(id, read.Doc.Lock.Token, next)})
	}
	return err == nil, err
}
