package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/firestore"

	"taskguard/internal/taskqueue"
	"taskguard/internal/telemetry"
	"taskguard/internal/testing/emulatortest"
	"taskguard/internal/testing/must"
	"taskguard/orchestrator"
	"taskguard/repo"
)

// figures are what something costs: billed reads and writes, calls to Firestore and to Cloud Tasks, and bytes of
// log lines.
type figures [5]int

// documented returns the rows of the table of docs/cost.md that has figures.
func documented(t *testing.T) map[string]figures {
	t.Helper()
	page, err := os.ReadFile("../docs/cost.md")
	must.OK(t, err)
	rows := map[string]figures{}
	row := regexp.MustCompile(`(?m)^\| (.+?) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$`)
	for _, cells := range row.FindAllStringSubmatch(string(page), -1) {
		var f figures
		for i := range f {
			f[i], _ = strconv.Atoi(cells[i+2])
		}
		rows[cells[1]] = f
	}
	return rows
}

// meter measures a worker, and compares the figures with the document's.
type meter struct {
	*process
	b        *emulatortest.Backend
	q        *CloudQueue
	want     map[string]figures
	measured map[string]bool
}

func (m *meter) read() figures {
	usage := m.b.Server.Usage()
	tasks := len(m.q.created) + m.q.asked
	return figures{int(usage.Reads), int(usage.Writes), m.b.Calls.Total(), tasks, m.log.Len()}
}

// check compares a row with what do costs for each of n things, besides what the other row says. The bytes of the log
// lines are a bound, rounded up by less than half, and in the other row if there is one.
func (m *meter) check(t *testing.T, row string, n int, other string, do func()) {
	t.Helper()
	m.log.Reset()
	before := m.read()
	do()
	got, want := m.read(), m.want[row]
	for i := range got {
		got[i] = (got[i] - before[i] - m.want[other][i] + n/2) / n
	}
	if other != "" {
		got[4] = 0
	}
	within := got[4] <= want[4] && got[4] >= want[4]/2
	if [4]int(got[:]) != [4]int(want[:]) || !within {
		t.Errorf("%s: %v, docs/cost.md has %v", row, got, want)
	}
	m.measured[row] = true
}

// The figures are counted at the connections to Firestore and Cloud Tasks.
func TestCosts(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		if b.Collection != "" {
			return // the documents of another kind cost the same
		}
		w, q := start(t, b, costly), StartQueue(t)
		w.runner.Log, w.runner.Queue = telemetry.NewLogger(w.log, "json", 0), q.Queue
		w.runner.Instance = "taskguard-worker-00042-abc/0123456789abcdef"
		m := &meter{process: w, b: b, q: q, want: documented(t), measured: map[string]bool{}}
		m.checkSubmissions(t)
		m.checkDeliveries(t)
		m.checkRecoveries(t)
		for row := range m.want {
			if !m.measured[row] {
				t.Errorf("%s: it is in docs/cost.md, and is not measured", row)
			}
		}
	})
}

func (m *meter) checkSubmissions(t *testing.T) {
	o := Options{Project: m.b.Project, Auth: CheckedByProxy(), FirestoreOptions: m.b.Client(t)}
	o.Log = slog.New(slog.NewJSONHandler(m.log, nil))
	m.q.Share(&o)
	g, err := Open(t.Context(), o)
	must.OK(t, err)
	defer func() { _ = g.Shutdown(t.Context()) }()
	work := g.MustRegister(Kind{})
	check := func(row, input string, want Submission, refused error) {
		t.Helper()
		m.check(t, row, 1, "", func() {
			if s, err := work.Submit(t.Context(), "new", input); s != want || !errors.Is(err, refused) {
				t.Errorf("%s: %+v, %v; want %+v, %v", row, s, err, want, refused)
			}
		})
	}
	const again = "submission again, before it runs"
	const needless = "submission again, while it runs, after it is finished or with another input"
	check("submission", "i", Submission{Created: true, Booked: true, Status: "QUEUED"}, nil)
	check(again, "i", Submission{Booked: true, Already: true, Status: "QUEUED"}, nil)
	check(needless, "other", Submission{Status: "QUEUED"}, ErrOtherInput)
	m.b.Merge(t, "new", map[string]any{
		"lockOwner": "them", "lockToken": 1, "lockExpiresAt": time.Now().Add(time.Minute),
		"bookedTask": firestore.Delete,
	})
	check(needless, "i", Submission{Booked: true, Already: true, Status: "QUEUED"}, nil)
	m.b.Merge(t, "new", map[string]any{"lockExpiresAt": time.Now()}) // its worker died
	check(again, "i", Submission{Booked: true, Status: "QUEUED"}, nil)
	m.b.Merge(t, "new", map[string]any{"status": "READY"})
	check(needless, "i", Submission{Status: "READY"}, nil)
	m.b.Delete(t, "new")
}

