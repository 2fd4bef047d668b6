package repo

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"testing"
	"time"

	"cloud.google.com/go/firestore"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"

	"taskguard/emulator/emulatortest"
	"taskguard/lease"
	"taskguard/lease/analysislock"
)

func TestALedgerAnswersWhatItIsRefused(t *testing.T) {
	body := func(context.Context, json.RawMessage) error { return nil }
	for name, do := range map[string]func(ctx context.Context, l *analysislock.Locks, id string) error{
		"acquire": func(ctx context.Context, l *analysislock.Locks, id string) error {
			_, err := l.AcquireAnalysisLock(ctx, id, "w/1", 0)
			return err
		},
		"hold": func(ctx context.Context, l *analysislock.Locks, id string) error {
			return l.HoldAnalysisLock(ctx, id, "w/1", body)
		},
		"refresh": func(ctx context.Context, l *analysislock.Locks, id string) error {
			return l.RefreshAnalysisLock(ctx, id, "w/1", 0)
		},
		"release": func(ctx context.Context, l *analysislock.Locks, id string) error {
			return l.ReleaseAnalysisLock(ctx, id, "w/1", true)
		},
		"retry": func(ctx context.Context, l *analysislock.Locks, id string) error {
			return l.Retry(ctx, id, "w/1", "c", "m")
		},
		"complete": func(ctx context.Context, l *analysislock.Locks, id string) error {
			return l.Complete(ctx, id, "w/1", 1)
		},
		"fail": func(ctx context.Context, l *analysislock.Locks, id string) error {
			return l.Fail(ctx, id, "w/1", "c", "m")
		},
		"unlock": func(ctx context.Context, l *analysislock.Locks, id string) error {
			_, err := l.Unlock(ctx, id, nil)
			return err
		},
	} {
		inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
			l := &line{}
			a := open(t, b, l.options()...)
			if err := do(t.Context(), a.Locks, "a/b"); !errors.Is(err, lease.ErrInvalidKey) {
				t.Errorf("%s a/b: %v, want ErrInvalidKey", name, err)
			}
			b.Put(t, "x", map[string]any{"status": analysislock.Queued})
			if name != "acquire" {
				mustAcquire(t, a, "x", "w/1")
			}
			l.darken()
			if err := do(t.Context(), a.Locks, "x"); !errors.Is(err, lease.ErrUnavailable) {
				t.Errorf("%s in the dark: %v, want ErrUnavailable", name, err)
			}
		})
	}
}

func TestARunsOwnErrorAndItsLossAreAnswered(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		l := &line{}
		a := open(t, b, l.options()...)
		b.Put(t, "x", map[string]any{"status": analysislock.Queued})
		if _, err := a.AcquireAnalysisLock(t.Context(), "x", "w/1", -time.Second); err == nil {
			t.Error("a negative TTL was taken")
		}
		mustAcquire(t, a, "x", "w/1")
		failed := errors.New("the analyzer failed")
		if err := a.HoldAnalysisLock(t.Context(), "x", "w/1", func(context.Context, json.RawMessage) error { return failed }); !errors.Is(err, failed) {
			t.Errorf("%v, want the body's", err)
		}
		if err := a.HoldAnalysisLock(t.Context(), "x", "w/2", func(context.Context, json.RawMessage) error { return nil }); !errors.Is(err, lease.ErrLost) {
			t.Errorf("another's: %v, want ErrLost", err)
		}
		l.befall(map[string][]fault{commit: slices.Repeat([]fault{dropped(codes.InvalidArgument)}, 20)})
		if err := a.Retry(t.Context(), "x", "w/1", "c", "m"); !errors.Is(err, lease.ErrRefused) {
			t.Errorf("a retry that is refused with and without its message: %v, want ErrRefused", err)
		}
		l.befall(nil)
		b.Put(t, "y", map[string]any{"status": analysislock.Queued})
		mustAcquire(t, a, "y", "w/1")
		b.Delete(t, "y")
		err := a.HoldAnalysisLock(t.Context(), "y", "w/1", func(context.Context, json.RawMessage) error {
			t.Error("the body ran without an input")
			return nil
		})
		var gone *lease.LostError
		if !errors.As(err, &gone) || gone.Reason != lease.Deleted {
			t.Errorf("a deleted one: %v, want it lost, deleted", err)
		}
	})
}

