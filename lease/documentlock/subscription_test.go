package documentlock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/lease"
	"taskguard/lease/leasetest"
)

// subscriptionCases are of subscribers that come, go and read.
var subscriptionCases = map[string]func(t *testing.T, n *newsroom){
	"TheCurrentStateComesFirst": func(t *testing.T, n *newsroom) {
		n.start(t)
		got := acquire(t, n.locks, "r", "s/1")
		e, err := n.subscribe(t, "r").Next(t.Context())
		want := Event{Room: "r", Locked: true, Holder: got.Lock.Holder, ExpiresAt: got.Lock.ExpiresAt, Reason: Current, Version: e.Version}
		if err != nil || e != want || e.Version < got.At.UnixMicro() {
			t.Errorf("%+v, %v; want %+v", e, err, want)
		}
	},
	"WhoReadsLateIsToldTheLatest": func(t *testing.T, n *newsroom) {
		n.start(t)
		sub := n.subscribe(t, "r")
		want(t, sub, "current false")
		for range 10 {
			acquire(t, n.locks, "r", "s/1")
			n.release(t)
		}
		acquire(t, n.locks, "r", "s/1")
		want(t, sub, "acquired true")
		want(t, sub, "")
		late := n.subscribe(t, "r")
		n.release(t)
		want(t, late, "current false")
		want(t, late, "")
	},
	"RoomsThatNobodySubscribesToAreNotRemembered": func(t *testing.T, n *newsroom) {
		n.start(t)
		for i := range 100 {
			acquire(t, n.locks, fmt.Sprint("r-", i), "s/1")
		}
		a, b := n.subscribe(t, "r-1"), n.subscribe(t, "r-1")
		time.Sleep(time.Minute)
		if len(n.feed.rooms) != 1 {
			t.Errorf("%d rooms, want one", len(n.feed.rooms))
		}
		a.Close()
		a.Close()
		if len(n.feed.rooms) != 1 {
			t.Errorf("%d rooms, want one", len(n.feed.rooms))
		}
		b.Close()
		n.faulty.SetPlan(leasetest.Always(leasetest.Dark))
		if _, err := n.feed.Subscribe(t.Context(), "r-2"); !errors.Is(err, lease.ErrUnavailable) {
			t.Errorf("subscribe in the dark: %v", err)
		}
		if _, err := n.feed.Subscribe(t.Context(), "r-3"); !errors.Is(err, lease.ErrUnavailable) {
			t.Errorf("subscribe in the dark: %v", err)
		}
		if len(n.feed.rooms) != 0 {
			t.Errorf("%d rooms, want none", len(n.feed.rooms))
		}
	},
	"ARoomThatIsLeftWhileAnotherSubscribesIsNotForgotten": func(t *testing.T, n *newsroom) {
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
	"ARoomThatCannotBeHasNoSubscription": func(t *testing.T, n *newsroom) {
		for _, room := range []string{"", strings.Repeat("x", MaxRoom+1)} {
			if _, err := n.feed.Subscribe(t.Context(), room); !errors.Is(err, lease.ErrInvalidKey) {
				t.Errorf("%.5q: %v, want ErrInvalidKey", room, err)
			}
		}
	},
	"NextEndsWithItsContextOrItsSubscription": func(t *testing.T, n *newsroom) {
		sub := n.subscribe(t, "r")
		want(t, sub, "current false")
		why := errors.New("enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(why) })
		if _, err := sub.Next(ctx); !errors.Is(err, why) {
			t.Errorf("err = %v, want the cause", err)
		}
		time.AfterFunc(time.Second, sub.Close)
		for range 2 {
			if _, err := sub.Next(t.Context()); !errors.Is(err, ErrClosed) {
				t.Errorf("err = %v, want ErrClosed", err)
			}
		}
	},
	"AChangeWhileASubscriptionReadsIsNotMissed": func(t *testing.T, n *newsroom) {
		n.start(t)
		n.faulty.SetPlan(leasetest.On(leasetest.Load, leasetest.SlowReply)) // it read a free room, and learns so a second later
		time.AfterFunc(time.Millisecond, func() { acquire(t, n.locks, "r", "s/1") })
		sub := n.subscribe(t, "r")
		want(t, sub, "current true")
		want(t, sub, "")
	},
}

// Whoever subscribes, whenever, is told the state that the room has in the end,
// and never goes back in time.
func TestSubscribersComeAndGoWhileTheRoomChangesHands(t *testing.T) {
	times(t, 50, func(t *testing.T, s *shaky, l *Locks) {
		feed := NewFeed(l, s.store, FeedOptions{})
		ctx, cancel := context.WithCancel(t.Context())
		var run, all sync.WaitGroup
		run.Go(func() { feed.Run(ctx) })
		for i := range 3 {
			all.Go(func() {
				owner := fmt.Sprint("s/", i)
				for range 30 {
					if _, err := l.Acquire(t.Context(), "r", owner); err == nil && s.upTo(3*time.Microsecond) != 0 {
						_, _ = l.Release(t.Context(), "r", owner)
					}
					time.Sleep(s.upTo(time.Second))
				}
			})
		}
		last := make([]Event, 20)
		for i := range last {
			run.Go(func() {
				time.Sleep(s.upTo(30 * time.Second))
				sub, err := feed.Subscribe(ctx, "r")
				if err != nil {
					t.Error(err)
					return
				}
				defer sub.Close()
				for {
					e, err := sub.Next(ctx)
					if err != nil {
						return
					}
					if e.Version <= last[i].Version || last[i].Version != 0 && e.Reason == Current {
						t.Errorf("%+v after %+v", e, last[i])
					}
					last[i] = e
				}
			})
		}
		all.Wait()
		time.Sleep(time.Minute)
		acquire(t, l, "r", "s/last")
		synctest.Wait()
		cancel()
		run.Wait()
		for _, e := range last {
			if lock := s.records["r"].lock; e.Holder != lock.Holder {
				t.Errorf("last told %+v of %+v", e, lock)
			}
		}
	})
}
