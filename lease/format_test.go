//go:build unix

package lease_test

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"taskguard/lease"
)

// lines keeps a record's note as the file's whole content, and no empty one.
type lines struct{}

func (lines) Name(key string) (string, error) { return key, nil }
func (lines) Encode(_ string, j job, _ time.Time) ([]byte, error) {
	if j.Note == "" {
		return nil, nil
	}
	return []byte(j.Note), nil
}
func (lines) Decode(_ string, data []byte, modified time.Time) (job, time.Time, error) {
	return job{Note: string(data)}, modified, nil
}

func TestARecordThatItsFormatDoesNotKeepIsRemoved(t *testing.T) {
	dir := t.TempDir()
	f := lease.NewFileOf(dir, lines{})
	c, err := f.Swap(t.Context(), "a", lease.Cell[job]{}, job{Note: "first"})
	if err != nil {
		t.Fatal(err)
	}
	gone, err := f.Swap(t.Context(), "a", c, job{})
	if err != nil || gone.Exists || gone.At.Before(c.At) || gone.Asked.IsZero() {
		t.Errorf("%+v, %v; want none, of now", gone, err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("%v, %v; want an empty directory", entries, err)
	}
	if _, err := f.Swap(t.Context(), "a", gone, job{Note: "second"}); err != nil {
		t.Errorf("the next: %v", err)
	}
}

func TestARecordThatHasNoEncodingIsRefused(t *testing.T) {
	f, err := lease.NewFile[float64](t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.Swap(t.Context(), "a", lease.Cell[float64]{}, math.NaN())
	wantErr(t, err, lease.ErrRefused)
	c, err := f.Load(t.Context(), "a")
	if err != nil || c.Exists {
		t.Errorf("%+v, %v; want none", c, err)
	}
}

func TestADeletedRecordIsGoneAndAMissingOneIsNoError(t *testing.T) {
	f, path := newFile(t)
	for range 2 {
		if err := f.Delete(t.Context(), "a"); err != nil {
			t.Errorf("delete: %v", err)
		}
		if c, err := f.Load(t.Context(), "a"); err != nil || c.Exists {
			t.Errorf("%+v, %v; want none", c, err)
		}
	}
	wantErr(t, f.Delete(t.Context(), ""), lease.ErrInvalidKey)
	if err := os.MkdirAll(filepath.Join(path, "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := f.Delete(t.Context(), "a"); !errors.Is(err, syscall.ENOTEMPTY) && !errors.Is(err, syscall.EEXIST) {
		t.Errorf("what cannot be removed: %v", err)
	}
}

func TestADirectoryThatCannotBeMadeIsAnError(t *testing.T) {
	_, path := newFile(t)
	_, err := lease.NewFile[job](filepath.Join(path, "leases")) // below a file
	wantErr(t, err, syscall.ENOTDIR)
}
