package repo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/firestore"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"taskguard/emulator/emulatortest"
	"taskguard/lease"
	"taskguard/lease/documentlock"
)

// contexts are those of the calls of a connection.
type contexts struct {
	mu    sync.Mutex
	calls map[context.Context]string
}

func (c *contexts) note(ctx context.Context, method string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls[ctx] = path.Base(method)
}

func (c *contexts) options() []grpc.DialOption {
	c.calls = map[context.Context]string{}
	return []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			c.note(ctx, method)
			return invoke(ctx, method, req, reply, cc, opts...)
		}),
		grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			c.note(ctx, method)
			return open(ctx, desc, cc, method, opts...)
		}),
	}
}

// wantEnded fails the test where more than open calls go on, or none was made.
func (c *contexts) wantEnded(t *testing.T, what string, open int) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	var alive []string
	for ctx, method := range c.calls {
		if ctx.Err() == nil {
			alive = append(alive, method)
		}
	}
	if len(alive) != open || len(c.calls) == 0 {
		t.Errorf("%s: of %d calls %q go on, want %d", what, len(c.calls), alive, open)
	}
}

func TestNoCallOutlivesWhatItWasFor(t *testing.T) {
	fresh := func() map[string]any { return map[string]any{"status": Queued, "input": "in"} }
	for name, do := range map[string]func(t *testing.T, b *emulatortest.Backend, a *Analyses, c *contexts) error{
		"Create": func(t *testing.T, _ *emulatortest.Backend, a *Analyses, _ *contexts) error {
			return a.Create(t.Context(), "new", 1)
		},
		"Get": func(t *testing.T, _ *emulatortest.Backend, a *Analyses, _ *contexts) error {
			_, err := a.Get(t.Context(), "x")
			return err
		},
		"Count": func(t *testing.T, _ *emulatortest.Backend, a *Analyses, _ *contexts) error {
			_, err := a.Count(t.Context(), "")
			return err
		},
		"List": func(t *testing.T, _ *emulatortest.Backend, a *Analyses, _ *contexts) error {
			_, err := a.List(t.Context(), 1)
			return err
		},
		"a run": func(t *testing.T, _ *emulatortest.Backend, a *Analyses, c *contexts) error {
			mustAcquire(t, a, "x", "w/1")
			c.wantEnded(t, "before the input is asked for", 1)
			err := a.HoldAnalysisLock(t.Context(), "x", "w/1", func(context.Context, json.RawMessage) error { return nil })
			c.wantEnded(t, "after its input", 0)
			return errors.Join(err, a.RefreshAnalysisLock(t.Context(), "x", "w/1", time.Hour), a.Complete(t.Context(), "x", "w/1", "out"))
		},
		"an operator's change": func(t *testing.T, _ *emulatortest.Backend, a *Analyses, _ *contexts) error {
			_, err := a.Requeue(t.Context(), "x", nil)
			return err
		},
	} {
		for _, pessimistic := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", pessimistic ", pessimistic), func(t *testing.T) {
				inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
					c := &contexts{}
					a := open(t, b, c.options()...)
					a.documents.pessimistic = pessimistic
					b.Put(t, "x", fresh())
					if err := do(t, b, a, c); err != nil {
						t.Error(err)
					}
					c.wantEnded(t, name, 0)
				})
			})
		}
	}
}

// An input that was asked for beside a commit that did not hold is awaited by nobody.
func TestTheInputOfACommitThatFailedIsNotAwaited(t *testing.T) {
	for kind, pessimistic := range map[string]bool{commit: false, exclusiveCommit: true} {
		t.Run(kind, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
				c, l := &contexts{}, &line{}
				a := open(t, b, append(c.options(), l.options()...)...)
				a.documents.pessimistic = pessimistic
				b.Put(t, "x", map[string]any{"status": Queued})
				l.befall(map[string][]fault{kind: {dropped(codes.Aborted)}})
				mustAcquire(t, a, "x", "w/1")
				c.wantEnded(t, "acquired at the second try", 1)
				refusals := slices.Repeat([]fault{dropped(codes.InvalidArgument)}, 20)
				l.befall(map[string][]fault{commit: refusals, exclusiveCommit: refusals})
				b.Put(t, "y", map[string]any{"status": Queued})
				if acq, err := a.AcquireAnalysisLock(t.Context(), "y", "w/2", 0); err == nil {
					t.Errorf("%+v, want it refused", acq)
				}
				c.wantEnded(t, "refused", 1)
			})
		})
	}
}

