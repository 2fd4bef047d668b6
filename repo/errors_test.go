package repo

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"taskguard/internal/testing/must"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/locks/document"
)

func TestStoreError(t *testing.T) {
	all := []error{lease.ErrConflict, lease.ErrRefused, lease.ErrUnavailable}
	for code, want := range map[codes.Code]struct{ call, read, query, once error }{ // once: a call that is made once
		codes.FailedPrecondition: {lease.ErrConflict, nil, lease.ErrRefused, lease.ErrUnavailable},
		codes.Aborted:            {nil, nil, lease.ErrUnavailable, lease.ErrUnavailable},
		codes.NotFound:           {lease.ErrConflict, nil, lease.ErrUnavailable, lease.ErrUnavailable},
		codes.AlreadyExists:      {lease.ErrConflict, nil, lease.ErrUnavailable, lease.ErrUnavailable},
		codes.InvalidArgument:    {lease.ErrRefused, lease.ErrRefused, lease.ErrRefused, lease.ErrRefused},
		codes.Unavailable:        {nil, nil, lease.ErrUnavailable, lease.ErrUnavailable},
		codes.PermissionDenied:   {nil, nil, lease.ErrUnavailable, lease.ErrUnavailable},
	} {
		is := func(err, want error, among []error) {
			t.Helper()
			for _, kind := range among {
				if errors.Is(err, kind) != errors.Is(kind, want) {
					t.Errorf("%v: %v, want %v", code, err, want)
				}
			}
			if !strings.Contains(err.Error(), "words of Firestore") {
				t.Errorf("%v: %v lacks its cause", code, err)
			}
		}
		cause := status.Error(code, "words of Firestore")
		call, read := writeError("write", "analysis", "x", cause), storeError("read", "analysis", "x", cause)
		is(call, want.call, all)
		is(read, want.read, all)
		is(queryError("list", cause), want.query, all)
		is(unavailable(call), want.once, all[1:]) // it matches the conflict too
	}
	if err := unavailable(lease.ErrMalformed); errors.Is(err, lease.ErrUnavailable) {
		t.Errorf("a malformed document: %v", err)
	}
}

// Neither a call that Firestore refuses nor one that it does not answer is taken for an empty answer.
func TestErrUnavailable(t *testing.T) {
	const query, counts = "RunQuery", "RunAggregationQuery"
	inBubble(t, func(t *testing.T, b *backend) {
		l := &faultyConn{}
		a, r, ctx := open(t, b, l.options()...), openRooms(t, b, l.options()...), t.Context()
		kept := openWith(t, b, Options{Keep: time.Hour, KeepAll: true}, l.options()...)
		b.Put(t, "x", doc{"status": "QUEUED"})
		reads, queries, both := []string{read}, []string{query}, []string{read, query}
		operations := []struct {
			name    string
			seconds int
			do      func() error
			calls   []string // the kinds of its calls without which it has no answer
		}{
			{"Ping", 5, func() error { return a.Ping(ctx) }, reads},
			{"Rooms.Ping", 5, func() error { return r.Ping(ctx) }, reads},
			{"Get", 5, func() error { return errorOf(a.Get(ctx, "x")) }, reads},
			{"Create", 15, func() error { return a.Create(ctx, "new", 1, CreateOptions{}) }, []string{commit}},
			{"KeepAll", 15, func() error { return kept.Create(ctx, "new", 1, CreateOptions{}) }, reads},
			{"Lapsed", 20, func() error { return errorOf(r.Lapsed(ctx, 1)) }, both},
			{"Page", 20, func() error { _, _, _, err := a.Page(ctx, Filter{}, "", 1); return err }, both},
			{"Active", 20, func() error { _, _, _, _, err := a.Active(ctx, 1); return err }, both},
			{"Orphaned", 20, func() error { _, _, err := a.Orphaned(ctx, 10); return err }, both},
			{"Unfound", 20, func() error { return errorOf(a.Unfound(ctx, 1)) }, []string{query, counts}},
			{"Count", 15, func() error { return errorOf(a.Count(ctx, Filter{})) }, []string{counts}},
			{"Find", 15, func() error { return errorOf(a.Find(ctx, Filter{}, "", 1)) }, queries},
			{"Uncertain", 15, func() error { return errorOf(a.Uncertain(ctx, 1)) }, queries},
			{"Failures", 30, func() error { _, _, err := a.Failures(ctx, 1); return err }, queries},
			{"Unfinished", 15, func() error { return errorOf(a.Unfinished(ctx, 1)) }, queries},
			{"OldestUnfinished", 15, func() error { _, _, err := a.OldestUnfinished(ctx); return err }, queries},
			{"Delete", 15, func() error { return errorOf(a.Delete(ctx, "x")) }, nil},
			{"Unlock", 15, func() error { return errorOf(a.Unlock(ctx, "x", "", nil, "")) }, nil},
			{"Acquire", 20, func() error { return errorOf(a.acquire(ctx, "x", "w/2")) }, nil},
		}
		for _, op := range operations {
			for _, call := range op.calls {
				l.inject(faults{call: {denied}})
				wantErr(t, lease.ErrUnavailable, op.do(), op.name, call)
				l.wantAllInjected(t)
			}
		}
		l.stopAnswering()
		for _, op := range operations {
			began := time.Now()
			wantErr(t, lease.ErrUnavailable, op.do(), op.name)
			if took := time.Since(began); took > time.Duration(op.seconds)*time.Second {
				t.Errorf("%s took %v, want at most %d s", op.name, took, op.seconds)
			}
		}
	})
}

