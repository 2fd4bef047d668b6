package operator

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
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

// LockError reports that the lock of the state file can be neither taken nor removed: for example, it is
// a file. It is a lease.ErrRefused.
type LockError struct {
	Path string // of the lock
	Err  error  // why
}

func (e *LockError) Error() string {
	return fmt.Sprintf("%s: %v; remove it if no program uses it", e.Path, e.Err)
}

// Unwrap returns the cause, and lease.ErrRefused.
func (e *LockError) Unwrap() []error { return []error{lease.ErrRefused, e.Err} }

// lockDirectory makes the directory dir, as the Node module proper-lockfile does to lock a file,
// and returns what removes it. It waits up to 2 s for another program's.
func lockDirectory(ctx context.Context, dir string) (unlock func(), _ error) {
	ctx, cancel := context.WithTimeoutCause(ctx, wait, errWaited)
	defer cancel()
	for {
		err := os.Mkdir(dir, 0o700)
		if err == nil {
			made, err := os.Lstat(dir)
			return func() { removeOwn(dir, made) }, err
		}
		if errors.Is(err, fs.ErrExist) {
			err = removeStale(dir)
		}
		switch {
		case err != nil:
			return nil, &LockError{dir, err}
		case !clock.Sleep(ctx, again):
			return nil, fmt.Errorf("another program holds %s: %w", dir, context.Cause(ctx))
		}
	}
}

// removeOwn removes the lock that was made. Another program may have taken it for stale, and made its own,
// if this process stood still.
func removeOwn(dir string, made fs.FileInfo) {
	if now, err := os.Lstat(dir); err == nil && same(made, now) {
		_ = removeFound(dir, made)
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
			err = removeFound(dir, found)
		case age < -stale:
			err = os.Chtimes(dir, now, now)
		}
	}
	if errors.Is(err, fs.ErrNotExist) { // its owner has removed it
		return nil
	}
	return err
}

// removeFound removes the lock dir if it is still the one that was found. Since then another program may have
// removed that one, and made its own. So dir is renamed before the second look, and a lock of another
// program gets its name back. A crash in between leaves the directory with the other name, which nobody uses.
func removeFound(dir string, found fs.FileInfo) error {
	if !found.IsDir() {
		return syscall.ENOTDIR // no lock of proper-lockfile
	}
	name := fmt.Sprintf(".lock-%x", rand.Uint64()) //nolint:gosec // not a secret
	aside := filepath.Join(filepath.Dir(dir), name)
	if err := os.Rename(dir, aside); err != nil {
		return err
	}
	now, err := os.Lstat(aside)
	if err == nil && same(found, now) {
		err = syscall.Rmdir(aside) // os.Remove would delete a file too
	}
	if _, left := os.Lstat(aside); left != nil {
		return err
	}
	return errors.Join(err, os.Rename(aside, dir))
}

// same reports whether both are one lock, which nobody has refreshed in between.
func same(a, b fs.FileInfo) bool { return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) }
