package orchestrator

import (
	"context"
	"runtime/debug"
)

// Run runs one job and returns its result as [Storable] does. It blocks as long
// as the analyzer does: ctx is the analyzer's to honour. A panic, also one while
// the result is encoded, becomes a [*PanicError].
func Run(ctx context.Context, a Analyzer, job Job) (result any, err error) {
	defer func() {
		if v := recover(); v != nil {
			result, err = nil, &PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	r, err := a.Analyze(ctx, job)
	if err != nil {
		return nil, err
	}
	return Storable(r)
}
