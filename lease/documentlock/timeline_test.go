package documentlock

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/lease/leasetest"
)

// timeline is a day's noon at a room: what was announced and swept, and when.
type timeline struct {
	*store
	locks *Locks

	mu  sync.Mutex
	was []string
}

func (l *timeline) note(what string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.was = append(l.was, time.Now().UTC().Format("15:04:05.000 ")+what)
}

// runs lets body happen from 12:00:00 on, with a sweep every whole minute and a
// subscriber, and is what had been announced and swept by its end.
func (l *timeline) runs(t *testing.T, body func()) []string {
	t.Helper()
	noon := time.Now().UTC().Truncate(24 * time.Hour).Add(12 * time.Hour)
	time.Sleep(time.Until(noon))
	ctx, cancel := context.WithCancel(t.Context())
	var parts sync.WaitGroup
	feed := NewFeed(l.locks, l.store, FeedOptions{})
	parts.Go(func() { feed.Run(ctx) })
	sub, err := feed.Subscribe(ctx, "r")
	if err != nil {
		t.Fatal(err)
	}
	parts.Go(func() {
		for {
			e, err := sub.Next(ctx)
			if err != nil {
				return
			}
			if at := time.UnixMicro(e.Version).UTC().Truncate(time.Millisecond); !at.Equal(time.Now().Truncate(time.Millisecond)) {
				t.Errorf("%+v is of %v, announced at %v", e, at, time.Now())
			}
			l.note(e.Reason)
		}
	})
	parts.Go(func() {
		for wait(ctx, time.Minute) {
			n, err := l.locks.Sweep(ctx, l.store)
			if err != nil {
				t.Error(err)
			}
			if n > 0 {
				l.note(fmt.Sprint("swept ", n))
			}
		}
	})
	synctest.Wait()
	body()
	synctest.Wait()
	cancel()
	parts.Wait()
	return l.was
}

// D7, as the document has it.
func TestTimelines(t *testing.T) {
	const room, owner = "r", "s/1"
	for name, tc := range map[string]struct {
		body func(t *testing.T, l *timeline, lost *leasetest.Faulty[Lock], client *Locks)
		want []string
	}{
		"HeartbeatsGoOnAndTheLockNeverExpires": {func(t *testing.T, _ *timeline, _ *leasetest.Faulty[Lock], client *Locks) {
			acquire(t, client, room, owner)
			for range 6 * 60 {
				time.Sleep(10 * time.Second)
				if s, err := client.Extend(t.Context(), room, owner); err != nil || !s.Mine {
					t.Fatalf("at %v: %+v, %v", time.Now(), s, err)
				}
			}
		}, []string{"12:00:00.000 current", "12:00:00.000 acquired"}},
		"LastHeartbeatAt20ExpiresAt50AndIsSweptAtTheMinute": {func(t *testing.T, l *timeline, _ *leasetest.Faulty[Lock], client *Locks) {
			acquire(t, client, room, owner)
			for range 2 {
				time.Sleep(10 * time.Second)
				if _, err := client.Extend(t.Context(), room, owner); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(30*time.Second - time.Millisecond)
			if s, err := client.Get(t.Context(), room, owner); err != nil || !s.Mine {
				t.Errorf("a millisecond before: %+v, %v", s, err)
			}
			time.Sleep(time.Millisecond)
			if s, err := client.Get(t.Context(), room, owner); err != nil || s.Locked {
				t.Errorf("at 12:00:50: %+v, %v", s, err)
			}
			time.Sleep(20 * time.Second)
			if c, err := l.Load(t.Context(), room); err != nil || c.Exists {
				t.Errorf("left: %+v, %v", c, err)
			}
		}, []string{"12:00:00.000 current", "12:00:00.000 acquired", "12:00:50.000 expired", "12:01:00.000 swept 1"}},
		"LastSuccessAt10ExpiresAt40WhateverTheClientTriesFurther": {func(t *testing.T, _ *timeline, lost *leasetest.Faulty[Lock], client *Locks) {
			acquire(t, client, room, owner)
			time.Sleep(10 * time.Second)
			if _, err := client.Extend(t.Context(), room, owner); err != nil {
				t.Fatal(err)
			}
			lost.SetPlan(leasetest.Always(leasetest.Dark))
			for range 3 { // the front end counts three as lost
				time.Sleep(2 * time.Second)
				if _, err := client.Extend(t.Context(), room, owner); err == nil {
					t.Error("extended in the dark")
				}
			}
			time.Sleep(time.Minute)
		}, []string{"12:00:00.000 current", "12:00:00.000 acquired", "12:00:40.000 expired", "12:01:00.000 swept 1"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, l := open(t)
				lost := leasetest.NewFaulty(s, nil)
				line := &timeline{store: s, locks: l}
				got := line.runs(t, func() { tc.body(t, line, lost, on(t, lost)) })
				if !slices.Equal(got, tc.want) {
					t.Errorf("was %q, want %q", got, tc.want)
				}
			})
		})
	}
}