// costly is a run that its id describes.
func costly(ctx context.Context, job orchestrator.Job) (orchestrator.Result, error) {
	switch job.AnalysisID {
	case "failing":
		return nil, &orchestrator.FailureError{Message: "unavailable"}
	case "long":
		time.Sleep(350 * time.Second)
	case "reporting":
		for range 100 {
			job.Report(0.5, time.Now().String())
			time.Sleep(time.Second)
		}
	case "checkpointing":
		for page := range 10 {
			if err := job.Checkpoint(ctx, page); err != nil {
				return nil, err
			}
		}
	}
	time.Sleep(time.Second)
	return "done", nil
}

func (m *meter) checkDeliveries(t *testing.T) {
	put := func(id string, fields map[string]any) {
		m.b.Put(t, id, map[string]any{"status": "QUEUED", "createdAt": time.Now()})
		m.b.Merge(t, id, fields)
	}
	const run = "run of less than a heartbeat"
	for _, id := range []string{"short", "long", "reporting", "checkpointing"} {
		put(id, map[string]any{"input": "i"})
	}
	put("large", map[string]any{"input": strings.Repeat("x", 64<<10)})
	put("failing", nil)
	held(t, m.b, "held", time.Hour)
	for _, c := range []struct {
		row, id string
		n       int
		other   string
	}{
		{row: run, id: "short", n: 1},
		{row: "the same, with an input and a checkpoint of more than 64 KiB", id: "large", n: 1},
		{row: "heartbeat, each 100 s of a run", id: "long", n: 3, other: run},
		{row: "interval of 10 s with reports, instead of a heartbeat", id: "reporting", n: 10, other: run},
		{row: "checkpoint of an analyzer in Go", id: "checkpointing", n: 10, other: run},
		{row: "delivery of a finished analysis", id: "short", n: 1},
		{row: "attempt that fails temporarily", id: "failing", n: 1},
		{row: "delivery while another worker has the lock", id: "held", n: 1},
	} {
		m.check(t, c.row, c.n, c.other, func() { // as Cloud Tasks and Cloud Run do
			m.line(t, deliveryRoute, c.id, nil, "X-CloudTasks-TaskRetryCount: 0",
				"X-CloudTasks-TaskName: "+taskqueue.Name("submit", c.id),
				"Traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
		})
	}
	m.b.Delete(t, "failing")
	m.b.Delete(t, "held")
}

func (m *meter) checkRecoveries(t *testing.T) {
	const call = "call of recovery"
	m.reported = map[string]*repo.Analyses{"records": m.runner.Orphans.(*repo.Analyses)}
	recovery := func() { m.recover(t) }
	m.check(t, call, 1, "", recovery)
	for i := range 10 {
		m.b.Put(t, fmt.Sprint("lost", i), map[string]any{"status": "QUEUED", "updatedAt": longAgo})
	}
	m.check(t, "orphaned analysis, in a call of recovery", 10, call, recovery)
	for i := range 10 {
		id := fmt.Sprint("lost", i)
		task := taskqueue.Task{AnalysisID: id, Name: id, At: time.Now().Add(time.Hour)}
		if _, err := m.q.Book(t.Context(), task); err != nil {
			t.Fatal(err)
		}
		m.b.Put(t, id, map[string]any{
			"status": "QUEUED", "updatedAt": longAgo, "nextAttemptAt": longAgo, "bookedTask": id,
		})
	}
	const waits = "analysis that waits in the queue for longer than a TTL, in a call of recovery"
	m.check(t, waits, 10, call, recovery)
}

// A retry and a follow-up are probably skips, which must not move the input.
func TestCosts_FirstDelivery(t *testing.T) {
	follow := taskqueue.Name("follow", "x", "7", "2000-01-01T00:20:00Z") + "-follow-up"
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		w := start(t, b, succeed)
		for name, c := range map[string]struct {
			task, retries string
			reads         int64
		}{
			"no task":             {"", "", 1},
			"the first try":       {taskqueue.Name("submit", "x"), "0", 1},
			"a retry":             {taskqueue.Name("submit", "x"), "1", 2},
			"a follow-up":         {follow, "0", 2},
			"a follow-up's retry": {follow, "3", 2},
		} {
			b.Put(t, "x", map[string]any{"status": "QUEUED", "input": "i"})
			before := b.Server.Usage().Reads
			r := taskOf(t, `{"analysis_id":"x"}`, c.task, c.retries)
			w.send(t, r).check(t, 200, map[string]any{"status": "READY"})
			if reads := b.Server.Usage().Reads - before; reads != c.reads {
				t.Errorf("%s: %d reads, want %d", name, reads, c.reads)
			}
		}
	})
}