// What others make of an analysis while it is requeued: either the requeue is made
// over it, or it has been made already.
func TestARequeueThatIsOvertakenIsMadeUnlessItWas(t *testing.T) {
	soon := timeValue(time.Now().Add(time.Hour))
	for name, c := range map[string]struct {
		others map[string]any
		made   bool
	}{
		"another status, and open":      {map[string]any{"status": "ARCHIVED", "attempts": 0, "error": firestore.Delete}, true},
		"queued, with its attempts":     {map[string]any{"status": analysislock.Queued, "error": firestore.Delete}, true},
		"queued, with its error":        {map[string]any{"status": analysislock.Queued, "attempts": 0}, true},
		"at work, of the same token":    {map[string]any{"status": analysislock.Processing, "error": firestore.Delete}, true},
		"requeued":                      {map[string]any{"status": analysislock.Queued, "attempts": 0, "error": firestore.Delete, "lastError": map[string]any{"code": "theirs"}}, false},
		"requeued, and taken by a next": {map[string]any{"status": analysislock.Processing, "attempts": 1, "lockToken": 7, "lockOwner": "w/9", "lockExpiresAt": soon}, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := emulatortest.Embedded(t)
			b.Put(t, "x", map[string]any{"status": analysislock.Failed, "attempts": 1, "lockToken": 6, "error": map[string]any{"code": "c"}})
			var since map[string]any
			l, err := analysislock.New(&interrupted{open(t, b).documents, func() { b.Merge(t, "x", c.others); since = b.Fields(t, "x") }}, lease.Policy{}, nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := l.Requeue(t.Context(), "x", nil); err != nil {
				t.Fatal(err)
			}
			got := b.Fields(t, "x")
			if made := got["status"] == analysislock.Queued && got["attempts"] == int64(0) && got["error"] == nil && got["lastError"] == nil; made != c.made {
				t.Errorf("the document is %v", got)
			}
			if diff := cmp.Diff(since, got); !c.made && diff != "" {
				t.Errorf("what the others did was undone (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAResultOfAsManyValuesAsTheLimitWaitsForNoTurn(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		db := open(t, b).documents.db
		if !db.encoders.TryAcquire(1) {
			t.Fatal("the turn is taken")
		}
		half := make([]any, largeResult/2-1)
		for want, more := range map[error][]firestore.Update{nil: nil, context.DeadlineExceeded: {{Value: 1}}} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			done, err := db.encoding(ctx, append([]firestore.Update{{Value: half}, {Value: half}}, more...))
			cancel()
			if done(); !errors.Is(err, want) {
				t.Errorf("%v, want %v", err, want)
			}
		}
	})
}

func TestAnEmulatorIsReachedByOneConnectionAndThatIsClosed(t *testing.T) {
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", "/does/not/exist") // Google's client must not look for any
	if _, err := Open(t.Context(), "p", Options{Emulator: "\x7f"}); err == nil {
		t.Error("an address that is none was taken")
	}
	for _, named := range []string{"", "localhost:1"} {
		t.Setenv("FIRESTORE_EMULATOR_HOST", named)
		a, err := Open(t.Context(), "p", Options{Emulator: "localhost:1"})
		if err != nil {
			t.Fatalf("%q: %v", named, err)
		}
		r, err := OpenRooms(t.Context(), "p", RoomOptions{Emulator: "localhost:1"})
		if err != nil {
			t.Fatalf("%q: %v", named, err)
		}
		for _, db := range []*database{a.documents.db, r.documents.db} {
			if target := db.conn.CanonicalTarget(); target != "passthrough:///localhost:1" {
				t.Errorf("%q: it goes to %s", named, target)
			}
		}
		if err := errors.Join(a.Close(), r.Close()); err != nil {
			t.Errorf("%q: %v", named, err)
		}
		if a.documents.db.conn.GetState() != connectivity.Shutdown || r.documents.db.conn.GetState() != connectivity.Shutdown {
			t.Errorf("%q: the connection is open", named)
		}
		if a.Close() == nil || r.Close() == nil {
			t.Errorf("%q: a second Close is no error", named)
		}
	}
	if got, err := (emulatorOwner{}).GetRequestMetadata(t.Context()); err != nil || got["authorization"] != "Bearer owner" {
		t.Errorf("%v, %v; want what passes an emulator's rules", got, err)
	}
}
