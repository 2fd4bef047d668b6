package operate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"taskguard/cmd/internal/cli"
	"taskguard/cmd/internal/console"
	"taskguard/emulator/firestore"
	"taskguard/internal/testing/emulatortest"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/lease/iso8601"
	"taskguard/repo"
	"taskguard/worker"
)

func TestMain(m *testing.M) { os.Exit(emulatortest.Main(m)) }

func TestChangesKeepToTheRateAndToSixteenAtATime(t *testing.T) {
	for _, tc := range []struct {
		b          bulk
		slow, took time.Duration // one change; all that begin
		changes    int
	}{
		{bulk{rate: 0.1}, 0, 25 * time.Second, 3}, // the first at once
		{bulk{rate: 4}, 0, 5*time.Second + time.Millisecond, 21},
		{bulk{rate: 1000}, 0, 50*time.Millisecond + time.Microsecond, 51},
		{bulk{rate: 0.1, dryRun: true}, 0, time.Second, 100},
		{bulk{}, time.Minute, time.Minute - time.Second, 17}, // one waits for the first of sixteen
		{bulk{}, time.Minute, 2*time.Minute - time.Second, 33},
	} {
		synctest.Test(t, func(t *testing.T) {
			n := 0
			var mu sync.Mutex
			ctx, cancel := context.WithTimeout(t.Context(), tc.took)
			defer cancel()
			_ = tc.b.each(ctx, make([]analysislock.Analysis, 100), func(*analysislock.Analysis) error {
				mu.Lock()
				n++
				mu.Unlock()
				time.Sleep(tc.slow)
				return nil
			})
			if n != tc.changes {
				t.Errorf("%+v: %d changes in %s, want %d", tc.b, n, tc.took, tc.changes)
			}
		})
	}
}

func TestABulkChangeStopsWhereTheQueueRefusesAll(t *testing.T) {
	booking := func(code codes.Code) error {
		return fmt.Errorf("%w: %w", console.ErrNotBooked, status.Error(code, "c"))
	}
	for err, want := range map[error]bool{
		nil: false, booking(codes.NotFound): true, booking(codes.PermissionDenied): true, booking(codes.Unavailable): false,
		booking(codes.ResourceExhausted): false, status.Error(codes.NotFound, "a document"): false, lease.ErrMalformed: false,
	} {
		if got := queueRefuses(err); (got != nil) != want {
			t.Errorf("%v stops the command: %v, want %v", err, got, want)
		}
	}
}

// clientOf returns a Client of the analyses of b.
func clientOf(t testing.TB, b *emulatortest.Backend, opts ...grpc.DialOption) *Client {
	t.Helper()
	guard, err := worker.Open(t.Context(), worker.Options{
		Project: b.Project, Auth: worker.CheckedByProxy(), FirestoreOptions: b.Client(t, opts...),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = guard.Shutdown(context.Background()) })
	work := guard.MustRegister(worker.Kind{})
	return &Client{Operator: work.Operator(), guard: guard, work: work}
}

// skewed returns a Firestore whose clock is so far ahead of this machine's, and its time.
func skewed(t *testing.T, ahead time.Duration) (*emulatortest.Backend, *Client, func() time.Time) {
	t.Helper()
	now := func() time.Time { return time.Now().Add(ahead) }
	b := emulatortest.Embedded(t)
	b.Server = firestore.NewServer(firestore.Options{Now: now})
	t.Cleanup(b.Server.Close)
	return b, clientOf(t, b), now
}

// refusing returns a Client of b's analyses, whose streams are refused after as many as allowed.
func refusing(t *testing.T, b *emulatortest.Backend) (cl *Client, allowed, refused *int) {
	t.Helper()
	allowed, refused = new(int), new(int)
	return clientOf(t, b, grpc.WithChainStreamInterceptor(
		func(ctx context.Context, d *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			if *allowed--; *allowed < 0 {
				*refused++
				return nil, status.Error(codes.PermissionDenied, "as the test wants")
			}
			return open(ctx, d, cc, method, opts...)
		})), allowed, refused
}

