package delivery

import (
	"context"
	"errors"
	"testing"
)

// No act begins after the end of its run, or of its caller's context although the run goes on: its commit could be
// faster.
func TestReporter_Begin(t *testing.T) {
	cause := errors.New("the caller has gone")
	ended, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	for name, c := range map[string]struct{ run, caller context.Context }{
		"the run has ended": {ended, t.Context()}, "the caller's context has": {t.Context(), ended},
	} {
		r := &reporter{running: c.run} // without a hold, a beginning panics
		if _, err := r.Begin(c.caller, "act", false); !errors.Is(err, cause) {
			t.Errorf("%s: %v, want %v", name, err, cause)
		}
	}
}
