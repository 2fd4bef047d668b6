//go:build !linux && !darwin

package orchestrator

import (
	"errors"
	"runtime"
)

func newProgram(string, Options) (Analyzer, error) {
	return nil, errors.New("orchestrator: exec: needs process groups, which taskguard does not know on " + runtime.GOOS)
}
