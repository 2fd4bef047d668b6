//go:build unix

package lease_test

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

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
	if _, err := f.Swap(t.Context(), "a", lease.Cell[job]{}, job{Note: "first"}); err != nil {
		t.Fatal(err)
	}
	return f, filepath.Join(dir, "a")
}

func loadFile(t *testing.T, f *lease.File[job]) lease.Cell[job] {
	t.Helper()
	c, err := f.Load(t.Context(), "a", lease.OnlyLease)
	fatal(t, err)
	return c
}

func TestAnUnreadableFileIsAnErrorAndNotAFreeLease(t *testing.T) {
	write := func(content string) func(string) error {
		return func(path string) error { return os.WriteFile(path, []byte(content), 0o600) }
	}
	for name, c := range map[string]struct {
		put  func(path string) error
		want error
	}{
		"empty":       {write(""), lease.ErrMalformed},
		"truncated":   {write(`{"2026-03-04T12:00:00Z":{"Note":"fir`), lease.ErrMalformed},
		"a link":      {func(path string) error { return errors.Join(os.Rename(path, path+"2"), os.Symlink(path+"2", path)) }, lease.ErrRefused},
		"a pipe":      {func(path string) error { return errors.Join(os.Remove(path), syscall.Mkfifo(path, 0o600)) }, lease.ErrRefused},
		"a directory": {func(path string) error { return errors.Join(os.Remove(path), os.Mkdir(path, 0o700)) }, lease.ErrRefused},
	} {
		t.Run(name, func(t *testing.T) {
			f, path := newFile(t)
			cell := loadFile(t, f)
			fatal(t, c.put(path))
			_, err := f.Swap(t.Context(), "a", cell, job{})
			wantErr(t, err, c.want)
			l, err := lease.NewRecords(f, leaseOf, lease.Policy{})
			fatal(t, err)
			_, _, err = l.Acquire(t.Context(), "a", "w/1", lease.OnlyLease, nil)
			wantErr(t, err, c.want)
		})
	}
}

func TestAFailedWriteChangesNothing(t *testing.T) {
	for name, c := range map[string]struct {
		fail func(path string) error
		want error
	}{
		"a directory where the temporary file belongs": {func(path string) error { return os.MkdirAll(path+".tmp/x", 0o700) }, syscall.EEXIST},
		"a guard that is a link": {func(path string) error {
			guard := filepath.Join(filepath.Dir(path), "guard")
			return errors.Join(os.Remove(guard), os.Symlink(path, guard))
		}, lease.ErrRefused},
	} {
		t.Run(name, func(t *testing.T) {
			f, path := newFile(t)
			before := loadFile(t, f)
			fatal(t, c.fail(path))
			_, err := f.Swap(t.Context(), "a", before, job{Note: "second"})
			wantErr(t, err, c.want)
			if got := loadFile(t, f); got.Rev != before.Rev || got.Doc.Note != "first" {
				t.Errorf("%+v; want it as it was", got)
			}
		})
	}
}

// A writer that was killed leaves its temporary file, which may be a link.
func TestALeftoverTemporaryFileIsReplaced(t *testing.T) {
	f, path := newFile(t)
	target := filepath.Join(t.TempDir(), "target")
	fatal(t, errors.Join(os.WriteFile(target, nil, 0o600), os.Symlink(target, path+".tmp")))
	if _, err := f.Swap(t.Context(), "a", loadFile(t, f), job{Note: "second"}); err != nil {
		t.Error(err)
	}
	if info, err := os.Stat(target); err != nil || info.Size() != 0 {
		t.Errorf("the link was followed: %v, %v", info, err)
	}
	info, err := os.Lstat(path)
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("%v, %v; want a file of its owner alone", info, err)
	}
}

