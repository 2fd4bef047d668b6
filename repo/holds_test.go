package repo

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"taskguard/internal/testing/emulatortest"
	"taskguard/lease"
	"taskguard/lease/analysislock"
)

// worker is an Analyses with a connection of its own and the holds that it acquired.
type worker struct {
	*Analyses
	mu    sync.Mutex
	holds map[string]*analysislock.Hold // by owner
	again bool                          // its deliveries are retries, which begin with the masked read
}

// open connects a worker to b.
func open(t testing.TB, b *emulatortest.Backend, opts ...grpc.DialOption) *worker {
	t.Helper()
	a, err := Open(t.Context(), b.Project, optionsFor(b, Options{Policy: lease.Policy{TTL: ttl(b), MaxAttempts: 10}}), b.Client(t, opts...)...)
	fatal(t, err)
	return &worker{Analyses: a, holds: map[string]*analysislock.Hold{}}
}

// openFaulty connects a worker to b by a connection that fails as planned.
func openFaulty(t testing.TB, b *emulatortest.Backend) (*worker, *faultyConn) {
	t.Helper()
	l := &faultyConn{}
	return open(t, b, l.options()...), l
}

// optionsFor returns o for the documents of b.
func optionsFor(b *emulatortest.Backend, o Options) Options {
	o.Collection, o.Fields = b.Collection, Fields(b.Vocabulary)
	return o
}

// inTransactions is a store that makes every change in a transaction, because its first two swaps
// are conflicts. The third one is real: Edit confirms by it that a transaction was refused.
type inTransactions struct {
	*documents[analysislock.Analysis]
	conflicts int
}

func (s *inTransactions) Swap(ctx context.Context, id string, prev lease.Cell[analysislock.Analysis],
	next analysislock.Analysis,
) (lease.Cell[analysislock.Analysis], error) {
	if s.conflicts++; s.conflicts <= 2 {
		return lease.Cell[analysislock.Analysis]{}, fmt.Errorf("%w: %w", lease.ErrUnwritten, lease.ErrConflict)
	}
	s.conflicts = 0
	return s.documents.Swap(ctx, id, prev, next)
}

func (s *inTransactions) Exclude(ctx context.Context, id string, want lease.Want,
	decide func(lease.Cell[analysislock.Analysis]) (analysislock.Analysis, error),
) (c lease.Cell[analysislock.Analysis], err error) {
	if c, err = s.documents.Exclude(ctx, id, want, decide); err == nil {
		s.conflicts = 0
	}
	return c, err
}

// decideInTransactions makes every change of w's locks in a transaction.
func (w *worker) decideInTransactions(t *testing.T) {
	t.Helper()
	var err error
	w.Locks, err = analysislock.New(&inTransactions{documents: w.documents}, w.codec.policy, 0, w.work)
	fatal(t, err)
}

// acquire acquires id as a delivery does, and keeps the hold.
func (w *worker) acquire(ctx context.Context, id, owner string) (analysislock.Acquisition, error) {
	options := analysislock.AcquireOptions{Want: lease.LeaseAndWork}
	if w.again {
		options.Want = lease.OnlyLease
	}
	acq, err := w.AcquireAnalysisLock(ctx, id, owner, 0, options)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.holds[owner] = acq.Hold
	return acq, err
}

// run runs body with owner's hold.
func (w *worker) run(ctx context.Context, owner string, body func(ctx context.Context, work analysislock.Work) error) error {
	hold := w.holds[owner]
	return hold.Run(ctx, func(ctx context.Context) error {
		work, err := w.Work(ctx, hold)
		if err != nil {
			return err
		}
		return body(ctx, work)
	}, nil)
}

// runs runs a body that ends at once, and checks that it ran.
func (w *worker) runs(t *testing.T, owner string) {
	t.Helper()
	ran := false
	err := w.run(t.Context(), owner, func(context.Context, analysislock.Work) error {
		ran = true
		return nil
	})
	if err != nil || !ran {
		t.Errorf("run as %s: %v, ran %v", owner, err, ran)
	}
}

func acquire(t testing.TB, w *worker, id, owner string) analysislock.Acquisition {
	t.Helper()
	acq, err := w.acquire(t.Context(), id, owner)
	if err != nil {
		t.Fatalf("acquire %s as %s: %v", id, owner, err)
	}
	return acq
}

func mustAcquire(t testing.TB, w *worker, id, owner string) analysislock.Acquisition {
	t.Helper()
	acq := acquire(t, w, id, owner)
	if !acq.Acquired {
		t.Fatalf("acquire %s as %s: %+v", id, owner, acq)
	}
	return acq
}

// withoutRuns removes from a document's fields when it was written and what its runs were.
func withoutRuns(fields map[string]any) map[string]any {
	for _, name := range []string{"updatedAt", "startedAt", "history", "progress"} {
		delete(fields, name)
	}
	return fields
}

// check fails the test after an error, and fatal ends it.
func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

