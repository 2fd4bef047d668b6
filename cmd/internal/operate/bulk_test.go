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
	booking := func(code codes.Code) error { return fmt.Errorf("%w: %w", errNotBooked, status.Error(code, "c")) }
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
	operator, err := guard.Operator(worker.Kind{})
	if err != nil {
		t.Fatal(err)
	}
	return &Client{Operator: operator, guard: guard}
}

// skewed returns a Firestore whose clock is three hours ahead of this machine's, and its time.
func skewed(t *testing.T) (*emulatortest.Backend, *Client, func() time.Time) {
	t.Helper()
	now := func() time.Time { return time.Now().Add(3 * time.Hour) }
	b := emulatortest.Embedded(t)
	b.Server = firestore.NewServer(firestore.Options{Now: now})
	t.Cleanup(b.Server.Close)
	return b, clientOf(t, b), now
}

// The times of a filter are before Firestore's: without that, everything would match.
func TestAFilterFailsWithItsReadingsButNotWithThoseOfTheCodes(t *testing.T) {
	for failing := range 4 { // the time, the list, and the two kinds of codes
		synctest.Test(t, func(t *testing.T) {
			b, calls := emulatortest.Embedded(t), 0
			cl := clientOf(t, b, grpc.WithChainStreamInterceptor(
				func(ctx context.Context, d *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
					if calls++; calls > failing {
						return nil, status.Error(codes.PermissionDenied, "as the test wants")
					}
					return open(ctx, d, cc, method, opts...)
				}))
			var f filter
			var printed strings.Builder
			c := cli.NewCall(cli.Command{}, []string{"--code", "c", "--since", "1h"}, cli.Streams{Err: &printed}, nil)
			f.flags(c)
			if _, err := c.Parse(0, 0); err != nil {
				t.Fatal(err)
			}
			found, _, err := cl.find(t.Context(), c, &f, 10)
			if listed := failing >= 2; listed != (err == nil) || listed != strings.HasSuffix(printed.String(), ", READY and FAILED\n") || len(found) > 0 {
				t.Errorf("after %d calls: %v, %v, %q", failing, found, err, printed.String())
			}
			b.Put(t, "dated", map[string]any{"status": "QUEUED", "updatedAt": time.Now()})
			for _, limit := range []int{1, 2} { // three queries list the dated; there is no room for others, or their query fails
				calls = failing - 3
				printed.Reset()
				found, err = cl.unfinished(t.Context(), c, limit)
				if warned := strings.Contains(printed.String(), "are not all listed: "); err != nil || len(found) != 1 || warned != (limit == 2) {
					t.Errorf("unfinished, %d at most: %v, %v, %q", limit, found, err, printed.String())
				}
			}
		})
	}
}

// One is listed with fields, then it is changed by others, or deleted.
func TestAnAnalysisThatHasChangedSinceItWasListedIsSkipped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, cl, now := skewed(t)
		type doc = map[string]any
		with := func(fields, more doc) doc { fields = maps.Clone(fields); maps.Copy(fields, more); return fields }
		failing := doc{"status": "PROCESSING", "attempts": 3, "lockToken": 4, "lastError": doc{"code": "c"}}
		running := with(failing, doc{"lockOwner": "w/2", "lockExpiresAt": now().Add(time.Minute)})
		crashed := with(running, doc{"lockExpiresAt": now().Add(-time.Second)})
		fresh, ready, bad := doc{"status": "QUEUED", "attempts": 0}, doc{"status": "READY", "attempts": 3, "lockToken": 4}, with(failing, doc{"lockToken": "4"})
		cancelled := doc{"status": "FAILED", "lockToken": 5, "finishedBy": "operator", "error": doc{"code": "cancelled", "message": "cancelled by x"}}
		both := []verb{verbRequeue, verbCancel}
		requeue, requeueFresh, cancel := both[:1], []verb{verbRequeueFresh}, both[1:]
		for _, tc := range []struct {
			what          []verb
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
				listed, err := cl.Analyses.Find(t.Context(), repo.Filter{}, "", 10)
				if err != nil || len(listed) != 1 {
					t.Fatalf("%+v, %v, want one", listed, err)
				}
				switch {
				case tc.since["deleted"] == true:
					b.Delete(t, "x")
				case tc.since != nil:
					b.Put(t, "x", with(tc.since, doc{"updatedAt": now()}))
				}
				tc.b.who = "ops"
				outcome, reason, err := tc.b.change(t.Context(), cl, what, &listed[0], slog.New(slog.DiscardHandler))
				if got := strings.TrimSpace(outcome + " " + reason); got != tc.want || (err != nil) != (got == failed) {
					t.Errorf("%s by %+v of %v, then %v: %s, %v, want %s", what, tc.b, tc.fields, tc.since, got, err, tc.want)
				}
				if failed, _ := b.Fields(t, "x")["error"].(doc); outcome == didChange && what == verbCancel && failed["message"] != "cancelled by ops" {
					t.Errorf("%v, want the operator", failed)
				}
			}
		}
	})
}