// Firestore answers NotFound to each call if the database is missing, and FailedPrecondition in Datastore mode.
func TestErrUnavailable_NoDatabase(t *testing.T) {
	for _, code := range []codes.Code{codes.NotFound, codes.FailedPrecondition} {
		inBubble(t, func(t *testing.T, b *backend) {
			a, l := openFaulty(t, b)
			calls := 0
			missing := func(context.Context, func() error) error {
				calls++
				return status.Error(code, "the database (default) is not there")
			}
			l.inject(faults{read: slices.Repeat([]fault{missing}, 1000), commit: {missing}})
			err := errorOf(a.acquire(t.Context(), "x", "w/1"))
			wantErr(t, lease.ErrUnavailable, err, code)
			if errors.Is(err, lease.ErrConflict) || !strings.Contains(err.Error(), "the database (default)") {
				t.Errorf("%v", err)
			}
			if calls < 5 || calls > 60 { // a wait is a random part of up to 2 s
				t.Errorf("%v: %d reads in 15 s", code, calls)
			}
			err = a.Create(t.Context(), "x", "input", CreateOptions{})
			wantErr(t, lease.ErrUnavailable, err, code)
			if errors.Is(err, ErrExists) {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestDocuments_Exclude(t *testing.T) {
	inBubble(t, func(t *testing.T, b *backend) {
		a, l := openFaulty(t, b)
		keep := func(c lease.Cell[analysislock.Analysis]) (analysislock.Analysis, error) { return c.Doc, nil }
		exclude := func(id string) (lease.Cell[analysislock.Analysis], error) {
			return a.documents.Exclude(t.Context(), id, lease.OnlyLease, keep)
		}
		b.Put(t, "bad", doc{"lockToken": "seven"})
		wantErr(t, lease.ErrMalformed, errorOf(exclude("bad")))
		b.Put(t, "free", doc{"status": "READY"})
		was := must.Get(a.documents.Load(t.Context(), "free", lease.OnlyLease))(t)
		c := must.Get(exclude("free"))(t)
		same(t, []any{was.Rev.(*revision).updated, "READY"}, []any{c.Rev.(*revision).updated, c.Doc.Status})
		l.inject(faults{read: {denied}})
		if _, err := exclude("missing"); err == nil {
			t.Error("a decision about a document that could not be read")
		}

		a.decideInTransactions(t)
		b.Put(t, "x", doc{"status": "QUEUED", "input": "i"})
		l.inject(faults{exclusiveRead: {denied}}) // then the decision is made again
		mustAcquire(t, a, "x", "w/1")
		l.wantAllInjected(t)
		calls := b.Calls.Total()
		a.runs(t, "w/1")
		same(t, calls+1, b.Calls.Total(), "with the input")
	})
}

func TestWork_ReadAgain(t *testing.T) {
	for name, tc := range map[string]struct {
		deleted, stopped bool
		want             error
	}{
		"and found":                     {},
		"but the document is deleted":   {deleted: true, want: lease.ErrLost},
		"but Firestore does not answer": {stopped: true, want: lease.ErrUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *backend) {
				a, l := openFaulty(t, b)
				b.Put(t, "x", doc{"status": "QUEUED", "input": "i"})
				a.again = true
				mustAcquire(t, a, "x", "w/1")
				l.inject(faults{read: {dropped(codes.ResourceExhausted)}})
				if tc.deleted {
					b.Delete(t, "x")
				}
				if tc.stopped {
					l.stopAnswering()
				}
				input := ""
				err := a.run(t.Context(), "w/1", func(_ context.Context, work analysislock.Work) error {
					input = string(work.Input)
					return nil
				})
				if !errors.Is(err, tc.want) || (input == `"i"`) != (tc.want == nil) {
					t.Errorf("%v, given %s; want %v", err, input, tc.want)
				}
			})
		})
	}
}

// received is a stream that changes what it has received.
type received struct {
	grpc.ClientStream
	change func(f *frame, err error) error
}

func (s received) RecvMsg(m any) error { return s.change(m.(*frame), s.ClientStream.RecvMsg(m)) }

func TestDatabase_ReadOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, b *backend) {
		l := &faultyConn{}
		docs := open(t, b, l.options()...).documents
		db := docs.db
		b.Put(t, "small", doc{"status": "s"})
		b.Put(t, "large", doc{"input": strings.Repeat("x", 100<<10)})
		small, large := docs.collection.Doc("small"), docs.collection.Doc("large")
		used := func(reading) {}
		for name, tc := range map[string]struct {
			change func(f *frame, err error) error
			want   error
		}{
			"no result": {func(f *frame, err error) error { *f = nil; return err }, errAnswer},
			"two":       {func(_ *frame, err error) error { return ignoring(err, io.EOF, nil) }, errAnswer},
			"no end": {func(_ *frame, err error) error {
				return ignoring(err, io.EOF, io.ErrUnexpectedEOF)
			}, io.ErrUnexpectedEOF},
		} {
			wrap := func(s grpc.ClientStream) grpc.ClientStream { return received{s, tc.change} }
			wrong := open(t, b, eachStream(wrap))
			wantErr(t, tc.want, wrong.documents.db.readOnce(t.Context(), small, wanted{}, used), name)
		}

		second := func() context.Context {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			t.Cleanup(cancel)
			return ctx
		}
		// One large document is decoded at a time. A small one does not wait, nor does a write.
		must.OK(t, db.decoders.Acquire(t.Context(), 1))
		check(t, db.readOnce(second(), small, wanted{}, used))
		if err := db.readOnce(second(), large, wanted{}, used); err == nil {
			t.Error("large: it does not wait")
		}
		l.stopAnswering()
		began := time.Now()
		if err := db.readOnce(second(), small, wanted{}, used); err == nil || time.Since(began) != time.Second {
			t.Errorf("%v after %v, want the end of the caller's second", err, time.Since(began))
		}
	})
}

