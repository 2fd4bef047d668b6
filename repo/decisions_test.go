package repo

import (
	"context"
	"errors"
	"math"
	"slices"
	"testing"
	"time"

	"cloud.google.com/go/firestore"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"taskguard/emulator/emulatortest"
	"taskguard/lease"
	"taskguard/lease/analysislock"
)

func TestAMalformedAnalysisIsMalformedInsideATransactionToo(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		a := open(t, b)
		a.documents.pessimistic = true
		b.Put(t, "x", map[string]any{"status": analysislock.Queued, "lockToken": "?"})
		if acq, err := a.AcquireAnalysisLock(t.Context(), "x", "w/1", 0); !errors.Is(err, lease.ErrMalformed) {
			t.Errorf("%+v, %v; want ErrMalformed", acq, err)
		}
		c, err := a.documents.Exclude(t.Context(), "x", func(c lease.Cell[analysislock.Analysis]) (analysislock.Analysis, error) { return c.Doc, nil })
		if !errors.Is(err, lease.ErrMalformed) || !c.Exists || c.At.IsZero() || c.Doc.Status != analysislock.Queued {
			t.Errorf("%+v, %v; want what could be read beside ErrMalformed", c, err)
		}
	})
}

func TestAReadingThatFailsInsideATransactionIsNoMissingDocument(t *testing.T) {
	for _, kind := range []string{read, exclusiveRead} { // the second, of what the first has not found; the first
		inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
			l := &line{}
			a := open(t, b, l.options()...)
			a.documents.pessimistic = true
			l.befall(map[string][]fault{kind: slices.Repeat([]fault{dropped(codes.PermissionDenied)}, 3)})
			c, err := a.documents.Exclude(t.Context(), "x", func(c lease.Cell[analysislock.Analysis]) (analysislock.Analysis, error) {
				t.Errorf("%s: a decision of %+v", kind, c)
				return c.Doc, nil
			})
			if status.Code(errors.Unwrap(err)) != codes.PermissionDenied || !c.At.IsZero() {
				t.Errorf("%s: %+v, %v; want PermissionDenied", kind, c, err)
			}
		})
	}
}

func TestADecisionThatChangesNothingReturnsWhatItRead(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		a := open(t, b)
		b.Put(t, "x", map[string]any{"status": analysislock.Queued})
		c, err := a.documents.Exclude(t.Context(), "x", func(c lease.Cell[analysislock.Analysis]) (analysislock.Analysis, error) { return c.Doc, nil })
		if err != nil || !c.Exists || c.Doc.Status != analysislock.Queued || c.At.IsZero() || b.Calls.Count(commit) == 0 {
			t.Errorf("%+v, %v", c, err)
		}
		refusal := errors.New("no")
		if _, err = a.documents.Exclude(t.Context(), "x", func(c lease.Cell[analysislock.Analysis]) (analysislock.Analysis, error) { return c.Doc, refusal }); !errors.Is(err, refusal) {
			t.Errorf("%v, want the decision's own", err)
		}
	})
}

func TestASwapOfWhatWasNotReadIsAConflict(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		a := open(t, b)
		for _, prev := range []lease.Cell[analysislock.Analysis]{{}, {Exists: true}, {Rev: time.Now()}} {
			if _, err := a.documents.Swap(t.Context(), "x", prev, analysislock.Analysis{Status: analysislock.Ready}); !errors.Is(err, lease.ErrConflict) {
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
					b.Put(t, id, map[string]any{"status": analysislock.Queued})
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
		b.Put(t, "x", map[string]any{"status": analysislock.Queued})
		c, err := a.documents.Load(t.Context(), "x")
		if err != nil || !a.documents.db.encoders.TryAcquire(1) {
			t.Fatal(err)
		}
		next := c.Doc
		next.Status, next.Result = analysislock.Ready, large()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := a.documents.Swap(ctx, "x", c, next); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("swap: %v, want DeadlineExceeded", err)
		}
		if _, err := a.documents.Exclude(t.Context(), "x", func(lease.Cell[analysislock.Analysis]) (analysislock.Analysis, error) { return next, nil }); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("exclude: %v, want DeadlineExceeded", err)
		}
		if got := b.Fields(t, "x")["status"]; got != analysislock.Queued {
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
		want *analysislock.Error
	}{
		"whole":   {map[string]any{"code": "c", "message": "m"}, &analysislock.Error{Code: "c", Message: "m"}},
		"partly":  {map[string]any{"code": 7, "message": "m"}, &analysislock.Error{Message: "m"}},
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
