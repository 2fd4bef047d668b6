package operate

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"taskguard/cmd/internal/cli"
	"taskguard/cmd/internal/console"
	"taskguard/internal/testing/emulatortest"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/lease/iso8601"
	"taskguard/repo"
)

func TestBulk_Rate(t *testing.T) {
	for name, tc := range map[string]struct {
		b       bulk
		slow    time.Duration // one change
		within  time.Duration
		changes int64
	}{
		"the first at once":        {b: bulk{rate: 0.1}, within: 25 * time.Second, changes: 3},
		"a thousand a second":      {b: bulk{rate: 1000}, within: 50*time.Millisecond + time.Microsecond, changes: 51},
		"a dry run is not limited": {b: bulk{rate: 0.1, dryRun: true}, within: time.Second, changes: 100},
		"one waits for sixteen":    {slow: time.Minute, within: 59 * time.Second, changes: 17},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var n atomic.Int64
				ctx, cancel := context.WithTimeout(t.Context(), tc.within)
				defer cancel()
				_ = tc.b.each(ctx, make([]analysislock.Analysis, 100), func(*analysislock.Analysis) error {
					n.Add(1)
					time.Sleep(tc.slow)
					return nil
				})
				if n.Load() != tc.changes {
					t.Errorf("%d changes in %s, want %d", n.Load(), tc.within, tc.changes)
				}
			})
		})
	}
}

func TestBulk_Refused(t *testing.T) {
	booking := func(code codes.Code) error {
		return fmt.Errorf("%w: %w", console.ErrNotBooked, status.Error(code, "c"))
	}
	for err, stops := range map[error]bool{
		booking(codes.NotFound): true, booking(codes.PermissionDenied): true,
		nil: false, booking(codes.Unavailable): false, status.Error(codes.NotFound, "a document"): false,
	} {
		if got := queueRefuses(err); (got != nil) != stops {
			t.Errorf("%v stops the command: %v, want %v", err, got, stops)
		}
	}
}

// One is listed with fields, then it is changed by others, or deleted.
func TestBulk_Change(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, cl, now := skewed(t, 3*time.Hour)
		with := func(fields, more doc) doc { fields = maps.Clone(fields); maps.Copy(fields, more); return fields }
		failing := doc{"status": "PROCESSING", "attempts": 3, "lockToken": 4, "lastError": doc{"code": "c"}}
		running := with(failing, doc{"lockOwner": "w/2", "lockExpiresAt": now().Add(time.Minute)})
		crashed := with(running, doc{"lockExpiresAt": now().Add(-time.Second)}) // by Firestore's clock alone
		fresh := doc{"status": "QUEUED", "attempts": 0}
		ready := doc{"status": "READY", "attempts": 3, "lockToken": 4}
		cancelled := doc{"status": "FAILED", "lockToken": 5, "error": doc{"code": "cancelled"}}
		var same doc
		deleted := doc{"deleted": true}

		try := func(verb console.Verb, flags bulk, fields, since doc, want string) {
			t.Helper()
			b.Put(t, "x", with(fields, doc{"updatedAt": now()}))
			listed, err := cl.Find(t.Context(), repo.Filter{}, "", 10)
			if err != nil || len(listed) != 1 {
				t.Fatalf("%+v, %v, want one", listed, err)
			}
			switch {
			case since["deleted"] == true:
				b.Delete(t, "x")
			case since != nil:
				b.Put(t, "x", with(since, doc{"updatedAt": now()}))
			}
			request := console.Change{Verb: verb, Who: "ops"}
			outcome, reason, err := flags.change(t.Context(), cl, request, &listed[0], silent)
			if got := strings.TrimSpace(outcome + " " + reason); got != want || (err != nil) != (got == failed) {
				t.Errorf("%s by %+v of %v, then %v: %s, %v, want %s", verb, flags, fields, since, got, err, want)
			}
			if verb != console.Cancel || outcome != didChange {
				return
			}
			if failure, _ := b.Fields(t, "x")["error"].(doc); failure["message"] != "cancelled by ops" {
				t.Errorf("%v, want the operator", failure)
			}
		}
		dry, all, dryAll := bulk{dryRun: true}, bulk{running: true}, bulk{running: true, dryRun: true}
		for _, verb := range []console.Verb{console.Requeue, console.Cancel} {
			try(verb, bulk{}, failing, same, "changed")
			try(verb, bulk{}, failing, with(failing, doc{"status": "QUEUED"}), "skipped changed")
			try(verb, bulk{}, failing, with(failing, doc{"lockToken": 5}), "skipped changed")
			try(verb, bulk{}, failing, running, "skipped changed")
			try(verb, bulk{}, failing, deleted, "skipped deleted")
			try(verb, bulk{}, running, same, "skipped held")
			try(verb, dry, running, same, "skipped held")
			try(verb, bulk{}, crashed, same, "changed")
			try(verb, dry, crashed, same, "would_change")
			try(verb, bulk{}, with(failing, doc{"lockToken": "4"}), same, "failed")
		}
		try(console.Cancel, all, running, same, "changed")
		try(console.Cancel, dryAll, running, same, "would_change")
		try(console.Cancel, all, fresh, running, "changed")
		try(console.Cancel, all, running, failing, "changed")
		try(console.Cancel, all, running, ready, "skipped already_finished")
		try(console.Cancel, all, running, cancelled, "skipped already_finished")
		try(console.Cancel, all, running, deleted, "skipped deleted")
		try(console.Cancel, bulk{}, ready, same, "skipped already_finished")
		try(console.Cancel, bulk{}, cancelled, same, "skipped already_finished")
		try(console.Cancel, bulk{}, fresh, same, "changed")
		try(console.Requeue, bulk{}, crashed, running, "skipped held") // its owner has renewed it
		try(console.Requeue, bulk{}, cancelled, same, "changed")
		try(console.Requeue, bulk{}, ready, same, "skipped ready")
		try(console.RequeueFresh, dry, ready, same, "skipped ready")
		try(console.Requeue, bulk{filter: filter{status: "READY"}}, ready, same, "changed")
		try(console.RequeueFresh, bulk{}, fresh, same, "skipped already_queued")
		try(console.Requeue, bulk{filter: filter{status: "QUEUED"}}, fresh, same, "changed")
		try(console.Requeue, bulk{}, with(fresh, doc{"attempts": 1}), same, "changed")
		try(console.Requeue, bulk{}, with(fresh, doc{"lastError": doc{"code": "c"}}), same, "changed")
		try(console.Requeue, bulk{}, with(crashed, fresh), same, "changed")
	})
}