// A change is tried for 15 s.
func TestARefusedChangeIsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := emulatortest.Embedded(t)
		b.Put(t, "x", map[string]any{"status": "QUEUED"})
		cl, _, _ := refusing(t, b)
		c := &cli.Call{}
		for _, verb := range []console.Verb{console.Unlock, console.Requeue, console.Cancel, console.Delete, console.Resolve} {
			err := cl.changeOne(t.Context(), c, console.Change{Verb: verb, ID: "x"}, slog.New(slog.DiscardHandler))
			if status.Code(err) != codes.PermissionDenied {
				t.Errorf("%s: %v", verb, err)
			}
		}
	})
}

// Three queries list the dated; there is no room for others, or their query fails.
func TestTheUnfinishedAreListedWithoutThoseThatCannotBeRead(t *testing.T) {
	b := emulatortest.Embedded(t)
	b.Put(t, "dated", map[string]any{"status": "QUEUED", "updatedAt": time.Now()})
	cl, allowed, _ := refusing(t, b)
	var printed strings.Builder
	c := &cli.Call{Streams: cli.Streams{Err: &printed}}
	for limit, warned := range []bool{1: false, 2: true} {
		printed.Reset()
		*allowed = 3
		found, err := cl.unfinished(t.Context(), c, max(limit, 1))
		if got := strings.Contains(printed.String(), "the list may miss analyses"); err != nil || len(found) != 1 || got != warned {
			t.Errorf("%d at most: %v, %v, %q", limit, found, err, printed.String())
		}
	}
}

// One is listed with fields, then it is changed by others, or deleted.
func TestAnAnalysisThatHasChangedSinceItWasListedIsSkipped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, cl, now := skewed(t, 3*time.Hour)
		type doc = map[string]any
		with := func(fields, more doc) doc { fields = maps.Clone(fields); maps.Copy(fields, more); return fields }
		failing := doc{"status": "PROCESSING", "attempts": 3, "lockToken": 4, "lastError": doc{"code": "c"}}
		running := with(failing, doc{"lockOwner": "w/2", "lockExpiresAt": now().Add(time.Minute)})
		crashed := with(running, doc{"lockExpiresAt": now().Add(-time.Second)})
		fresh, ready, bad := doc{"status": "QUEUED", "attempts": 0}, doc{"status": "READY", "attempts": 3, "lockToken": 4}, with(failing, doc{"lockToken": "4"})
		cancelled := doc{"status": "FAILED", "lockToken": 5, "finishedBy": "operator", "error": doc{"code": "cancelled", "message": "cancelled by x"}}
		both := []console.Verb{console.Requeue, console.Cancel}
		requeue, requeueFresh, cancel := both[:1], []console.Verb{console.RequeueFresh}, both[1:]
		for _, tc := range []struct {
			what          []console.Verb
			b             bulk
			fields, since doc
			want          string
		}{
			{both, bulk{}, failing, nil, "changed"},
			{both, bulk{}, failing, with(failing, doc{"status": "QUEUED"}), "skipped changed"},
			{both, bulk{}, failing, with(failing, doc{"lockToken": 5}), "skipped changed"},
			{both, bulk{}, failing, running, "skipped changed"},
			{both, bulk{}, failing, doc{"deleted": true}, "skipped deleted"},
			{both, bulk{}, running, nil, "skipped held"},
			{both, bulk{dryRun: true}, running, nil, "skipped held"},
			{both, bulk{}, crashed, nil, "changed"}, // by Firestore's clock alone
			{both, bulk{dryRun: true}, crashed, nil, "would_change"},
			{both, bulk{}, bad, nil, "failed"},
			{requeue, bulk{}, crashed, running, "skipped held"}, // its owner has renewed it
			{cancel, bulk{running: true}, running, nil, "changed"},
			{cancel, bulk{running: true, dryRun: true}, running, nil, "would_change"},
			{cancel, bulk{running: true}, fresh, running, "changed"},
			{cancel, bulk{running: true}, running, failing, "changed"},
			{cancel, bulk{running: true}, running, ready, "skipped already_finished"},
			{cancel, bulk{running: true}, running, cancelled, "skipped already_finished"},
			{cancel, bulk{running: true}, running, doc{"deleted": true}, "skipped deleted"},
			{cancel, bulk{}, ready, nil, "skipped already_finished"},
			{cancel, bulk{}, cancelled, nil, "skipped already_finished"},
			{cancel, bulk{}, fresh, nil, "changed"},
			{requeue, bulk{}, cancelled, nil, "changed"},
			{requeue, bulk{}, ready, nil, "skipped ready"},
			{requeueFresh, bulk{dryRun: true}, ready, nil, "skipped ready"},
			{requeue, bulk{filter: filter{status: "READY"}}, ready, nil, "changed"},
			{requeueFresh, bulk{}, fresh, nil, "skipped already_queued"},
			{requeue, bulk{filter: filter{status: "QUEUED"}}, fresh, nil, "changed"},
			{requeue, bulk{}, with(fresh, doc{"attempts": 1}), nil, "changed"},
			{requeue, bulk{}, with(fresh, doc{"lastError": doc{"code": "c"}}), nil, "changed"},
			{requeue, bulk{}, with(fresh, doc{"lockOwner": "w/2", "lockToken": 4, "lockExpiresAt": crashed["lockExpiresAt"]}), nil, "changed"},
		} {
			for _, what := range tc.what {
				b.Put(t, "x", with(tc.fields, doc{"updatedAt": now()}))
				listed, err := cl.Find(t.Context(), repo.Filter{}, "", 10)
				if err != nil || len(listed) != 1 {
					t.Fatalf("%+v, %v, want one", listed, err)
				}
				switch {
				case tc.since["deleted"] == true:
					b.Delete(t, "x")
				case tc.since != nil:
					b.Put(t, "x", with(tc.since, doc{"updatedAt": now()}))
				}
				outcome, reason, err := tc.b.change(t.Context(), cl, console.Change{Verb: what, Who: "ops"}, &listed[0], slog.New(slog.DiscardHandler))
				if got := strings.TrimSpace(outcome + " " + reason); got != tc.want || (err != nil) != (got == failed) {
					t.Errorf("%s by %+v of %v, then %v: %s, %v, want %s", what, tc.b, tc.fields, tc.since, got, err, tc.want)
				}
				if failed, _ := b.Fields(t, "x")["error"].(doc); outcome == didChange && what == console.Cancel && failed["message"] != "cancelled by ops" {
					t.Errorf("%v, want the operator", failed)
				}
			}
		}
	})
}

