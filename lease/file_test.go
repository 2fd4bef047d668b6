//go:build unix

package lease_test

import (
	"context"
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

// newFile is a File with the record "a".
func newFile(t *testing.T) (*lease.File[job], string) {
	t.Helper()
	return newFileIn(t, t.TempDir())
}

func newFileIn(t *testing.T, parent string) (*lease.File[job], string) {
	t.Helper()
	dir := filepath.Join(parent, "leases")
	f, err := lease.NewFile[job](dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Swap(t.Context(), "a", lease.Cell[job]{}, job{Note: "first"}); err != nil {
		t.Fatal(err)
	}
	return f, filepath.Join(dir, "a.json")
}

func loadFile(t *testing.T, f *lease.File[job]) lease.Cell[job] {
	t.Helper()
	c, err := f.Load(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestAFileThatIsNoRecordIsNoFreeLease(t *testing.T) {
	cases := map[string]struct {
		put  func(path, good string) error
		want error
	}{
		"empty":     {func(path, _ string) error { return os.WriteFile(path, nil, 0o600) }, lease.ErrMalformed},
		"torn":      {func(path, good string) error { return os.WriteFile(path, []byte(good[:len(good)-9]), 0o600) }, lease.ErrMalformed},
		"foreign":   {func(path, _ string) error { return os.WriteFile(path, []byte(`{"pid": 17}`), 0o600) }, lease.ErrMalformed},
		"no object": {func(path, _ string) error { return os.WriteFile(path, []byte(`null`), 0o600) }, lease.ErrMalformed},
		"two":       {func(path, good string) error { return os.WriteFile(path, []byte(good+good), 0o600) }, lease.ErrMalformed},
		"of another": {func(path, good string) error {
			return os.WriteFile(path, []byte(strings.Replace(good, `"key":"a"`, `"key":"A"`, 1)), 0o600)
		}, lease.ErrMalformed},
		"ill-typed": {func(path, good string) error {
			return os.WriteFile(path, []byte(strings.Replace(good, `"first"`, `1`, 1)), 0o600)
		}, lease.ErrMalformed},
		"huge": {func(path, _ string) error { return os.Truncate(path, 1<<30) }, lease.ErrMalformed},
		"a link": {func(path, good string) error {
			return errors.Join(os.Remove(path), os.WriteFile(path+".real", []byte(good), 0o600), os.Symlink(path+".real", path))
		}, lease.ErrRefused},
		"a pipe":      {func(path, _ string) error { return errors.Join(os.Remove(path), syscall.Mkfifo(path, 0o600)) }, lease.ErrRefused},
		"a directory": {func(path, _ string) error { return errors.Join(os.Remove(path), os.Mkdir(path, 0o700)) }, lease.ErrRefused},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			f, path := newFile(t)
			cell := loadFile(t, f)
			good, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := c.put(path, string(good)); err != nil {
				t.Fatal(err)
			}
			_, err = f.Load(t.Context(), "a")
			wantErr(t, err, c.want)
			_, err = f.Swap(t.Context(), "a", cell, job{})
			wantErr(t, err, c.want)
			l, err := lease.NewLessor(f, of, lease.Policy{})
			if err != nil {
				t.Fatal(err)
			}
			_, _, err = l.Acquire(t.Context(), "a", "w/1", nil)
			wantErr(t, err, c.want)
		})
	}
}

func TestAFailedWriteChangesNothing(t *testing.T) {
	full := syscall.ENOSPC
	cases := map[string]struct {
		fail func(t *testing.T, f *lease.File[job], path string)
		want error
	}{
		"the disk is full": {func(_ *testing.T, f *lease.File[job], _ string) { f.OnRename(func() error { return full }) }, full},
		"a link lies in the temporary file's place, to something precious": {func(t *testing.T, f *lease.File[job], path string) {
			if err := os.Symlink(path, path+".tmp"); err != nil {
				t.Fatal(err)
			}
			f.OnRename(func() error { return full })
		}, full},
		"something that cannot be removed lies there": {func(t *testing.T, _ *lease.File[job], path string) {
			if err := os.MkdirAll(path+".tmp/x", 0o700); err != nil {
				t.Fatal(err)
			}
		}, syscall.ENOTEMPTY},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			f, path := newFile(t)
			before := loadFile(t, f)
			c.fail(t, f, path)
			_, err := f.Swap(t.Context(), "a", before, job{Note: "second"})
			wantErr(t, err, c.want)
			if got := loadFile(t, f); got.Rev != before.Rev || got.Doc.Note != "first" {
				t.Errorf("%+v; want it as it was", got)
			}
			if info, err := os.Lstat(path + ".tmp"); err == nil && !info.IsDir() {
				t.Error("the temporary file is still there")
			}
		})
	}
}

