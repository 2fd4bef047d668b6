package repo

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"taskguard/emulator/emulatortest"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/lease/iso8601"
)

// A document that others wrote, with a lock in every shape (G5).
func TestLockFields(t *testing.T) {
	now := time.Now().UTC().Truncate(time.Millisecond)
	future, past := now.Add(time.Hour), now.Add(-time.Hour)
	cases := map[string]struct {
		lock map[string]any
		want string // "" for acquired
		err  error
	}{
		"no owner":                  {lock: map[string]any{"lockExpiresAt": iso8601.Format(future)}},
		"empty owner":               {lock: map[string]any{"lockOwner": "", "lockExpiresAt": iso8601.Format(future)}},
		"null owner":                {lock: map[string]any{"lockOwner": nil, "lockExpiresAt": iso8601.Format(future)}},
		"ISO future":                {lock: map[string]any{"lockOwner": "js", "lockExpiresAt": iso8601.Format(future)}, want: analysislock.Locked},
		"ISO past":                  {lock: map[string]any{"lockOwner": "js", "lockExpiresAt": iso8601.Format(past)}},
		"ISO without decimals":      {lock: map[string]any{"lockOwner": "js", "lockExpiresAt": future.Format("2006-01-02T15:04:05Z")}, want: analysislock.Locked},
		"ISO nanoseconds and zone":  {lock: map[string]any{"lockOwner": "js", "lockExpiresAt": future.In(time.FixedZone("", 9*3600)).Format(time.RFC3339Nano)}, want: analysislock.Locked},
		"Timestamp future":          {lock: map[string]any{"lockOwner": "js", "lockExpiresAt": future}, want: analysislock.Locked},
		"Timestamp past":            {lock: map[string]any{"lockOwner": "js", "lockExpiresAt": past}},
		"milliseconds future":       {lock: map[string]any{"lockOwner": "js", "lockExpiresAt": future.UnixMilli()}, want: analysislock.Locked},
		"milliseconds past":         {lock: map[string]any{"lockOwner": "js", "lockExpiresAt": float64(past.UnixMilli())}},
		"missing expiry":            {lock: map[string]any{"lockOwner": "js"}},
		"null expiry":               {lock: map[string]any{"lockOwner": "js", "lockExpiresAt": nil}},
		"unreadable, heartbeat old": {lock: map[string]any{"lockOwner": "js", "lockExpiresAt": "soon", "lockHeartbeatAt": iso8601.Format(past)}},
		"unreadable, heartbeat now": {lock: map[string]any{"lockOwner": "js", "lockExpiresAt": map[string]any{"s": 1}, "lockHeartbeatAt": iso8601.Format(future)}, want: analysislock.Locked},
		"unreadable, updated now":   {lock: map[string]any{"lockOwner": "js", "lockExpiresAt": true}, want: analysislock.Locked},
		"owner is a number":         {lock: map[string]any{"lockOwner": 5, "lockExpiresAt": iso8601.Format(future)}, want: analysislock.Locked},
		"owner is a number, stale":  {lock: map[string]any{"lockOwner": 5, "lockExpiresAt": iso8601.Format(past)}},
		"attempts is a string":      {lock: map[string]any{"attempts": "3"}},
		"token is a double":         {lock: map[string]any{"lockToken": 3.0}},
		"token is a string":         {lock: map[string]any{"lockToken": "3"}, err: lease.ErrMalformed},
		"token is negative":         {lock: map[string]any{"lockToken": -1}, err: lease.ErrMalformed},
		"token is a fraction":       {lock: map[string]any{"lockToken": 1.5}, err: lease.ErrMalformed},
		"status is a number":        {lock: map[string]any{"status": 1}},
		"status is another word":    {lock: map[string]any{"status": "ARCHIVED"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			b := emulatortest.Embedded(t)
			a := open(t, b)
			b.Put(t, "x", tc.lock)
			acq, err := a.AcquireAnalysisLock(t.Context(), "x", "w/1", 0)
			if !errors.Is(err, tc.err) {
				t.Fatalf("error = %v, want %v", err, tc.err)
			}
			if err == nil && acq.Reason != tc.want {
				t.Errorf("acquire: %+v, want %q", acq, tc.want)
			}
		})
	}
}

