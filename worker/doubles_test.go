package worker

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"taskguard/emulator/firestore"
	"taskguard/internal/taskqueue"
	"taskguard/internal/testing/emulatortest"
	"taskguard/lease/iso8601"
	"taskguard/orchestrator"
)

// recordingQueue is a queue that records the tasks that it accepts.
type recordingQueue struct {
	refuses string        // the analysis whose tasks it refuses at once
	by      time.Duration // how long a booking takes
	during  func()        // called in each booking; nil: nothing
	has     map[string]taskqueue.Presence
	mute    error // of Find

	mu    sync.Mutex
	tasks []taskqueue.Task
	asked []string
}

func (q *recordingQueue) Book(ctx context.Context, t taskqueue.Task) (bool, error) {
	if q.during != nil {
		q.during()
	}
	switch {
	case q.refuses != "" && t.AnalysisID == q.refuses:
		return false, errRefusing
	case q.by > 0:
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-time.After(q.by):
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.tasks = append(q.tasks, t)
	return false, nil
}

func (q *recordingQueue) Find(_ context.Context, name string, _ time.Time) (taskqueue.Presence, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.asked = append(q.asked, name)
	return q.has[name], q.mute
}

// only returns the only task.
func (q *recordingQueue) only(t *testing.T) (task taskqueue.Task) {
	t.Helper()
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.tasks) != 1 {
		t.Fatalf("booked %+v, want one task", q.tasks)
	}
	return q.tasks[0]
}

// names returns the distinct names of the tasks.
func (q *recordingQueue) names() map[string]bool {
	all := map[string]bool{}
	for _, t := range q.tasks {
		all[t.Name] = true
	}
	return all
}

// refusing is a queue that refuses all tasks.
type refusing struct{}

var errRefusing = errors.New("no")

func (refusing) Book(context.Context, taskqueue.Task) (bool, error) { return false, errRefusing }
func (refusing) Find(context.Context, string, time.Time) (taskqueue.Presence, error) {
	return taskqueue.Absent, errRefusing
}

// asTask delivers x with that name of the task.
func (w *process) asTask(t *testing.T, task string) reply {
	t.Helper()
	return w.send(t, taskOf(t, `{"analysis_id":"x"}`, task, ""))
}

// taskOf returns the request of a task.
func taskOf(t *testing.T, body, name, retries string) *http.Request {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, deliveryRoute, strings.NewReader(body))
	r.Header.Set("X-CloudTasks-TaskName", name)
	r.Header.Set("X-CloudTasks-TaskRetryCount", retries)
	return r
}

// until waits until ctx ends, calls last, and returns as an analyzer that was ended.
func until(ctx context.Context, last func()) (orchestrator.Result, error) {
	<-ctx.Done()
	last()
	return nil, ctx.Err()
}

func nothing() {}

// endless is an analyzer that only ends with its context.
func endless(ctx context.Context, _ orchestrator.Job) (orchestrator.Result, error) {
	return until(ctx, nothing)
}

// failing returns an analyzer that fails with err.
func failing(err error) orchestrator.AnalyzerFunc {
	return func(context.Context, orchestrator.Job) (orchestrator.Result, error) { return nil, err }
}

// doing returns an analyzer that does something and succeeds.
func doing(something func()) orchestrator.AnalyzerFunc {
	return func(context.Context, orchestrator.Job) (orchestrator.Result, error) {
		something()
		return "done", nil
	}
}

// report reports a checkpoint as a program does.
func report(job orchestrator.Job, checkpoint any) {
	job.Reporter.Report(orchestrator.Report{Checkpoint: &orchestrator.Checkpoint{Value: checkpoint}})
}

// held creates an analysis that another worker holds until d from now.
func held(t *testing.T, b *emulatortest.Backend, id string, d time.Duration) (expires string) {
	t.Helper()
	expires = iso8601.Format(time.Now().Add(d))
	b.Put(t, id, map[string]any{
		"status": "PROCESSING", "attempts": 1, "lockToken": 1, "lockOwner": "them",
		"lockExpiresAt": expires, "updatedAt": expires,
	})
	return expires
}

// full creates the analysis id with more fields, of so many bytes, and room for that many: by
// Firestore's rules of size, in the collection analyses.
func full(t *testing.T, b *emulatortest.Backend, id string, room int, more map[string]any, bytes int) {
	t.Helper()
	const names = len("status/QUEUED/") + len("updatedAt/"+longAgo+"/") + len("theirs//")
	used := 32 + len("analyses//"+id) + 16 + names + bytes
	fields := map[string]any{
		"status": "QUEUED", "updatedAt": longAgo, "theirs": strings.Repeat("x", 1<<20-used-room),
	}
	maps.Copy(fields, more)
	b.Put(t, id, fields)
}

// longAgo is before the time of each bubble.
const longAgo = "1999-01-01T00:00:00.000Z"

// clocked returns a Firestore whose clock is ahead of this process's clock.
func clocked(t *testing.T, ahead time.Duration) *emulatortest.Backend {
	t.Helper()
	s := firestore.NewServer(firestore.Options{Now: func() time.Time { return time.Now().Add(ahead) }})
	t.Cleanup(s.Close)
	return &emulatortest.Backend{Project: emulatortest.Project(), Server: s, Calls: &emulatortest.Calls{}}
}

// attempts returns the outcomes in the history of x, such as "continued ready".
func attempts(t *testing.T, b *emulatortest.Backend) string {
	t.Helper()
	var all []string
	history, _ := b.Fields(t, "x")["history"].([]any)
	for _, entry := range history {
		m, _ := entry.(map[string]any)
		outcome, _ := m["outcome"].(string)
		if code, ok := m["code"].(string); ok {
			outcome += ":" + code
		}
		if _, ended := m["endedAt"]; ended != (outcome != "") {
			t.Errorf("history has %v", m)
		}
		all = append(all, outcome)
	}
	return strings.Join(all, " ")
}

func checkHistory(t *testing.T, b *emulatortest.Backend, want string) {
	t.Helper()
	if got := attempts(t, b); got != want {
		t.Errorf("history %q, want %q", got, want)
	}
}

// checkCode checks the code of x's error, in that field.
func checkCode(t *testing.T, b *emulatortest.Backend, id, field, want string) {
	t.Helper()
	if e, _ := b.Fields(t, id)[field].(map[string]any); e["code"] != want {
		t.Errorf("%s: %s = %v, want the code %s", id, field, e, want)
	}
}
