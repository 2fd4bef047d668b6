package repo

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"taskguard/internal/testing/emulatortest"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/locks/document"
)

var denied = dropped(codes.PermissionDenied)

// errorOf returns the second result of a function.
func errorOf[T any](_ T, err error) error { return err }

// errorAfter returns the second and the third result of a function.
func errorAfter[T, U any](_ T, second U, err error) (U, error) { return second, err }

// If Firestore refuses a call, the operation returns an error.
func TestNoErrorOfFirestoreIsTakenForAnEmptyAnswer(t *testing.T) {
	type operation = func(ctx context.Context, a *worker, r onRooms) error
	lapsed := func(ctx context.Context, _ *worker, r onRooms) error { return errorOf(r.Lapsed(ctx, 1)) }
	page := func(ctx context.Context, a *worker, _ onRooms) error {
		_, _, _, err := a.Page(ctx, Filter{}, "", 1)
		return err
	}
	active := func(ctx context.Context, a *worker, _ onRooms) error { _, _, _, _, err := a.Active(ctx, 1); return err }
	unfound := func(ctx context.Context, a *worker, _ onRooms) error { return errorOf(a.Unfound(ctx, 1)) }
	orphaned := func(ctx context.Context, a *worker, _ onRooms) error { _, _, err := a.Orphaned(ctx, 10); return err }
	create := func(ctx context.Context, a *worker, _ onRooms) error { return a.Create(ctx, "new", 1, CreateOptions{}) }
	for call, operations := range map[string]map[string]operation{
		read: {
			"Lapsed": lapsed, "Page": page, "Active": active, "Orphaned": orphaned,
			"Create, with KeepAll": func(ctx context.Context, a *worker, r onRooms) error {
				a.codec.keepAll = true
				return create(ctx, a, r)
			},
			"Ping":          func(ctx context.Context, a *worker, _ onRooms) error { return a.Ping(ctx) },
			"Ping of rooms": func(ctx context.Context, _ *worker, r onRooms) error { return r.Ping(ctx) },
		},
		"RunQuery": {
			"Lapsed": lapsed, "Page": page, "Active": active, "Orphaned": orphaned, "Unfound": unfound,
			"Find":       func(ctx context.Context, a *worker, _ onRooms) error { return errorOf(a.Find(ctx, Filter{}, "", 1)) },
			"Uncertain":  func(ctx context.Context, a *worker, _ onRooms) error { return errorOf(a.Uncertain(ctx, 1)) },
			"Failures":   func(ctx context.Context, a *worker, _ onRooms) error { return errorOf(errorAfter(a.Failures(ctx, 1))) },
			"Unfinished": func(ctx context.Context, a *worker, _ onRooms) error { return errorOf(a.Unfinished(ctx, 1)) },
			"OldestUnfinished": func(ctx context.Context, a *worker, _ onRooms) error {
				_, _, err := a.OldestUnfinished(ctx)
				return err
			},
		},
		"RunAggregationQuery": {
			"Unfound": unfound,
			"Count":   func(ctx context.Context, a *worker, _ onRooms) error { return errorOf(a.Count(ctx, Filter{})) },
		},
		commit: {"Create": create},
	} {
		for name, do := range operations {
			t.Run(call+" of "+name, func(t *testing.T) {
				inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
					l := &faultyConn{}
					a, r := open(t, b, l.options()...), openRooms(t, b, l.options()...)
					l.inject(map[string][]fault{call: {denied}})
					if err := do(t.Context(), a, r); !errors.Is(err, lease.ErrUnavailable) {
						t.Errorf("%v, want ErrUnavailable", err)
					}
					l.wantAllInjected(t)
				})
			})
		}
	}
}

