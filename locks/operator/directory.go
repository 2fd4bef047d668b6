package operator

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
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
	claim = "claim" // the directory in a lock that is being removed
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
			return func() { _ = removeFound(dir, made) }, err
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
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.EWOULDBLOCK) {
		return nil // its owner has removed it, or another program removes it
	}
	return err
}

// removeFound removes the lock directory dir unless another program has replaced or refreshed it since. The other
// program's directory is left alone. The found directory gets an entry, claim: other programs cannot remove a
// directory that is not empty, so the directory renamed afterwards is still the found one. Programs of this
// package take turns by flock. If one of them crashes in between, the next one goes on after 10 s.
func removeFound(dir string, found fs.FileInfo) error {
	if !found.IsDir() {
		return syscall.ENOTDIR // no lock of proper-lockfile
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close() //nolint:errcheck // read only
	lock, err := root.Open(".")
	if err != nil {
		return err
	}
	defer lock.Close() //nolint:errcheck // read only
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return err
	}

	now, err := lock.Stat()
	names, listErr := lock.Readdirnames(-1)
	switch {
	case err != nil || listErr != nil || !same(found, now):
		return errors.Join(err, listErr)
	case slices.ContainsFunc(names, func(name string) bool { return name != claim }):
		return syscall.ENOTEMPTY // no lock of proper-lockfile
	}
	if err := root.Mkdir(claim, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	name := fmt.Sprintf(".lock-%x", rand.Uint64()) //nolint:gosec // not a secret
	aside := filepath.Join(filepath.Dir(dir), name)
	if err := os.Rename(dir, aside); err != nil {
		return errors.Join(err, root.Remove(claim))
	}
	return errors.Join(root.Remove(claim), syscall.Rmdir(aside)) // os.Remove would delete a file too
}

// same reports whether both are one lock, which nobody has refreshed in between.
func same(a, b fs.FileInfo) bool { return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) }
