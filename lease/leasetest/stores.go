package leasetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"taskguard/lease"
)

// storeCases test Load and Swap.
func storeCases[D any]() []testCase[D] {
	return []testCase[D]{
		{name: "Store/each reply has its time, and Swap returns the cell for the next", run: replies[D], waits: true},
		{name: "Store/a Swap of a stale cell is a conflict, and changes nothing", run: func(b *fixture[D]) {
			conflict(b, func() { b.takeOver("w/1") })
		}},
		{name: "Store/a Swap does not recreate a deleted record", run: func(b *fixture[D]) {
			conflict(b, func() { b.Delete(b.T, b.store, key) })
		}},
		{name: "Store/a Swap after a deletion and recreation is a conflict", run: func(b *fixture[D]) {
			conflict(b, func() { b.Delete(b.T, b.store, key); b.Create(b.T, b.store, key) })
		}},
		{name: "Store/a Swap after another program's write is a conflict, and keeps it", run: afterTouch[D]},
		{name: "Store/every part of a lease is kept", run: roundTrip[D]},
		{name: "Store/an ended context is an error", run: ended[D]},
	}
}

// replies checks that the store's time of a reply lies between the start of its call
// and its end, by a clock that runs as fast as the local one but may be set differently.
func replies[D any](b *fixture[D]) {
	const slack = 250 * time.Millisecond
	b.created()
	initial := b.load()
	replied := time.Now()
	last := initial

	check := func(what string, c lease.Cell[D], err error) {
		b.Helper()
		if err != nil {
			b.Fatalf("%s: %v", what, err)
		}
		if c.At.Before(last.At) {
			b.Errorf("%s: the store's time went from %v back to %v", what, last.At, c.At)
		}
		if c.Asked.Before(last.Asked) || c.Asked.After(time.Now()) {
			b.Errorf("%s: asked at %v; want it after %v and before %v", what, c.Asked, last.Asked, time.Now())
		}
		passed := c.At.Sub(initial.At)
		if least := c.Asked.Sub(replied) - slack; passed < least {
			b.Errorf("%s: %v passed in the store, at least %v here", what, passed, least)
		}
		if most := time.Since(initial.Asked) + slack; passed > most {
			b.Errorf("%s: %v passed in the store, at most %v here", what, passed, most)
		}
		last = c
	}

	for i := range 4 {
		c, err := b.store.Load(b.Context(), key, lease.OnlyLease)
		check("load", c, err)
		for _, owner := range []string{"w/1", "w/2"} { // the second Swap needs no Load
			note := fmt.Sprint(owner, i)
			next := b.owned(c, owner)
			b.SetNote(&next, note)
			c, err = b.store.Swap(b.Context(), key, c, next)
			check("swap", c, err)
			if !c.Exists || b.Note(c.Doc) != note {
				b.Errorf("swap %s: cell = %+v", note, c)
			}
			b.wantLease(*b.Lease(&c.Doc), b.lease())
			b.wantNote(note)
		}
		time.Sleep(400 * time.Millisecond)
	}
}

// conflict changes the record between a load and a swap. The swap is a conflict,
// and what the change wrote is kept.
func conflict[D any](b *fixture[D], change func()) {
	old := b.created().load()
	change()
	want := b.load()
	taken := b.owned(old, "w/2")
	b.SetNote(&taken, "stale")
	for _, next := range []D{taken, old.Doc} { // even a commit that changes nothing
		_, err := b.store.Swap(b.Context(), key, old, next)
		b.wantErr(err, lease.ErrConflict)
		got := b.load()
		if got.Exists != want.Exists || b.Note(got.Doc) != b.Note(want.Doc) {
			b.Errorf("the record = %+v; want %+v", got, want)
		}
		b.wantLease(*b.Lease(&got.Doc), *b.Lease(&want.Doc))
	}
}

func afterTouch[D any](b *fixture[D]) {
	conflict(b, func() { b.Touch(b.T, b.store, key) })
	b.takeOver("w/1")
	b.Touch(b.T, b.store, key)
	if got := b.Touched(b.T, b.store, key); got != 2 || b.lease().Owner != "w/1" {
		b.Errorf("%d touches, lease %+v; want 2, and w/1's", got, b.lease())
	}
}

func roundTrip[D any](b *fixture[D]) {
	now := b.created().load().At.Truncate(time.Millisecond)
	longest := now.Add(12*time.Hour + time.Millisecond)
	name := strings.Repeat("worker-00042-abc/é漢/", 20)
	for name, l := range map[string]lease.Lease{
		"of a long owner": {Owner: name, Token: 1, Attempts: 1, HeartbeatAt: now, ExpiresAt: now.Add(b.TTL)},
		"of a big token":  {Owner: "w/1", Token: 1 << 53, Attempts: 1<<31 - 1, HeartbeatAt: now, ExpiresAt: longest},
		"without times":   {Owner: "w/1", Token: 7, Attempts: 2},
		"freed":           {Token: 8, Attempts: 3},
		"finished":        {Token: 9, Attempts: 3, Finished: true, FinishedBy: "w/9"},
		"finished early":  {Owner: "w/1", Token: 9, Finished: true, HeartbeatAt: now, ExpiresAt: now.Add(b.TTL)},
	} {
		b.Log("a lease", name)
		b.Delete(b.T, b.store, key)
		b.Create(b.T, b.store, key)
		b.wantLease(b.lease(), lease.Lease{})

		d := b.rewrite(func(d *D, _ time.Time) {
			*b.Lease(d) = l
			if l.Finished {
				b.Close(d)
			}
		})
		b.wantLease(*b.Lease(&d), l)
		b.wantLease(b.lease(), l)
	}
}

func ended[D any](b *fixture[D]) {
	c := b.created().load()
	ctx, cancel := context.WithCancel(b.Context())
	cancel()
	if _, err := b.store.Load(ctx, key, lease.OnlyLease); err == nil || errors.Is(err, lease.ErrRefused) {
		b.Errorf("load: %v; want an error that is no refusal", err)
	}
	if _, err := b.store.Swap(ctx, key, c, b.owned(c, "w/1")); err == nil || errors.Is(err, lease.ErrRefused) {
		b.Errorf("swap: %v; want an error that is no refusal", err)
	}
}
