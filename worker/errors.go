package worker

import (
	"time"

	"taskguard/orchestrator"
)

// RetryAfter returns err, a temporary failure of a Run, with the wait until the next attempt. The
// failed attempt is not counted, so MaxAttempts does not limit such attempts; MaxRunTime does. The
// wait is exactly d, but at most 12 h. If d is not positive, or err wraps a PermanentError, the
// error is handled like err alone.
func RetryAfter(err error, d time.Duration) error {
	return &orchestrator.RetryAfterError{Wait: d, Err: err}
}
