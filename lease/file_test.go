//go:build unix

package lease_test

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"taskguard/internal/testing/must"
	"taskguard/lease"
)

// notJSON is a note that jsonFormat cannot encode.
const notJSON = "NaN"

// jsonFormat keeps a record as JSON in a file named after its key, and does not
// keep one without a note.
type jsonFormat struct{}

func (jsonFormat) Name(key string) (string, error) { return key, lease.CheckKey("test", key, 10) }

func (jsonFormat) Encode(_ string, j job, at time.Time) ([]byte, error) {
	switch j.Note {
	case "":
		return nil, nil
	case notJSON:
		return nil, errors.New("no JSON")
	}
	return json.Marshal(map[time.Time]job{at: j})
}

func (jsonFormat) Decode(_ string, data []byte, _ time.Time) (job, time.Time, error) {
	var records map[time.Time]job
	err := json.Unmarshal(data, &records)
	for at, j := range records {
		return j, at, err
	}
	return job{}, time.Time{}, errors.Join(err, errors.New("no record"))
}

// newFile returns a File with the record "a", and that record's path.
func newFile(t *testing.T) (*lease.File[job], string) {
	t.Helper()
	dir := t.TempDir()
	f := lease.NewFile(dir, "guard", jsonFormat{})
	_, err := f.Swap(t.Context(), "a", lease.Cell[job]{}, job{Note: "first"})
	must.OK(t, err)
	return f, filepath.Join(dir, "a")
}

func loadFile(t *testing.T, f *lease.File[job]) lease.Cell[job] {
	t.Helper()
	c, err := f.Load(t.Context(), "a", lease.OnlyLease)
	must.OK(t, err)
	return c
}

// linked puts a link to another file in the place of path.
func linked(path string) error {
	return errors.Join(os.Rename(path, path+"2"), os.Symlink(path+"2", path))
}

func TestFile_Unreadable(t *testing.T) {
	write := func(content string) func(string) error {
		return func(path string) error { return os.WriteFile(path, []byte(content), 0o600) }
	}
	pipe := func(path string) error { return errors.Join(os.Remove(path), syscall.Mkfifo(path, 0o600)) }
	directory := func(path string) error { return errors.Join(os.Remove(path), os.Mkdir(path, 0o700)) }
	for name, c := range map[string]struct {
		put  func(path string) error
		want error
	}{
		"empty":       {write(""), lease.ErrMalformed},
		"truncated":   {write(`{"2026-03-04T12:00:00Z":{"Note":"fir`), lease.ErrMalformed},
		"a link":      {linked, lease.ErrRefused},
		"a pipe":      {pipe, lease.ErrRefused},
		"a directory": {directory, lease.ErrRefused},
	} {
		t.Run("it is an error and not a free lease, "+name, func(t *testing.T) {
			f, path := newFile(t)
			cell := loadFile(t, f)
			must.OK(t, c.put(path))
			_, err := f.Swap(t.Context(), "a", cell, job{})
			wantErr(t, err, c.want)
			_, err = f.Load(t.Context(), "a", lease.OnlyLease)
			wantErr(t, err, c.want)
		})
	}
}

