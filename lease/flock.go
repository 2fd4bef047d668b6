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

// locked runs do while no other File can write to the directory.
func (f *File[D]) locked(ctx context.Context, do func(dir *os.File) error) error {
	ctx, cancel := context.WithTimeout(ctx, flockWait)
	defer cancel()
	dir, err := os.Open(f.dir)
	if err != nil {
		return err
	}
	defer dir.Close() //nolint:errcheck // synced before

	const flags = os.O_RDWR | os.O_CREATE | syscall.O_NOFOLLOW | syscall.O_NONBLOCK
	for {
		guard, err := os.OpenFile(filepath.Join(f.dir, f.guard), flags, fileMode)
		if err != nil {
			return err
		}
		err = flocked(ctx, guard, func() error { return do(dir) })
		_ = guard.Close() // frees the lock
		if !errors.Is(err, errReplaced) || ctx.Err() != nil {
			return err
		}
	}
}

// errReplaced reports that the guard is another file now, which other programs lock.
var errReplaced = errors.New("lease: the guard was replaced")

// flocked runs do once guard is flocked and is still the file at its path: a
// program that cleans up the directory may have removed it.
func flocked(ctx context.Context, guard *os.File, do func() error) error {
	for {
		err := syscall.Flock(int(guard.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case err == nil && !atItsPath(guard):
			return errReplaced
		case err == nil:
			return do()
		case !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR):
			return err
		case !sleep(ctx, 2*time.Millisecond):
			return fmt.Errorf("another program holds %s: %w", guard.Name(), context.Cause(ctx))
		}
	}
}

// atItsPath reports whether guard is still the file at its path.
func atItsPath(guard *os.File) bool {
	opened, _ := guard.Stat()
	found, _ := os.Stat(guard.Name())
	return os.SameFile(opened, found) // false after an error
}