func TestNoCallForARoomOutlivesIt(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		c := &contexts{}
		r := openRooms(t, b, c.options()...)
		made := mustSwap(t, r, mustLoad(t, r), anOwned(time.Now()))
		c.wantEnded(t, "create", 0)
		mustSwap(t, r, made, documentlock.Lock{})
		c.wantEnded(t, "delete", 0)
		if _, err := r.Current(t.Context()); err != nil {
			t.Error(err)
		}
		c.wantEnded(t, "query", 0)
	})
}

func TestWhatCannotBeOpenedIsRefused(t *testing.T) {
	for want, open := range map[string]func() error{
		`"a/b" is not the path of a collection`: func() error {
			_, err := Open(t.Context(), "p", Options{Collection: "a/b", Emulator: "localhost:1"})
			return err
		},
		"TTL": func() error {
			_, err := Open(t.Context(), "p", Options{Policy: lease.Policy{TTL: -1}, Emulator: "localhost:1"})
			return err
		},
		"open database (default) of project p": func() error {
			_, err := Open(t.Context(), "p", Options{}, option.WithCredentialsFile("/does/not/exist")) //nolint:staticcheck // refused
			return err
		},
		"open database d of project p": func() error {
			_, err := OpenRooms(t.Context(), "p", RoomOptions{Database: "d"}, option.WithCredentialsFile("/does/not/exist")) //nolint:staticcheck // refused
			return err
		},
		"open database (default) of project :": func() error { _, err := Open(t.Context(), "", Options{Emulator: "localhost:1"}); return err },
	} {
		if err := open(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want an error with %s", err, want)
		}
	}
}

// A failure must not look like a list without entries.
func TestAQueryOfAnalysesThatFailsIsNoEmptyAnswer(t *testing.T) {
	for name, list := range map[string]func(ctx context.Context, a *Analyses) error{
		"List":          func(ctx context.Context, a *Analyses) error { _, err := a.List(ctx, 1); return err },
		"Newest":        func(ctx context.Context, a *Analyses) error { _, _, err := a.Newest(ctx, 1); return err },
		"InState":       func(ctx context.Context, a *Analyses) error { _, err := a.InState(ctx, Ready, 1); return err },
		"Overdue":       func(ctx context.Context, a *Analyses) error { _, err := a.Overdue(ctx, 1); return err },
		"Unfinished":    func(ctx context.Context, a *Analyses) error { _, err := a.Unfinished(ctx, 1); return err },
		"UnknownStatus": func(ctx context.Context, a *Analyses) error { _, err := a.UnknownStatus(ctx, 1); return err },
		"Abandoned": func(ctx context.Context, a *Analyses) error {
			return a.Abandoned(ctx, 1, func(string, int64, time.Time) {})
		},
	} {
		inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
			l := &line{}
			a := open(t, b, l.options()...)
			l.befall(map[string][]fault{"RunQuery": {dropped(codes.PermissionDenied)}})
			if err := list(t.Context(), a); !errors.Is(err, lease.ErrUnavailable) {
				t.Errorf("%s: %v, want ErrUnavailable", name, err)
			}
			l.wantAllMet(t)
		})
	}
	for name, ask := range map[string]func(ctx context.Context, a *Analyses) error{
		"Overdue":    func(ctx context.Context, a *Analyses) error { _, err := a.Overdue(ctx, 1); return err },
		"Newest":     func(ctx context.Context, a *Analyses) error { _, _, err := a.Newest(ctx, 1); return err },
		"Ping":       func(ctx context.Context, a *Analyses) error { return a.Ping(ctx) },
		"Create":     func(ctx context.Context, a *Analyses) error { return a.Create(ctx, "x", 1) },
		"Peek":       func(ctx context.Context, a *Analyses) error { _, err := a.PeekAnalysisLock(ctx, "x"); return err },
		"Ledger.Get": func(ctx context.Context, a *Analyses) error { _, err := a.Ledger.Get(ctx, "x"); return err },
	} {
		inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
			l := &line{}
			a := open(t, b, l.options()...)
			l.befall(map[string][]fault{read: {dropped(codes.PermissionDenied)}})
			if err := ask(t.Context(), a); !errors.Is(err, lease.ErrUnavailable) {
				t.Errorf("%s without the time: %v, want ErrUnavailable", name, err)
			}
			l.wantAllMet(t)
		})
	}
}