func TestCheckIDRefusesWhatFirestoreCannotHold(t *testing.T) {
	long := string(make([]byte, 0, 1501))
	for len(long) < 1501 {
		long += "x"
	}
	for _, id := range []string{"", ".", "..", "../x", "a/b/c", "/", "__x__", "__x____", long, "\xff", "a\nb", "\x7f"} {
		if err := analysislock.CheckID(id); !errors.Is(err, lease.ErrInvalidKey) {
			t.Errorf("CheckID(%.20q) = %v, want ErrInvalidKey", id, err)
		}
	}
	for _, id := range []string{"a", "...", "__x", "x__", "___", long[:1500], "東京 #?%", "__"} {
		if err := analysislock.CheckID(id); err != nil {
			t.Errorf("CheckID(%.20q) = %v", id, err)
		}
	}
}

// What analysislock.CheckID lets pass, both Firestores hold.
func TestOddIDsAreHeld(t *testing.T) {
	emulatortest.Each(t, func(t *testing.T, b *emulatortest.Backend) {
		a := open(t, b)
		long := ""
		for len(long) < 1500 {
			long += "x"
		}
		for _, id := range []string{"...", "__x", "___", long, "東京 #?%"} {
			b.Put(t, id, map[string]any{})
			mustAcquire(t, a, id, "w/1")
		}
	})
}

// Recovery asks for the oldest updates, and not for all: a run that is alive is
// not among them.
func TestAHeartbeatIsAnUpdate(t *testing.T) {
	emulatortest.Each(t, func(t *testing.T, b *emulatortest.Backend) {
		b.Put(t, "x", map[string]any{"status": analysislock.Queued})
		a := open(t, b)
		mustAcquire(t, a, "x", "w/1")
		first := b.Fields(t, "x")["updatedAt"]
		time.Sleep(50 * time.Millisecond)
		if err := a.RefreshAnalysisLock(t.Context(), "x", "w/1", 0); err != nil {
			t.Fatal(err)
		}
		got := b.Fields(t, "x")
		if got["updatedAt"] == first || got["updatedAt"] != got["lockHeartbeatAt"] {
			t.Errorf("updatedAt = %v after %v; want the heartbeat's %v", got["updatedAt"], first, got["lockHeartbeatAt"])
		}
	})
}

// Peeking takes nothing, and knows more than the memory of who holds it.
func TestPeekingTellsWhoHoldsTheLock(t *testing.T) {
	emulatortest.Each(t, func(t *testing.T, b *emulatortest.Backend) {
		b.Put(t, "x", map[string]any{"status": analysislock.Queued})
		a := open(t, b)
		if seen, err := a.PeekAnalysisLock(t.Context(), "x"); err != nil || seen.Reason != "" {
			t.Errorf("free: %+v, %v", seen, err)
		}
		acq := mustAcquire(t, a, "x", "w/1")
		if own := acquire(t, a, "x", "w/2"); own.Reason != analysislock.Locked || !own.Own || !own.ExpiresAt.Equal(acq.ExpiresAt) {
			t.Errorf("from memory: %+v", own)
		}
		if others := acquire(t, open(t, b), "x", "w/2"); others.Reason != analysislock.Locked || others.Own {
			t.Errorf("from Firestore: %+v", others)
		}
		later := acq.ExpiresAt.Add(time.Hour)
		b.Merge(t, "x", map[string]any{"lockExpiresAt": timeValue(later)})
		before := b.Fields(t, "x")
		seen, err := a.PeekAnalysisLock(t.Context(), "x")
		if err != nil || seen.Acquired || seen.Reason != analysislock.Locked || seen.Grant != acq.Grant || !seen.ExpiresAt.Equal(later) || seen.Own {
			t.Errorf("held: %+v, %v", seen, err)
		}
		if diff := cmp.Diff(before, b.Fields(t, "x")); diff != "" {
			t.Errorf("the document was touched (-before +after):\n%s", diff)
		}
		b.Merge(t, "x", map[string]any{"status": analysislock.Ready})
		if seen, err := a.PeekAnalysisLock(t.Context(), "x"); err != nil || seen.Reason != "" {
			t.Errorf("finished: %+v, %v", seen, err)
		}
		if _, err := a.PeekAnalysisLock(t.Context(), "missing"); !errors.Is(err, lease.ErrNotFound) {
			t.Errorf("missing: %v, want ErrNotFound", err)
		}
		if _, err := a.PeekAnalysisLock(t.Context(), "a/b"); !errors.Is(err, lease.ErrInvalidKey) {
			t.Errorf("a/b: %v, want ErrInvalidKey", err)
		}
	})
}
