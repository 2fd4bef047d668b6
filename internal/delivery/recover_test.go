package delivery

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"taskguard/internal/taskqueue"
	"taskguard/internal/testing/must"
	"taskguard/lease"
	"taskguard/lease/analysislock"
)

// forgetful is a queue in which the first used names of tasks are used up.
type forgetful struct {
	used   int
	found  taskqueue.Presence
	err    error
	booked []string
}

func (q *forgetful) Book(_ context.Context, task taskqueue.Task) (already bool, err error) {
	q.booked = append(q.booked, task.Name)
	return len(q.booked) <= q.used, nil
}

func (q *forgetful) Find(context.Context, string, time.Time) (taskqueue.Presence, error) {
	return q.found, q.err
}

// After a purge of the queue, the name of a parked analysis's task is used up, and the queue does not have the task.
func TestRecovery_Wake(t *testing.T) {
	for name, c := range map[string]struct {
		queue        forgetful
		tried, count int // names, and how many bookings recovery reports
	}{
		"its task is new":             {forgetful{}, 1, 1},
		"the queue has its task":      {forgetful{used: 1, found: taskqueue.Waiting}, 1, 0},
		"its task is underway":        {forgetful{used: 1, found: taskqueue.Underway}, 1, 0},
		"the queue does not say":      {forgetful{used: 1, err: errors.New("no")}, 1, 0},
		"its task is lost":            {forgetful{used: 1}, 2, 1},
		"it was booked again already": {forgetful{used: 2}, 2, 0},
	} {
		t.Run(name, func(t *testing.T) {
			r := &recovery{Runner: &Runner{Queue: &c.queue}}
			must.OK(t, r.wake(t.Context(), &analysislock.Analysis{ID: "x"}))
			if n := len(slices.Compact(c.queue.booked)); n != c.tried || r.booked.Load() != int64(c.count) {
				t.Errorf("names %q, %d booked; want %d and %d", c.queue.booked, r.booked.Load(), c.tried, c.count)
			}
		})
	}

	q, began := &forgetful{used: 9}, time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	r := &recovery{Runner: &Runner{Queue: q}}
	for _, minute := range []int{0, 4, 5} {
		d := analysislock.Analysis{ID: "x", ReadAt: began.Add(time.Duration(minute) * time.Minute)}
		must.OK(t, r.wake(t.Context(), &d))
	}
	if q.booked[1] != q.booked[3] || q.booked[3] == q.booked[5] {
		t.Errorf("%q, want another name at most once in five minutes", q.booked)
	}
}

// fullOrphans are documents without room for a mark, which a call makes FAILED.
type fullOrphans struct{ OrphanFinder }

func (fullOrphans) MarkDue(context.Context, lease.Cell[analysislock.Analysis], func(time.Time) string) (string, error) {
	return "", &analysislock.UnrecordableError{ID: "x", OpenActs: 1}
}

// An analysis that becomes FAILED because its document is full may have an act that nobody has confirmed.
func TestUnrecordable_OpenActs(t *testing.T) {
	for name, fail := range map[string]func(r *Runner){
		"by recovery": func(r *Runner) {
			r.Queue, r.Orphans = &forgetful{}, fullOrphans{}
			orphan := analysislock.Analysis{ID: "x"} // its acts were not read
			must.OK(t, (&recovery{Runner: r}).rebook(t.Context(), lease.Cell[analysislock.Analysis]{Doc: orphan}))
		},
		"by the delay of a suspect": func(r *Runner) {
			a := &attempt{runner: r, id: "x"}
			a.skip(t.Context(), &analysislock.UnrecordableError{ID: "x", OpenActs: 1})
		},
	} {
		t.Run(name, func(t *testing.T) {
			var log strings.Builder
			fail(&Runner{Log: slog.New(slog.NewTextHandler(&log, nil))})
			if !strings.Contains(log.String(), `level=ERROR msg="`+UncertainMessage+`" analysis_id=x`) {
				t.Errorf("nobody is told:\n%s", &log)
			}
		})
	}
}

// none is a backlog without orphans.
type none struct{ OrphanFinder }

func (none) Orphaned(context.Context, int) ([]lease.Cell[analysislock.Analysis], bool, error) {
	return nil, false, nil
}

// unreadable are keys whose parked analyses cannot be read.
type unreadable struct{ Keys }

func (unreadable) Wakeable(context.Context) ([]analysislock.Analysis, error) {
	return nil, lease.ErrUnavailable
}

// The oldest of all kinds counts, by the store's time.
func TestRecoverAll(t *testing.T) {
	began := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	aged := func(minutes int, keys Keys) *Runner {
		return &Runner{
			Names: TaskNames{Kind: "k"}, Queue: &forgetful{}, Orphans: none{}, Keys: keys,
			Oldest: func(context.Context) (analysislock.Analysis, bool, error) {
				now := began.Add(time.Duration(minutes) * time.Minute)
				return analysislock.Analysis{CreatedAt: began, ReadAt: now}, true, nil
			},
		}
	}
	all, err := RecoverAll(t.Context(), []*Runner{aged(1, nil), aged(3, nil), aged(2, unreadable{})})
	if all.Oldest != 3*time.Minute || !all.More {
		t.Errorf("%+v, want the age of 3 minutes, and more", all)
	}
	if !errors.Is(err, lease.ErrUnavailable) || !strings.Contains(err.Error(), `kind "k"`) {
		t.Errorf("%v, want the error of the kind's keys", err)
	}
}