func TestALedgerReadsAnalysesOfAnyStore(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		b.Put(t, "x", map[string]any{"status": Queued, "attempts": 2})
		l, err := NewLedger(open(t, b).documents, lease.Policy{})
		if err != nil {
			t.Fatal(err)
		}
		if d, err := l.Get(t.Context(), "x"); err != nil || d.Status != Queued || d.Attempts != 2 {
			t.Errorf("%+v, %v", d, err)
		}
		if _, err := l.Get(t.Context(), "missing"); !errors.Is(err, lease.ErrNotFound) {
			t.Errorf("missing: %v, want ErrNotFound", err)
		}
		if _, err := l.Get(t.Context(), "a/b"); !errors.Is(err, lease.ErrInvalidKey) {
			t.Errorf("a/b: %v, want ErrInvalidKey", err)
		}
		l.input = nil
		if l, err = NewLedger(l.store, lease.Policy{}); err != nil {
			t.Fatal(err)
		}
		if got, err := l.input(t.Context(), Analysis{Input: map[string]any{"n": 1}}); err != nil || string(got) != `{"n":1}` {
			t.Errorf("input %s, %v", got, err)
		}
	})
}

// Exactly as many as are named need no line that there are more.
func TestAsManyAsTheWarningsAreAllNamed(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		var log bytes.Buffer
		logger := slog.New(slog.NewTextHandler(&log, nil))
		a, err := Open(t.Context(), b.Project, Options{Log: logger}, b.Client(t)...)
		if err != nil {
			t.Fatal(err)
		}
		r := openRooms(t, b)
		r.documents.log = logger
		for i := range maxWarnings {
			b.Put(t, fmt.Sprint("x", i), map[string]any{"status": Queued, "updatedAt": timeValue(time.Now().Add(-time.Hour)), "lockToken": "?"})
			r.put(t, fmt.Sprint("bad\x01", i), map[string]any{"lockExpiresAt": "1999-01-01T00:00:00.000Z"})
		}
		abandoned(t, a, 100)
		if n := strings.Count(log.String(), "\n"); n != maxWarnings {
			t.Errorf("%d lines of analyses, want %d:\n%s", n, maxWarnings, log.String())
		}
		log.Reset()
		if _, err := r.Lapsed(t.Context(), 100); err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(log.String(), "\n"); n != maxWarnings {
			t.Errorf("%d lines of rooms, want %d:\n%s", n, maxWarnings, log.String())
		}
	})
}

func TestRoomsAreDatedByTheQueryThatReadThem(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		l := &line{}
		r := openRooms(t, b, l.options()...)
		r.put(t, "a", map[string]any{"lockOwner": "s/1"})
		l.befall(map[string][]fault{"RunQuery": {slowRequest}})
		began := time.Now()
		if s, err := r.Current(t.Context()); err != nil || s.At.Before(began.Add(delay)) {
			t.Errorf("at %v, %v; want after %v", s.At, err, began.Add(delay))
		}
	})
}