// The filter's durations are before Firestore's time, and so is the time of a repeated command.
func TestAFilterIsOfFirestoresTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, cl, now := skewed(t)
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
			c := cli.NewCall(cli.Command{Name: "status"}, strings.Fields(flags), cli.Streams{Err: &errs}, nil)
			f.flags(c)
			if _, err := c.Parse(0, 0); err != nil {
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
			const known = "taskguard status: no analysis matches; the statuses are QUEUED, PROCESSING, READY and FAILED, the codes of errors are: ca, cb, cc, cd\n"
			if filtered := strings.Contains(flags, "--status") || strings.Contains(flags, "--code"); (errs.String() == known) != (filtered && want == "") {
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

func TestATerminalShowsTheProgressUntilTheSummary(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out, errs strings.Builder
		c := cli.NewCall(cli.Command{Name: "cancel"}, nil, cli.Streams{Out: &out, Err: &errs}, nil)
		tally := newTally(c, 9, false)
		tally.terminal = true
		for i, err := range []error{nil, lease.ErrFinished, errNotBooked, lease.ErrFinished} {
			time.Sleep(time.Second/5 + 1 - time.Duration(i/3)) // the last comes too soon
			tally.add(t.Context(), "x", didChange, "", err)
			if tally.notBooked != (i >= 2) {
				t.Errorf("%d: not booked is %v", i, tally.notBooked)
			}
		}
		tally.print(verbCancel)
		const erase, progress = "\r\x1b[K", "\r%d matched, %d changed, 0 skipped, 0 failed\x1b[K"
		want := fmt.Sprintf(progress+erase+"%s"+progress+erase+"%s"+progress+erase+"%s"+erase, 9, 1, "already finished", 9, 2, errNotBooked, 9, 3, "already finished")
		if got := strings.NewReplacer("taskguard cancel: ", "", "\n", "").Replace(errs.String()); got != want || out.String() != "9 matched, 4 changed, 0 skipped, 0 failed\n" {
			t.Errorf("%q, want %q; %q", got, want, out.String())
		}
		printRecovered(c, "", worker.Recovery{Found: 1, More: true}, nil)
		if !strings.HasSuffix(out.String(), "found 1, booked 0; there may be more: run it again\n") {
			t.Error(out.String())
		}
	})
	null, err := os.Open(os.DevNull)
	if err != nil || !isTerminal(null) {
		t.Errorf("a character device is none: %v", err)
	}
	_ = null.Close()
	if file, err := os.Open("tally.go"); err != nil || isTerminal(file) || file.Close() != nil {
		t.Errorf("a file is a terminal, %v", err)
	}
}

func TestEachRefusedReadingIsAnError(t *testing.T) {
	b := emulatortest.Embedded(t)
	b.Put(t, "x", map[string]any{"status": "QUEUED", "createdAt": time.Now(), "updatedAt": time.Now(), "input": 2, "result": 3, "lockToken": 1})
	b.Put(t, "failed", map[string]any{"status": "FAILED", "updatedAt": time.Now(), "error": map[string]any{"code": "c"}})
	allowed, denied := 0, 0
	cl := clientOf(t, b, grpc.WithChainStreamInterceptor(
		func(ctx context.Context, d *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			if allowed--; allowed < 0 {
				denied++
				return nil, status.Error(codes.PermissionDenied, "as the test wants")
			}
			return open(ctx, d, cc, method, opts...)
		}))
	var out, errs strings.Builder
	c := cli.NewCall(cli.Command{}, nil, cli.Streams{Out: &out, Err: &errs}, func(string) (string, bool) { return "", false })
	all := bulk{dryRun: true}
	all.flags(c)
	source := consoleSource{cl}
	operator := consoleOperator{cl, slog.New(slog.DiscardHandler)}
	for name, read := range map[string]func(context.Context) error{
		"bulk":             func(ctx context.Context) error { return all.run(ctx, c, cl, verbRequeue) },
		"one":              func(ctx context.Context) error { return cl.showOne(ctx, c, "x") },
		"unfound":          func(ctx context.Context) error { return reportUnfound(ctx, c, cl) },
		"source: page":     func(ctx context.Context) error { _, err := source.Page(ctx, repo.Filter{}, "", 9); return err },
		"source: failures": func(ctx context.Context) error { _, err := source.Failures(ctx, 9); return err },
		"source: active":   func(ctx context.Context) error { _, err := source.Active(ctx, 9); return err },
		"source: count":    func(ctx context.Context) error { _, err := source.Count(ctx, []string{"QUEUED"}); return err },
		"submit":           func(ctx context.Context) error { _, err := cl.submit(ctx, Document{ID: "x", Input: 2}); return err },
		"operator": func(ctx context.Context) error {
			_, err := operator.ChangeAll(ctx, "cancel", func(time.Time) repo.Filter { return repo.Filter{} }, "w", console.Bulk{}, 9, true)
			return err
		},
		"source: oldest": func(ctx context.Context) error {
			oldest, err := source.Oldest(ctx)
			if err == nil && (len(oldest) != 1 || oldest[0].ID != "x") {
				t.Errorf("oldest: %+v", oldest)
			}
			return err
		},
		"source: summary": func(ctx context.Context) error {
			d, err := source.Get(ctx, "x", false)
			if len(d.Input)+len(d.Result) > 0 {
				t.Errorf("summary: %+v", d)
			}
			return err
		},
		"source: get": func(ctx context.Context) error {
			d, err := source.Get(ctx, "x", true)
			if err == nil && string(d.Input)+string(d.Result) != "23" {
				t.Errorf("get: %+v", d)
			}
			return err
		},
	} {
		for n := 0; ; n++ {
			allowed, denied = n, 0
			err := read(t.Context())
			if denied == 0 {
				break
			}
			if refused := new(console.Refusal); err == nil || strings.HasPrefix(name, "source: ") != errors.As(err, &refused) && name != "operator" {
				t.Errorf("%s: call %d is refused: %v", name, n+1, err)
			}
		}
	}
	if text := errs.String(); strings.Count(text, "TASK_QUEUE is not set: no deliveries are booked\n") != 1 {
		t.Errorf("printed %s", text)
	}
}