// This machine's clock is behind, then ahead of, Firestore's.
func TestALockIsJudgedByFirestoresClockAlone(t *testing.T) {
	for _, ahead := range []time.Duration{3 * time.Hour, -3 * time.Hour} {
		for _, verb := range []console.Verb{console.Delete, console.Requeue, console.RequeueFresh, console.Unlock, console.Cancel} {
			synctest.Test(t, func(t *testing.T) {
				b, cl, now := skewed(t, ahead)
				for id, left := range map[string]time.Duration{"held": time.Second, "lapsed": -time.Second} {
					b.Put(t, id, map[string]any{"status": "PROCESSING", "lockOwner": "w/1", "lockToken": 1, "lockExpiresAt": iso8601.Format(now().Add(left))})
					done, err := cl.change(t.Context(), console.Change{Verb: verb, ID: id}, slog.New(slog.DiscardHandler))
					forced := verb == console.Unlock || verb == console.Cancel
					refused := errors.As(err, new(*lease.HeldError))
					if held := id == "held"; refused != (held && !forced) || err == nil && done.Lock.Held != held {
						t.Errorf("%s of one %s, with Firestore's clock ahead by %v: %+v, %v", verb, id, ahead, done, err)
					}
				}
			})
		}
	}
}

// The filter's durations are before Firestore's time, and so is the time of a repeated command.
func TestAFilterIsOfFirestoresTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, cl, now := skewed(t, 3*time.Hour)
		fixed := now().Add(-40 * time.Minute).Truncate(time.Millisecond)
		for id, ago := range map[string]time.Duration{"a": 0, "b": time.Hour - time.Second, "c": time.Hour + time.Second, "d": 25 * time.Hour} {
			b.Put(t, id, map[string]any{"status": "QUEUED", "updatedAt": iso8601.Format(now().Add(-ago)), "lastError": map[string]any{"code": "c" + id}})
		}
		for flags, want := range map[string]string{
			"--since 1h": "a b", "--older-than 1h": "c d", "--since 1d": "a b c", "--older-than 1d1h": "", "--older-than 1d --status QUEUED": "d",
			"--since 1d --older-than 1h": "c", "--older-than " + iso8601.Format(fixed): "b c d", "--status READY": "", "--code cb": "b", "--code C": "",
		} {
			var f filter
			var errs strings.Builder
			c, cmd := &cli.Call{Name: "status", Streams: cli.Streams{Err: &errs}}, &cobra.Command{}
			f.declare(cmd, nil)
			if err := cmd.ParseFlags(strings.Fields(flags)); err != nil {
				t.Fatal(err)
			}
			found, before, err := cl.find(t.Context(), c, &f, 10)
			ids := make([]string, len(found))
			for i := range found {
				ids[i] = found[i].ID
			}
			if slices.Sort(ids); strings.Join(ids, " ") != want || err != nil {
				t.Errorf("%s: %q, %v, want %s", flags, ids, err, want)
			}
			const known = "taskguard status: no analysis matches; the codes are: ca, cb, cc, cd\n"
			if filtered := strings.Contains(flags, "--code"); (errs.String() == known) != (filtered && want == "") {
				t.Errorf("%s prints %q", flags, errs.String())
			}
			wantBefore := now()
			if _, older, given := strings.Cut(flags, "--older-than "); given {
				parsed, err := cli.ParseTime(strings.Fields(older)[0])
				if err != nil {
					t.Fatal(err)
				}
				wantBefore = parsed(now())
			}
			if before.Sub(wantBefore).Abs() > time.Second {
				t.Errorf("%s: before %s, want %s", flags, before, wantBefore)
			}
		}
	})
}

