package operate

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	tasksapi "cloud.google.com/go/cloudtasks/apiv2"
	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"golang.org/x/sync/errgroup"
	"google.golang.org/api/option"

	"taskguard/cmd/internal/cli"
	"taskguard/emulator/cloudtasks"
	"taskguard/internal/console"
	"taskguard/internal/emulatortest"
	"taskguard/internal/taskqueue"
	"taskguard/lease/analysislock"
	"taskguard/lease/iso8601"
	"taskguard/repo"
)

func TestTheFirstChangeBeginsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, began := bulk{rate: 0.1}, time.Now()
		_ = b.each(t.Context(), make([]analysislock.Analysis, 1), func(*analysislock.Analysis) error { return nil })
		if took := time.Since(began); took > 0 {
			t.Errorf("one change took %s", took)
		}
	})
}

func TestChangesKeepToTheRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, began, n := bulk{rate: 4}, time.Now(), make(chan struct{}, 100)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(5*time.Second+time.Millisecond, cancel)
		_ = b.each(ctx, make([]analysislock.Analysis, 100), func(*analysislock.Analysis) error { n <- struct{}{}; return nil })
		if len(n) != 21 || time.Since(began) != 5*time.Second+time.Millisecond {
			t.Errorf("%d changes in %s, want 21 in 5 s, and then the end", len(n), time.Since(began))
		}
		b.dryRun = true
		_ = b.each(t.Context(), make([]analysislock.Analysis, 100), func(*analysislock.Analysis) error { return nil })
		if took := time.Since(began); took > 6*time.Second {
			t.Errorf("a dry run took until %s, want no limit", took)
		}
	})
}

func TestAnAnalysisThatHasChangedSinceItWasListedIsSkipped(t *testing.T) {
	emulatortest.Each(t, func(t *testing.T, back *emulatortest.Backend) {
		a, err := repo.Open(t.Context(), back.Project, repo.Options{}, back.Client(t)...)
		if err != nil {
			t.Fatal(err)
		}
		for _, what := range []console.Change{console.Requeue, console.Cancel} {
			for id, change := range map[string]map[string]any{
				"requeued":  {"status": "QUEUED"},
				"run again": {"lockToken": 5},
				"held":      {"status": "PROCESSING", "lockToken": 5, "lockOwner": "w/2", "lockExpiresAt": time.Now().Add(time.Hour)},
				"deleted":   nil,
				"unchanged": {},
			} {
				back.Put(t, id, map[string]any{"status": "PROCESSING", "attempts": 3, "lockToken": 4, "updatedAt": time.Now().Add(-time.Hour), "lastError": map[string]any{"code": "c"}})
				found, err := a.Find(t.Context(), repo.Filter{Status: "PROCESSING", Code: "c", Since: time.Now().Add(-2 * time.Hour)}, 10)
				if err != nil || len(found) != 1 {
					t.Fatalf("%s: %+v, %v, want one", id, found, err)
				}
				if change == nil {
					back.Delete(t, id)
				} else if len(change) > 0 {
					back.Merge(t, id, change)
				}
				want := skipped
				if id == "unchanged" {
					want = didChange
				}
				if got, err := new(bulk).change(t.Context(), &Client{analyses: a}, what, &found[0], slog.New(slog.DiscardHandler)); got != want || err != nil {
					t.Errorf("%s of one that is %s: %s, %v, want %s", what, id, got, err, want)
				}
				back.Delete(t, id)
			}
		}
	})
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
	queue, err := taskqueue.Open(b.Context(), taskqueue.Config{Queue: name, TargetURL: "http://127.0.0.1:1", Caller: "c@p.iam.gserviceaccount.com"}, option.WithGRPCConn(conn))
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
