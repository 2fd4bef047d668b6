package worker

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"path"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"taskguard/emulator/firestore"
	"taskguard/internal/delivery"
	"taskguard/internal/testing/emulatortest"
	"taskguard/lease"
	"taskguard/orchestrator"
	"taskguard/repo"
)

func TestAStopDuringTheAcquisitionLeavesNoLock(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		b.Put(t, "x", map[string]any{"status": "QUEUED"})
		w := start(t, b, doing(func() { t.Error("it ran") }))
		var stopped atomic.Bool
		a, err := repo.Open(t.Context(), b.Project, repo.Options{Collection: b.Collection, Fields: repo.Fields(b.Vocabulary), Policy: lease.Policy{TTL: lease.DefaultTTL}}, b.Client(t,
			grpc.WithChainUnaryInterceptor(func(ctx context.Context, m string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
				err := invoke(ctx, m, req, reply, cc, opts...)
				if path.Base(m) != "Commit" || stopped.Swap(true) {
					return err
				}
				w.stop(delivery.ErrStopping)
				select { // the reply arrives a moment later
				case <-ctx.Done():
					return status.FromContextError(ctx.Err()).Err()
				case <-time.After(100 * time.Millisecond):
					return err
				}
			}))...)
		if err != nil {
			t.Fatal(err)
		}
		w.guard.Locks = a
		w.deliver(t, "x").check(t, 500, map[string]any{"acquired": true, "reason": "shutting_down"})
		if !stopped.Load() {
			t.Error("no commit was made")
		}
		checkFields(t, b, "x", map[string]any{"status": "QUEUED", "lockOwner": nil, "lockExpiresAt": nil, "attempts": int64(0), "lockToken": int64(1)})
	})
}

// A worker without Firestore cannot trust its lock any more. If no other worker has acquired the
// lock, it releases it when Firestore is back.
func TestALockLostToTimeAloneIsFreed(t *testing.T) {
	for name, away := range map[string]func(ttl time.Duration) time.Duration{
		"back before the expiry": func(time.Duration) time.Duration { return 0 },
		"back after the expiry":  func(ttl time.Duration) time.Duration { return ttl },
	} {
		forKinds(t, name, func(t *testing.T, b *emulatortest.Backend) {
			b.Put(t, "x", map[string]any{"status": "QUEUED"})
			var w *process
			w = start(t, b, func(ctx context.Context, _ orchestrator.Job) (orchestrator.Result, error) {
				w.unavailable.Store(true)
				<-ctx.Done()
				var lost *lease.LostError
				if !errors.As(context.Cause(ctx), &lost) || lost.Reason != lease.OutOfTime {
					t.Errorf("cause = %v, want out of time", context.Cause(ctx))
				}
				time.Sleep(away(lease.DefaultTTL))
				w.unavailable.Store(false)
				return "must not be written", nil
			})
			w.deliver(t, "x").check(t, 409, map[string]any{"acquired": true, "reason": "lock_lost"})
			checkFields(t, b, "x", map[string]any{
				"status": "QUEUED", "lockOwner": nil, "lockExpiresAt": nil, "lockHeartbeatAt": nil,
				"attempts": int64(1), "lockToken": int64(1), "result": nil, "finishedBy": nil,
			})
			start(t, b, succeed).deliver(t, "x").check(t, 200, map[string]any{"status": "READY", "lock_token": 2.0})
		})
	}
}

// Each instance has owners of its own: of one name, two runs of two instances could overlap.
func TestTheOwnerBeginsWithTheInstance(t *testing.T) {
	host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/instance/id") {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		w.Header().Set("Metadata-Flavor", "Google")
		_, _ = w.Write([]byte("0123456789abcdefABCDEF"))
	}))
	defer host.Close()
	seen := map[string]bool{}
	for _, c := range []struct{ revision, metadata, want string }{
		{"", "", `^local/[A-Z2-7]{8}$`},
		{"", "", `^local/[A-Z2-7]{8}$`},
		{"r-1", "127.0.0.1:1", `^r-1/[A-Z2-7]{16}$`}, // no metadata server
		{"r-1", strings.TrimPrefix(host.URL, "http://"), `^r-1/0123456789abcdef$`},
	} {
		t.Setenv("K_REVISION", c.revision)
		t.Setenv("GCE_METADATA_HOST", c.metadata)
		g, err := Open(t.Context(), Options{Project: "p", Emulator: "127.0.0.1:1"})
		if err != nil {
			t.Fatal(err)
		}
		kind, err := g.register(Kind{})
		if err != nil {
			t.Fatal(err)
		}
		if got := kind.guard.Instance; !regexp.MustCompile(c.want).MatchString(got) || seen[got] {
			t.Errorf("the instance %q, want %s and no other's", got, c.want)
		}
		seen[kind.guard.Instance] = true
		if err := g.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// clocked returns a Firestore whose clock is ahead of this process's clock.
func clocked(t *testing.T, ahead time.Duration) *emulatortest.Backend {
	t.Helper()
	s := firestore.NewServer(firestore.Options{Now: func() time.Time { return time.Now().Add(ahead) }})
	t.Cleanup(s.Close)
	return &emulatortest.Backend{Project: emulatortest.Project(), Server: s, Calls: &emulatortest.Calls{}}
}

// An expiry is a time of the store, and so are retry_at and the follow-up.
func TestAWorkersClockDecidesNothingAboutAnothersLock(t *testing.T) {
	for _, ahead := range []time.Duration{time.Hour, -time.Hour} {
		Subtest(t, ahead.String(), func(t *testing.T) {
			b := clocked(t, ahead)
			w := start(t, b, succeed)
			expires := held(t, b, "x", ahead+100*time.Second)
			w.deliver(t, "x").check(t, 409, map[string]any{"reason": "locked", "retry_at": expires, "Retry-After": "100"})
			q := &recordingQueue{}
			w.guard.Queue, w.guard.RunTimeout = q, 7*time.Minute
			w.deliver(t, "x").check(t, 200, map[string]any{"reason": "locked", "retry_at": expires})
			if at := q.tasks[0].At.Add(-2 * time.Second).UTC().Format("2006-01-02T15:04:05.000Z"); at != expires || q.tasks[0].Deadline != 8*time.Minute || q.tasks[0].AnalysisID != "x" {
				t.Errorf("booked %+v for 2 s after %s, want after %s", q.tasks[0], at, expires)
			}
		})
	}
}
