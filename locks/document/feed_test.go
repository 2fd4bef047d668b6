package document

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/internal/testing/must"
	"taskguard/lease"
	"taskguard/lease/leasetest"
)

// feedTest is a Feed on a store, which runs from start until the test ends.
type feedTest struct {
	*store
	faulty *leasetest.Faulty[Lock] // by which the feed reads
	locks  *Locks                  // by which others write
	feed   *Feed
	log    bytes.Buffer
}

func TestFeed(t *testing.T) {
	for about, cases := range map[string]map[string]func(t *testing.T, n *feedTest){
		"Events": eventCases, "Run": runCases, "Subscription": subscriptionCases,
	} {
		for name, run := range cases {
			t.Run(about+"/"+name, func(t *testing.T) {
				for _, ahead := range clocks {
					synctest.Test(t, func(t *testing.T) {
						s, l := open(t)
						s.ahead = ahead
						n := &feedTest{store: s, faulty: leasetest.NewFaulty(s, nil), locks: l}
						n.feed = NewFeed(on(t, n.faulty), s, slog.New(slog.NewTextHandler(&n.log, nil)))
						run(t, n)
					})
				}
			})
		}
	}
}

func (n *feedTest) start(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); n.feed.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	synctest.Wait()
}

func (n *feedTest) subscribe(t *testing.T, room string) *Subscription {
	t.Helper()
	return must.Get(n.feed.Subscribe(t.Context(), room))(t)
}

// startWith takes the room r for s/1 and subscribes to it on a running feed.
func (n *feedTest) startWith(t *testing.T) *Subscription {
	t.Helper()
	n.start(t)
	acquire(t, n.locks, "r", "s/1")
	sub := n.subscribe(t, "r")
	want(t, sub, "current true")
	return sub
}

// want compares the pending event of sub; "" is none.
func want(t *testing.T, sub *Subscription, what string) {
	t.Helper()
	synctest.Wait()
	got := ""
	if e := sub.take(); e != nil {
		got = fmt.Sprint(e.Reason, " ", e.Locked)
		if e.Locked == (e.Holder == "") || e.Locked == e.ExpiresAt.IsZero() {
			t.Errorf("event %+v; want a holder and an expiry if it is locked", e)
		}
		if e.Room != sub.room.id {
			t.Errorf("event %+v of the room %s", e, sub.room.id)
		}
	}
	if got != what {
		t.Fatalf("event %q, want %q", got, what)
	}
}

// interrupt ends the streams and makes new ones fail until resume.
func (n *feedTest) interrupt() {
	synctest.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	close(n.cut)
}

func (n *feedTest) resume() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cut = make(chan struct{})
}

// watched counts the streams so far, and those that are open.
func (n *feedTest) watched() (all, open int) {
	synctest.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.watches, len(n.streams)
}

// eventCases are about which events there are.
var eventCases = map[string]func(t *testing.T, n *feedTest){
	"a lock expires 30 s after its last heartbeat and is swept once": func(t *testing.T, n *feedTest) { // D2, D4
		sub := n.startWith(t)
		for range 10 {
			time.Sleep(10 * time.Second)
			renew(t, n.locks)
		}
		disconnected := on(t, leasetest.NewFaulty(n.store, leasetest.Always(leasetest.Unavailable)))
		if _, err := disconnected.Renew(t.Context(), "r", "s/1"); err == nil { // gives up after 8 s
			t.Error("extended without a connection")
		}
		time.Sleep(22*time.Second - time.Millisecond)
		want(t, sub, "")
		if got := n.faulty.Calls(leasetest.Load); got != 1 {
			t.Errorf("%d readings, want only the subscription's", got)
		}
		time.Sleep(time.Millisecond)
		want(t, sub, "expired false")
		time.Sleep(time.Second)
		n.wantSwept(t, n.locks, n, 1, 0)
		time.Sleep(time.Hour)
		want(t, sub, "")
		if got := n.faulty.Calls(leasetest.Load); got != 2 {
			t.Errorf("%d readings, want one at the expiry", got)
		}
	},
	"rooms that expire together are read once each": func(t *testing.T, n *feedTest) {
		n.start(t)
		n.subscribe(t, "other")
		time.Sleep(10 * time.Second) // the next stream begins at another time
		subs := make([]*Subscription, 3*parallelReads)
		for i := range subs {
			acquire(t, n.locks, fmt.Sprint(i), "s/1")
			subs[i] = n.subscribe(t, fmt.Sprint(i))
			want(t, subs[i], "current true")
		}
		time.Sleep(30 * time.Second)
		for _, sub := range subs {
			want(t, sub, "expired false")
		}
		if got := n.faulty.Calls(leasetest.Load); got != 2*len(subs)+1 {
			t.Errorf("%d readings, want two of each room and one of the other", got)
		}
	},
	"an operator's unlock is reported as such": func(t *testing.T, n *feedTest) {
		sub := n.startWith(t)
		unlock(t, n.locks)
		want(t, sub, "unlocked false")
		time.Sleep(time.Hour)
		n.wantSwept(t, n.locks, n, 1, 0)
		want(t, sub, "")
	},
	"a lock that is revived after its expiry is reported again": func(t *testing.T, n *feedTest) {
		sub := n.startWith(t)
		time.Sleep(30 * time.Second)
		want(t, sub, "expired false")
		before := sub.room.latest.Version
		lock := n.records["r"].lock
		lock.ExpiresAt = lock.ExpiresAt.Add(30 * time.Second)
		n.put("r", lock) // a heartbeat decided before the expiry and committed after it
		synctest.Wait()
		revived := sub.take()
		if revived == nil || revived.Version <= before {
			t.Fatalf("%+v after version %d", revived, before)
		}
		if !revived.Locked || revived.Holder != lock.Holder {
			t.Errorf("%+v, want it locked by %s", revived, lock.Holder)
		}
		time.Sleep(30 * time.Second)
		want(t, sub, "expired false")
	},
}

