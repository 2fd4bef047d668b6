//go:build unix

package lease

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"
)

// Format defines the name and the content of a File's files. Its methods are pure
// and safe for concurrent use.
type Format[D any] interface {
	// Name returns the file of a key within the directory, or ErrInvalidKey.
	Name(key string) (string, error)
	// Encode returns the content of a file that is written at the store's time at,
	// or nil if the Format does not keep such a record: then its file is removed.
	Encode(key string, doc D, at time.Time) ([]byte, error)
	// Decode decodes a file, no matter which program wrote it, and the store's time of
	// that write; modified is the file system's time.
	Decode(key string, data []byte, modified time.Time) (doc D, at time.Time, err error)
}

// File is a Store in a directory of one machine, for programs that share it: one
// file for each record. A write goes to a temporary file that is synced and
// renamed, under a flock, so that neither a crash nor a full disk leaves half a
// record. A write has been made once it is renamed, whatever fsync of the directory then says:
// some shared folders refuse that, and a crash of the machine may then bring the old record
// back. Make a File with NewFile. It must not be used over a network file system.
//
// Its clock is the machine's. If that is set back, the store's time of a record
// stays at the record's last write until the clock has passed it.
type File[D any] struct {
	// Now is the clock; the machine's if nil.
	Now func() time.Time

	dir, guard string
	format     Format[D]
}

const (
	fileMode  = 0o600
	flockWait = 2 * time.Second // for other programs' calls
)

// NewFile returns a File that stores records in dir, encoded by f. guard is the name of the
// file in dir that programs flock; a call creates it if it is missing. NewFile does not
// access the directory.
func NewFile[D any](dir, guard string, f Format[D]) *File[D] {
	return &File[D]{dir: dir, guard: guard, format: f}
}

// Load reads one file, and does not wait for writers. A file that the Format
// cannot decode is ErrMalformed. A symbolic link, another file that is not regular,
// and one without permission are ErrRefused.
func (f *File[D]) Load(ctx context.Context, key string, _ Want) (Cell[D], error) {
	asked, at := time.Now(), storeTime(f.Now) // before the reading, which is then at least as new
	path, err := f.path(ctx, key)
	if err != nil {
		return Cell[D]{}, err
	}
	c, err := f.read(path, key)
	if err != nil {
		return Cell[D]{}, fileError("read", key, err)
	}
	c.At, c.Asked = latest(c.At, at), asked
	return c, nil
}

// Swap replaces one file. Swapping a Cell that did not exist creates the record;
// a record that the Format does not keep is removed. A full disk, and another
// program that holds the guard for longer than 2 s, are errors that may pass; a
// directory without write permission is ErrRefused.
func (f *File[D]) Swap(ctx context.Context, key string, prev Cell[D], next D) (Cell[D], error) {
	asked := time.Now()
	path, err := f.path(ctx, key)
	if err != nil {
		return Cell[D]{}, err
	}

	var c Cell[D]
	err = f.locked(ctx, func(dir *os.File) (err error) {
		c, err = f.swap(dir, path, key, prev, next)
		return err
	})
	if err != nil {
		return Cell[D]{}, fileError("write", key, err)
	}
	c.Asked = asked
	return c, nil
}

// swap makes the change of Swap in dir, which is locked.
func (f *File[D]) swap(dir *os.File, path, key string, prev Cell[D], next D) (Cell[D], error) {
	now, err := f.read(path, key)
	if err != nil {
		return Cell[D]{}, err
	}
	if now.Exists != prev.Exists || (now.Exists && now.Rev != prev.Rev) {
		return Cell[D]{}, ErrConflict
	}

	at := latest(prev.At, storeTime(f.Now)) // prev is this very record
	data, err := f.format.Encode(key, next, at)
	switch {
	case err != nil:
		return Cell[D]{}, fmt.Errorf("%w: %w", ErrRefused, err)
	case data == nil:
		err := os.Remove(path)
		_ = dir.Sync()
		return Cell[D]{Doc: next, At: at}, err
	}

	written, err := replace(dir, path, data)
	if err != nil {
		return Cell[D]{}, err
	}
	return f.cell(data, written, key)
}

// read returns the record at path; At is the time of its last write.
func (f *File[D]) read(path, key string) (Cell[D], error) {
	// NONBLOCK: a pipe in its place must not block.
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Cell[D]{}, nil
	case err != nil:
		return Cell[D]{}, err
	}
	defer file.Close() //nolint:errcheck // read only

	info, err := file.Stat()
	if err != nil {
		return Cell[D]{}, err
	}
	if !info.Mode().IsRegular() {
		return Cell[D]{}, fmt.Errorf("%w: %s is not a regular file", ErrRefused, path)
	}
	data, err := io.ReadAll(file)
	if err != nil {
		return Cell[D]{}, err
	}
	return f.cell(data, info.ModTime(), key)
}

// cell decodes a file. Its revision is the content and the time of writing, since
// other programs may renew a lease by changing that time alone.
func (f *File[D]) cell(data []byte, modified time.Time, key string) (Cell[D], error) {
	doc, at, err := f.format.Decode(key, data, modified)
	if err != nil {
		return Cell[D]{}, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	rev := fileRev{sha256.Sum256(data), modified.UnixNano()}
	return Cell[D]{Doc: doc, Exists: true, Rev: rev, At: at}, nil
}

type fileRev struct {
	content  [sha256.Size]byte
	modified int64
}

// replace writes data to path in dir, which is locked, and returns the file's time
// of writing. Nothing changes before the rename.
func replace(dir *os.File, path string, data []byte) (written time.Time, _ error) {
	temp := path + ".tmp"
	_ = os.Remove(temp) // left by a writer that was killed
	file, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, fileMode)
	if err != nil {
		return written, err
	}

	_, err = file.Write(data)
	info, statErr := file.Stat()
	err = errors.Join(err, statErr, file.Sync(), file.Close())
	if err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		return written, errors.Join(err, os.Remove(temp))
	}
	_ = dir.Sync() // the write has been made: see File
	return info.ModTime(), nil
}

func latest(times ...time.Time) time.Time { return slices.MaxFunc(times, time.Time.Compare) }

// path returns the file of a key.
func (f *File[D]) path(ctx context.Context, key string) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	name, err := f.format.Name(key)
	if err != nil {
		return "", err
	}
	return filepath.Join(f.dir, name), nil
}

// fileError adds ErrRefused to errors that a retry does not cure.
func fileError(verb, key string, err error) error {
	lasting := []error{fs.ErrPermission, syscall.EROFS, syscall.ELOOP, syscall.ENOTDIR}
	if slices.ContainsFunc(lasting, func(target error) bool { return errors.Is(err, target) }) {
		err = fmt.Errorf("%w: %w", ErrRefused, err)
	}
	return fmt.Errorf("lease: %s %q: %w", verb, key, err)
}
