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

// runTimeline runs body from 12:00:00 on, with a sweep every whole minute and a
// subscriber, and returns what was announced and swept, with its time.
func runTimeline(t *testing.T, s *store, locks *Locks, body func()) (lines []string) {
	t.Helper()
	noon := time.Now().UTC().Truncate(24 * time.Hour).Add(12 * time.Hour)
	time.Sleep(time.Until(noon))
	ctx, cancel := context.WithCancel(t.Context())
	var mu sync.Mutex
	note := func(what string) {
		mu.Lock()
		defer mu.Unlock()
		lines = append(lines, time.Now().UTC().Format("15:04:05.000 ")+what)
	}
	var parts sync.WaitGroup
	feed := NewFeed(locks, s, nil)
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
			note(e.Reason)
		}
	})
	parts.Go(func() {
		for wait(ctx, time.Minute) {
			n, err := locks.Sweep(ctx, s)
			if err != nil {
				t.Error(err)
			}
			if n > 0 {
				note(fmt.Sprint("swept ", n))
			}
		}
	})
	synctest.Wait()
	body()
	synctest.Wait()
	cancel()
	parts.Wait()
	return lines
}

// D7.
func TestTimelines(t *testing.T) {
	for name, tc := range map[string]struct {
		heartbeats int // every 10 s from 12:00:10
		fail       int // heartbeats after those that fail
		rest       time.Duration
		want       []string
	}{
		"HeartbeatsGoOnAndTheLockNeverExpires": {6 * 60, 0, 0, nil},
		"LastHeartbeatAt20ExpiresAt50AndIsSweptAtTheMinute": {2, 0, 50 * time.Second,
			[]string{"12:00:50.000 expired", "12:01:00.000 swept 1"}},
		"LastSuccessAt10ExpiresAt40WhateverTheClientTriesFurther": {1, 3, time.Minute, // the front end gives up after three
			[]string{"12:00:40.000 expired", "12:01:00.000 swept 1"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, l := open(t)
				line := leasetest.NewFaulty(s, nil)
				client := on(t, line)
				got := runTimeline(t, s, l, func() {
					acquire(t, client, "r", "s/1")
					for range tc.heartbeats {
						time.Sleep(10 * time.Second)
						if s, err := client.Extend(t.Context(), "r", "s/1"); err != nil || !s.Mine {
							t.Fatalf("at %v: %+v, %v", time.Now(), s, err)
						}
					}
					line.SetPlan(leasetest.Always(leasetest.Unavailable))
					for range tc.fail {
						time.Sleep(2 * time.Second)
						if _, err := client.Extend(t.Context(), "r", "s/1"); err == nil {
							t.Error("extended without a connection")
						}
					}
					time.Sleep(tc.rest)
				})
				if want := append([]string{"12:00:00.000 current", "12:00:00.000 acquired"}, tc.want...); !slices.Equal(got, want) {
					t.Errorf("%q, want %q", got, want)
				}
			})
		})
	}
}
