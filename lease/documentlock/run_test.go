package documentlock

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/lease/leasetest"
)

// runCases are of streams, polls and timers.
var runCases = map[string]func(t *testing.T, n *newsroom){
	"HeartbeatsCostTheFeedNoReading": func(t *testing.T, n *newsroom) {
		n.start(t)
		acquire(t, n.locks, "r", "s/1")
		n.subscribe(t, "r")
		for range 60 {
			time.Sleep(10 * time.Second)
			if _, err := n.locks.Extend(t.Context(), "r", "s/1"); err != nil {
				t.Fatal(err)
			}
		}
		if got := n.faulty.Calls(leasetest.Load); got != 1 {
			t.Errorf("%d readings, want the subscription's", got)
		}
	},
	"WhatTheTimerCouldNotLearnTheSweepTells": func(t *testing.T, n *newsroom) { // D4
		n.start(t)
		time.Sleep(5 * time.Second) // so that no poll is in the way
		acquire(t, n.locks, "r", "s/1")
		sub := n.subscribe(t, "r")
		want(t, sub, "current true")
		n.faulty.SetPlan(leasetest.Every(leasetest.Load, leasetest.Dark))
		time.Sleep(30*time.Second + time.Millisecond)
		want(t, sub, "")
		if swept, err := n.locks.Sweep(t.Context(), n); err != nil || swept != 1 {
			t.Fatal(swept, err)
		}
		want(t, sub, "expired false")
	},
	"AReadingAtTheExpiryThatFailsIsMadeAgain": func(t *testing.T, n *newsroom) {
		n.start(t)
		acquire(t, n.locks, "r", "s/1")
		sub := n.subscribe(t, "r")
		want(t, sub, "current true")
		n.interrupt() // and no poll tells more
		n.faulty.SetPlan(leasetest.Every(leasetest.Load, leasetest.DropBefore))
		time.Sleep(45 * time.Second)
		want(t, sub, "")
		n.faulty.SetPlan(nil)
		time.Sleep(5 * time.Second)
		want(t, sub, "expired false")
	},
	"SubscribingBeforeRunGivesTheCurrentState": func(t *testing.T, n *newsroom) {
		acquire(t, n.locks, "r", "s/1")
		sub := n.subscribe(t, "r")
		want(t, sub, "current true")
		n.release(t)
		want(t, sub, "")
		n.start(t)
		want(t, sub, "released false")
	},
	"AnExpiryBeforeRunIsToldWhenItRuns": func(t *testing.T, n *newsroom) {
		acquire(t, n.locks, "r", "s/1")
		sub := n.subscribe(t, "r")
		time.Sleep(time.Minute)
		want(t, sub, "current true")
		n.start(t)
		want(t, sub, "expired false")
	},
	"SubscribingWhileTheStreamIsDownGivesTheCurrentStateAndExpiries": func(t *testing.T, n *newsroom) {
		n.start(t)
		n.subscribe(t, "other")
		synctest.Wait()
		n.interrupt()
		acquire(t, n.locks, "r", "s/1")
		sub := n.subscribe(t, "r")
		want(t, sub, "current true")
		time.Sleep(30 * time.Second)
		want(t, sub, "expired false")
	},
	"AStreamThatComesBackTellsWhatWasMissed": func(t *testing.T, n *newsroom) {
		n.start(t)
		acquire(t, n.locks, "r", "s/1")
		sub := n.subscribe(t, "r")
		want(t, sub, "current true")
		n.interrupt()
		synctest.Wait()
		n.release(t)
		want(t, sub, "")
		n.resume()
		time.Sleep(time.Second)
		want(t, sub, "released false")
	},
	"AStreamThatDiedSilentlyIsMadeGoodByThePoll": func(t *testing.T, n *newsroom) {
		n.start(t)
		sub := n.subscribe(t, "r")
		want(t, sub, "current false")
		n.silence(true)
		time.Sleep(20 * time.Second)
		acquire(t, n.locks, "r", "s/1")
		want(t, sub, "")
		time.Sleep(10 * time.Second)
		want(t, sub, "acquired true")
		n.release(t)
		want(t, sub, "")
		time.Sleep(20 * time.Second)
		want(t, sub, "expired false") // by what was known of it
	},
	"NothingIsWatchedForNobody": func(t *testing.T, n *newsroom) { // each change would cost a reading
		n.start(t)
		time.Sleep(time.Hour)
		if n.watched() != 0 {
			t.Fatal("a stream without a reader")
		}
		sub := n.subscribe(t, "r")
		time.Sleep(time.Hour)
		if n.watched() != 1 || n.watching() != 1 {
			t.Errorf("%d streams, %d open; want one", n.watched(), n.watching())
		}
		sub.Close()
		time.Sleep(2 * time.Minute)
		if n.watching() != 0 {
			t.Error("the stream is open for nobody")
		}
		acquire(t, n.locks, "r", "s/1")
		sub = n.subscribe(t, "r")
		want(t, sub, "current true")
		n.release(t)
		want(t, sub, "released false")
		if n.log.Len() > 0 {
			t.Errorf("logged: %s", &n.log)
		}
	},
	"AnOperatorsUnlockIsToldAsSuchAlsoAfterASweep": func(t *testing.T, n *newsroom) {
		n.start(t)
		acquire(t, n.locks, "r", "s/1")
		sub := n.subscribe(t, "r")
		want(t, sub, "current true")
		n.interrupt()
		if ok, err := n.locks.Break(t.Context(), "r"); !ok || err != nil {
			t.Fatal(ok, err)
		}
		time.Sleep(time.Second)
		if _, err := n.locks.Sweep(t.Context(), n.store); err != nil {
			t.Fatal(err)
		}
		n.resume()
		time.Sleep(35 * time.Second)
		want(t, sub, "unlocked false")
	},
	"NothingIsPolledForNobody": func(t *testing.T, n *newsroom) {
		n.start(t)
		time.Sleep(time.Hour + time.Second)
		if n.currents != 0 {
			t.Errorf("%d polls", n.currents)
		}
		sub := n.subscribe(t, "r")
		time.Sleep(time.Hour)
		sub.Close()
		if got := n.currents; got != 120 {
			t.Errorf("%d polls in an hour, want 120", got)
		}
	},
	"AStreamThatFailsIsOpenedAgainMoreAndMoreSeldom": func(t *testing.T, n *newsroom) {
		n.start(t)
		n.subscribe(t, "r")
		synctest.Wait()
		n.interrupt()
		for _, pause := range []int{1, 2, 4, 8, 16, 30, 30, 30} {
			synctest.Wait()
			before := n.watched()
			time.Sleep(time.Duration(pause)*time.Second - time.Millisecond)
			synctest.Wait()
			if got := n.watched(); got != before {
				t.Errorf("opened %d times before %d s", got-before, pause)
			}
			time.Sleep(time.Millisecond)
			synctest.Wait()
			if got := n.watched(); got != before+1 {
				t.Errorf("opened %d times after %d s, want once", got-before, pause)
			}
		}
		if got := n.log.String(); strings.Count(got, "\n") != 2 || strings.Count(got, "level=WARN") != 2 {
			t.Errorf("log %s; want one warning each of stream and poll", got)
		}
		n.resume()
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if got := n.log.String(); strings.Count(got, "\n") != 4 || strings.Count(got, "level=INFO") != 2 {
			t.Errorf("log %s; want that both are back", got)
		}
		n.interrupt()
		synctest.Wait()
		before := n.watched()
		time.Sleep(time.Second)
		synctest.Wait()
		if got := n.watched(); got != before+1 {
			t.Errorf("opened %d times within the first second of the next outage, want once", got-before)
		}
	},
	"AChangeAfterTheReadingOfTheTimerIsNotUndoneByIt": func(t *testing.T, n *newsroom) {
		n.start(t)
		time.Sleep(5 * time.Second) // so that no poll is in the way
		acquire(t, n.locks, "r", "s/1")
		sub := n.subscribe(t, "r")
		want(t, sub, "current true")
		n.faulty.SetPlan(leasetest.On(leasetest.Load, leasetest.SlowReply)) // the timer's
		time.Sleep(30*time.Second + time.Millisecond)
		want(t, sub, "")
		acquire(t, n.locks, "r", "s/2")
		want(t, sub, "acquired true")
		time.Sleep(10 * time.Second) // the reading says that nobody had it, before
		want(t, sub, "")
		time.Sleep(20 * time.Second)
		want(t, sub, "expired false")
	},
	"AnEarlierExpiryIsNotWaitedForLonger": func(t *testing.T, n *newsroom) {
		n.start(t)
		acquire(t, n.locks, "r", "s/1")
		sub := n.subscribe(t, "r")
		want(t, sub, "current true")
		short, err := New(n.store, 3*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		acquire(t, short, "q", "s/1")
		sub = n.subscribe(t, "q")
		want(t, sub, "current true")
		time.Sleep(3 * time.Second)
		want(t, sub, "expired false")
	},
	"ManyExpiriesAtOnceAreAllTold": func(t *testing.T, n *newsroom) {
		n.start(t)
		var subs []*Subscription
		for i := range 500 {
			room := fmt.Sprint("r-", i)
			acquire(t, n.locks, room, "s/1")
			subs = append(subs, n.subscribe(t, room))
			want(t, subs[i], "current true")
		}
		time.Sleep(30 * time.Second)
		for _, sub := range subs {
			want(t, sub, "expired false")
		}
	},
}
