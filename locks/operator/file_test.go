package operator_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/lease"
	"taskguard/locks/operator"
)

func (w *fixture) wantContent(want string) {
	w.Helper()
	got, err := os.ReadFile(w.path)
	if err != nil || string(got) != want {
		w.Errorf("the file holds\n%s(%v); want\n%s", got, err, want)
	}
}

func TestTheStateFileByteForByte(t *testing.T) { // O3
	w := newFixture(t)
	w.assign("w0t1p0:9F<&>", "tsukuyomi")
	w.now = noon.Add(1234567 * time.Microsecond)
	w.assign("4711", "angie")
	w.wantContent(`{"storage":{` +
		`"4711":{"data":"angie","updated_at":"2025-08-18T12:00:01.234Z"},` +
		`"w0t1p0:9F<&>":{"data":"tsukuyomi","updated_at":"2025-08-18T12:00:00.000Z"}}}` + "\n")
}

func TestFieldsOfOtherProgramsSurvive(t *testing.T) { // O3
	w := newFixture(t)
	w.put(`{"version": 2, "storage": {
  "A": {"data": "kana", "updated_at": "2025-08-18T11:00:00Z", "pid": 7},
  "B": {"updated_at": "2025-08-18T11:00:00+00:00", "note": {"x": [1, 2.50]}, "data": "dia"}
}, "zz": null}`)
	w.assign("A", "")
	w.assign("A", "alma")
	w.wantContent(`{"storage":{` +
		`"A":{"data":"alma","pid":7,"updated_at":"2025-08-18T12:00:00.000Z"},` +
		`"B":{"data":"dia","note":{"x":[1,2.50]},"updated_at":"2025-08-18T11:00:00+00:00"}},"version":2,"zz":null}` + "\n")
}

func TestAMissingFileIsCreatedForTheUserOnly(t *testing.T) { // O8, O9
	w := newFixture(t)
	must(w.pool("A").Available(t.Context()))(t)
	w.wantContent(`{"storage":{}}` + "\n")
	for _, path := range []string{w.path, w.path + ".guard"} {
		if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
			t.Errorf("%s: mode %v, %v; want 0600", path, info.Mode(), err)
		}
	}
	if err := os.Chmod(w.path, 0o644); err != nil { //nolint:gosec // as others may have made it
		t.Fatal(err)
	}
	w.assign("A", "kana")
	if info, err := os.Stat(w.path); err != nil || info.Mode() != 0o600 {
		t.Errorf("mode %v, %v after a write; want 0600", info.Mode(), err)
	}
}

func TestACorruptFileIsReplacedAndItsContentKept(t *testing.T) { // O8
	for name, content := range map[string]string{
		"empty":             "",
		"truncated":         `{"storage":{"A":{"data":"ka`,
		"no object":         `[1,2]`,
		"null":              `null`,
		"storage is no map": `{"storage":"x"}`,
		"a number":          `{"storage":{"B":7}}`,
		"a null":            `{"storage":{"B":null}}`,
		"no session":        `{"storage":{"":{"data":"kana"}}}`,
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t)
			var log bytes.Buffer
			w.o.Log = slog.New(slog.NewTextHandler(&log, nil))
			w.put(content)
			w.assign("A", "kana")
			w.assign("A", "dia")
			w.wantWritten("A=dia")
			if n := strings.Count(log.String(), "level=WARN"); (n == 1) != (content != "") {
				t.Errorf("%d warnings; want one, and none of an empty file:\n%s", n, &log)
			}
			aside, err := os.ReadFile(w.path + ".corrupt")
			if string(aside) != content || (err == nil) != (content != "") {
				t.Errorf("aside: %q, %v; want %q", aside, err, content)
			}
		})
	}
}

func TestACorruptFileThatCannotBeKeptIsLeftUnchanged(t *testing.T) { // O8
	w := newFixture(t)
	w.path = filepath.Join(t.TempDir(), strings.Repeat("x", 248)) // with .corrupt, a name is too long
	w.put("[1,2]")
	if _, err := w.pool("A").Assign(t.Context(), "kana"); !errors.Is(err, syscall.ENAMETOOLONG) {
		t.Errorf("err = %v; want one of the copy's name", err)
	}
	w.wantContent("[1,2]")
}

func TestALinkIsNotFollowed(t *testing.T) { // O8, R10
	for _, suffix := range []string{"", ".guard"} {
		w := newFixture(t)
		check(t, os.Symlink(w.path+".none", w.path+suffix))
		p := w.pool("A")
		_, assigned := p.Assign(t.Context(), "kana")
		_, available := p.Available(t.Context())
		_, status := p.Status(t.Context())
		_, released := p.Release(t.Context())
		_, cleared := p.Clear(t.Context())
		for _, got := range []error{assigned, available, status, released, cleared} {
			if !errors.Is(got, lease.ErrRefused) || !strings.Contains(got.Error(), w.path) {
				t.Errorf("a link %s: %v; want a refusal that names the path", suffix, got)
			}
		}
		if _, err := os.Stat(w.path + ".none"); err == nil {
			t.Errorf("a link %s: something was written through it", suffix)
		}
	}
}

func TestAMissingDirectoryIsAClearError(t *testing.T) { // O8
	file := filepath.Join(t.TempDir(), "file")
	check(t, os.WriteFile(file, nil, 0o600))
	for _, path := range []string{filepath.Join(t.TempDir(), "none", "state.json"), filepath.Join(file, "state.json"), "/", "..", ""} {
		if _, err := operator.Open(path); err == nil {
			t.Errorf("%q: no error", path)
		}
	}
}

func TestContentionIsAClearErrorAfterOneShortWait(t *testing.T) { // O8
	w := newFixture(t)
	w.assign("A", "kana")
	held := must(os.Open(w.path + ".guard"))(t)
	check(t, syscall.Flock(int(held.Fd()), syscall.LOCK_EX))
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		_, err := w.pool("A").Assign(context.Background(), "dia")
		if !errors.Is(err, lease.ErrUnavailable) || !strings.Contains(err.Error(), "another program holds "+w.path+".guard") {
			t.Errorf("err = %v; want one that names the guard", err)
		}
		if waited := time.Since(start); waited != 2*time.Second {
			t.Errorf("waited %v; want 2 s", waited)
		}
	})
	w.wantWritten("A=kana")
	check(t, held.Close())
	w.assign("A", "dia")
}

// The file is never absent, so that no program can believe that it is the first.
func TestTheFileIsReplacedAndNeverRemoved(t *testing.T) { // X
	w := newFixture(t)
	w.assign("A", "kana")
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				if _, err := os.Stat(w.path); err != nil {
					t.Errorf("absent: %v", err)
					return
				}
			}
		}
	})
	for range 20 {
		w.assign("A", "")
	}
	close(stop)
	wg.Wait()
}