func TestEachRefusedReadingIsAnError(t *testing.T) {
	b := emulatortest.Embedded(t)
	b.Put(t, "x", map[string]any{"status": "QUEUED", "createdAt": time.Now(), "updatedAt": time.Now(), "input": 2, "result": 3, "lockToken": 1})
	b.Put(t, "failed", map[string]any{"status": "FAILED", "updatedAt": time.Now(), "error": map[string]any{"code": "c"}})
	cl, allowed, refused := refusing(t, b)
	var out, errs strings.Builder
	c := &cli.Call{Streams: cli.Streams{Out: &out, Err: &errs}, Lookup: func(string) (string, bool) { return "", false }}
	all := bulk{dryRun: true}
	all.filter.declare(&cobra.Command{}, nil)
	operator := consoleOperator{cl, slog.New(slog.DiscardHandler)}
	for name, read := range map[string]func(context.Context) error{
		"bulk":    func(ctx context.Context) error { return all.run(ctx, c, cl, console.Requeue) },
		"one":     func(ctx context.Context) error { return cl.showOne(ctx, c, &selection{id: "x"}) },
		"unfound": func(ctx context.Context) error { return reportUnfound(ctx, c, cl) },
		"submit":  func(ctx context.Context) error { _, err := cl.submit(ctx, Document{ID: "x", Input: 2}); return err },
		"operator": func(ctx context.Context) error {
			_, err := operator.ChangeAll(ctx, console.Cancel, console.Which{Filter: func(time.Time) repo.Filter { return repo.Filter{} }}, "w", time.Time{}, 9, true)
			return err
		},
	} {
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
	if text := errs.String(); strings.Count(text, "TASK_QUEUE is not set: nothing is enqueued\n") != 1 {
		t.Errorf("printed %s", text)
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

func TestAnInterruptedBulkChangeCompletesWhatIsUnderWay(t *testing.T) {
	b := emulatortest.Embedded(t)
	for i := range 60 {
		b.Put(t, fmt.Sprint(i), map[string]any{"status": "QUEUED", "updatedAt": time.Now()})
	}
	ctx, interrupt := context.WithCancel(t.Context())
	out, errs := &interruptAfter{at: 5, interrupt: interrupt}, &strings.Builder{}
	c := &cli.Call{Name: "cancel", Streams: cli.Streams{Out: out, Err: errs}}
	var all bulk
	all.filter.declare(&cobra.Command{}, nil)
	c.JSON = true
	cl := clientOf(t, b)

	err := all.run(ctx, c, cl, console.Cancel)
	changed, countErr := cl.Count(t.Context(), repo.Filter{Status: "FAILED"})
	if !errors.Is(err, context.Canceled) || countErr != nil || changed > 25 || int(changed) != out.lines-1 || // the last is the summary
		!strings.Contains(errs.String(), "run it again for the rest; --older-than 20") {
		t.Errorf("%v, %v: %d changed, %d lines: %s", err, countErr, changed, out.lines, errs)
	}
}