func fatal(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// same compares two values.
func same(t testing.TB, want, got any) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// The last reply to a holder took 4 s, and then Firestore stops answering. The run ends one
// margin before the stored expiry by Firestore's clock, which is also the holder's here.
func TestTrustIsCountedFromTheStartOfTheCall(t *testing.T) {
	cases := map[string]struct {
		exclusive bool
		faults    map[string][]fault
	}{
		"a commit":                                         {false, map[string][]fault{commit: {slowReply}}},
		"a read that shows a lost commit":                  {false, map[string][]fault{commit: {lost(codes.Unknown)}, read: {slowReply}}},
		"a commit in a transaction":                        {true, map[string][]fault{exclusiveCommit: {slowReply}}},
		"a read in a transaction":                          {true, map[string][]fault{exclusiveRead: {slowReply}}},
		"a read in a transaction that shows a lost commit": {true, map[string][]fault{exclusiveCommit: {lost(codes.Unknown)}, exclusiveRead: {nil, slowReply}}},
	}
	for name, tc := range cases {
		plan := func(t *testing.T, b *emulatortest.Backend) map[string][]fault {
			t.Helper()
			if tc.exclusive {
				return exclusively(t, b, tc.faults)
			}
			return maps.Clone(tc.faults)
		}
		for verb, after := range map[string]time.Duration{"acquire": 0, "heartbeat": 150 * time.Second} { // one heartbeat, at 100 s
			t.Run(verb+"/"+name, func(t *testing.T) {
				inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
					a, l := openFaulty(t, b)
					b.Put(t, "x", map[string]any{"status": analysislock.Queued})
					faults := plan(t, b)
					if verb == "heartbeat" {
						mustAcquire(t, a, "x", "w/1")
					} else if len(faults[read]) > 0 {
						faults[read] = append([]fault{nil}, faults[read]...) // an acquisition begins with a read
					}
					l.inject(faults)
					if verb == "acquire" {
						mustAcquire(t, a, "x", "w/1")
					}
					wantTrust(t, b, a, l, after)
				})
			})
		}
	}
}

// wantTrust runs with the lock of w/1 on x, and l stops answering after some time. It wants the
// run to end one margin before the expiry, up to the milliseconds in which times are stored.
func wantTrust(t *testing.T, b *emulatortest.Backend, a *worker, l *faultyConn, after time.Duration) {
	t.Helper()
	var ended time.Time
	err := a.run(t.Context(), "w/1", func(ctx context.Context, _ analysislock.Work) error {
		time.Sleep(after)
		l.wantAllInjected(t)
		l.stopAnswering()
		select {
		case <-ctx.Done():
			ended = time.Now()
		case <-time.After(time.Hour):
		}
		return nil
	})
	var outOfTime *lease.LostError
	if !errors.As(err, &outOfTime) || outOfTime.Reason != lease.OutOfTime {
		t.Fatalf("run: %v, want out of time", err)
	}
	expires, _ := parseTime(b.Fields(t, "x")["lockExpiresAt"])
	if late := ended.Sub(expires.Add(-lease.Policy{}.Margin())); late.Abs() > 10*time.Millisecond {
		t.Errorf("trust ended %v too late", late)
	}
}

// Not at the time of the call or of its reply.
func TestExpiryIsJudgedAtTheTimeOfTheReading(t *testing.T) {
	cases := map[string]struct {
		fault fault
		want  string
	}{
		"expired while the reply travelled":   {slowReply, analysislock.Locked},
		"expired while the request travelled": {slowRequest, ""},
	}
	for name, tc := range cases {
		theirs := func() map[string]any {
			return map[string]any{"lockOwner": "them", "lockExpiresAt": time.Now().Add(delay / 2)}
		}
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
				a, l := openFaulty(t, b)
				b.Put(t, "x", theirs())
				l.inject(map[string][]fault{read: {tc.fault}})
				wantVerdict(t, a, tc.want)
				l.wantAllInjected(t)
			})
		})
		t.Run(name+", in a transaction", func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
				a, l := openFaulty(t, b)
				b.Put(t, "x", map[string]any{"n": 0})
				l.inject(map[string][]fault{
					commit: {
						overtaken(func() { b.Merge(t, "x", map[string]any{"n": 1}) }),
						overtaken(func() { b.Merge(t, "x", theirs()) }),
					},
					exclusiveRead: {tc.fault},
				})
				wantVerdict(t, a, tc.want)
				l.wantAllInjected(t)
			})
		})
	}
}

func wantVerdict(t *testing.T, a *worker, want string) {
	t.Helper()
	acq := acquire(t, a, "x", "w/1")
	if acq.Reason != want || acq.Acquired != (want == "") {
		t.Errorf("acquire = %+v, want %q", acq, want)
	}
	if left := acq.Remaining; want == analysislock.Locked && (left <= delay/2-10*time.Millisecond || left > delay/2) {
		t.Errorf("remaining %v, want %v", left, delay/2)
	}
}
