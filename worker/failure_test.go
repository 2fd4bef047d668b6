package worker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"taskguard/internal/testing/emulatortest"
	"taskguard/orchestrator"
)

// entry returns the one line with this message, or nil.
func (w *process) entry(t *testing.T, message string) (found map[string]any) {
	t.Helper()
	for line := range bytes.Lines(w.log.Bytes()) {
		var entry map[string]any
		if err := json.Unmarshal(line, &entry); err != nil {
			t.Fatal(err)
		}
		if entry["msg"] == message {
			if found != nil {
				t.Errorf("%q is logged twice", message)
			}
			found = entry
		}
	}
	return found
}

// The log line of the delivery does not contain these failures.
func TestAFollowUpAReleaseAndAResultThatFailAreLogged(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		var w *process
		w = startOn(t, b, refusing{}, func(_ context.Context, job orchestrator.Job) (orchestrator.Result, error) {
			if job.AnalysisID == "full" {
				return strings.Repeat("y", 600_000), nil
			}
			w.unavailable.Store(true)
			return nil, errors.New("flaky")
		})
		held(t, b, "held", time.Hour)
		b.Put(t, "full", map[string]any{"status": "QUEUED", "input": strings.Repeat("x", 600_000)})
		b.Put(t, "unavailable", map[string]any{"status": "QUEUED"})
		for _, tc := range []struct {
			id, message string
			error       any
		}{
			{"held", "no delivery booked", "no"},
			{"full", "Firestore refused the result", nil},
			{"unavailable", "lock not released", "*"},
		} {
			w.line(t, deliveryRoute, tc.id, nil)
			reply{Body: w.entry(t, tc.message)}.check(t, 0, map[string]any{"level": "WARN", "analysis_id": tc.id, "error": tc.error})
		}
	})
}
