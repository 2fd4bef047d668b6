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
	"sync"
	"syscall"
	"time"
)

// File is a Store in a directory of one machine, for programs that share it: a
// file for each record. A write goes to a temporary file that is synced and
// renamed, under a flock, so that neither a crash nor a full disk leaves half a
// record. Make it with NewFile or NewFileOf. It must not be used over a network
// file system.
//
// Its clock is the machine's. Where that is set back, time stands still for a
// record until it has passed the record's last write.
type File[D any] struct {
	// Wait bounds how long a call waits for other programs' calls; 2 s if zero.
	Wait time.Duration
	// Now is the clock; the machine's if nil.
	Now func() time.Time
	// Guard names the file in the directory that is flocked, and made for it; the
	// directory itself if empty, which must then be nobody else's.
	Guard string

	dir    string
	format Format[D]
	rename func(from, to string) error

	mu   sync.Mutex
	last time.Time // the latest time answered
}

const (
	fileMode     = 0o600
	maxFileBytes = 16 << 20
	flockWait    = 2 * time.Second
)

// NewFile keeps records as JSON in a format of its own, and makes the directory
// if it is missing.
func NewFile[D any](dir string) (*File[D], error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("lease: directory: %w", err)
	}
	return NewFileOf(dir, envelopes[D]{}), nil
}

// NewFileOf keeps records as f writes them. It does not touch the directory.
func NewFileOf[D any](dir string, f Format[D]) *File[D] {
	return &File[D]{dir: dir, format: f, rename: os.Rename}
}

// Load reads one file, with no waiting for writers. A file that its Format cannot
// make out is ErrMalformed; a symbolic link, another thing that is no regular
// file, and one that may not be read are ErrRefused.
func (f *File[D]) Load(ctx context.Context, key string) (Cell[D], error) {
	asked, at := time.Now(), f.now() // before the reading: what is read is at least as new
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
// one that its Format does not keep is removed.
// Another program that keeps the directory for longer than Wait, and a full
// disk, are errors that may pass; a directory that may not be written is
// ErrRefused.
func (f *File[D]) Swap(ctx context.Context, key string, prev Cell[D], next D) (Cell[D], error) {
	asked := time.Now()
	path, err := f.path(ctx, key)
	if err != nil {
		return Cell[D]{}, err
	}
	var c Cell[D]
	err = f.locked(ctx, func(dir *os.File) error {
		now, err := f.read(path, key)
		if err != nil {
			return err
		}
		if now.Exists != prev.Exists || (now.Exists && now.Rev != prev.Rev) {
			return ErrConflict
		}
		at := latest(now.At, f.now())
		data, err := f.format.Encode(key, next, at)
		switch {
		case err != nil:
			return fmt.Errorf("%w: %w", ErrRefused, err)
		case data == nil:
			c = Cell[D]{Doc: next, At: at}
			return f.remove(dir, path)
		case len(data) > maxFileBytes: // nobody could read it again
			return fmt.Errorf("%w: over %d bytes", ErrRefused, maxFileBytes)
		}
		written, err := f.replace(dir, path, data)
		if err != nil {
			return err
		}
		c, err = f.cell(data, written, key)
		return err
	})
	if err != nil {
		return Cell[D]{}, fileError("write", key, err)
	}
	c.Asked = asked
	return c, nil
}

// Delete removes a record. A missing one is no error.
func (f *File[D]) Delete(ctx context.Context, key string) error {
	path, err := f.path(ctx, key)
	if err != nil {
		return err
	}
	err = f.locked(ctx, func(dir *os.File) error { return f.remove(dir, path) })
	return fileError("delete", key, err)
}

func (f *File[D]) remove(dir *os.File, path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return dir.Sync()
}

// read is the record at path, At being the time of its last write.
func (f *File[D]) read(path, key string) (Cell[D], error) {
	// NONBLOCK: a pipe in its place must not hold us up.
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
		return Cell[D]{}, fmt.Errorf("%w: %s is no regular file", ErrRefused, path)
	}
	data, err := io.ReadAll(io.LimitReader(file, maxFileBytes+1))
	if err != nil {
		return Cell[D]{}, err
	}
	return f.cell(data, info.ModTime(), key)
}

// cell makes out the content of a file. Its revision is content and time of
// writing, since others may renew a lease by the latter alone.
func (f *File[D]) cell(data []byte, modified time.Time, key string) (Cell[D], error) {
	c := Cell[D]{Exists: true, Rev: fileRev{sha256.Sum256(data), modified.UnixNano()}}
	err := fmt.Errorf("over %d bytes", maxFileBytes)
	if len(data) <= maxFileBytes {
		c.Doc, c.At, err = f.format.Decode(key, data, modified)
	}
	if err != nil {
		return Cell[D]{}, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	return c, nil
}

type fileRev struct {
	content  [sha256.Size]byte
	modified int64
}

// replace puts data at path; dir, the directory, is locked. Until the rename
// nothing has changed. It answers the file's time of writing.
func (f *File[D]) replace(dir *os.File, path string, data []byte) (written time.Time, _ error) {
	temp := path + ".tmp" // nobody else's: of a writer that was killed
	if err := os.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return written, err
	}
	file, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, fileMode)
	if err != nil {
		return written, err
	}
	_, err = file.Write(data)
	info, statErr := file.Stat()
	err = errors.Join(err, statErr, file.Sync(), file.Close())
	if err == nil {
		err = f.rename(temp, path)
	}
	if err != nil {
		return written, errors.Join(err, os.Remove(temp))
	}
	return info.ModTime(), dir.Sync()
}

// path is the file of a key.
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

// now never runs backwards, also when the clock is set back.
func (f *File[D]) now() time.Time {
	now := time.Now()
	if f.Now != nil {
		now = f.Now()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last = latest(f.last, now.Round(0)) // without the monotonic reading: times to be stored
	return f.last
}

// fileError says what a failed call means: hardly any failure of a file passes
// by itself but those of space and of waiting.
func fileError(verb, key string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS), errors.Is(err, syscall.ELOOP),
		errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.EMLINK): // EMLINK: FreeBSD's word for a link not followed
		err = fmt.Errorf("%w: %w", ErrRefused, err)
	}
	return fmt.Errorf("lease: %s %q: %w", verb, key, err)
}