func TestADecisionInATransactionWhoseReadFailsIsMadeAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		a, l := openFaulty(t, b)
		a.decideInTransactions(t)
		b.Put(t, "x", map[string]any{"status": analysislock.Queued, "input": "i"})
		l.inject(map[string][]fault{exclusiveRead: {denied}})
		mustAcquire(t, a, "x", "w/1")
		l.wantAllInjected(t)
		calls := b.Calls.Total()
		a.runs(t, "w/1")
		if more := b.Calls.Total() - calls; more != 1 {
			t.Errorf("%d calls for the input, want 1", more)
		}
		b.Put(t, "free", map[string]any{"status": analysislock.Ready})
		if was, err := a.Unlock(t.Context(), "free", "", nil, ""); err != nil || was.Status != analysislock.Ready {
			t.Errorf("unlock of a free analysis: %+v, %v", was, err)
		}
		b.Put(t, "bad", map[string]any{"lockToken": "seven"})
		same := func(c lease.Cell[analysislock.Analysis]) (analysislock.Analysis, error) { return c.Doc, nil }
		if _, err := a.documents.Exclude(t.Context(), "bad", lease.OnlyLease, same); !errors.Is(err, lease.ErrMalformed) || strings.Contains(err.Error(), "write") {
			t.Errorf("%v, want ErrMalformed of the reading", err)
		}
		l.inject(map[string][]fault{read: {denied}})
		if _, err := a.documents.Exclude(t.Context(), "missing", lease.OnlyLease, same); err == nil {
			t.Error("a decision about a document that could not be read")
		}
		was, err := a.documents.Load(t.Context(), "free", lease.OnlyLease)
		fatal(t, err)
		if c, err := a.documents.Exclude(t.Context(), "free", lease.OnlyLease, same); err != nil || c.Rev.(*revision).updated != was.Rev.(*revision).updated || c.Doc.Status != analysislock.Ready {
			t.Errorf("a decision that changes nothing: %+v, %v; want %+v", c, err, was)
		}
		l.inject(map[string][]fault{read: {denied, denied, denied, denied, denied, denied, denied, denied, denied, denied}})
		l.stopAnswering()
		if _, err := a.acquire(t.Context(), "missing", "w/2"); !errors.Is(err, lease.ErrUnavailable) {
			t.Errorf("%v, want ErrUnavailable", err)
		}
	})
}

func TestAnInputThatWasNotReadIsReadAgain(t *testing.T) {
	for name, tc := range map[string]struct {
		before func(t *testing.T, b *emulatortest.Backend, l *faultyConn)
		want   error
	}{
		"and found":                     {func(*testing.T, *emulatortest.Backend, *faultyConn) {}, nil},
		"but the document is deleted":   {func(t *testing.T, b *emulatortest.Backend, _ *faultyConn) { t.Helper(); b.Delete(t, "x") }, lease.ErrLost},
		"but Firestore does not answer": {func(_ *testing.T, _ *emulatortest.Backend, l *faultyConn) { l.stopAnswering() }, lease.ErrUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
				a, l := openFaulty(t, b)
				b.Put(t, "x", map[string]any{"status": analysislock.Queued, "input": "i"})
				a.again = true
				mustAcquire(t, a, "x", "w/1")
				l.inject(map[string][]fault{read: {dropped(codes.ResourceExhausted)}})
				tc.before(t, b, l)
				ran := false
				err := a.run(t.Context(), "w/1", func(_ context.Context, work analysislock.Work) error {
					ran = string(work.Input) == `"i"`
					return nil
				})
				if !errors.Is(err, tc.want) || ran != (tc.want == nil) {
					t.Errorf("%v, ran %v; want %v", err, ran, tc.want)
				}
			})
		})
	}
}

// emptied is a stream whose answers have no content.
type emptied struct{ grpc.ClientStream }

func (s emptied) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if f, ok := m.(*frame); ok {
		*f = nil
	}
	return err
}

// extended is a stream that returns err instead of its end; nil: another message.
type extended struct {
	grpc.ClientStream
	err error
}

func (s extended) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if errors.Is(err, io.EOF) {
		return s.err
	}
	return err
}

