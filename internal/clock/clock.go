// Package clock waits.
package clock

import (
	"context"
	"time"
)

// Sleep waits for d, or until ctx ends. It reports false if ctx has ended.
func Sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return ctx.Err() == nil
	}
}
