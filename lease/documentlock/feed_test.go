package documentlock

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/lease/leasetest"
)

// newsroom is a Feed on a store, which runs from start until the test ends.
type newsroom struct {
	*store
	faulty *leasetest.Faulty[Lock] // by which the feed reads
	locks  *Locks                  // by which others write
	feed   *Feed
	log    bytes.Buffer
}

func opened(t *testing.T) *newsroom {
	t.Helper()
	s, l := open(t)
	n := &newsroom{store: s, faulty: leasetest.NewFaulty(s, nil), locks: l}
	n.feed = NewFeed(on(t, n.faulty), s, FeedOptions{Log: slog.New(slog.NewTextHandler(&n.log, nil))})
	return n
}

func (n *newsroom) start(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); n.feed.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	synctest.Wait()
}

func (n *newsroom) subscribe(t *testing.T, room string) *Subscription {
	t.Helper()
	sub, err := n.feed.Subscribe(t.Context(), room)
	if err != nil {
		t.Fatal(err)
	}
	return sub
}

// told is what a subscription has to tell at this moment; "" for nothing. Once
// everything else is idle, it is told no more until time passes.
func told(t *testing.T, sub *Subscription) string {
	t.Helper()
	synctest.Wait()
	e, closed := sub.take()
	switch {
	case closed:
		return "closed"
	case e == nil:
		return ""
	case e.Locked == (e.Holder == "") || e.Locked == e.ExpiresAt.IsZero() || e.Room != sub.room.id:
		t.Errorf("event %+v", e)
	}
	return fmt.Sprint(e.Reason, " ", e.Locked)
}

func want(t *testing.T, sub *Subscription, what string) {
	t.Helper()
	if got := told(t, sub); got != what {
		t.Fatalf("told %q, want %q", got, what)
	}
}

// release frees r, which s/1 has.
func (n *newsroom) release(t *testing.T) {
	t.Helper()
	if freed, err := n.locks.Release(t.Context(), "r", "s/1"); err != nil || !freed {
		t.Fatal(freed, err)
	}
}

// interrupt ends the streams there are, and lets none begin and no poll succeed
// until resume.
func (n *newsroom) interrupt() {
	n.mu.Lock()
	defer n.mu.Unlock()
	close(n.cut)
	n.down = true
}

func (n *newsroom) resume() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cut, n.down = make(chan struct{}), false
}

func (n *newsroom) silence(yes bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.silent = yes
}

func (n *newsroom) watched() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.watches
}

// watching is how many streams are open.
func (n *newsroom) watching() int {
	synctest.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.streams)
}

func TestFeed(t *testing.T) {
	for about, cases := range map[string]map[string]func(t *testing.T, n *newsroom){
		"Events": eventCases, "Run": runCases, "Subscription": subscriptionCases,
	} {
		for name, run := range cases {
			t.Run(about+"/"+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { run(t, opened(t)) })
			})
		}
	}
}

// eventCases are of what is told.
var eventCases = map[string]func(t *testing.T, n *newsroom){
	"AcquiredAndReleasedAreToldToEveryone": func(t *testing.T, n *newsroom) { // D1
		n.start(t)
		a, b := n.subscribe(t, "r"), n.subscribe(t, "r")
		for _, sub := range []*Subscription{a, b} {
			want(t, sub, "current false")
		}
		acquire(t, n.locks, "r", "s/1")
		for _, sub := range []*Subscription{a, b} {
			want(t, sub, "acquired true")
		}
		n.release(t)
		for _, sub := range []*Subscription{a, b} {
			want(t, sub, "released false")
			want(t, sub, "")
		}
	},
	"TheOwnerIsInNoEvent": func(t *testing.T, n *newsroom) { // X: the credential published
		n.start(t)
		sub := n.subscribe(t, "r")
		acquire(t, n.locks, "r", "session/secret")
		synctest.Wait()
		if e, err := sub.Next(t.Context()); err != nil || !e.Locked || strings.Contains(fmt.Sprintf("%+v", e), "secret") {
			t.Errorf("%+v, %v", e, err)
		}
	},
	"AHeartbeatIsNoEventAndMovesTheExpiry": func(t *testing.T, n *newsroom) { // D2
		n.start(t)
		acquire(t, n.locks, "r", "s/1")
		sub := n.subscribe(t, "r")
		want(t, sub, "current true")
		for range 10 {
			time.Sleep(10 * time.Second)
			if _, err := n.locks.Extend(t.Context(), "r", "s/1"); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(30*time.Second - time.Millisecond)
		want(t, sub, "")
		time.Sleep(time.Millisecond)
		want(t, sub, "expired false")
	},
	"AnotherHolderDirectlyAfterTheLastIsOneEvent": func(t *testing.T, n *newsroom) {
		n.start(t)
		first := acquire(t, n.locks, "r", "s/1")
		sub := n.subscribe(t, "r")
		want(t, sub, "current true")
		next := first.Lock
		next.Owner, next.Holder = "s/2", "another"
		n.put("r", next)
		want(t, sub, "acquired true")
		want(t, sub, "")
	},
	"AnExpiryIsToldOnceAndNotAgainBySweep": func(t *testing.T, n *newsroom) { // D4, D5
		n.start(t)
		acquire(t, n.locks, "r", "s/1")
		sub := n.subscribe(t, "r")
		want(t, sub, "current true")
		time.Sleep(30 * time.Second)
		want(t, sub, "expired false")
		time.Sleep(time.Second)
		if swept, err := n.locks.Sweep(t.Context(), n); err != nil || swept != 1 {
			t.Fatal(swept, err)
		}
		time.Sleep(time.Hour)
		want(t, sub, "")
	},
	"AnOperatorsUnlockIsToldAsSuch": func(t *testing.T, n *newsroom) {
		n.start(t)
		acquire(t, n.locks, "r", "s/1")
		sub := n.subscribe(t, "r")
		want(t, sub, "current true")
		if broken, err := n.locks.Break(t.Context(), "r"); err != nil || !broken {
			t.Fatal(broken, err)
		}
		want(t, sub, "unlocked false")
		time.Sleep(time.Minute)
		if _, err := n.locks.Sweep(t.Context(), n); err != nil {
			t.Fatal(err)
		}
		want(t, sub, "")
	},
	"ALockThatIsRevivedAfterItsExpiryIsToldAgain": func(t *testing.T, n *newsroom) {
		n.start(t)
		got := acquire(t, n.locks, "r", "s/1")
		sub := n.subscribe(t, "r")
		want(t, sub, "current true")
		time.Sleep(30 * time.Second)
		synctest.Wait()
		expired, err := sub.Next(t.Context())
		if err != nil || expired.Reason != Expired {
			t.Fatal(expired, err)
		}
		got.Lock.ExpiresAt = got.Lock.ExpiresAt.Add(30 * time.Second)
		n.put("r", got.Lock) // a heartbeat decided before the expiry and committed after it
		revived, err := sub.Next(t.Context())
		if err != nil || !revived.Locked || revived.Holder != got.Lock.Holder || revived.Version <= expired.Version {
			t.Errorf("%+v after %+v, %v", revived, expired, err)
		}
		time.Sleep(30 * time.Second)
		want(t, sub, "expired false")
	},
}
