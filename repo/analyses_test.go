package repo

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"

	"taskguard/emulator/emulatortest"
	"taskguard/lease"
	"taskguard/lease/analysislock"
)

func TestMain(m *testing.M) { os.Exit(emulatortest.Main(m)) }

// ttl is long in a bubble, and short where time is real.
func ttl(b *emulatortest.Backend) time.Duration {
	if b.Google() {
		return 5 * time.Second
	}
	return lease.DefaultTTL
}

// open is Analyses on b over a connection of its own.
func open(t testing.TB, b *emulatortest.Backend, opts ...grpc.DialOption) *Analyses {
	t.Helper()
	a, err := Open(t.Context(), b.Project, Options{Policy: lease.Policy{TTL: ttl(b), MaxAttempts: 10}}, b.Client(t, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func acquire(t testing.TB, a *Analyses, id, owner string) analysislock.Acquisition {
	t.Helper()
	acq, err := a.AcquireAnalysisLock(t.Context(), id, owner, 0)
	if err != nil {
		t.Fatalf("acquire %s as %s: %v", id, owner, err)
	}
	return acq
}

func mustAcquire(t testing.TB, a *Analyses, id, owner string) analysislock.Acquisition {
	t.Helper()
	acq := acquire(t, a, id, owner)
	if !acq.Acquired {
		t.Fatalf("acquire %s as %s: %+v", id, owner, acq)
	}
	return acq
}

// The cases of G10 and of the fields of G4–G8.
func TestAnalysisLock(t *testing.T) {
	cases := map[string]func(t *testing.T, b *emulatortest.Backend, a *Analyses){
		"TheFirstAcquires": func(t *testing.T, b *emulatortest.Backend, a *Analyses) {
			b.Put(t, "x", map[string]any{"status": analysislock.Queued, "theirs": []any{int64(1), 2.5, nil}})
			acq := mustAcquire(t, a, "x", "w/1")
			if acq.Grant.Token != 1 || acq.Attempt != 1 {
				t.Errorf("token, attempt = %d, %d; want 1, 1", acq.Grant.Token, acq.Attempt)
			}
			got := b.Fields(t, "x")
			for _, name := range []string{"lockExpiresAt", "lockHeartbeatAt", "updatedAt"} {
				if s, _ := got[name].(string); len(s) != len("2006-01-02T15:04:05.000Z") || s[len(s)-1] != 'Z' {
					t.Errorf("%s = %v, want ISO 8601 with three decimals", name, got[name])
				}
				delete(got, name)
			}
			want := map[string]any{"status": analysislock.Processing, "theirs": []any{int64(1), 2.5, nil}, "attempts": int64(1), "lockOwner": "w/1", "lockToken": int64(1)}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("document (-want +got):\n%s", diff)
			}
		},
		"AnExpiredLockOfAnothersIsStolenAndAReleasedOneIsNot": func(t *testing.T, b *emulatortest.Backend, a *Analyses) {
			b.Put(t, "expired", map[string]any{"lockOwner": "them", "lockExpiresAt": "1999-01-01T00:00:00Z"})
			b.Put(t, "released", map[string]any{"lockToken": 3, "attempts": 1})
			if acq := mustAcquire(t, a, "expired", "w/1"); !acq.Stolen {
				t.Errorf("%+v, want it stolen", acq)
			}
			if acq := mustAcquire(t, a, "released", "w/2"); acq.Stolen {
				t.Errorf("%+v, want it not stolen", acq)
			}
			if acq := acquire(t, a, "expired", "w/3"); acq.Acquired || acq.Stolen {
				t.Errorf("%+v, want a skip", acq)
			}
		},
		"EachRefreshOfARunIsTold": func(t *testing.T, b *emulatortest.Backend, a *Analyses) {
			b.Put(t, "x", map[string]any{"status": analysislock.Queued})
			mustAcquire(t, a, "x", "w/1")
			told := 0
			err := a.HoldAnalysisLock(t.Context(), "x", "w/1", func(context.Context, json.RawMessage) error {
				time.Sleep(ttl(b) * 5 / 6) // refreshed each third
				return nil
			}, func(_ context.Context, _ time.Duration, err error) {
				if told++; err != nil {
					t.Errorf("refresh %d: %v", told, err)
				}
			})
			if err != nil || told != 2 {
				t.Errorf("told of %d refreshes, %v; want 2", told, err)
			}
		},
		"AFailureForNowIsKeptUntilTheEnd": func(t *testing.T, b *emulatortest.Backend, a *Analyses) {
			b.Put(t, "x", map[string]any{"status": analysislock.Queued, "attempts": 8})
			mustAcquire(t, a, "x", "w/1")
			if err := a.Retry(t.Context(), "x", "w/1", "analyzer_failed", "the model is away\xff"); err != nil {
				t.Fatal(err)
			}
			got := b.Fields(t, "x")
			want := map[string]any{"code": "analyzer_failed", "message": "the model is away"}
			if diff := cmp.Diff(want, got["lastError"]); diff != "" || got["status"] != analysislock.Queued || got["lockOwner"] != nil || got["error"] != nil {
				t.Errorf("document = %v; lastError (-want +got):\n%s", got, diff)
			}
			mustAcquire(t, a, "x", "w/2")
			b.Merge(t, "x", map[string]any{"lockExpiresAt": "2000-01-01T00:00:00.000Z"}) // it has crashed
			if acq := acquire(t, open(t, b), "x", "w/3"); acq.Reason != analysislock.AttemptsExhausted {
				t.Fatalf("acquisition = %+v, want attempts exhausted", acq)
			}
			got = b.Fields(t, "x")
			want = map[string]any{"code": "attempts_exhausted", "message": "gave up after 10 attempts; last error: the model is away"}
			if diff := cmp.Diff(want, got["error"]); diff != "" || got["lastError"] != nil || got["status"] != analysislock.Failed {
				t.Errorf("document = %v; error (-want +got):\n%s", got, diff)
			}
		},
		"AFailureForNowThatDoesNotFitIsReleasedWithout": func(t *testing.T, b *emulatortest.Backend, a *Analyses) {
			b.Put(t, "x", map[string]any{"status": analysislock.Queued, "input": strings.Repeat("x", 1<<20-2000)})
			mustAcquire(t, a, "x", "w/1")
			if err := a.Retry(t.Context(), "x", "w/1", "c", strings.Repeat("y", 4000)); err != nil {
				t.Fatal(err)
			}
			if got := b.Fields(t, "x"); got["lockOwner"] != nil || got["status"] != analysislock.Queued || got["lastError"] != nil {
				t.Errorf("owner, status, lastError = %v, %v, %v; want it released without", got["lockOwner"], got["status"], got["lastError"])
			}
		},
		"OfTwoAtOnceExactlyOneAcquires": func(t *testing.T, b *emulatortest.Backend, a *Analyses) {
			b.Put(t, "x", map[string]any{"status": analysislock.Queued})
			other := open(t, b)
			var acqs [2]analysislock.Acquisition
			var wg sync.WaitGroup
			for i, a := range []*Analyses{a, other} {
				wg.Go(func() { acqs[i] = acquire(t, a, "x", string(rune('a'+i))) })
			}
			wg.Wait()
			if acqs[0].Acquired == acqs[1].Acquired {
				t.Errorf("acquired: %+v, %+v", acqs[0], acqs[1])
			}
			for _, acq := range acqs {
				if !acq.Acquired && acq.Reason != analysislock.Locked {
					t.Errorf("the other: %+v, want %s", acq, analysislock.Locked)
				}
			}
		},
		"AfterTheTTLItIsStolen": func(t *testing.T, b *emulatortest.Backend, a *Analyses) {
			b.Put(t, "x", map[string]any{"status": analysislock.Queued})
			mustAcquire(t, a, "x", "w/1")
			other := open(t, b)
			if acq := acquire(t, other, "x", "w/2"); acq.Reason != analysislock.Locked || acq.Remaining <= 0 {
				t.Errorf("before the TTL: %+v", acq)
			}
			time.Sleep(ttl(b) + 10*time.Millisecond)
			if acq := mustAcquire(t, other, "x", "w/2"); acq.Grant.Token != 2 {
				t.Errorf("token = %d, want 2", acq.Grant.Token)
			}
			if err := a.Complete(t.Context(), "x", "w/1", "late"); !errors.Is(err, lease.ErrLost) {
				t.Errorf("finish of the superseded: %v, want ErrLost", err)
			}
			if err := a.RefreshAnalysisLock(t.Context(), "x", "w/1", 0); !errors.Is(err, lease.ErrLost) {
				t.Errorf("refresh by the superseded: %v, want ErrLost", err)
			}
			if got := b.Fields(t, "x"); got["lockOwner"] != "w/2" || got["result"] != nil {
				t.Errorf("document: %v", got)
			}
		},
		"AFinishedOneIsAlwaysRefused": func(t *testing.T, b *emulatortest.Backend, a *Analyses) {
			for _, status := range []string{analysislock.Ready, analysislock.Failed} {
				b.Put(t, status, map[string]any{"status": status})
				want := analysislock.Acquisition{Reason: analysislock.AlreadyFinished, Status: status}
				if got := acquire(t, a, status, "w/1"); got != want {
					t.Errorf("acquire = %+v, want %+v", got, want)
				}
				if diff := cmp.Diff(map[string]any{"status": status}, b.Fields(t, status)); diff != "" {
					t.Errorf("the document changed (-want +got):\n%s", diff)
				}
			}
		},
		"AnotherOwnersReleaseLeavesTheLock": func(t *testing.T, b *emulatortest.Backend, a *Analyses) {
			b.Put(t, "x", map[string]any{"status": analysislock.Queued})
			mustAcquire(t, a, "x", "w/1")
			before := b.Fields(t, "x")
			for _, owner := range []string{"w/2", ""} {
				if err := a.ReleaseAnalysisLock(t.Context(), "x", owner, false); err != nil {
					t.Errorf("release by %q: %v, want silence", owner, err)
				}
			}
			if err := a.ReleaseAnalysisLock(t.Context(), "missing", "w/1", false); err != nil {
				t.Errorf("release of a missing analysis: %v, want silence", err)
			}
			if diff := cmp.Diff(before, b.Fields(t, "x")); diff != "" {
				t.Errorf("the document changed (-want +got):\n%s", diff)
			}
		},
		"ItsOwnersReleaseDeletesTheLockAndQueues": func(t *testing.T, b *emulatortest.Backend, a *Analyses) {
			b.Put(t, "x", map[string]any{"status": analysislock.Queued})
			mustAcquire(t, a, "x", "w/1")
			if err := a.ReleaseAnalysisLock(t.Context(), "x", "w/1", false); err != nil {
				t.Fatal(err)
			}
			got := b.Fields(t, "x")
			delete(got, "updatedAt")
			want := map[string]any{"status": analysislock.Queued, "attempts": int64(1), "lockToken": int64(1)}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("document (-want +got):\n%s", diff)
			}
			if acq := mustAcquire(t, a, "x", "w/2"); acq.Grant.Token != 2 || acq.Attempt != 2 {
				t.Errorf("next: %+v, want token 2, attempt 2", acq)
			}
		},
		"AMissingAnalysisIsAnError": func(t *testing.T, b *emulatortest.Backend, a *Analyses) {
			if _, err := a.AcquireAnalysisLock(t.Context(), "x", "w/1", 0); !errors.Is(err, lease.ErrNotFound) {
				t.Errorf("acquire: %v, want ErrNotFound", err)
			}
			if got := b.Fields(t, "x"); got != nil {
				t.Errorf("the document was made: %v", got)
			}
		},
		"OneAttemptTooManyIsRecorded": func(t *testing.T, b *emulatortest.Backend, a *Analyses) {
			b.Put(t, "x", map[string]any{"status": analysislock.Queued, "attempts": 10, "lockToken": 12})
			if acq := acquire(t, a, "x", "w/1"); acq.Reason != analysislock.AttemptsExhausted || acq.Status != analysislock.Failed {
				t.Errorf("acquire: %+v", acq)
			}
			got := b.Fields(t, "x")
			if e, _ := got["error"].(map[string]any); got["status"] != analysislock.Failed || got["lockToken"] != int64(13) || e["code"] != analysislock.AttemptsExhausted {
				t.Errorf("document: %v", got)
			}
		},
		"CompleteRecordsTheResultAndFreesTheLock": func(t *testing.T, b *emulatortest.Backend, a *Analyses) {
			b.Put(t, "x", map[string]any{"status": analysislock.Queued, "error": map[string]any{"code": "old"}})
			mustAcquire(t, a, "x", "w/1")
			result := map[string]any{"n": int64(3), "a.b": []any{1.5, "ü"}, "`": nil}
			if err := a.Complete(t.Context(), "x", "w/1", result); err != nil {
				t.Fatal(err)
			}
			got := b.Fields(t, "x")
			delete(got, "updatedAt")
			want := map[string]any{"status": analysislock.Ready, "result": result, "attempts": int64(1), "lockToken": int64(1), "finishedBy": "w/1"}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("document (-want +got):\n%s", diff)
			}
			if err := a.Fail(t.Context(), "x", "w/1", "late", "late"); !errors.Is(err, lease.ErrLost) {
				t.Errorf("a second finish: %v, want ErrLost", err)
			}
		},
		"AResultTooLargeIsRefusedAndTheLockKept": func(t *testing.T, b *emulatortest.Backend, a *Analyses) {
			b.Put(t, "x", map[string]any{"status": analysislock.Queued})
			mustAcquire(t, a, "x", "w/1")
			if err := a.Complete(t.Context(), "x", "w/1", string(make([]byte, 1<<20))); !errors.Is(err, lease.ErrRefused) {
				t.Fatalf("complete: %v, want ErrRefused", err)
			}
			if err := a.Fail(t.Context(), "x", "w/1", "result_invalid", "too large"); err != nil {
				t.Errorf("fail: %v", err)
			}
		},
		"TheInputIsHandedOnAndTheLockRefreshed": func(t *testing.T, b *emulatortest.Backend, a *Analyses) {
			b.Put(t, "x", map[string]any{"status": analysislock.Queued, "input": map[string]any{"n": 7}})
			mustAcquire(t, a, "x", "w/1")
			first := b.Fields(t, "x")["lockExpiresAt"].(string)
			err := a.HoldAnalysisLock(t.Context(), "x", "w/1", func(ctx context.Context, input json.RawMessage) error {
				if string(input) != `{"n":7}` {
					t.Errorf("input = %s", input)
				}
				time.Sleep(2 * ttl(b))
				return ctx.Err()
			})
			if err != nil {
				t.Fatal(err)
			}
			if last := b.Fields(t, "x")["lockExpiresAt"].(string); last <= first {
				t.Errorf("lockExpiresAt: %s, then %s", first, last)
			}
		},
		"RefreshTakesATTL": func(t *testing.T, b *emulatortest.Backend, a *Analyses) {
			b.Put(t, "x", map[string]any{"status": analysislock.Queued})
			mustAcquire(t, a, "x", "w/1")
			if err := open(t, b).RefreshAnalysisLock(t.Context(), "x", "w/1", time.Hour); err != nil {
				t.Fatal(err)
			}
			if err := a.RefreshAnalysisLock(t.Context(), "x", "w/1", -time.Hour); err == nil {
				t.Error("a negative TTL was taken")
			}
			d, err := a.Get(t.Context(), "x")
			if err != nil {
				t.Fatal(err)
			}
			if left := d.Lock.ExpiresAt.Sub(d.ReadAt); left < 59*time.Minute || left > time.Hour+time.Second {
				t.Errorf("left: %v, want an hour", left)
			}
		},
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			emulatortest.Each(t, func(t *testing.T, b *emulatortest.Backend) { test(t, b, open(t, b)) })
		})
	}
}
