//go:build unix

package lease

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// unkept keeps no record.
type unkept struct{}

func (unkept) Name(key string) (string, error)                                     { return key, nil }
func (unkept) Encode(string, string, time.Time) ([]byte, error)                    { return nil, nil }
func (unkept) Decode(string, []byte, time.Time) (_ string, _ time.Time, err error) { return }

// After the rename or the removal the change has been made, so fsync of the directory, which some
// shared folders refuse, decides nothing.
func TestFile_Fsync(t *testing.T) {
	path := filepath.Join(t.TempDir(), "record")
	dir, err := os.Open(filepath.Dir(path))
	if err = errors.Join(err, dir.Close()); err != nil { // from now on its Sync fails
		t.Fatal(err)
	}

	written, err := replace(dir, path, []byte("new"))
	if err != nil || written.IsZero() {
		t.Errorf("written at %v, %v; want a time, and no error", written, err)
	}
	if data, err := os.ReadFile(path); string(data) != "new" {
		t.Errorf("%q, %v; want the new content", data, err)
	}

	f := NewFile(filepath.Dir(path), "guard", unkept{})
	c, err := f.read(path, "record")
	if err == nil {
		_, err = f.swap(dir, path, "record", c, "")
	}
	if _, found := os.Stat(path); err != nil || !errors.Is(found, fs.ErrNotExist) {
		t.Errorf("removed: %v, %v; want no file, and no error", found, err)
	}
}