func TestARecordThatItsFormatDoesNotKeepIsRemoved(t *testing.T) {
	f, path := newFile(t)
	c := loadFile(t, f)
	gone, err := f.Swap(t.Context(), "a", c, job{})
	if err != nil || gone.Exists || gone.At.Before(c.At) || gone.Asked.IsZero() {
		t.Errorf("%+v, %v; want none, of now", gone, err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the file: %v; want none", err)
	}
	if _, err := f.Swap(t.Context(), "a", gone, job{Note: "second"}); err != nil {
		t.Errorf("the next: %v", err)
	}
}

func TestAnErrorOfTheFormatIsReturned(t *testing.T) {
	f, _ := newFile(t)
	_, err := f.Load(t.Context(), "", lease.OnlyLease)
	wantErr(t, err, lease.ErrInvalidKey)
	_, err = f.Swap(t.Context(), "a", loadFile(t, f), job{Note: notJSON})
	wantErr(t, err, lease.ErrRefused)
}

// flocked flocks the guard of the record at path as another program does.
func flocked(t *testing.T, path string) *os.File {
	t.Helper()
	file, err := os.OpenFile(filepath.Join(filepath.Dir(path), "guard"), os.O_RDWR|os.O_CREATE, 0o600)
	fatal(t, err)
	fatal(t, syscall.Flock(int(file.Fd()), syscall.LOCK_EX))
	return file
}

func TestWaitingForAnotherProgramIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, path := newFile(t)
		before := loadFile(t, f)
		other := flocked(t, path)
		start := time.Now()
		_, err := f.Swap(t.Context(), "a", before, job{})
		if wantErr(t, err, context.DeadlineExceeded); errors.Is(err, lease.ErrRefused) || time.Since(start) != 2*time.Second {
			t.Errorf("err = %v after %v; want one that may pass after 2s", err, time.Since(start))
		}
		why := errors.New("the reason")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(why) })
		_, err = f.Swap(ctx, "a", before, job{})
		wantErr(t, err, why)
		fatal(t, other.Close())
		if _, err = f.Swap(t.Context(), "a", before, job{Note: "second"}); err != nil {
			t.Errorf("once it is free: %v", err)
		}
	})
}

// A program that cleans up the directory may remove the guard while others wait for
// it: flocking the removed file locks nothing.
func TestAFlockOnAReplacedGuardIsNotUsed(t *testing.T) {
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
	fatal(t, os.Remove(old.Name()))
	defer flocked(t, path).Close() //nolint:errcheck // frees the lock
	fatal(t, old.Close())
	if err := <-swapped; err == nil || !strings.Contains(err.Error(), "another program holds") {
		t.Errorf("err = %v; want that another program holds the guard", err)
	}
}

// The revision of a file that was edited by hand is new, whatever it contains.
func TestAnEditByHandIsAConflict(t *testing.T) {
	f, path := newFile(t)
	before := loadFile(t, f)
	data, err := os.ReadFile(path)
	fatal(t, err)
	fatal(t, os.WriteFile(path, []byte(strings.Replace(string(data), "first", "by hand", 1)), 0o600))
	_, err = f.Swap(t.Context(), "a", before, job{Note: "second"})
	wantErr(t, err, lease.ErrConflict)
}

func TestAFilesTimeNeverRunsBackwardsAcrossPrograms(t *testing.T) {
	dir := t.TempDir()
	open := func(now time.Time) *lease.File[job] {
		f := lease.NewFile(dir, "guard", jsonFormat{})
		f.Now = func() time.Time { return now }
		return f
	}
	if _, err := open(noon).Swap(t.Context(), "a", lease.Cell[job]{}, job{Note: "first"}); err != nil {
		t.Fatal(err)
	}
	behind := open(noon.Add(-time.Hour))
	c := loadFile(t, behind)
	if !c.At.Equal(noon) {
		t.Errorf("at = %v; want %v", c.At, noon)
	}
	if c, err := behind.Swap(t.Context(), "a", c, job{Note: "second"}); err != nil || !c.At.Equal(noon) {
		t.Errorf("at = %v, %v; want %v", c.At, err, noon)
	}
	if c, err := behind.Load(t.Context(), "b", lease.OnlyLease); err != nil || !c.At.Equal(noon.Add(-time.Hour)) {
		t.Errorf("another record's at = %v, %v; want its own", c.At, err)
	}
}