func TestFile_Swap(t *testing.T) {
	temporary := func(path string) error { return os.MkdirAll(path+".tmp/x", 0o700) }
	guard := func(path string) error { return linked(filepath.Join(filepath.Dir(path), "guard")) }
	for name, c := range map[string]struct {
		fail func(path string) error
		want error
	}{
		"a directory where the temporary file belongs": {temporary, syscall.EEXIST},
		"a guard that is a link":                       {guard, lease.ErrRefused},
	} {
		t.Run("a failure changes nothing, "+name, func(t *testing.T) {
			f, path := newFile(t)
			before := loadFile(t, f)
			must.OK(t, c.fail(path))
			_, err := f.Swap(t.Context(), "a", before, job{Note: "second"})
			wantErr(t, err, c.want)
			same(t, true, before.Rev == loadFile(t, f).Rev)
		})
	}

	// No file may be larger than 64 bytes, which fails as a full disk does.
	t.Run("a full disk changes nothing", func(t *testing.T) {
		f, path := newFile(t)
		before := loadFile(t, f)
		signal.Ignore(syscall.SIGXFSZ)
		defer signal.Reset(syscall.SIGXFSZ)
		var limit syscall.Rlimit
		must.OK(t, syscall.Getrlimit(syscall.RLIMIT_FSIZE, &limit))
		must.OK(t, syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 64, Max: limit.Max}))
		_, err := f.Swap(t.Context(), "a", before, job{Note: "second"})
		must.OK(t, syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit))
		wantErr(t, err, syscall.EFBIG)
		same(t, false, errors.Is(err, lease.ErrRefused))
		same(t, true, before.Rev == loadFile(t, f).Rev)
		if _, err := os.Lstat(path + ".tmp"); err == nil {
			t.Error("the temporary file is still there")
		}
	})

	t.Run("a leftover temporary file, which may be a link, is replaced", func(t *testing.T) {
		f, path := newFile(t)
		target := filepath.Join(t.TempDir(), "target")
		must.OK(t, errors.Join(os.WriteFile(target, nil, 0o600), os.Symlink(target, path+".tmp")))
		_, err := f.Swap(t.Context(), "a", loadFile(t, f), job{Note: "second"})
		check(t, err)
		if info, err := os.Stat(target); err != nil || info.Size() != 0 {
			t.Errorf("the link was followed: %v, %v", info, err)
		}
		info, err := os.Lstat(path)
		if err != nil || info.Mode() != 0o600 {
			t.Errorf("%v, %v; want a file of its owner alone", info, err)
		}
	})

	t.Run("a record that its format does not keep is removed", func(t *testing.T) {
		f, path := newFile(t)
		c := loadFile(t, f)
		gone, err := f.Swap(t.Context(), "a", c, job{})
		check(t, err)
		same(t, false, gone.Exists)
		if gone.At.Before(c.At) || gone.Asked.IsZero() {
			t.Errorf("%+v; want the times of this write", gone)
		}
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the file: %v; want none", err)
		}
		_, err = f.Swap(t.Context(), "a", gone, job{Note: "second"})
		check(t, err)
	})

	t.Run("an error of the format is returned", func(t *testing.T) {
		f, _ := newFile(t)
		_, err := f.Load(t.Context(), "", lease.OnlyLease)
		wantErr(t, err, lease.ErrInvalidKey)
		_, err = f.Swap(t.Context(), "a", loadFile(t, f), job{Note: notJSON})
		wantErr(t, err, lease.ErrRefused)
	})

	// The revision of a file that was edited by hand is new, whatever it contains.
	t.Run("an edit by hand is a conflict", func(t *testing.T) {
		f, path := newFile(t)
		before := loadFile(t, f)
		data, err := os.ReadFile(path)
		must.OK(t, err)
		must.OK(t, os.WriteFile(path, []byte(strings.Replace(string(data), "first", "by hand", 1)), 0o600))
		_, err = f.Swap(t.Context(), "a", before, job{Note: "second"})
		wantErr(t, err, lease.ErrConflict)
	})
}

// flocked flocks the guard of the record at path as another program does.
func flocked(t *testing.T, path string) *os.File {
	t.Helper()
	file, err := os.OpenFile(filepath.Join(filepath.Dir(path), "guard"), os.O_RDWR|os.O_CREATE, 0o600)
	must.OK(t, err)
	must.OK(t, syscall.Flock(int(file.Fd()), syscall.LOCK_EX))
	return file
}

func TestFile_Guard(t *testing.T) {
	inBubble(t, "waiting for another program is bounded", func(w *fixture) {
		f, path := newFile(w.T)
		before, other := loadFile(w.T, f), flocked(w.T, path)
		_, err := f.Swap(w.Context(), "a", before, job{})
		wantErr(w, err, context.DeadlineExceeded)
		w.wantSince(2 * time.Second)
		if errors.Is(err, lease.ErrRefused) {
			w.Errorf("err = %v; want one that may pass", err)
		}
		why := errors.New("the reason")
		ctx, cancel := context.WithCancelCause(w.Context())
		time.AfterFunc(time.Second, func() { cancel(why) })
		_, err = f.Swap(ctx, "a", before, job{})
		wantErr(w, err, why)
		must.OK(w, other.Close())
		_, err = f.Swap(w.Context(), "a", before, job{Note: "second"})
		check(w, err)
	})

	// A program that cleans up the directory may remove the guard while others wait for
	// it: flocking the removed file locks nothing.
	t.Run("a flock on a replaced one is not used", func(t *testing.T) {
		f, path := newFile(t)
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		old := flocked(t, path)
		c := loadFile(t, f)
		swapped := make(chan error, 1)
		go func() {
			_, err := f.Swap(ctx, "a", c, job{Note: "second"})
			swapped <- err
		}()
		time.Sleep(50 * time.Millisecond) // for Swap to open the old one; sooner proves nothing, and passes
		must.OK(t, os.Remove(old.Name()))
		defer flocked(t, path).Close() //nolint:errcheck // frees the lock
		must.OK(t, old.Close())
		wantErr(t, <-swapped, context.DeadlineExceeded)
	})
}

// The time of a file never runs backwards across programs.
func TestFile_Clock(t *testing.T) {
	dir := t.TempDir()
	open := func(now time.Time) *lease.File[job] {
		f := lease.NewFile(dir, "guard", jsonFormat{})
		f.Now = func() time.Time { return now }
		return f
	}
	_, err := open(noon).Swap(t.Context(), "a", lease.Cell[job]{}, job{Note: "first"})
	must.OK(t, err)
	behind := open(noon.Add(-time.Hour))
	c := loadFile(t, behind)
	same(t, noon, c.At)
	c, err = behind.Swap(t.Context(), "a", c, job{Note: "second"})
	must.OK(t, err)
	same(t, noon, c.At)
	c, err = behind.Load(t.Context(), "b", lease.OnlyLease)
	must.OK(t, err)
	same(t, noon.Add(-time.Hour), c.At) // another record has a time of its own
}
