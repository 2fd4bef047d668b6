package workerservice

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"testing"
	"time"

	"taskguard/internal/testing/emulatortest"
	"taskguard/orchestrator"
	"taskguard/worker"
)

// The analyzer does not end, as if Firestore did not answer its release.
func TestARunThatDoesNotEndIsGivenUpAfterTheTimeOfTheStop(t *testing.T) {
	b := emulatortest.Embedded(t)
	b.Put(t, "x", map[string]any{"status": "QUEUED"})
	env := environment{
		"FIRESTORE_EMULATOR_HOST": b.Listen(t), "GOOGLE_CLOUD_PROJECT": b.Project, "ANALYZER": "builtin:document",
		"MAX_RUNS": "10",
	}
	cfg, err := ParseRunConfig(env.lookup)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	free := make(chan struct{})
	defer close(free)
	cfg.Limits.Drain = 50 * time.Millisecond
	cfg.Analyzer = orchestrator.AnalyzerFunc(func(context.Context, orchestrator.Job) (orchestrator.Result, error) {
		stop()
		<-free
		return nil, nil
	})
	r, err := Run(ctx, cfg, worker.Kind{}, "x", slog.New(slog.DiscardHandler), io.Discard)
	if r.Outcome != "unavailable" || !errors.Is(err, errNotEnded) {
		t.Errorf("%+v, %v", r, err)
	}
	attempts, _ := b.Fields(t, "x")["history"].([]any)
	if len(attempts) != 1 || attempts[0].(map[string]any)["alone"] != true {
		t.Errorf("history %v, want an attempt alone, as the process runs nothing else", attempts)
	}
}

type environment map[string]string

func (e environment) lookup(name string) (string, bool) { value, ok := e[name]; return value, ok }
