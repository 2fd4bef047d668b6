package workertest

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"taskguard/internal/testing/emulatortest"
	"taskguard/internal/testing/must"
	"taskguard/worker"
)

// In real time too, it delivers what is submitted.
func TestRig(t *testing.T) {
	done, log := 0, &emulatortest.Log{}
	rig := New(t)
	guard := rig.Guard(worker.Options{Log: slog.New(slog.NewTextHandler(log, nil))})
	work := guard.MustRegister(worker.Kind{Run: func(context.Context, worker.Job) (any, error) {
		done++
		return "done", nil
	}})
	rig.Mux.Handle("/", work.Handler())
	if s, err := work.Submit(t.Context(), "an-id", 42); err != nil || !s.Booked {
		t.Fatalf("Submit = %+v, %v", s, err)
	}
	must.OK(t, rig.Tasks.Idle(t.Context()))
	if done != 1 || !strings.Contains(log.String(), "outcome=ready") {
		t.Errorf("%d runs, want one: %s", done, log)
	}
}

// A unit test has the attempts of one job, which keep the rules of a document.
func TestJob(t *testing.T) {
	first, calls := Job(t), 0
	once := func(job worker.Job, name string, err error) (int, error) {
		return worker.Once(t.Context(), job, name, func(context.Context) (int, error) { calls++; return calls, err })
	}
	lost := errors.New("the reply is lost")
	if _, err := once(first, "charge", nil); err != nil {
		t.Fatal(err)
	}
	if _, err := once(first, "mail", lost); !errors.Is(err, lost) {
		t.Errorf("an act that fails: %v", err)
	}
	_, err := once(first, "charge", nil)
	if refused, _ := errors.AsType[*worker.PermanentError](err); refused == nil || refused.Code != "act_name_reused" {
		t.Errorf("an act again in one attempt: %v", err)
	}

	second := Job(t, first)
	if second.Attempt != 2 || second.LockToken <= first.LockToken {
		t.Errorf("the next attempt is %+v", second)
	}
	if got, want := second.Key("a"), first.Key("a"); got != want {
		t.Errorf("the key of an act is %q, want %q as before", got, want)
	}
	if result, err := once(second, "charge", nil); result != 1 || err != nil {
		t.Errorf("a done act: %d, %v; want its result", result, err)
	}
	if _, err := once(second, "mail", nil); !errors.As(err, new(*worker.UncertainError)) {
		t.Errorf("an act whose reply was lost: %v", err)
	}
	if calls != 2 {
		t.Errorf("%d calls, want those of the first attempt", calls)
	}

	ended, end := context.WithCancel(t.Context())
	end()
	begins := func(context.Context) (int, error) { t.Error("it began"); return 0, nil }
	_, err = worker.Once(ended, second, "late", begins)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("after the end of the context: %v", err)
	}
}
