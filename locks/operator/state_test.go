package operator_test

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"taskguard/internal/testing/must"
	"taskguard/locks/operator"
)

func TestState(t *testing.T) {
	run(t, "byte for byte", func(w *fixture) { // O3
		w.assign("w0t1p0:9F<&>", "tsukuyomi")
		w.now = noon.Add(1234567 * time.Microsecond)
		w.assign("4711", "angie")
		w.wantContent(`{"storage":{` +
			`"4711":{"data":"angie","updated_at":"2025-08-18T12:00:01.234Z"},` +
			`"w0t1p0:9F<&>":{"data":"tsukuyomi","updated_at":"2025-08-18T12:00:00.000Z"}}}` + "\n")
	})

	run(t, "fields of other programs survive", func(w *fixture) { // O3
		w.put(`{"version": 2, "storage": {
  "A": {"data": "kana", "updated_at": "2025-08-18T11:00:00Z", "pid": 7},
  "B": {"updated_at": "2025-08-18T11:00:00+00:00", "note": {"x": [1, 2.50]}, "data": "dia"}
}, "zz": null}`)
		w.assign("A", "")
		w.assign("A", "alma")
		w.wantContent(`{"storage":{` +
			`"A":{"data":"alma","pid":7,"updated_at":"2025-08-18T12:00:00.000Z"},` +
			`"B":{"data":"dia","note":{"x":[1,2.50]},"updated_at":"2025-08-18T11:00:00+00:00"}},` +
			`"version":2,"zz":null}` + "\n")
	})

	run(t, "a missing file is created for the user only", func(w *fixture) { // O8, O9
		must.Get(w.pool("A").Available(w.Context()))(w)
		w.wantContent(`{"storage":{}}` + "\n")
		w.wantMode(w.path)
		w.wantMode(w.path + ".guard")
		must.OK(w, os.Chmod(w.path, 0o644)) //nolint:gosec // as others may have made it
		w.assign("A", "kana")
		w.wantMode(w.path)
	})

	// No program can believe that it is the first.
	run(t, "the file is replaced and never absent", func(w *fixture) { // X
		w.assign("A", "kana")
		stop := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := os.Stat(w.path); err != nil {
					w.Errorf("absent: %v", err)
					return
				}
			}
		})
		for range 20 {
			w.assign("A", "")
		}
		close(stop)
		wg.Wait()
	})

	run(t, "its directory must exist", func(w *fixture) { // O8
		w.put("")
		none := filepath.Join(w.TempDir(), "none", "state.json")
		for _, path := range []string{none, filepath.Join(w.path, "state.json"), "/", "..", ""} {
			if _, err := operator.Open(path); err == nil {
				w.Errorf("%q: no error", path)
			}
		}
	})

	inBubble(t, "contention is a clear error after one short wait", func(w *fixture) { // O8
		w.assign("A", "kana")
		held := must.Get(os.Open(w.path + ".guard"))(w)
		must.OK(w, syscall.Flock(int(held.Fd()), syscall.LOCK_EX))
		w.wantGivesUp(".guard")
		w.wantWritten("A=kana")
		must.OK(w, held.Close())
		w.assign("A", "dia")
	})
}

func TestState_Corrupt(t *testing.T) { // O8
	for name, content := range map[string]string{
		"truncated":         `{"storage":{"A":{"data":"ka`,
		"no object":         `[1,2]`,
		"null":              `null`,
		"storage is no map": `{"storage":"x"}`,
		"a number":          `{"storage":{"B":7}}`,
		"a null":            `{"storage":{"B":null}}`,
		"no session":        `{"storage":{"":{"data":"kana"}}}`,
	} {
		run(t, "it is replaced and its content kept, "+name, func(w *fixture) {
			replaced := 0
			w.o.Corrupt = func(bytes int) { same(w, len(content), bytes); replaced++ }
			w.put(content)
			w.assign("A", "kana")
			w.assign("A", "dia")
			w.wantWritten("A=dia")
			same(w, 1, replaced)
			same(w, content, string(must.Get(os.ReadFile(w.path+".corrupt"))(w)))
			w.put(content) // once more, beside the first
			w.assign("A", "kana")
		})
	}
	run(t, "an empty file is not kept", func(w *fixture) {
		w.o.Corrupt = func(int) { w.Error("replaced") }
		w.put("")
		w.assign("A", "kana")
		if _, err := os.Stat(w.path + ".corrupt"); err == nil {
			w.Error("it is kept")
		}
	})
	inBubble(t, "what cannot be kept is left unchanged", func(w *fixture) {
		w.path = filepath.Join(filepath.Dir(w.path), strings.Repeat("x", 248)) // with .corrupt, a name is too long
		w.put("[1,2]")
		wantErr(w, w.try("A", "kana"), syscall.ENAMETOOLONG)
		w.wantContent("[1,2]")
	})
}