func TestARecordIsItsOwnersAlone(t *testing.T) {
	_, path := newFile(t)
	for path, want := range map[string]os.FileMode{path: 0o600, filepath.Dir(path): os.ModeDir | 0o700} {
		info, err := os.Stat(path)
		if err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v; want %v", path, info.Mode(), err, want)
		}
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 1 {
		t.Errorf("%v, %v; want one file", entries, err)
	}
}

func TestWaitingForAnotherProgramIsBounded(t *testing.T) {
	f, path := newFile(t)
	before := loadFile(t, f)
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Flock(int(dir.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	f.Wait = 30 * time.Millisecond
	_, err = f.Swap(t.Context(), "a", before, job{})
	if wantErr(t, err, context.DeadlineExceeded); errors.Is(err, lease.ErrRefused) {
		t.Errorf("err = %v; want one that may pass", err)
	}
	f.Wait = time.Hour
	why := errors.New("the reason")
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(30*time.Millisecond, func() { cancel(why) })
	_, err = f.Swap(ctx, "a", before, job{})
	wantErr(t, err, why)
	if err := dir.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err = f.Swap(t.Context(), "a", before, job{Note: "second"}); err != nil {
		t.Errorf("once it is free: %v", err)
	}
}

// What somebody changes by hand counts as a write, although its rev is the old.
func TestAnEditByHandIsAConflict(t *testing.T) {
	f, path := newFile(t)
	before := loadFile(t, f)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(strings.Replace(string(data), "first", "by hand", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = f.Swap(t.Context(), "a", before, job{Note: "second"})
	wantErr(t, err, lease.ErrConflict)
}

func TestAFilesTimeNeverRunsBackwardsAcrossPrograms(t *testing.T) {
	dir := t.TempDir()
	open := func(now time.Time) *lease.File[job] {
		f, err := lease.NewFile[job](dir)
		if err != nil {
			t.Fatal(err)
		}
		f.Now = func() time.Time { return now }
		return f
	}
	if _, err := open(noon).Swap(t.Context(), "a", lease.Cell[job]{}, job{}); err != nil {
		t.Fatal(err)
	}
	behind := open(noon.Add(-time.Hour))
	c := loadFile(t, behind)
	if !c.At.Equal(noon) {
		t.Errorf("at = %v; want %v", c.At, noon)
	}
	if c, err := behind.Swap(t.Context(), "a", c, job{}); err != nil || !c.At.Equal(noon) {
		t.Errorf("at = %v, %v; want %v", c.At, err, noon)
	}
	if c, err := behind.Load(t.Context(), "b"); err != nil || !c.At.Equal(noon.Add(-time.Hour)) {
		t.Errorf("another record's at = %v, %v; want its own", c.At, err)
	}
}

func TestNoKeyLeavesTheDirectoryOrMeetsAnother(t *testing.T) {
	long := strings.Repeat("x", 300)
	keys := []string{"a", "A", "a.json", ".", "..", "../a", "/etc/passwd", "a/b", "a%2fb", "%", "%%", "con", "\u00e9", "e\u0301", "a\x00b", " ", long, long + "y", strings.ToUpper(long), strings.Repeat("/", 90)}
	names := map[string]string{}
	for _, key := range keys {
		name, err := lease.FileName(key)
		if err != nil || name != filepath.Base(name) || name == "." || name == ".." || strings.HasPrefix(name, ".") || len(name) > 251 || strings.ToLower(name) != name {
			t.Errorf("%q: name %q, %v", key, name, err)
		}
		if other, taken := names[name]; taken {
			t.Errorf("%q and %q share %q", key, other, name)
		}
		names[name] = key
	}
	f, _ := newFile(t)
	for _, key := range keys[1:] {
		if _, err := f.Swap(t.Context(), key, lease.Cell[job]{}, job{Note: key}); err != nil {
			t.Errorf("swap of %q: %v", key, err)
		}
		if c, err := f.Load(t.Context(), key); err != nil || c.Doc.Note != key {
			t.Errorf("load of %q: %q, %v", key, c.Doc.Note, err)
		}
	}
	for _, key := range []string{"", "\xff"} {
		_, err := f.Load(t.Context(), key)
		wantErr(t, err, lease.ErrInvalidKey)
	}
}

func TestARecordThatCouldNotBeReadAgainIsNotWritten(t *testing.T) {
	f, _ := newFile(t)
	c := loadFile(t, f)
	if _, err := f.Swap(t.Context(), "a", c, job{Note: strings.Repeat("x", 16<<20)}); !errors.Is(err, lease.ErrRefused) {
		t.Errorf("err = %v; want ErrRefused", err)
	}
	if c := loadFile(t, f); c.Doc.Note != "first" {
		t.Errorf("%d bytes were written", len(c.Doc.Note))
	}
}

func TestARecordOf16MiBIsWrittenAndReadAgain(t *testing.T) {
	f, path := newFile(t)
	f.Now = func() time.Time { return noon }
	write := func(length int) error {
		_, err := f.Swap(t.Context(), "a", loadFile(t, f), job{Note: strings.Repeat("x", length)})
		return err
	}
	size := func() int64 {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	if err := write(1); err != nil {
		t.Fatal(err)
	}
	length := 16<<20 - int(size()) + 1
	if err := write(length); err != nil || size() != 16<<20 {
		t.Fatalf("%d bytes, %v; want 16 MiB", size(), err)
	}
	if got := loadFile(t, f).Doc.Note; len(got) != length {
		t.Errorf("read %d characters; want %d", len(got), length)
	}
	wantErr(t, write(length+1), lease.ErrRefused)
}

// Whoever cleans up a directory may remove the guard while programs wait for it:
// what they then get is nobody's any more.
func TestWhoHasWaitedForAGuardThatWasReplacedWaitsForTheNewOne(t *testing.T) {
	f, path := newFile(t)
	f.Guard, f.Wait = "guard", 200*time.Millisecond
	guard := filepath.Join(filepath.Dir(path), f.Guard)
	flocked := func() *os.File {
		file, err := os.OpenFile(guard, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX); err != nil {
			t.Fatal(err)
		}
		return file
	}
	old := flocked()
	c := loadFile(t, f)
	swapped := make(chan error, 1)
	go func() {
		_, err := f.Swap(t.Context(), "a", c, job{Note: "second"})
		swapped <- err
	}()
	time.Sleep(50 * time.Millisecond) // for Swap to open the old one; sooner proves nothing, and passes
	if err := os.Remove(guard); err != nil {
		t.Fatal(err)
	}
	defer flocked().Close() //nolint:errcheck // frees the lock
	if err := old.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-swapped; err == nil || !strings.Contains(err.Error(), "another program keeps") {
		t.Errorf("err = %v; want that another program keeps the guard", err)
	}
	if c := loadFile(t, f); c.Doc.Note != "first" {
		t.Error("two programs were let in")
	}
}

func TestAFileIsNamedAsItsKeyWhereItCanBe(t *testing.T) {
	at := strings.Repeat("x", 200)
	for key, want := range map[string]string{"az09-_": "az09-_.json", "`{/:": "%60%7b%2f%3a.json", at: at + ".json"} {
		if got, err := lease.FileName(key); err != nil || got != want {
			t.Errorf("%q: %q, %v; want %q", key, got, err, want)
		}
	}
	if got, err := lease.FileName(at + "x"); err != nil || !strings.HasPrefix(got, at[:100]+"%%") {
		t.Errorf("%q, %v; want it cut, with its hash", got, err)
	}
}

func TestAnotherProgramIsWaitedForTwoSecondsUnlessItIsSaidForHowLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, path := newFile(t)
		dir, err := os.Open(filepath.Dir(path))
		if err != nil {
			t.Fatal(err)
		}
		defer dir.Close() //nolint:errcheck // frees the lock
		if err := syscall.Flock(int(dir.Fd()), syscall.LOCK_EX); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		_, err = f.Swap(t.Context(), "a", loadFile(t, f), job{})
		if got, want := time.Since(start), 2*time.Second; !errors.Is(err, context.DeadlineExceeded) || got != want {
			t.Errorf("%v after %v; want %v", err, got, want)
		}
	})
}

func TestADirectoryOrAGuardThatCannotBeOpenedIsAnError(t *testing.T) {
	f, path := newFile(t)
	f.Guard = "guard"
	if err := os.Symlink(path, filepath.Join(filepath.Dir(path), f.Guard)); err != nil {
		t.Fatal(err)
	}
	_, err := f.Swap(t.Context(), "a", loadFile(t, f), job{})
	wantErr(t, err, lease.ErrRefused)
	if err := os.RemoveAll(filepath.Dir(path)); err != nil {
		t.Fatal(err)
	}
	_, err = f.Swap(t.Context(), "a", lease.Cell[job]{}, job{})
	wantErr(t, err, fs.ErrNotExist)
}
