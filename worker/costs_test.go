package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/firestore"
	"google.golang.org/api/option"

	"taskguard/internal/taskqueue"
	"taskguard/internal/telemetry"
	"taskguard/internal/testing/emulatortest"
	"taskguard/orchestrator"
	"taskguard/repo"
)

// costs returns the rows of the first table of docs/cost.md: reads, writes, calls to
// Firestore and Cloud Tasks, and bytes of log lines.
func costs(t *testing.T) map[string][5]int {
	t.Helper()
	page, err := os.ReadFile("../docs/cost.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string][5]int{}
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(strings.TrimSpace(line), " | ")
		var row [5]int
		numbers := 0
		for i := 1; i < len(cells) && i <= len(row); i++ {
			if row[i-1], err = strconv.Atoi(strings.TrimSuffix(cells[i], " |")); err == nil {
				numbers++
			}
		}
		if numbers == len(row) {
			rows[strings.TrimPrefix(cells[0], "| ")] = row
		}
	}
	return rows
}

// The numbers are counted at the connections to Firestore and Cloud Tasks; the bytes of the
// log lines are bounds, rounded up by less than half.
func TestTheCostsAreThoseOfTheDocument(t *testing.T) {
	want := costs(t)
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		if b.Collection != "" {
			return // the documents of another kind cost the same
		}
		q := StartQueue(t)
		lasts := map[string]time.Duration{"short": time.Second, "long": 350 * time.Second, "reporting": 100 * time.Second, "checkpointing": time.Second}
		w := startOn(t, b, q.Queue, func(ctx context.Context, job orchestrator.Job) (orchestrator.Result, error) {
			if job.AnalysisID == "failing" {
				return nil, &orchestrator.FailureError{Message: "unavailable"}
			}
			if job.AnalysisID == "checkpointing" {
				for page := range 10 {
					if err := job.Checkpoint(ctx, page); err != nil {
						t.Error(err)
					}
				}
			}
			end := time.Now().Add(lasts[job.AnalysisID])
			for ; job.AnalysisID == "reporting" && time.Now().Before(end); time.Sleep(time.Second) {
				job.Report(0.5, time.Now().String())
			}
			time.Sleep(time.Until(end))
			return "done", nil
		})
		w.runner.Log, w.runner.Instance = telemetry.NewLogger(w.log, "json", 0), "taskguard-worker-00042-abc/0123456789abcdef"
		measured := map[string]bool{}
		measure := func(what string, minus []string, times int, do func()) {
			t.Helper()
			w.log.Reset()
			usage, calls, tasks := b.Server.Usage(), b.Calls.Total(), len(q.created)+q.asked
			do()
			after := b.Server.Usage()
			got := [5]int{int(after.Reads - usage.Reads), int(after.Writes - usage.Writes), b.Calls.Total() - calls, len(q.created) + q.asked - tasks, w.log.Len()}
			for _, row := range minus {
				for i := range 4 {
					got[i] -= want[row][i]
				}
				got[4] = 0 // in the other row
			}
			for i := range got {
				got[i] = (got[i] + times/2) / times
			}
			row := want[what]
			if measured[what] = true; [4]int(got[:4]) != [4]int(row[:4]) || got[4] > row[4] || got[4] < row[4]/2 {
				t.Errorf("%s: %v, docs/cost.md has %v", what, got, row)
			}
		}
		deliver := func(id string) { // as Cloud Tasks and Cloud Run do
			w.line(t, deliveryRoute, id, nil, "X-CloudTasks-TaskName: "+taskqueue.Name("submit", id), "X-CloudTasks-TaskRetryCount: 0",
				"Traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
		}
		for id := range lasts {
			b.Put(t, id, map[string]any{"status": "QUEUED", "input": "i", "createdAt": time.Now()})
		}
		b.Put(t, "large", map[string]any{"status": "QUEUED", "input": strings.Repeat("x", 64<<10), "createdAt": time.Now()})
		b.Put(t, "failing", map[string]any{"status": "QUEUED", "createdAt": time.Now()})
		g, err := Open(t.Context(), Options{Project: b.Project, Auth: CheckedByProxy(), FirestoreOptions: b.Client(t), QueueOptions: []option.ClientOption{option.WithGRPCConn(q.Conn)}, Queue: Queue{Name: queuePath, TargetURL: "https://worker.example", Caller: "a@b.c"}, Log: slog.New(slog.NewJSONHandler(w.log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		work := g.MustRegister(Kind{})
		defer func() { _ = g.Shutdown(t.Context()) }() // it closes q's connection
		submission := func(row, input string, want Submission, refused error) {
			t.Helper()
			measure(row, nil, 1, func() {
				if s, err := work.Submit(t.Context(), "new", input); s != want || !errors.Is(err, refused) {
					t.Errorf("%s: %+v, %v; want %+v, %v", row, s, err, want, refused)
				}
			})
		}
		const again, needless = "submission again, before it runs", "submission again, while it runs, after it is finished or with another input"
		submission("submission", "i", Submission{Created: true, Booked: true, Status: "QUEUED"}, nil)
		submission(again, "i", Submission{Booked: true, Already: true, Status: "QUEUED"}, nil)
		submission(needless, "other", Submission{Status: "QUEUED"}, ErrOtherInput)
		b.Merge(t, "new", map[string]any{"lockOwner": "them", "lockToken": 1, "lockExpiresAt": time.Now().Add(time.Minute), "bookedTask": firestore.Delete})
		submission(needless, "i", Submission{Booked: true, Already: true, Status: "QUEUED"}, nil)
		b.Merge(t, "new", map[string]any{"lockExpiresAt": time.Now()}) // its worker died
		submission(again, "i", Submission{Booked: true, Status: "QUEUED"}, nil)
		b.Merge(t, "new", map[string]any{"status": "READY"})
		submission(needless, "i", Submission{Status: "READY"}, nil)
		b.Delete(t, "new")
		measure("run of less than a heartbeat", nil, 1, func() { deliver("short") })
		measure("the same, with an input and a checkpoint of more than 64 KiB", nil, 1, func() { deliver("large") })
		measure("heartbeat, each 100 s of a run", []string{"run of less than a heartbeat"}, 3, func() { deliver("long") })
		measure("interval of 10 s with reports, instead of a heartbeat", []string{"run of less than a heartbeat"}, 10, func() { deliver("reporting") })
		measure("checkpoint of an analyzer in Go", []string{"run of less than a heartbeat"}, 10, func() { deliver("checkpointing") })
		measure("delivery of a finished analysis", nil, 1, func() { deliver("short") })
		measure("attempt that fails temporarily", nil, 1, func() { deliver("failing") })
		b.Delete(t, "failing")
		held(t, b, "held", time.Hour)
		measure("delivery while another worker has the lock", nil, 1, func() { deliver("held") })
		b.Delete(t, "held")
		w.reported = map[string]*repo.Analyses{"records": w.runner.Orphans.(*repo.Analyses)}
		recovery := func() { w.call(t, "POST", "/internal/tasks/recover", "") }
		measure("call of recovery", nil, 1, recovery)
		for i := range 10 {
			b.Put(t, fmt.Sprint("lost", i), map[string]any{"status": "QUEUED", "updatedAt": "1999-01-01T00:00:00.000Z"})
		}
		w.runner.Queue = q.Queue
		measure("orphaned analysis, in a call of recovery", []string{"call of recovery"}, 10, recovery)
		for i := range 10 {
			id := fmt.Sprint("lost", i)
			if _, err := q.Book(t.Context(), taskqueue.Task{AnalysisID: id, Name: id, At: time.Now().Add(time.Hour)}); err != nil {
				t.Fatal(err)
			}
			b.Put(t, id, map[string]any{"status": "QUEUED", "updatedAt": "1999-01-01T00:00:00.000Z", "nextAttemptAt": "1999-01-01T00:00:00.000Z", "bookedTask": id})
		}
		measure("analysis that waits in the queue for longer than a TTL, in a call of recovery", []string{"call of recovery"}, 10, recovery)
		for what := range want {
			if !measured[what] {
				t.Errorf("%s: it is in docs/cost.md, and is not measured", what)
			}
		}
	})
}

// A retry and a follow-up are probably skips, which must not move the input.
func TestTheFirstDeliveryReadsTheInputWithTheLock(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		w := start(t, b, func(context.Context, orchestrator.Job) (orchestrator.Result, error) { return "done", nil })
		follow := taskqueue.Name("follow", "x", "7", "2000-01-01T00:20:00Z") + "-follow-up"
		for name, c := range map[string]struct {
			task, retries string
			reads         int64
		}{
			"no task":             {"", "", 1},
			"the first try":       {taskqueue.Name("submit", "x"), "0", 1},
			"the next attempt":    {taskqueue.Name("next", "x"), "0", 1},
			"a retry":             {taskqueue.Name("submit", "x"), "1", 2},
			"a follow-up":         {follow, "0", 2},
			"a follow-up's retry": {follow, "3", 2},
		} {
			b.Put(t, "x", map[string]any{"status": "QUEUED", "input": "i"})
			before := b.Server.Usage().Reads
			w.line(t, deliveryRoute, "x", map[string]any{"outcome": "ready"},
				"X-CloudTasks-TaskName: "+c.task, "X-CloudTasks-TaskRetryCount: "+c.retries)
			if reads := b.Server.Usage().Reads - before; reads != c.reads {
				t.Errorf("%s: %d reads, want %d", name, reads, c.reads)
			}
		}
	})
}
