package operate

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	tasksapi "cloud.google.com/go/cloudtasks/apiv2"
	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"golang.org/x/sync/errgroup"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"taskguard/cmd/internal/cli"
	"taskguard/cmd/internal/console"
	"taskguard/emulator/cloudtasks"
	"taskguard/emulator/firestore"
	"taskguard/internal/taskqueue"
	"taskguard/internal/testing/emulatortest"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/lease/iso8601"
	"taskguard/repo"
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

// ahead is how far Firestore's clock is ahead of this machine's.
const ahead = 3 * time.Hour

// skewed returns a Firestore with another clock, and its time.
func skewed(t *testing.T) (*emulatortest.Backend, *Client, func() time.Time) {
	t.Helper()
	now := func() time.Time { return time.Now().Add(ahead) }
	b := emulatortest.Embedded(t)
	b.Server = firestore.NewServer(firestore.Options{Now: now})
	t.Cleanup(b.Server.Close)
	a, err := repo.Open(t.Context(), b.Project, repo.Options{}, b.Client(t)...)
	if err != nil {
		t.Fatal(err)
	}
	return b, &Client{analyses: a}, now
}

// The times of a filter are before Firestore's: without that, everything would match.
func TestAFilterFailsWithItsReadingsButNotWithThoseOfTheCodes(t *testing.T) {
	for failing := range 4 { // the time, the list, and the two kinds of codes
		synctest.Test(t, func(t *testing.T) {
			b, calls := emulatortest.Embedded(t), 0
			a, err := repo.Open(t.Context(), b.Project, repo.Options{}, b.Client(t, grpc.WithChainStreamInterceptor(
				func(ctx context.Context, d *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
					if calls++; calls > failing {
						return nil, status.Error(codes.PermissionDenied, "as the test wants")
					}
					return open(ctx, d, cc, method, opts...)
				}))...)
			if err != nil {
				t.Fatal(err)
			}
			defer a.Close() //nolint:errcheck // nothing is written
			var f filter
			var printed strings.Builder
			c := cli.NewCall(cli.Command{}, []string{"--code", "c", "--since", "1h"}, cli.Streams{Err: &printed}, nil)
			f.flags(c)
			if _, err := c.Parse(0, 0); err != nil {
				t.Fatal(err)
			}
			cl := &Client{analyses: a}
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
		both := []console.Change{console.Requeue, console.Cancel}
		requeue, requeueFresh, cancel := both[:1], []console.Change{console.RequeueFresh}, both[1:]
		for _, tc := range []struct {
			what          []console.Change
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
				listed, err := cl.analyses.Find(t.Context(), repo.Filter{}, "", 10)
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
				if failed, _ := b.Fields(t, "x")["error"].(doc); outcome == didChange && what == console.Cancel && failed["message"] != "cancelled by ops" {
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
			b.Put(t, id, map[string]any{"status": "QUEUED", "updatedAt": iso8601.Format(now().Add(-ago))})
		}
		for flags, want := range map[string]string{
			"--since 1h": "a b", "--older-than 1h": "c d", "--since 1d": "a b c", "--older-than 1d1h": "", "--older-than 1d --status QUEUED": "d",
			"--since 1d --older-than 1h": "c", "--older-than " + iso8601.Format(fixed): "b c d", "--status READY": "",
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
			wantBefore := now()
			if _, older, given := strings.Cut(flags, "--older-than "); given {
				parsed, err := console.ParseTime(strings.Fields(older)[0])
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

func TestATimeMayBeDaysAgo(t *testing.T) {
	for text, want := range map[string]time.Duration{"1d": 24 * time.Hour, "1d12h": 36 * time.Hour, "90m": 90 * time.Minute, "0d": 0, "d": -1, "-1d": -1, "1.5d": -1, "1d2d": -1, "99999d": -1, "65535d2562047h": -1, "-1h": -1, "1": -1} {
		at, err := console.ParseTime(text)
		got := time.Duration(-1)
		if base := time.Unix(1e9, 0); err == nil {
			got = base.Sub(at(base))
		}
		if got != want {
			t.Errorf("%s: %s, %v, want %s", text, got, err, want)
		}
	}
}

// It counts what is changed and booked, and prints the time and the calls for each analysis; run it with -benchtime 10000x. The
// first half is interrupted.
func BenchmarkBulkRequeue(b *testing.B) {
	back := emulatortest.OnGoogle(b)
	a, err := repo.Open(b.Context(), back.Project, repo.Options{}, back.Client(b)...)
	if err != nil {
		b.Fatal(err)
	}
	server := cloudtasks.NewServer(cloudtasks.Options{Token: func(string, string) (string, error) { return "token", nil }})
	b.Cleanup(server.Close)
	conn, err := server.Dial()
	if err != nil {
		b.Fatal(err)
	}
	const name = "projects/p/locations/local/queues/q"
	admin, err := tasksapi.NewClient(b.Context(), option.WithGRPCConn(conn))
	if err == nil {
		_, err = admin.CreateQueue(b.Context(), &cloudtaskspb.CreateQueueRequest{Parent: "projects/p/locations/local", Queue: &cloudtaskspb.Queue{Name: name, RateLimits: &cloudtaskspb.RateLimits{MaxConcurrentDispatches: 1}}})
	}
	if err != nil {
		b.Fatal(err)
	}
	queue, err := taskqueue.Open(b.Context(), taskqueue.Config{Name: name, TargetURL: "http://127.0.0.1:1", Caller: "c@p.iam.gserviceaccount.com"}, option.WithGRPCConn(conn))
	if err != nil {
		b.Fatal(err)
	}
	var puts errgroup.Group
	puts.SetLimit(16)
	for i := range b.N {
		puts.Go(func() error {
			back.Put(b, fmt.Sprint("x", i), map[string]any{"status": "FAILED", "attempts": 5, "lockToken": 5, "finishedBy": "w", "updatedAt": iso8601.Format(time.Now()), "error": map[string]any{"code": "c", "message": "m"}})
			return nil
		})
	}
	_ = puts.Wait()
	before := back.Calls.Total()
	b.ResetTimer()
	changed := 0
	for _, stop := range []int{b.N / 2, -1} {
		ctx, cancel := context.WithCancel(b.Context())
		out := &stopping{left: stop, stop: cancel}
		c := cli.NewCall(cli.Command{Name: "requeue"}, nil, cli.Streams{Out: out, Err: io.Discard}, nil)
		var bulk bulk
		bulk.flags(c)
		bulk.status, bulk.code, c.JSON = "FAILED", "c", true
		if err := bulk.run(ctx, c, &Client{analyses: a, queue: queue}, console.Requeue); err != nil && ctx.Err() == nil {
			b.Fatal(err)
		}
		var sum struct{ Summary struct{ Changed int } }
		if err := json.Unmarshal([]byte(out.last), &sum); err != nil {
			b.Fatal(err, out.last)
		}
		changed += sum.Summary.Changed
		cancel()
	}
	b.StopTimer()
	booked := 0
	for _, err := range admin.ListTasks(b.Context(), &cloudtaskspb.ListTasksRequest{Parent: name}).All() {
		if err != nil {
			b.Fatal(err)
		}
		booked++
	}
	if changed != b.N || booked != b.N {
		b.Errorf("%d changed and %d booked, want %d", changed, booked, b.N)
	}
	b.ReportMetric(float64(back.Calls.Total()-before)/float64(b.N), "calls/analysis")
	b.Log(back.Calls)
}

// stopping calls stop at a line of output, and keeps the last.
type stopping struct {
	left int
	stop func()
	last string
}

func (s *stopping) Write(p []byte) (int, error) {
	if s.left--; s.left == 0 {
		s.stop()
	}
	s.last = string(p)
	return len(p), nil
}
