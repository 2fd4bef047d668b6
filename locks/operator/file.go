package operator

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"taskguard/lease"
)

// guard is the suffix of the file for flock. It is not .lock: other programs exclude
// each other by making a file of that name, and remove one that is too old.
const guard = ".guard"

// Path returns the path of a host's state file (SEEDS O3).
func Path(hostname string) string { return "/tmp/coeiroink-operators-" + hostname + ".json" }

// File is the state file as a lease.Store whose key is its path. It has the mode
// 0600, and is no symbolic link (SEEDS O9).
type File struct{ *lease.File[State] }

// Open opens the state file at path, which need not exist; its directory must.
func Open(path string) (*File, error) {
	name, err := format{}.Name(path)
	if err != nil {
		return nil, err
	}
	dir := filepath.Dir(path)
	if _, err := os.Stat(dir + string(filepath.Separator)); err != nil { // a file fails too
		return nil, fmt.Errorf("operator: directory of the state file: %w", err)
	}
	return &File{lease.NewFile(dir, name+guard, format{})}, nil
}

// Swap is lease.File's Swap, which first keeps a corrupt file under another name.
func (f *File) Swap(ctx context.Context, path string, prev lease.Cell[State], next State) (lease.Cell[State], error) {
	if prev.Doc.corrupt > 0 {
		if err := os.Link(path, path+".corrupt"); err != nil && !errors.Is(err, fs.ErrExist) {
			return lease.Cell[State]{}, fmt.Errorf("operator: keeping the corrupt state: %w", err)
		}
	}
	return f.File.Swap(ctx, path, prev, next)
}
