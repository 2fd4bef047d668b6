package delivery

import (
	"context"
	"errors"
	"testing"
)

// No act begins after the end of its caller's context, although the run goes on: its commit could be faster.
func TestReporter_Begin(t *testing.T) {
	cause := errors.New("the caller has gone")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	r := &reporter{running: t.Context()} // without a hold, a beginning panics
	if _, err := r.Begin(ctx, "act", false); !errors.Is(err, cause) {
		t.Errorf("%v, want %v", err, cause)
	}
}