// runCases are about streams and timers.
var runCases = map[string]func(t *testing.T, n *feedTest){
	"a failed reading at the expiry is repeated": func(t *testing.T, n *feedTest) {
		sub := n.startWith(t)
		n.interrupt()
		n.faulty.SetPlan(leasetest.Every(leasetest.Load, leasetest.RequestLost))
		time.Sleep(45 * time.Second)
		want(t, sub, "")
		n.faulty.SetPlan(nil)
		time.Sleep(5 * time.Second)
		want(t, sub, "expired false")
	},
	"subscribing while the stream is down gives the current state and expiries": func(t *testing.T, n *feedTest) {
		n.start(t)
		n.subscribe(t, "r")
		n.interrupt()
		acquire(t, n.locks, "r", "s/1")
		sub := n.subscribe(t, "r")
		want(t, sub, "current true")
		time.Sleep(30 * time.Second)
		want(t, sub, "expired false")
	},
	"what happened while the stream was down is reported": func(t *testing.T, n *feedTest) {
		sub := n.startWith(t)
		n.interrupt()
		release(t, n.locks, "s/1")
		acquire(t, n.locks, "r", "s/2")
		n.resume()
		time.Sleep(time.Second)
		want(t, sub, "acquired true")
		n.interrupt()
		release(t, n.locks, "s/2")
		n.resume()
		time.Sleep(time.Second)
		want(t, sub, "released false")
	},
	"a stalled stream is replaced within 30 s": func(t *testing.T, n *feedTest) {
		n.start(t)
		sub := n.subscribe(t, "r")
		want(t, sub, "current false")
		n.mu.Lock()
		n.stalled = true
		n.mu.Unlock()
		time.Sleep(20 * time.Second)
		acquire(t, n.locks, "r", "s/1")
		want(t, sub, "")
		time.Sleep(10 * time.Second)
		want(t, sub, "acquired true")
		if n.log.Len() > 0 {
			t.Errorf("logged: %s", &n.log)
		}
	},
	"a stream that delivers nothing has failed": func(t *testing.T, n *feedTest) {
		n.silent = true
		n.start(t)
		n.subscribe(t, "r")
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if got := n.log.String(); strings.Count(got, "level=WARN") != 1 {
			t.Errorf("log %q; want one warning", got)
		}
	},
	"without subscribers there is no stream": func(t *testing.T, n *feedTest) { // each change would cost a read
		n.start(t)
		time.Sleep(time.Hour)
		if all, _ := n.watched(); all != 0 {
			t.Fatal("a stream without a subscriber")
		}
		sub := n.subscribe(t, "r")
		time.Sleep(time.Hour)
		if all, open := n.watched(); all != 121 || open != 1 {
			t.Errorf("%d streams, %d open; want 121, one after the other", all, open)
		}
		acquire(t, n.locks, "r", "s/1")
		want(t, sub, "current true")
		sub.Close()
		reads := n.faulty.Calls(leasetest.Load)
		time.Sleep(time.Minute)
		if _, open := n.watched(); open != 0 || n.faulty.Calls(leasetest.Load) != reads {
			t.Error("a stream or a reading without a subscriber")
		}
		acquire(t, n.locks, "r", "s/1")
		sub = n.subscribe(t, "r")
		want(t, sub, "current true")
		release(t, n.locks, "s/1")
		want(t, sub, "released false")
	},
	"a failed stream is opened again after growing pauses": func(t *testing.T, n *feedTest) {
		n.start(t)
		n.subscribe(t, "r")
		first, _ := n.watched()
		n.interrupt()
		if got, _ := n.watched(); got != first {
			t.Error("opened again at once")
		}
		for _, pause := range []int{1, 2, 4, 8, 16, 30, 30, 30} {
			before, _ := n.watched()
			time.Sleep(time.Duration(pause)*time.Second - time.Millisecond)
			if got, _ := n.watched(); got != before {
				t.Errorf("opened %d times before %d s", got-before, pause)
			}
			time.Sleep(time.Millisecond)
			if got, _ := n.watched(); got != before+1 {
				t.Errorf("opened %d times after %d s, want once", got-before, pause)
			}
		}
		if got := n.log.String(); strings.Count(got, "\n") != 1 || strings.Count(got, "level=WARN") != 1 {
			t.Errorf("log %s; want one warning", got)
		}
		n.resume()
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if got := n.log.String(); strings.Count(got, "\n") != 2 || strings.Count(got, "level=INFO") != 1 {
			t.Errorf("log %s; want that it is back", got)
		}
		n.interrupt()
		before, _ := n.watched()
		time.Sleep(time.Second)
		if got, _ := n.watched(); got != before+1 {
			t.Errorf("opened %d times within the first second of the next outage, want once", got-before)
		}
	},
}