// This machine's clock is behind, then ahead of, Firestore's.
func TestChange_Clock(t *testing.T) {
	for _, ahead := range []time.Duration{3 * time.Hour, -3 * time.Hour} {
		for _, verb := range []console.Verb{console.Delete, console.Requeue} {
			synctest.Test(t, func(t *testing.T) {
				b, cl, now := skewed(t, ahead)
				for left, held := range map[time.Duration]bool{time.Second: true, -time.Second: false} {
					expires := now().Add(left)
					b.Put(t, "x", doc{
						"status": "PROCESSING", "lockOwner": "w/1", "lockToken": 1, "lockExpiresAt": expires,
					})
					done, err := cl.change(t.Context(), console.Change{Verb: verb, ID: "x"}, silent)
					if refused := errors.As(err, new(*lease.HeldError)); refused != held || done.Lock.Held {
						t.Errorf("%s, %v left, Firestore ahead by %v: %+v, %v", verb, left, ahead, done, err)
					}
				}
			})
		}
	}
}

// The filter's durations are before Firestore's time, and so is the time of a repeated command.
func TestFilter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, cl, now := skewed(t, 3*time.Hour)
		before := func(ago time.Duration) string { return iso8601.Format(now().Add(-ago)) }
		for id, ago := range map[string]time.Duration{
			"a": 0, "b": time.Hour - time.Second, "c": time.Hour + time.Second, "d": 25 * time.Hour,
		} {
			b.Put(t, id, doc{"status": "QUEUED", "updatedAt": before(ago), "lastError": doc{"code": "c" + id}})
		}
		for flags, want := range map[string]struct {
			ids    string
			before time.Duration // of the repeated command
		}{
			"--since 1h":                     {"a b", 0},
			"--since 1d":                     {"a b c", 0},
			"--since 1d --older-than 1h":     {"c", time.Hour},
			"--older-than 1h":                {"c d", time.Hour},
			"--older-than 1d1h":              {"", 25 * time.Hour},
			"--older-than " + before(2400e9): {"b c d", 40 * time.Minute},
			"--status READY":                 {"", 0},
			"--code cb":                      {"b", 0},
			"--code C":                       {"", 0},
		} {
			var f filter
			cmd := &cobra.Command{}
			f.declare(cmd, nil)
			ok(t, cmd.ParseFlags(strings.Fields(flags)))
			c, out := call("status")
			found, limit, err := cl.find(t.Context(), c, &f, 10)
			ok(t, err)
			ids := make([]string, len(found))
			for i := range found {
				ids[i] = found[i].ID
			}
			if slices.Sort(ids); strings.Join(ids, " ") != want.ids {
				t.Errorf("%s: %q, want %s", flags, ids, want.ids)
			}
			if told := strings.Contains(out.String(), "ca, cb, cc, cd"); told != (flags == "--code C") {
				t.Errorf("%s prints %q", flags, out)
			}
			if limit.Sub(now().Add(-want.before)).Abs() > time.Second {
				t.Errorf("%s: before %s, want %s ago", flags, limit, want.before)
			}
		}
	})
}

