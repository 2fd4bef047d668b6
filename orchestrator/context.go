package orchestrator

import (
	"context"
	"errors"
	"fmt"
)

// ended is the error of a run that its context has ended, or nil. It wraps both
// the context's error and its cause.
func ended(ctx context.Context) error {
	err := ctx.Err()
	if err == nil {
		return nil
	}
	if cause := context.Cause(ctx); !errors.Is(err, cause) {
		return fmt.Errorf("orchestrator: %w: %w", err, cause)
	}
	return fmt.Errorf("orchestrator: %w", err)
}
