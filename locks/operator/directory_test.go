package operator_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"taskguard/internal/testing/examplestest"
	"taskguard/internal/testing/must"
	"taskguard/lease"
	"taskguard/locks/operator"
)

// makeLock makes FILE.lock as a Node program does, at that age.
func (w *fixture) makeLock(age time.Duration) {
	w.Helper()
	must.OK(w, os.Mkdir(w.path+".lock", 0o700))
	w.dateLock(age)
}

func (w *fixture) dateLock(age time.Duration) {
	w.Helper()
	at := time.Now().Add(-age)
	must.OK(w, os.Chtimes(w.path+".lock", at, at))
}

// lock returns FILE.lock, which must exist.
func (w *fixture) lock() os.FileInfo {
	w.Helper()
	return must.Get(os.Lstat(w.path + ".lock"))(w)
}

func (w *fixture) wantNoLock() {
	w.Helper()
	if _, err := os.Lstat(w.path + ".lock"); err == nil {
		w.Error("the lock is still there")
	}
}

func TestDirectory(t *testing.T) { // O8
	inBubble(t, "the lock of a Node program is waited for", func(w *fixture) { // O5
		w.makeLock(0)
		w.wantGivesUp(".lock")
		w.lock()

		time.AfterFunc(time.Second, func() { must.OK(w, os.Remove(w.path+".lock")) })
		must.OK(w, w.try("A", "kana"))
		w.wantNoLock()
	})

	// A lock that its holder has not refreshed for 10 s is stale.
	inBubble(t, "the lock of a dead Node program is removed", func(w *fixture) {
		w.makeLock(10 * time.Second)
		time.Sleep(time.Millisecond)
		must.OK(w, w.try("A", "kana"))
		w.wantNoLock()
	})
	inBubble(t, "one that is dated ahead is removed 10 s after it was first seen", func(w *fixture) {
		w.makeLock(-time.Hour)
		wantErr(w, w.try("A", "kana"), lease.ErrUnavailable)
		time.Sleep(8*time.Second + time.Millisecond)
		must.OK(w, w.try("A", "kana"))
		w.wantNoLock()
	})

	// What is not an empty directory is no lock of proper-lockfile: it stays.
	run(t, "a file in its place stays", func(w *fixture) {
		must.OK(w, os.WriteFile(w.path+".lock", nil, 0o600))
		w.dateLock(time.Hour)
		err := w.try("A", "kana")
		wantErr(w, err, syscall.ENOTDIR)
		wantErr(w, err, lease.ErrRefused)
		w.lock()
	})

	// A process that stood still finds the lock of another in the place of its own.
	run(t, "only the own lock is removed", func(w *fixture) {
		store := must.Get(operator.Open(w.path))(w)
		store.Now = func() time.Time { // is called during the write
			if os.Remove(w.path+".lock") == nil {
				w.makeLock(time.Second)
			}
			return time.Now()
		}
		must.Get(w.over(store, "A").Assign(w.Context(), "kana"))(w)
		w.lock()
	})

	// A program that removes a stale lock has the flock of its directory. If it dies, the next one goes on.
	inBubble(t, "one program at a time removes a stale lock", func(w *fixture) {
		w.makeLock(0)
		must.OK(w, os.Mkdir(w.path+".lock/claim", 0o700))
		lock := must.Get(os.Open(w.path + ".lock"))(w)
		must.OK(w, syscall.Flock(int(lock.Fd()), syscall.LOCK_EX))
		w.dateLock(11 * time.Second)
		wantErr(w, w.try("A", "kana"), lease.ErrUnavailable)
		w.lock()
		must.OK(w, lock.Close())
		must.OK(w, w.try("A", "kana"))
		w.wantNoLock()
	})
}

// Two programs have found the same stale lock. The first one has removed it, and made its own, before the
// second one removes what it has found; or its owner, which stood still, has refreshed it.
func TestRemoveFound(t *testing.T) { // O8
	for name, meanwhile := range map[string]func(w *fixture){
		"made":      func(w *fixture) { must.OK(w, os.Remove(w.path+".lock")); w.makeLock(0) },
		"refreshed": func(w *fixture) { w.dateLock(0) },
		"full":      func(w *fixture) { must.OK(w, os.WriteFile(w.path+".lock/x", nil, 0o600)) },
	} {
		run(t, "a lock stays that since a look was "+name, func(w *fixture) {
			w.makeLock(time.Hour)
			stale := w.lock()
			meanwhile(w)
			now := w.lock()
			err := operator.RemoveFound(w.path+".lock", stale)
			if !os.SameFile(now, w.lock()) {
				w.Errorf("%v: the lock is lost", err)
			}
			same(w, 1, len(must.Get(os.ReadDir(filepath.Dir(w.path)))(w)))
		})
	}

	// A third program wants the lock of the first, and does not get it while the second one looks again.
	run(t, "the name of another's lock is never free", func(w *fixture) {
		w.makeLock(time.Hour)
		stale := w.lock()
		must.OK(w, os.Remove(w.path+".lock"))
		w.makeLock(0)
		ctx, stop := context.WithCancel(w.Context())
		third := make(chan int)
		go func() {
			got := 0
			for ctx.Err() == nil {
				if os.Mkdir(w.path+".lock", 0o700) == nil {
					got++
				}
			}
			third <- got
		}()
		for range 1000 {
			_ = operator.RemoveFound(w.path+".lock", stale)
		}
		stop()
		same(w, 0, <-third)
	})
}

// In 300 rounds a Node program with proper-lockfile and this package want the same operator at once. In every
// second one they also find the lock of a dead program.
func TestNode(t *testing.T) { // O1, O5
	paths := examplestest.Find(t, "NODE", "node", "npm")
	w := newFixture(t)
	modules := examplestest.Modules(t, paths[1], "testdata")
	dir := t.TempDir()
	examplestest.Copy(t, dir, "testdata/session.mjs")
	must.OK(t, os.Symlink(modules, dir+"/node_modules"))
	node := exec.CommandContext(t.Context(), paths[0], dir+"/session.mjs", w.path, "node")
	node.Stderr = t.Output()
	stdin, stdout := must.Get(node.StdinPipe())(t), must.Get(node.StdoutPipe())(t)
	must.OK(t, node.Start())
	answers := bufio.NewScanner(stdout)

	winners := map[string]int{}
	for round := range 300 {
		if round%2 == 1 {
			w.makeLock(11 * time.Second)
		}
		must.Get(fmt.Fprintln(stdin, "kana"))(t)
		_, err := w.over(must.Get(operator.Open(w.path))(t), "go").Assign(t.Context(), "kana")
		if err != nil && !errors.As(err, new(*operator.BusyError)) {
			t.Fatal(err)
		}
		answers.Scan()
		winners[fmt.Sprintf("node %s, go %t", answers.Text(), err == nil)]++
		must.OK(t, os.Remove(w.path))
	}
	must.OK(t, stdin.Close())
	must.OK(t, node.Wait())
	if winners["node taken, go false"]+winners["node busy, go true"] != 300 {
		t.Errorf("%v; want one winner in each of 300 rounds", winners)
	}
}