func TestARoomWhoseTokenIsReplacedIsAWarning(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		var log bytes.Buffer
		r, err := OpenRooms(t.Context(), b.Project, RoomOptions{Log: slog.New(slog.NewTextHandler(&log, nil))}, b.Client(t)...)
		if err != nil {
			t.Fatal(err)
		}
		others := openRooms(t, b)
		for token, want := range map[any]string{int64(7): "", "secret": `room_hash=` + documentlock.Hash("a") + ` field=lockToken type="a string"`} {
			log.Reset()
			others.put(t, "a", map[string]any{"lockToken": token})
			if _, err := r.Load(t.Context(), "a"); err != nil {
				t.Fatal(err)
			}
			if got := log.String(); (got == "") != (want == "") || !strings.Contains(got, want) || strings.Contains(got, "secret") {
				t.Errorf("%v: log %q, want %q", token, got, want)
			}
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestAMalformedAnalysisIsMalformedInsideATransactionToo(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		a := open(t, b)
		a.documents.pessimistic = true
		b.Put(t, "x", map[string]any{"status": Queued, "lockToken": "?"})
		if acq, err := a.AcquireAnalysisLock(t.Context(), "x", "w/1", 0); !errors.Is(err, lease.ErrMalformed) {
			t.Errorf("%+v, %v; want ErrMalformed", acq, err)
		}
	})
}

func TestADecisionThatChangesNothingReturnsWhatItRead(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		a := open(t, b)
		b.Put(t, "x", map[string]any{"status": Queued})
		c, err := a.documents.Exclude(t.Context(), "x", func(c lease.Cell[Analysis]) (Analysis, error) { return c.Doc, nil })
		if err != nil || !c.Exists || c.Doc.Status != Queued || c.At.IsZero() || b.Calls.Count(commit) == 0 {
			t.Errorf("%+v, %v", c, err)
		}
		refusal := errors.New("no")
		if _, err = a.documents.Exclude(t.Context(), "x", func(c lease.Cell[Analysis]) (Analysis, error) { return c.Doc, refusal }); !errors.Is(err, refusal) {
			t.Errorf("%v, want the decision's own", err)
		}
	})
}

func TestASwapOfWhatWasNotReadIsAConflict(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		a := open(t, b)
		for _, prev := range []lease.Cell[Analysis]{{}, {Exists: true}, {Rev: time.Now()}} {
			if _, err := a.documents.Swap(t.Context(), "x", prev, Analysis{Status: Ready}); !errors.Is(err, lease.ErrConflict) {
				t.Errorf("%+v: %v, want ErrConflict", prev, err)
			}
		}
		if n := b.Calls.Total(); n != 0 {
			t.Errorf("%d calls, want none", n)
		}
	})
}

// large is a result of more values than are encoded beside others.
func large() []any { return make([]any, largeResult+1) }

func TestALargeResultGivesItsTurnToTheNext(t *testing.T) {
	for kind, pessimistic := range map[string]bool{commit: false, exclusiveCommit: true} {
		t.Run(kind, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
				l := &line{}
				a := open(t, b, l.options()...)
				a.documents.pessimistic = pessimistic
				for i, id := range []string{"x", "y", "z"} {
					b.Put(t, id, map[string]any{"status": Queued})
					mustAcquire(t, a, id, "w/1")
					l.befall(map[string][]fault{kind: {dropped(codes.Aborted)}}) // its second try needs the turn as well
					began := time.Now()
					if err := a.Complete(t.Context(), id, "w/1", large()); err != nil || time.Since(began) > 4*time.Second {
						t.Fatalf("result %d: %v after %v", i, err, time.Since(began))
					}
					l.wantAllMet(t)
				}
				if !a.documents.db.encoders.TryAcquire(1) {
					t.Error("the turn was not given back")
				}
			})
		})
	}
}

