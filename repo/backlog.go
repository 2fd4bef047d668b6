package repo

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"cloud.google.com/go/firestore"
	"golang.org/x/sync/errgroup"

	"taskguard/lease/analysislock"
)

// Step is the length of an Interval. A Backlog has twelve of them, which begin at whole quarters
// of an hour: in three hours an incident has a beginning, and twelve bars fit a phone.
const Step = 15 * time.Minute

const steps = 12

// Interval counts the analyses that ended, or began to run for the first time, in the Step after
// From. An analysis that was requeued or deleted since is not counted, unless it was counted before.
type Interval struct {
	From     time.Time `json:"from"`
	Started  int64     `json:"started"`  // StartedAt is in the interval
	Finished int64     `json:"finished"` // READY, and UpdatedAt is in the interval
	Failed   int64     `json:"failed"`   // FAILED, and UpdatedAt is in the interval
}

// Backlog counts the unfinished analyses, and what was done in the last intervals.
type Backlog struct {
	At              time.Time `json:"at"`                         // Firestore's time of the reading
	Running         int64     `json:"running"`                    // their lock has not expired
	Waiting         int64     `json:"waiting"`                    // QUEUED or PROCESSING, and neither running nor stuck
	Stuck           int64     `json:"stuck"`                      // may be too low: waiting ones may hide some
	OldestCreatedAt time.Time `json:"oldest_created_at,omitzero"` // OldestUnfinished; zero: none, or unknown
	Since           time.Time `json:"since"`                      // start of the last three Intervals, 30 to 45 min ago
	Created         int64     `json:"created"`                    // created after Since
	Ended           int64     `json:"ended"`                      // ended after Since
	// DrainedAt is when nothing waits any more, at the rate after Since, if no more are created;
	// zero: none ended.
	DrainedAt time.Time  `json:"drained_at,omitzero"`
	Intervals []Interval `json:"intervals"` // the oldest first; the last one has not ended
	Top       int64      `json:"-"`         // the most that were started, or that ended, in one of them
}

// Reads returns about how many reads Firestore bills for the next Backlog.
func (b Backlog) Reads() int64 { return 15 + (b.Created+3*(b.Running+b.Waiting+b.Stuck))/1000 }

// sum sets Top, Ended, and DrainedAt: until then, as many end as now wait.
func (b *Backlog) sum() {
	for _, i := range b.Intervals {
		ended := i.Finished + i.Failed
		if b.Top = max(b.Top, i.Started, ended); !i.From.Before(b.Since) {
			b.Ended += ended
		}
	}
	if left := b.Waiting + b.Stuck; left == 0 || b.Ended > 0 {
		wait := time.Duration(min(float64(b.At.Sub(b.Since))*float64(left)/float64(max(1, b.Ended)), 1<<62))
		b.DrainedAt = b.At.Add(wait)
	}
}

// Backlog counts by aggregation queries, within 15 s. stuck is how many stuck analyses the caller
// knows. Backlog makes a read, OldestUnfinished's queries, 5 counts, and 3 for each interval. An
// Analyses keeps the counts of each interval that ended more than a minute ago: the first call makes 41
// counts, and each further one 8 to 11. Firestore bills a read for each thousand. An analysis
// without the time that an interval needs is not in it, and a time with another zone's offset may
// be in another one.
//
// It returns the errors of Page. It needs the indexes of Orphaned and OldestUnfinished.
func (a *Analyses) Backlog(ctx context.Context, stuck int) (b Backlog, err error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	oldest, _, err := a.OldestUnfinished(ctx)
	if err == nil || errors.Is(err, ErrUnread) {
		b.At, err = a.documents.now(ctx)
	}
	if err != nil {
		return b, err
	}

	current, cutoff := b.At.UTC().Truncate(Step), b.At.Add(-a.stuckAfter())
	b.OldestCreatedAt, b.Since = oldest.CreatedAt, current.Add(-2*Step)
	all := a.documents.collection.Query
	var unfinished, stale, waiting, parked int64
	queries := map[*int64]firestore.Query{
		&unfinished: a.unfinished(),
		&b.Running:  anyOf(all, timeIs("lockExpiresAt", ">", b.At)),
		&stale:      a.stale(cutoff, b.At), // it also finds analyses that wait for their next attempt
		&waiting:    anyOf(all, timeIs("nextAttemptAt", ">=", cutoff)),
		&b.Created:  anyOf(all, timeIs("createdAt", ">=", b.Since)),
	}
	if a.Keys != nil {
		queries[&parked] = all.Where("parkedAt", "<", timeValue(cutoff))
	}
	b.Intervals = a.intervals(current, queries)

	counts, ctx := errgroup.WithContext(ctx)
	counts.SetLimit(8)
	for n := range queries {
		counts.Go(func() (err error) {
			*n, err = count(ctx, queries[n])
			return err
		})
	}
	if err = counts.Wait(); err != nil {
		return b, err
	}

	b.Stuck = max(int64(stuck), stale-waiting-parked)
	b.Waiting = max(0, unfinished-b.Running-b.Stuck)
	b.sum()
	a.backlog.Store(&b)
	return b, nil
}

// intervals returns the intervals until current. It copies each interval that the last Backlog
// counted after its end, and adds to queries the counts of the others.
func (a *Analyses) intervals(current time.Time, queries map[*int64]firestore.Query) []Interval {
	all, last := make([]Interval, steps), cmp.Or(a.backlog.Load(), &Backlog{})
	for n := range all {
		i, from := &all[n], current.Add(time.Duration(n+1-steps)*Step)
		until := from.Add(Step)
		counted := slices.IndexFunc(last.Intervals, func(old Interval) bool { return old.From.Equal(from) })
		if counted >= 0 && !until.Add(time.Minute).After(last.At) { // a commit is never a minute late
			*i = last.Intervals[counted]
			continue
		}
		i.From = from
		queries[&i.Started] = anyOf(a.documents.collection.Query, within("startedAt", from, until))
		queries[&i.Finished] = a.selected(&Filter{Status: analysislock.Ready, Since: from, Before: until})
		queries[&i.Failed] = a.selected(&Filter{Status: analysislock.Failed, Since: from, Before: until})
	}
	return all
}