// A change is tried for 15 s.
func TestRefusedCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := emulatortest.Embedded(t)
		b.Put(t, "x", doc{"status": "QUEUED", "createdAt": at(0), "updatedAt": at(0), "input": 2, "lockToken": 1})
		b.Put(t, "failed", doc{"status": "FAILED", "updatedAt": at(0), "error": doc{"code": "c"}})
		cl, allowed, refused := refusing(t, b)
		c, out := call("status")
		all := bulk{dryRun: true}
		all.filter.declare(&cobra.Command{}, nil)
		operator := consoleOperator{cl, silent}
		which := console.Which{Filter: func(time.Time) repo.Filter { return repo.Filter{} }}
		calls := map[string]func(context.Context) error{
			"bulk":    func(ctx context.Context) error { return all.run(ctx, c, cl, console.Requeue) },
			"one":     func(ctx context.Context) error { return cl.showOne(ctx, c, &selection{id: "x"}) },
			"unfound": func(ctx context.Context) error { return reportUnfound(ctx, c, cl) },
			"submit": func(ctx context.Context) error {
				_, err := cl.submit(ctx, Document{ID: "x", Input: 2})
				return err
			},
			"operator": func(ctx context.Context) error {
				_, err := operator.ChangeAll(ctx, console.Cancel, which, "w", time.Time{}, 9, true)
				return err
			},
		}
		for _, verb := range []console.Verb{
			console.Unlock, console.Requeue, console.Cancel, console.Delete, console.Resolve,
		} {
			*allowed = 0
			err := cl.changeOne(t.Context(), c, console.Change{Verb: verb, ID: "x"}, silent)
			if status.Code(err) != codes.PermissionDenied {
				t.Errorf("%s: %v", verb, err)
			}
		}
		for name, read := range calls {
			for n := 0; ; n++ {
				*allowed, *refused = n, 0
				err := read(t.Context())
				if *refused == 0 {
					break
				}
				if err == nil {
					t.Errorf("%s: call %d is refused: %v", name, n+1, err)
				}
			}
		}
		if n := strings.Count(out.String(), "TASK_QUEUE is not set"); n != 1 {
			t.Errorf("%d times that nothing is enqueued: %s", n, out)
		}
	})
}

// Three queries list the dated; there is no room for others, or their query fails.
func TestStatus_Unfinished(t *testing.T) {
	b := emulatortest.Embedded(t)
	b.Put(t, "dated", doc{"status": "QUEUED", "updatedAt": at(0)})
	cl, allowed, _ := refusing(t, b)
	for limit, warned := range map[int]bool{1: false, 2: true} {
		*allowed = 3
		c, out := call("status")
		found, err := cl.unfinished(t.Context(), c, limit)
		ok(t, err)
		if got := strings.Contains(out.String(), "may miss"); len(found) != 1 || got != warned {
			t.Errorf("%d at most: %v, %q", limit, found, out)
		}
	}
}

// interruptAfter is a Writer that ends a command at a line of its output.
type interruptAfter struct {
	lines, at int
	interrupt context.CancelFunc
}

func (w *interruptAfter) Write(p []byte) (int, error) {
	if w.lines++; w.lines == w.at {
		w.interrupt()
	}
	return len(p), nil
}

func TestBulk_Interrupted(t *testing.T) {
	b := emulatortest.Embedded(t)
	for i := range 60 {
		b.Put(t, fmt.Sprint(i), doc{"status": "QUEUED", "updatedAt": at(0)})
	}
	ctx, interrupt := context.WithCancel(t.Context())
	out, errs := &interruptAfter{at: 5, interrupt: interrupt}, &strings.Builder{}
	c := &cli.Call{Name: "cancel", JSON: true, Streams: cli.Streams{Out: out, Err: errs}}
	var all bulk
	all.filter.declare(&cobra.Command{}, nil)
	cl := clientOf(t, b)

	err := all.run(ctx, c, cl, console.Cancel)
	if !errors.Is(err, context.Canceled) || !strings.Contains(errs.String(), "--older-than 20") {
		t.Errorf("%v: %s", err, errs)
	}
	changed, err := cl.Count(t.Context(), repo.Filter{Status: "FAILED"})
	ok(t, err)
	if changed > 25 || int(changed) != out.lines-1 { // the last is the summary
		t.Errorf("%d changed, %d lines", changed, out.lines)
	}
}