// ignoring returns another error in the place of this one.
func ignoring(err, this, other error) error {
	if errors.Is(err, this) {
		return other
	}
	return err
}

func TestDocuments_Unread(t *testing.T) {
	inBubble(t, func(t *testing.T, b *backend) {
		a, l := openFaulty(t, b)
		r := openRooms(t, b)
		b.Put(t, "x", doc{"status": "QUEUED"})
		c := must.Get(a.documents.Load(t.Context(), "x", lease.OnlyLease))(t)
		l.inject(faults{read: {denied}})
		if _, err := a.documents.Swap(t.Context(), "x", c, c.Doc); err == nil { // nothing is written, so it is read
			t.Error("a swap whose record could not be read")
		}
		for name, prev := range map[string]lease.Cell[analysislock.Analysis]{
			"missing": {Rev: time.Now()}, "unread": {Exists: true},
		} {
			_, err := a.documents.Swap(t.Context(), "x", prev, analysislock.Analysis{})
			wantErr(t, lease.ErrConflict, err, name)
		}
		type cell = lease.Cell[document.Lock]
		wantErr(t, lease.ErrConflict, errorOf(r.Swap(t.Context(), "a", cell{Exists: true}, document.Lock{})))
		wantErr(t, lease.ErrInvalidKey, errorOf(r.Load(t.Context(), "a/b", lease.OnlyLease)))
		wantErr(t, lease.ErrInvalidKey, errorOf(r.Swap(t.Context(), "a/b", cell{}, document.Lock{})))
	})
}
