package main

import (
	"net/http"
	"strings"
	"taskguard/lease/analysislock"
	"testing"
	"time"
)

func TestLocalsWorkersRefuseWhoHasNoToken(t *testing.T) {
	env := cloud(t, vars{})
	for _, route := range []string{"analysis", "recover"} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, env["TASK_TARGET_URL"]+"/internal/tasks/"+route, strings.NewReader(`{"analysis_id":"x"}`))
		if err != nil {
			t.Fatal(err)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if response.StatusCode != http.StatusUnauthorized {
			t.Errorf("%s without a token: %d, want 401", route, response.StatusCode)
		}
	}
	taskguard(t, env, "submit", "--input", `{"text":"x"}`, "--wait").want(t, exitDone, "READY")
}

// A delivery that meets a lock is acknowledged; the one that the worker books
// in its place comes when the lock has expired.
func TestLocalsWorkersBookFollowUps(t *testing.T) {
	env, progress := localCloud(t, vars{})
	a := analyses(t, env)
	if err := a.Create(t.Context(), "x", map[string]any{"text": "x"}); err != nil {
		t.Fatal(err)
	}
	if acq, err := a.AcquireAnalysisLock(t.Context(), "x", "w/1", 5*time.Second); err != nil || !acq.Acquired {
		t.Fatalf("acquire: %+v, %v", acq, err)
	}
	taskguard(t, env, "submit", "--input", `{"text":"x"}`, "--id", "x", "--wait").want(t, exitDone, "READY")
	if !strings.Contains(progress.String(), "locked, skipped; a follow-up is booked") {
		t.Errorf("no follow-up in\n%s", progress)
	}
}

// Whoever develops an analyzer sees what it writes, and why an attempt failed.
func TestLocalShowsWhatAnAnalyzerWritesAndWhyItFails(t *testing.T) {
	for exit, answer := range map[string]string{"0": "x READY, by worker 1\n", "3": " retry: orchestrator: sh ended with exit status 3: first", "65": "x FAILED, by worker 1: first"} {
		t.Run(exit, func(t *testing.T) {
			script := write(t, "analyzer.sh", "echo first >&2; echo second >&2; exit "+exit+"\n")
			env, progress := localCloud(t, vars{"ANALYZER": "exec:sh " + script}, "--workers", "1")
			taskguard(t, env, "submit", "--input", "{}", "--id", "x").want(t, exitDone)
			for _, want := range []string{"x stderr: first\n", "x stderr: second\n", answer} {
				eventually(t, want, func() bool { return strings.Contains(progress.String(), want) })
			}
		})
	}
}

// What nobody works on and nobody delivers is found by recovery, which local
// calls with a token.
func TestLocalCallsRecovery(t *testing.T) {
	env, progress := localCloud(t, vars{"LOCK_TTL": "2s"}, "--recover-every", "200ms")
	a := analyses(t, env)
	if err := a.Create(t.Context(), "x", map[string]any{"text": "x"}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "READY, by recovery", func() bool {
		d, err := a.Get(t.Context(), "x")
		return err == nil && d.Status == analysislock.Ready
	})
	eventually(t, "it is told", func() bool {
		return strings.Contains(progress.String(), "recovery found 1 that nobody works on, booked 1")
	})
	if env["LOCK_TTL"] != "2s" {
		t.Errorf("%v, want the LOCK_TTL of its workers", env)
	}
}

func TestARecoveryThatIsRefusedIsTold(t *testing.T) {
	env, progress := localCloud(t, vars{}, "--recover-every", "100ms")
	if strings.Contains(progress.String(), "recovery: ") {
		t.Errorf("refused:\n%s", progress)
	}
	for _, dead := range []string{"worker 1 serves", "worker 2 serves"} {
		killNamed(t, progress, dead)
	}
	eventually(t, "a failed recovery is told", func() bool { return strings.Contains(progress.String(), "recovery: answered 502") })
	eventually(t, "both are replaced", func() bool { return strings.Count(progress.String(), "in its place") >= 2 })
	taskguard(t, env, "submit", "--input", `{"text":"x"}`, "--wait").want(t, exitDone, "READY")
}
