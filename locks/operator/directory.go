package operator

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"time"

	"taskguard/internal/clock"
	"taskguard/lease"
)

const (
	// stale is the age at which a lock belongs to a program that died: Node programs refresh its time.
	stale = 10 * time.Second
	// again is the wait for a lock. In that time each program that has seen a stale lock removes it.
	again = 5 * time.Millisecond
)

// lockDirectory makes the directory dir, as the Node module proper-lockfile does to lock a file,
// and returns what removes it. It waits up to 2 s for another program's.
func lockDirectory(ctx context.Context, dir string) (unlock func(), _ error) {
	ctx, cancel := context.WithTimeoutCause(ctx, wait, errWaited)
	defer cancel()
	for {
		err := os.Mkdir(dir, 0o700)
		if err == nil {
			return func() { _ = syscall.Rmdir(dir) }, nil
		}
		if errors.Is(err, fs.ErrExist) {
			err = removeStale(dir)
		}
		switch {
		case err != nil:
			return nil, fmt.Errorf("%w: %w", lease.ErrRefused, err)
		case !clock.Sleep(ctx, again):
			return nil, fmt.Errorf("another program holds %s: %w", dir, context.Cause(ctx))
		}
	}
}

// removeStale removes the lock of a program that died. If the clock was set back since, the lock is
// dated ahead: it gets the present time, and is stale 10 s later.
func removeStale(dir string) error {
	found, err := os.Lstat(dir)
	if err == nil {
		now := time.Now()
		switch age := now.Sub(found.ModTime()); {
		case age > stale:
			err = syscall.Rmdir(dir) // os.Remove would delete a file too
		case age < -stale:
			err = os.Chtimes(dir, now, now)
		}
	}
	if errors.Is(err, fs.ErrNotExist) { // its owner has removed it
		return nil
	}
	return err
}
