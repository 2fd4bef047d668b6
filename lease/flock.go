//go:build unix

package lease

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// locked runs do while every other File keeps out of the directory.
func (f *File[D]) locked(ctx context.Context, do func(dir *os.File) error) error {
	wait := f.Wait
	if wait == 0 {
		wait = flockWait
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	dir, err := os.Open(f.dir)
	if err != nil {
		return err
	}
	defer dir.Close() //nolint:errcheck // synced before
	for {
		guard, err := f.guard()
		if err != nil {
			return err
		}
		err = f.flocked(ctx, guard, func() error { return do(dir) })
		_ = guard.Close() // nothing written; frees the lock
		if !errors.Is(err, errReplaced) || ctx.Err() != nil {
			return err
		}
	}
}

// errReplaced: what was flocked is not what others would flock any more.
var errReplaced = errors.New("lease: the guard was replaced")

// guard opens what is flocked.
func (f *File[D]) guard() (*os.File, error) {
	if f.Guard == "" {
		return os.Open(f.dir)
	}
	return os.OpenFile(filepath.Join(f.dir, f.Guard), os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, fileMode)
}

// flocked runs do once guard is flocked and is still the one at its path: whoever
// cleans up a directory may have removed it.
func (f *File[D]) flocked(ctx context.Context, guard *os.File, do func() error) error {
	for {
		err := syscall.Flock(int(guard.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case err == nil && !inPlace(guard):
			return errReplaced
		case err == nil:
			return do()
		case !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR):
			return err
		case !sleep(ctx, 2*time.Millisecond):
			return fmt.Errorf("another program keeps %s: %w", guard.Name(), context.Cause(ctx))
		}
	}
}

func inPlace(guard *os.File) bool {
	opened, err := guard.Stat()
	if err != nil {
		return false
	}
	there, err := os.Stat(guard.Name())
	return err == nil && os.SameFile(opened, there)
}