func TestAReadEndsWithItsCaller(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		l := &faultyConn{}
		docs := open(t, b, l.options()...).documents
		db := docs.db
		b.Put(t, "small", map[string]any{"status": "s"})
		b.Put(t, "large", map[string]any{"input": strings.Repeat("x", 100<<10)})
		small, large := docs.collection.Doc("small"), docs.collection.Doc("large")
		used := func(reading) {}
		// One large document is decoded at a time. A small one does not wait.
		fatal(t, db.decoders.Acquire(t.Context(), 1))
		second, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		check(t, db.readOnce(second, small, wanted{}, used))
		if err := db.readOnce(second, large, wanted{}, used); err == nil {
			t.Error("large: it does not wait")
		}
		without := open(t, b, eachStream(func(s grpc.ClientStream) grpc.ClientStream { return emptied{s} })).documents.db
		if err := without.readOnce(t.Context(), small, wanted{}, used); !errors.Is(err, errAnswer) {
			t.Errorf("an answer without a result: %v", err)
		}
		for end, want := range map[error]error{nil: errAnswer, io.ErrUnexpectedEOF: io.ErrUnexpectedEOF} {
			longer := open(t, b, eachStream(func(s grpc.ClientStream) grpc.ClientStream { return extended{s, end} })).documents.db
			if err := longer.readOnce(t.Context(), small, wanted{}, used); !errors.Is(err, want) {
				t.Errorf("an answer, then %v: %v, want %v", end, err, want)
			}
		}
		l.stopAnswering()
		began := time.Now()
		second, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := db.readOnce(second, small, wanted{}, used); err == nil || time.Since(began) != time.Second {
			t.Errorf("%v after %v, want the end of the caller's second", err, time.Since(began))
		}
	})
}

// It delays the decoding of no input.
func TestAWriteWaitsForAnotherLargeOneNoLongerThanItsCaller(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		a := open(t, b)
		b.Put(t, "x", map[string]any{"status": analysislock.Queued})
		read, err := a.documents.Load(t.Context(), "x", lease.OnlyLease)
		fatal(t, err)
		large := read.Doc
		large.Status, large.Result = analysislock.Ready, make([]any, largeResult+1)
		b.Put(t, "input", map[string]any{"input": strings.Repeat("x", largeAnswer)})
		fatal(t, a.documents.db.encoders.Acquire(t.Context(), 1))
		soon, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		small := read.Doc
		small.Result, small.Status = make([]any, largeResult/2), analysislock.Ready
		if _, err := a.documents.Swap(soon, "y", read, small); !errors.Is(err, lease.ErrConflict) { // there is no y
			t.Errorf("%v: a write that is not large waits", err)
		}
		_, err = a.Get(soon, "input")
		check(t, err)
		_, swapped := a.documents.Swap(soon, "x", read, large)
		_, excluded := a.documents.Exclude(soon, "x", lease.OnlyLease, func(lease.Cell[analysislock.Analysis]) (analysislock.Analysis, error) { return large, nil })
		if swapped == nil || excluded == nil {
			t.Errorf("%v, %v; want the end of the caller's second", swapped, excluded)
		}
	})
}

func TestARoomIsNamedByItsHashInTheLog(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		var log bytes.Buffer
		r, err := OpenRooms(t.Context(), b.Project, Options{Log: slog.New(slog.NewTextHandler(&log, nil))}, b.Client(t)...)
		fatal(t, err)
		rooms := openRooms(t, b)
		rooms.put(t, "secret", map[string]any{"lockToken": "seven"})
		if _, err := r.Load(t.Context(), "secret", lease.OnlyLease); err != nil {
			t.Fatal(err)
		}
		if got := log.String(); !strings.Contains(got, "room_hash="+document.Hash("secret")) || strings.Contains(got, "secret") {
			t.Errorf("%s", got)
		}
	})
}