func TestAResultThatWaitsForItsTurnInVainIsAnError(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		a := open(t, b)
		b.Put(t, "x", map[string]any{"status": Queued})
		c, err := a.documents.Load(t.Context(), "x")
		if err != nil || !a.documents.db.encoders.TryAcquire(1) {
			t.Fatal(err)
		}
		next := c.Doc
		next.Status, next.Result = Ready, large()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := a.documents.Swap(ctx, "x", c, next); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("swap: %v, want DeadlineExceeded", err)
		}
		if _, err := a.documents.Exclude(t.Context(), "x", func(lease.Cell[Analysis]) (Analysis, error) { return next, nil }); err == nil {
			t.Error("exclude: no error")
		}
		if got := b.Fields(t, "x")["status"]; got != Queued {
			t.Errorf("the status is %v", got)
		}
	})
}

func TestOnlyAReadingWithATimeTellsThatADocumentIsAbsent(t *testing.T) {
	missing := status.Error(codes.NotFound, "")
	dated := &firestore.DocumentSnapshot{ReadTime: time.Now()}
	for name, c := range map[string]struct {
		snap *firestore.DocumentSnapshot
		err  error
		want bool
	}{
		"a missing document": {dated, missing, true},
		"a missing database": {nil, missing, false},
		"without a time":     {&firestore.DocumentSnapshot{}, missing, false},
		"a failure":          {dated, status.Error(codes.Unavailable, ""), false},
		"a failure, unknown": {nil, status.Error(codes.Unavailable, ""), false},
	} {
		if got := absent(c.snap, c.err); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestAnErrorAndTheAttemptsAreReadAsFarAsTheyCanBe(t *testing.T) {
	for name, c := range map[string]struct {
		v    any
		want *Error
	}{
		"whole":   {map[string]any{"code": "c", "message": "m"}, &Error{Code: "c", Message: "m"}},
		"partly":  {map[string]any{"code": 7, "message": "m"}, &Error{Message: "m"}},
		"a text":  {"text", nil},
		"nothing": {nil, nil},
	} {
		if diff := cmp.Diff(c.want, decodeError(c.v)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	for v, want := range map[any]int{int64(3): 3, int64(0): 0, int64(-3): 0, "3": 0, 2.0: 2, int64(math.MaxInt64): math.MaxInt32} {
		l, err := lockCodec{}.decodeLock(reading{fields: map[string]any{"attempts": v}})
		if err != nil || l.Attempts != want {
			t.Errorf("%v: %d attempts, %v; want %d", v, l.Attempts, err, want)
		}
	}
}

// Another's creation that comes first is another's, however alike it is.
func TestACreationThatIsOvertakenIsAConflict(t *testing.T) {
	for name, theirs := range map[string]func(at time.Time) map[string]any{
		"another input": func(at time.Time) map[string]any { return map[string]any{"createdAt": timeValue(at), "input": "b"} },
		"another time": func(at time.Time) map[string]any {
			return map[string]any{"createdAt": timeValue(at.Add(time.Second)), "input": "a"}
		},
		"malformed": func(at time.Time) map[string]any {
			return map[string]any{"createdAt": timeValue(at), "input": "a", "lockToken": "?"}
		},
	} {
		inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
			l := &line{}
			a := open(t, b, l.options()...)
			at := time.Now()
			l.befall(map[string][]fault{commit: {overtaken(func() { b.Put(t, "x", theirs(at)) })}})
			if err := a.Create(t.Context(), "x", "a"); !errors.Is(err, ErrExists) {
				t.Errorf("%s: %v, want ErrExists", name, err)
			}
			l.befall(map[string][]fault{commit: {dropped(codes.InvalidArgument)}})
			if err := a.Create(t.Context(), "y", "a"); !errors.Is(err, lease.ErrRefused) {
				t.Errorf("refused: %v, want ErrRefused", err)
			}
			l.wantAllMet(t)
		})
	}
}
