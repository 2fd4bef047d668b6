//go:build !linux && !darwin

package orchestrator

import (
	"errors"
	"runtime"
)

func newProgram(string, Options) (Analyzer, error) {
	return nil, errors.New("orchestrator: exec: is not supported on " + runtime.GOOS)
}