func TestAStoreSwapsOnlyWhatItHasRead(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		l := &faultyConn{}
		a, r := open(t, b, l.options()...), openRooms(t, b)
		b.Put(t, "x", map[string]any{"status": analysislock.Queued})
		c, err := a.documents.Load(t.Context(), "x", lease.OnlyLease)
		fatal(t, err)
		l.inject(map[string][]fault{read: {denied}})
		if _, err := a.documents.Swap(t.Context(), "x", c, c.Doc); err == nil { // nothing is written, so it is read
			t.Error("a swap whose record could not be read")
		}
		for name, prev := range map[string]lease.Cell[analysislock.Analysis]{"missing": {Rev: time.Now()}, "unread": {Exists: true}} {
			if _, err := a.documents.Swap(t.Context(), "x", prev, analysislock.Analysis{}); !errors.Is(err, lease.ErrConflict) {
				t.Errorf("%s: %v, want ErrConflict", name, err)
			}
		}
		if _, err := r.Swap(t.Context(), "a", lease.Cell[document.Lock]{Exists: true}, document.Lock{}); !errors.Is(err, lease.ErrConflict) {
			t.Errorf("room: %v, want ErrConflict", err)
		}
		_, loaded := r.Load(t.Context(), "a/b", lease.OnlyLease)
		_, swapped := r.Swap(t.Context(), "a/b", lease.Cell[document.Lock]{}, document.Lock{})
		if !errors.Is(loaded, lease.ErrInvalidKey) || !errors.Is(swapped, lease.ErrInvalidKey) {
			t.Errorf("%v, %v; want ErrInvalidKey", loaded, swapped)
		}
	})
}

// lock decodes the lock of a document, and returns the log.
func lock(fields map[string]any) (a analysislock.Analysis, room document.Lock, log string) {
	var b bytes.Buffer
	c := lockCodec{log: slog.New(slog.NewTextHandler(&b, nil)), name: analysisName}
	r := reading{id: "x", exists: true, fields: fields, at: time.Now(), updated: time.Now()}
	a, _, _ = analysisCodec{lockCodec: c, fields: Fields{}.filled()}.decode(r)
	room, _, _ = roomCodec{c}.decode(r)
	return a, room, b.String()
}

func TestAnUnusableFieldIsReplacedAndItsTypeLogged(t *testing.T) {
	a, _, _ := lock(map[string]any{"attempts": int64(-5), "lockOwner": "w", "lockHeartbeatAt": "9999-01-01T00:00:00Z", "error": map[string]any{"code": "c", "message": "m"}})
	if a.Lock.Attempts != 0 || !a.Lock.HeartbeatAt.IsZero() || a.Error == nil || *a.Error != (analysislock.Error{Code: "c", Message: "m"}) {
		t.Errorf("%+v, error %v", a.Lock, a.Error)
	}
	_, room, log := lock(map[string]any{"lockToken": map[string]any{}})
	if room.Token < time.Now().Add(-time.Minute).UnixMicro() || !strings.Contains(log, `field=lockToken type="a map"`) {
		t.Errorf("token %d; %s", room.Token, log)
	}
	large := strings.Repeat("x", maxText) + "y"
	text := map[string]any{"code": large, "message": large, "outcome": large, "owner": large}
	a, _, _ = lock(map[string]any{"status": large, "lockOwner": large, "finishedBy": large, "error": text, "lastError": text, "progress": text, "history": []any{text}})
	h := a.History[0]
	for i, s := range []string{a.Status, a.Lock.Owner, a.Lock.FinishedBy, a.Error.Code, a.Error.Message, a.LastError.Message, a.Progress.Message, h.Owner, h.Outcome, h.Code, h.Message} {
		if s != large[:maxText] {
			t.Errorf("string %d has %d bytes, want the first %d", i, len(s), maxText)
		}
	}
	if _, _, log = lock(map[string]any{"lockToken": int64(3)}); log != "" {
		t.Errorf("a usable token is logged: %s", log)
	}
	if kind(nil) != "null" {
		t.Errorf("nil is %s", kind(nil))
	}
	if us := (roomCodec{}).changes(room, &room, &revision{}, time.Now()); len(us) != 0 {
		t.Errorf("nothing has changed, but %v is written", us)
	}
}
