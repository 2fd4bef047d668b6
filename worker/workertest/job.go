package workertest

import (
	"context"
	"sync"
	"testing"
	"time"

	guard "taskguard/internal/delivery"
	"taskguard/lease/analysislock"
	"taskguard/orchestrator"
	"taskguard/worker"
)

// Job returns a job for a unit test of a function that calls [worker.Once] or Job.Key. It records acts in
// memory, by the rules that hold for a document, and drops reports. If you pass the job of an earlier attempt,
// Job returns the job of the next attempt, which finds its acts:
//
//	first := workertest.Job(t)
//	_, err := charge(t.Context(), first) // the provider charges, but its reply is lost
//	receipt, err := charge(t.Context(), workertest.Job(t, first))
func Job(t testing.TB, earlier ...worker.Job) worker.Job {
	t.Helper()
	job, m := worker.Job{AnalysisID: "work", Scope: "workertest"}, &memory{}
	if len(earlier) > 0 {
		before, ok := earlier[0].Reporter.(*memory)
		if !ok {
			t.Fatal("workertest: the earlier job is not one of workertest.Job")
		}
		job, m.acts = earlier[0], before.acts
	}

	job.Attempt++
	job.LockToken++
	m.token, job.Reporter = job.LockToken, m
	return job
}

// memory is the Reporter of a Job.
type memory struct {
	token int64

	mu   sync.Mutex
	acts analysislock.Acts
}

func (*memory) Invalid(string)                                    {}
func (*memory) Report(orchestrator.Report)                        {}
func (*memory) Commit(context.Context, orchestrator.Report) error { return nil }

// Begin implements [orchestrator.Marker].
func (m *memory) Begin(ctx context.Context, name string, again bool) (*orchestrator.Act, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	changed, earlier, err := m.acts.Begin(name, m.token, time.Now(), again)
	switch {
	case err != nil:
		return nil, guard.RefusedAct(name, err)
	case changed == nil:
		return (*orchestrator.Act)(earlier), nil
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	}
	m.acts = changed
	return nil, nil //nolint:nilnil // there was no record
}

// End implements [orchestrator.Marker].
func (m *memory) End(_ context.Context, name string, done *orchestrator.Act) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	changed, err := m.acts.End(name, m.token, time.Now(), (*analysislock.Act)(done))
	if changed != nil {
		m.acts = changed
	}
	return guard.EndError(err)
}
