package repo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"

	"taskguard/internal/testing/emulatortest"
	"taskguard/internal/testing/must"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/lease/iso8601"
)

// doc has the fields of a document, in the vocabulary of analyses.
type doc = map[string]any

// with returns d with more fields.
func with(d, more doc) doc {
	all := maps.Clone(d)
	maps.Copy(all, more)
	return all
}

type backend = emulatortest.Backend

// inBubble runs a test on the embedded server in virtual time, once for each kind.
func inBubble(t *testing.T, run func(t *testing.T, b *backend)) {
	t.Helper()
	emulatortest.EmbeddedKinds(t, run)
}

// ttl returns the default in a bubble, and a short TTL where time is real.
func ttl(b *backend) time.Duration {
	if b.Google() {
		return 5 * time.Second
	}
	return lease.DefaultTTL
}

// worker is an Analyses with a connection of its own and the holds that it acquired.
type worker struct {
	*Analyses
	mu    sync.Mutex
	holds map[string]*analysislock.Hold // by owner
	again bool                          // its deliveries are retries, which begin with the masked read
}

// open connects a worker to b.
func open(t testing.TB, b *backend, opts ...grpc.DialOption) *worker {
	t.Helper()
	return openWith(t, b, Options{Policy: lease.Policy{TTL: ttl(b), MaxAttempts: 10}}, opts...)
}

// openWith connects a worker to the documents of b.
func openWith(t testing.TB, b *backend, o Options, opts ...grpc.DialOption) *worker {
	t.Helper()
	o.Collection, o.Fields = b.Collection, Fields(b.Vocabulary)
	a := must.Get(Open(t.Context(), b.Project, o, b.Client(t, opts...)...))(t)
	return &worker{Analyses: a, holds: map[string]*analysislock.Hold{}}
}

// openFaulty connects a worker to b by a connection that fails as planned.
func openFaulty(t testing.TB, b *backend) (*worker, *faultyConn) {
	t.Helper()
	l := &faultyConn{}
	return open(t, b, l.options()...), l
}

// openKeys connects a worker to b that lets one analysis of a tenant run at a time.
func openKeys(t testing.TB, b *backend, opts ...grpc.DialOption) *worker {
	t.Helper()
	tenants := &Concurrency{Fields: []string{"tenant"}, Limit: func(string) int { return 1 }}
	return openWith(t, b, Options{Policy: lease.Policy{TTL: ttl(b), MaxAttempts: 10}, Concurrency: tenants}, opts...)
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
	must.OK(t, err)
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

func acquire(t testing.TB, w *worker, id, owner string) analysislock.Acquisition {
	t.Helper()
	return must.Get(w.acquire(t.Context(), id, owner))(t)
}

func mustAcquire(t testing.TB, w *worker, id, owner string) analysislock.Acquisition {
	t.Helper()
	acq := acquire(t, w, id, owner)
	if !acq.Acquired {
		t.Fatalf("acquire %s as %s: %+v", id, owner, acq)
	}
	return acq
}

// run runs body with owner's hold.
func (w *worker) run(ctx context.Context, owner string, body func(context.Context, analysislock.Work) error) error {
	hold := w.holds[owner]
	return hold.Run(ctx, func(ctx context.Context) error {
		work, err := w.Work(ctx, hold)
		if err != nil {
			return err
		}
		return body(ctx, work)
	}, nil)
}

// runs runs a body that ends at once, and checks that it ran. It returns what the body was given.
func (w *worker) runs(t *testing.T, owner string) (given analysislock.Work) {
	t.Helper()
	ran := false
	err := w.run(t.Context(), owner, func(_ context.Context, work analysislock.Work) error {
		given, ran = work, true
		return nil
	})
	if err != nil || !ran {
		t.Errorf("run as %s: %v, ran %v", owner, err, ran)
	}
	return given
}

func (w *worker) complete(t testing.TB, owner string, result any) error {
	h := w.holds[owner]
	return h.End(t.Context(), analysislock.Completing(h.Now(), result))
}

// release gives the lock back as a stop does, with the attempt.
func (w *worker) release(t testing.TB, owner string) error {
	h := w.holds[owner]
	return h.End(t.Context(), analysislock.Releasing(h.Now(), analysislock.OutcomeShuttingDown, "", true))
}

func (w *worker) retry(t testing.TB) error {
	h := w.holds["w/1"]
	return h.End(t.Context(), analysislock.Retrying(h.Now(), "c", "m", time.Time{}, "", false))
}

// withoutRuns removes from a document's fields when it was written and what its runs were.
func withoutRuns(fields doc) doc {
	for _, name := range []string{"updatedAt", "startedAt", "history", "progress"} {
		delete(fields, name)
	}
	return fields
}

// ids returns the ids of found, in its order.
func ids(found []analysislock.Analysis) string {
	words := make([]string, len(found))
	for i := range found {
		words[i] = found[i].ID
	}
	return strings.Join(words, " ")
}

// sorted returns the words of a text in order.
func sorted(text string) string { return strings.Join(slices.Sorted(strings.FieldsSeq(text)), " ") }

func timeString(t time.Time) string { return iso8601.Format(t) }

// logTo returns a logger, and what it writes.
func logTo() (*slog.Logger, *bytes.Buffer) {
	var text bytes.Buffer
	return slog.New(slog.NewTextHandler(&text, nil)), &text
}

// errorOf returns the second result of a function.
func errorOf[T any](_ T, err error) error { return err }

// check fails the test after an error, and does not end it.
func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// wantErr checks that the error of what is want; nil: that there is none.
func wantErr(t testing.TB, want, err error, what ...any) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%v error %v, want %v", what, err, want)
	}
}

// same compares two values of what.
func same(t testing.TB, want, got any, what ...any) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%.200v (-want +got):\n%s", what, diff)
	}
}
