//go:build unix

package operatorpool

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"taskguard/lease"
)

// guard is what the name of the file ends in that our programs flock. It is not
// .lock: there are programs that keep each other out by making a file of that name,
// and remove one that they find too old.
const guard = ".guard"

// Path is where the sessions of a host keep their state (O3).
func Path(hostname string) string { return "/tmp/coeiroink-operators-" + hostname + ".json" }

// File is the state file as a lease.Store whose key is its path. It is the user's
// alone, mode 0600, and no symbolic link (R10, O9).
type File[T any] struct{ *lease.File[State[T]] }

// Open is the state file at path, which need not exist; its directory must.
func Open[T any](path string) (*File[T], error) {
	name, err := format[T]{}.Name(path)
	if err != nil {
		return nil, err
	}
	dir := filepath.Dir(path)
	if info, err := os.Stat(dir); err != nil {
		return nil, fmt.Errorf("operatorpool: directory of the state file: %w", err)
	} else if !info.IsDir() {
		return nil, fmt.Errorf("operatorpool: directory of the state file: %s is none", dir)
	}
	f := lease.NewFile(dir, name+guard, format[T]{})
	f.Wait = time.Hour // the operation's own bound ends it
	return &File[T]{f}, nil
}

// Swap is the lease.File's; but what held no state is kept aside before it is
// replaced.
func (f *File[T]) Swap(ctx context.Context, path string, prev lease.Cell[State[T]], next State[T]) (lease.Cell[State[T]], error) {
	if len(prev.Doc.damaged) > 0 {
		if err := keep(path+".corrupt", prev.Doc.damaged); err != nil {
			return lease.Cell[State[T]]{}, fmt.Errorf("operatorpool: keeping the damaged state: %w", err)
		}
	}
	return f.File.Swap(ctx, path, prev, next)
}

// keep makes a file at path, unless there is something already.
func keep(path string, data []byte) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	if err = errors.Join(err, file.Sync(), file.Close()); err != nil {
		err = errors.Join(err, os.Remove(path)) // half of it would keep the whole from being kept
	}
	return err
}
