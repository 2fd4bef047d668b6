package repo

import (
	"errors"
	"testing"
	"time"

	"cloud.google.com/go/firestore"
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
					if err := a.holds["w/1"].Complete(t.Context(), large()); err != nil || time.Since(began) > 4*time.Second {
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
