package repo

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"taskguard/internal/testing/emulatortest"
	"taskguard/lease/analysislock"
)

// A number is one key, whether a program writes it as an integer or as a double.
func TestConcurrency_KeyOfAValue(t *testing.T) {
	c := &Concurrency{Fields: []string{"account"}}
	for want, values := range map[string][]any{
		"1000000": {"1000000", int64(1_000_000), 1e6}, "0.5": {0.5}, "true": {true},
		"": {nil, "", map[string]any{}, []any{"a"}, time.Now()},
	} {
		for _, v := range values {
			if got := c.key(reading{fields: map[string]any{"account": v}}); got != want {
				t.Errorf("the key of %T %v is %q, want %q", v, v, got, want)
			}
		}
	}
}

// A thousand that are finished stay in the line, because another program has finished them. A search removes them, so
// that they do not hide the next one, and are not read again.
func TestFinishedOnesLeaveTheLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := emulatortest.Embedded(t)
		a := withKeys(t, b, 1)
		const dead = maxParkedReads + 50
		for n := range dead + 1 {
			status, at := analysislock.Ready, timeValue(time.Now().Add(time.Duration(n)*time.Second))
			if n == dead {
				status = analysislock.Queued
			}
			b.Put(t, fmt.Sprint("x", n), map[string]any{
				"status": status, "tenant": "a",
				"parkedAt": at, "parkedFor": analysislock.KeyID("a") + " " + at.(string),
			})
		}
		for call, found := range [][]string{nil, {"x1050"}, {"x1050"}} {
			before := b.Server.Usage().Reads
			next, err := a.Keys.Parked(t.Context(), analysislock.KeyID("a"), 1)
			fatal(t, err)
			var got []string
			for i := range next {
				got = append(got, next[i].ID)
			}
			if reads := b.Server.Usage().Reads - before; !slices.Equal(got, found) || call == 2 && reads > 1 {
				t.Errorf("call %d found %q with %d reads, want %q", call, got, reads, found)
			}
		}
	})
}

// What recovery reads each minute does not grow with the parked analyses of a key, and they hide no orphan: a new
// one is found at once, one amid them after some calls. Those parked long ago cost a page in each call, and those
// parked a moment ago another.
func TestParkedAnalysesCostRecoveryLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := emulatortest.Embedded(t)
		a, err := Open(t.Context(), b.Project, Options{Concurrency: &Concurrency{
			Fields: []string{"tenant"}, Limit: func(string) int { return 1 },
		}}, b.Client(t)...)
		fatal(t, err)
		t.Cleanup(func() { _ = a.Close() })
		now, parked := time.Now(), 8*parkedPage
		put := func(id string, age time.Duration, fields map[string]any) {
			fields["status"], fields["updatedAt"] = analysislock.Queued, timeValue(now.Add(-age))
			b.Put(t, id, fields)
		}
		for n := range parked {
			age := 32*time.Minute - time.Duration(n)*time.Second
			at := timeValue(now.Add(-age))
			put(fmt.Sprint("parked", n), age, map[string]any{
				"tenant": "a", "parkedAt": at, "parkedFor": analysislock.KeyID("a") + " " + at.(string),
			})
		}
		put("new", 6*time.Minute, map[string]any{})
		put("amid", 32*time.Minute-time.Duration(parked/2)*time.Second, map[string]any{})

		var found []string
		for call := range parked/parkedPage + 1 {
			before := b.Server.Usage().Reads
			due, more := orphaned(t, a, orphanPage)
			if found = append(found, due...); call == 0 && !slices.Contains(due, "new") || more {
				t.Errorf("the first call found %q, want the new one; more: %v", due, more)
			}
			waiting, err := a.Wakeable(t.Context())
			if err != nil || len(waiting) != 1 || waiting[0].ID != "parked0" {
				t.Errorf("%d can be woken, %v; want the first in line", len(waiting), err)
			}
			reads, most := b.Server.Usage().Reads-before, int64(2*parkedPage+keyWalks+10)
			if call > 5 { // five minutes later none was parked within the last ten
				most = parkedPage + keyWalks + 10
			}
			if reads > most {
				t.Errorf("call %d made %d reads, want at most %d, with %d parked analyses", call, reads, most, parked)
			}
			time.Sleep(time.Minute)
		}
		if !slices.Contains(found, "amid") {
			t.Errorf("found %q, want the one amid them too", strings.Join(found, " "))
		}
	})
}

// Recovery finds what can run of hundreds of keys in one call, although each key needs three round trips.
func TestWakeable_ManyKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := emulatortest.Embedded(t)
		slow := grpc.WithUnaryInterceptor(func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn,
			invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
		) error {
			time.Sleep(40 * time.Millisecond)
			return invoke(ctx, method, req, reply, conn, opts...)
		})
		slowStream := grpc.WithStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn,
			method string, open grpc.Streamer, opts ...grpc.CallOption,
		) (grpc.ClientStream, error) {
			time.Sleep(40 * time.Millisecond)
			return open(ctx, desc, conn, method, opts...)
		})
		a, err := Open(t.Context(), b.Project, Options{Concurrency: &Concurrency{
			Fields: []string{"tenant"}, Limit: func(string) int { return 1 },
		}}, b.Client(t, slow, slowStream)...)
		fatal(t, err)
		t.Cleanup(func() { _ = a.Close() })

		const keys = 500
		at := timeValue(time.Now().Add(-time.Hour)).(string)
		for n := range keys {
			key := fmt.Sprint("tenant", n)
			b.Put(t, fmt.Sprint("x", n), map[string]any{
				"status": analysislock.Queued, "tenant": key, "createdAt": at, "updatedAt": at,
				"parkedAt": at, "parkedFor": analysislock.KeyID(key) + " " + at,
			})
		}
		if waiting, err := a.Wakeable(t.Context()); err != nil || len(waiting) != keys {
			t.Errorf("%d of %d keys were found, %v", len(waiting), keys, err)
		}
	})
}
