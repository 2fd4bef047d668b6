package repo

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"taskguard/internal/testing/emulatortest"
	"taskguard/lease"
	"taskguard/locks/document"
)

// anOwned returns a record owned by s/1 that was extended at the time of a reading.
func anOwned(at time.Time) document.Lock {
	at = at.Truncate(time.Millisecond)
	return document.Lock{
		Lease:    lease.Lease{Owner: "s/1", Token: 7, HeartbeatAt: at, ExpiresAt: at.Add(30 * time.Second)},
		LockedAt: at.Add(-time.Minute), Holder: "HOLDER", Name: "A Name",
	}
}

func mustLoad(t *testing.T, r onRooms) lease.Cell[document.Lock] {
	t.Helper()
	c, err := r.Load(t.Context(), "a")
	fatal(t, err)
	return c
}

func mustSwap(t *testing.T, r onRooms, prev lease.Cell[document.Lock], next document.Lock) lease.Cell[document.Lock] {
	t.Helper()
	c, err := r.Swap(t.Context(), "a", prev, next)
	fatal(t, err)
	return c
}

func TestRooms(t *testing.T) {
	cases := map[string]func(t *testing.T, r onRooms){
		"TheFirstSwapCreatesTheDocument": func(t *testing.T, r onRooms) {
			missing := mustLoad(t, r)
			next := anOwned(missing.At)
			c := mustSwap(t, r, missing, next)
			if c.Doc != next || !c.Exists || !c.At.After(missing.At) || c.Asked.IsZero() {
				t.Errorf("%+v, want %+v after %v", c, next, missing.At)
			}
			want := map[string]any{
				"lockOwner": "s/1", "lockToken": int64(7), "holder": "HOLDER", "holderName": "A Name", "lockedAt": timeValue(next.LockedAt),
				"lockHeartbeatAt": timeValue(next.HeartbeatAt), "lockExpiresAt": timeValue(next.ExpiresAt),
			}
			same(t, want, r.fields(t))
		},
		"OfTwoWhoCreateAtOnceOneDoes": func(t *testing.T, r onRooms) {
			missing := mustLoad(t, r)
			var errs [8]error
			var all sync.WaitGroup
			for i := range errs {
				all.Go(func() { _, errs[i] = r.Swap(t.Context(), "a", missing, anOwned(missing.At)) })
			}
			all.Wait()
			won := 0
			for _, err := range errs {
				if err == nil {
					won++
				} else if !errors.Is(err, lease.ErrConflict) {
					t.Errorf("err = %v, want ErrConflict", err)
				}
			}
			if won != 1 {
				t.Errorf("%d created it", won)
			}
		},
		"WhatIsNotKeptIsDeleted": func(t *testing.T, r onRooms) {
			missing := mustLoad(t, r)
			c := mustSwap(t, r, missing, anOwned(missing.At))
			gone := mustSwap(t, r, c, document.Lock{})
			if gone.Exists || gone.At.Before(c.At) || gone.Asked.Before(c.Asked) || r.fields(t) != nil {
				t.Errorf("%+v; document %v", gone, r.fields(t))
			}
			again := mustLoad(t, r)
			mustSwap(t, r, again, anOwned(again.At))
			if _, err := r.Swap(t.Context(), "a", c, document.Lock{}); !errors.Is(err, lease.ErrConflict) || !mustLoad(t, r).Exists {
				t.Errorf("deleted as it was before: %v, want ErrConflict", err)
			}
		},
		"NothingBecomesOfNothing": func(t *testing.T, r onRooms) {
			missing := mustLoad(t, r)
			if c := mustSwap(t, r, missing, document.Lock{}); c.Exists {
				t.Errorf("%+v", c)
			}
			mustSwap(t, r, missing, anOwned(missing.At))
			if _, err := r.Swap(t.Context(), "a", missing, document.Lock{}); !errors.Is(err, lease.ErrConflict) {
				t.Errorf("err = %v, want ErrConflict", err)
			}
		},
		"AnOperatorsUnlockIsKept": func(t *testing.T, r onRooms) {
			l := locksFor(t, r, 0)
			token := locked(t, l, "a", "s/1").Lock.Token
			if broken, err := l.Break(t.Context(), "a"); err != nil || !broken {
				t.Fatal(broken, err)
			}
			got := r.fields(t)
			if at, ok := got["lockExpiresAt"].(string); !ok || len(at) != len("2006-01-02T15:04:05.000Z") {
				t.Errorf("lockExpiresAt = %v", got["lockExpiresAt"])
			}
			delete(got, "lockExpiresAt")
			same(t, map[string]any{"unlocked": true, "lockToken": token}, got)
			if swept, err := l.Sweep(t.Context(), r); err != nil || swept != 0 || r.fields(t) == nil {
				t.Errorf("swept %d, %v, before feeds can have seen whose doing it was", swept, err)
			}
		},
		"LapsedAreTheOldestAndNoneThatLives": func(t *testing.T, r onRooms) {
			r.put(t, "old", map[string]any{"lockOwner": "s/1", "lockExpiresAt": "1999-01-01T00:00:00.000Z"})
			r.put(t, "older", map[string]any{"lockOwner": "s/1", "lockExpiresAt": "1998-01-01T00:00:00.000Z"})
			r.put(t, "oldest", map[string]any{"lockOwner": "s/1", "lockToken": 3, "lockExpiresAt": "1997-01-01T00:00:00.000Z"})
			before := locked(t, locksFor(t, r, 0), "alive", "s/1")
			for limit, want := range map[int]string{2: "[oldest older]", 100: "[oldest older old]"} {
				found, err := r.Lapsed(t.Context(), limit)
				rooms := []string{}
				for _, f := range found {
					rooms = append(rooms, f.Room)
				}
				if err != nil || fmt.Sprint(rooms) != want || found[0].Cell.At.Before(before.Lock.LockedAt) || found[0].Cell.Doc.Token != 3 {
					t.Errorf("%d: %+v, %v; want %s", limit, found, err, want)
				}
			}
		},
	}
	for name, run := range cases {
		t.Run(name, func(t *testing.T) {
			emulatortest.Each(t, func(t *testing.T, b *emulatortest.Backend) { run(t, openRooms(t, b)) })
		})
	}
}
