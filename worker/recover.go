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

// Backlog finds orphaned analyses; repo.Analyses does.
type Backlog interface {
	// Orphaned calls each, oldest first, for up to limit unfinished analyses that
	// nobody holds and whose last update is older than one TTL; at is the store's
	// time of the reading.
	Orphaned(ctx context.Context, limit int, each func(id string, token int64, at time.Time)) error
}

const (
	// recoverLimit is how many analyses one call reads. Those booked already in
	// this hour count too, and those that can never be delivered, so it is far
	// above any of these.
	recoverLimit = 10_000
	// recoverTimeout bounds a call; the next is due in a minute.
	recoverTimeout = 50 * time.Second
	bookers        = 16
)

// Recovery is the result of a call of Recover.
type Recovery struct {
	Found  int // orphaned analyses
	Booked int // deliveries booked by this call; the others' were booked already
}

// ErrNoQueue is Recover's answer without a Queue.
var ErrNoQueue = errors.New("worker: no queue is configured: TASK_QUEUE is not set")

// Recover books a delivery for each orphaned analysis: whose worker has died after its
// delivery was acknowledged, or whose delivery was never made. A name lasts an hour, so
// a backlog is not booked again by each call, and a delivery without a result is. A
// booking that fails delays no other; the first error is returned with the result. It
// tries for at most 50 s, and is safe for concurrent use.
func (g *Guard) Recover(ctx context.Context) (Recovery, error) {
	if g.Queue == nil {
		return Recovery{}, ErrNoQueue
	}
	ctx, cancel := context.WithTimeout(ctx, recoverTimeout)
	defer cancel()
	var r Recovery
	var tasks []taskqueue.Task
	err := g.Backlog.Orphaned(ctx, recoverLimit, func(id string, token int64, at time.Time) {
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
	news := make([]bool, len(tasks))
	var booking errgroup.Group
	booking.SetLimit(bookers)
	for i, t := range tasks {
		booking.Go(func() error {
			already, err := g.Queue.Book(ctx, t)
			news[i] = err == nil && !already
			return err
		})
	}
	err = booking.Wait()
	for _, isNew := range news {
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
