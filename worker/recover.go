package worker

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"taskguard/worker/taskqueue"
)

// OrphanFinder finds orphaned analyses; repo.Analyses does.
type OrphanFinder interface {
	// Orphaned calls each, oldest first, for up to limit unfinished analyses whose
	// lock is not held and whose last update is older than one TTL; at is the store's
	// time of the reading.
	Orphaned(ctx context.Context, limit int, each func(id string, token int64, at time.Time)) error
}

const (
	// recoverLimit is the number of analyses that one call reads. It is large, since
	// it includes analyses that were booked earlier in this hour, and analyses that
	// can never be delivered.
	recoverLimit = 10_000
	// recoverTimeout limits a call; the next call is due in a minute.
	recoverTimeout = 50 * time.Second
	maxBookings    = 16 // at the same time
)

// Recovery is the result of a call of Recover.
type Recovery struct {
	Found  int `json:"found"`  // orphaned analyses
	Booked int `json:"booked"` // deliveries that this call booked; the others were booked before
}

// ErrNoQueue is Recover's error without a Queue.
var ErrNoQueue = errors.New("worker: no queue is configured: TASK_QUEUE is not set")

// Recover books a delivery for each orphaned analysis: one whose worker died after its
// delivery was acknowledged, or one that was never delivered. A task's name contains the
// hour, so an analysis is booked once an hour, and again in the next hour if it is still
// orphaned. A booking that fails does not delay the others; Recover returns the first
// error with the result. It tries for at most 50 s, and is safe for concurrent use.
func (g *Guard) Recover(ctx context.Context) (Recovery, error) {
	if g.Queue == nil {
		return Recovery{}, ErrNoQueue
	}
	ctx, cancel := context.WithTimeout(ctx, recoverTimeout)
	defer cancel()
	var r Recovery
	var tasks []taskqueue.Task
	err := g.Orphans.Orphaned(ctx, recoverLimit, func(id string, token int64, at time.Time) {
		r.Found++
		hour := at.UTC().Format("2006-01-02T15")
		tasks = append(tasks, taskqueue.Task{
			Name:       taskqueue.Name("recover", id, strconv.FormatInt(token, 10), hour),
			AnalysisID: id, Deadline: DispatchDeadline(g.RunTimeout),
		})
	})
	if err != nil {
		return r, fmt.Errorf("worker: recover: %w", err)
	}
	g.Telemetry.Stuck(ctx, r.Found)
	created := make([]bool, len(tasks))
	var booking errgroup.Group
	booking.SetLimit(maxBookings)
	for i, t := range tasks {
		booking.Go(func() error {
			already, err := g.Queue.Book(ctx, t)
			created[i] = err == nil && !already
			return err
		})
	}
	err = booking.Wait()
	for _, isNew := range created {
		if isNew {
			r.Booked++
		}
	}
	g.Telemetry.Recovered(ctx, r.Booked)
	if err != nil {
		return r, fmt.Errorf("worker: recover: %w", err)
	}
	return r, nil
}