// subscriptionCases are about subscribers.
var subscriptionCases = map[string]func(t *testing.T, n *feedTest){
	"a slow reader receives the latest": func(t *testing.T, n *feedTest) {
		n.start(t)
		sub := n.subscribe(t, "r")
		want(t, sub, "current false")
		for range 10 {
			acquire(t, n.locks, "r", "s/1")
			release(t, n.locks, "s/1")
		}
		acquire(t, n.locks, "r", "s/1")
		want(t, sub, "acquired true")
		want(t, sub, "")
		late := n.subscribe(t, "r")
		release(t, n.locks, "s/1")
		want(t, late, "current false")
		want(t, late, "")
	},
	"only rooms with subscribers are kept": func(t *testing.T, n *feedTest) {
		n.start(t)
		rooms := func(want int) {
			t.Helper()
			if got := len(n.feed.rooms); got != want {
				t.Errorf("%d rooms, want %d", got, want)
			}
		}
		for i := range 5 {
			acquire(t, n.locks, fmt.Sprint("r-", i), "s/1")
		}
		a, b := n.subscribe(t, "r-1"), n.subscribe(t, "r-1")
		time.Sleep(time.Minute)
		rooms(1)
		a.Close()
		rooms(1)
		b.Close()
		n.faulty.SetPlan(leasetest.Always(leasetest.Unavailable))
		if _, err := n.feed.Subscribe(t.Context(), "r-2"); !errors.Is(err, lease.ErrUnavailable) {
			t.Errorf("err = %v, want ErrUnavailable", err)
		}
		rooms(0)
		for _, room := range []string{"", strings.Repeat("x", MaxRoom+1)} {
			if _, err := n.feed.Subscribe(t.Context(), room); !errors.Is(err, lease.ErrInvalidKey) {
				t.Errorf("%.5q: %v, want ErrInvalidKey", room, err)
			}
		}
	},
	"a room that is left while another subscribes is kept": func(t *testing.T, n *feedTest) {
		n.start(t)
		a := n.subscribe(t, "r")
		n.faulty.SetPlan(leasetest.Every(leasetest.Load, leasetest.SlowReply))
		subscribed := make(chan *Subscription)
		go func() { subscribed <- n.subscribe(t, "r") }()
		synctest.Wait()
		a.Close()
		b := <-subscribed
		want(t, b, "current false")
		n.faulty.SetPlan(nil)
		acquire(t, n.locks, "r", "s/1")
		want(t, b, "acquired true")
	},
	"events end with their context": func(t *testing.T, n *feedTest) {
		n.start(t)
		sub := n.subscribe(t, "r")
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, func() { acquire(t, n.locks, "r", "s/1") })
		time.AfterFunc(2*time.Second, cancel)
		var reasons []string
		for e := range sub.Events(ctx) {
			reasons = append(reasons, e.Reason)
			break // the next loop continues
		}
		for e := range sub.Events(ctx) {
			reasons = append(reasons, e.Reason)
		}
		if !slices.Equal(reasons, []string{Current, Acquired}) {
			t.Errorf("events %v", reasons)
		}
	},
	"a change during the first reading is not missed": func(t *testing.T, n *feedTest) {
		n.start(t)
		n.subscribe(t, "other") // the stream is open
		// It reads a free room; the reply takes a second.
		n.faulty.SetPlan(leasetest.On(leasetest.Load, leasetest.SlowReply))
		time.AfterFunc(time.Millisecond, func() { acquire(t, n.locks, "r", "s/1") })
		sub := n.subscribe(t, "r")
		want(t, sub, "current true")
		want(t, sub, "")
	},
}
