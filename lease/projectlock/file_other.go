//go:build !unix

package projectlock

import (
	"errors"

	"taskguard/lease"
	"taskguard/lease/documentlock"
)

const (
	projectDir = "project"
	lockFile   = ".lock"
)

var errSystem = errors.New("projectlock: project/.lock needs a system that knows flock")

func makeDir(string) error { return errSystem }

func newFiles(string) (lease.Store[documentlock.Lock], error) {
	return nil, errSystem
}
