package operator_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/internal/testing/examplestest"
	"taskguard/lease"
	"taskguard/locks/operator"
)

// makeLock makes FILE.lock as a Node program does, at that age.
func (w *fixture) makeLock(age time.Duration) {
	w.Helper()
	at := time.Now().Add(-age)
	check(w, errors.Join(os.Mkdir(w.path+".lock", 0o700), os.Chtimes(w.path+".lock", at, at)))
}

// wantLock fails unless FILE.lock exists, or does not.
func (w *fixture) wantLock(want bool) {
	w.Helper()
	if _, err := os.Lstat(w.path + ".lock"); (err == nil) != want {
		w.Errorf("%s.lock: %v; want it to exist: %t", w.path, err, want)
	}
}

func TestTheLockOfANodeProgramIsWaitedFor(t *testing.T) { // O5, O8
	w := newFixture(t)
	synctest.Test(t, func(t *testing.T) {
		w.makeLock(0)
		began := time.Now()
		_, err := w.pool("A").Assign(context.Background(), "kana")
		if !errors.Is(err, lease.ErrUnavailable) || !strings.Contains(err.Error(), "another program holds "+w.path+".lock") {
			t.Errorf("err = %v; want one that names the lock", err)
		}
		if waited := time.Since(began); waited != 2*time.Second {
			t.Errorf("waited %v; want 2 s", waited)
		}
		w.wantLock(true)

		go func() {
			time.Sleep(time.Second)
			check(t, os.Remove(w.path+".lock"))
		}()
		must(w.pool("A").Assign(context.Background(), "kana"))(t)
		w.wantLock(false)
	})
}

// A lock that its holder has not refreshed for 10 s is stale; so is, 10 s after it was first seen, one
// that a clock has dated an hour ahead.
func TestTheLockOfADeadNodeProgramIsRemoved(t *testing.T) { // O8
	for name, age := range map[string]time.Duration{"refreshed 10 s ago": 10 * time.Second, "dated ahead": -time.Hour} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t)
			synctest.Test(t, func(t *testing.T) {
				w.makeLock(age)
				if age < 0 {
					_, err := w.pool("A").Assign(context.Background(), "kana")
					if !errors.Is(err, lease.ErrUnavailable) {
						t.Errorf("at first: %v; want ErrUnavailable", err)
					}
					time.Sleep(8 * time.Second)
				}
				time.Sleep(time.Millisecond)
				must(w.pool("A").Assign(context.Background(), "kana"))(t)
				w.wantLock(false)
			})
		})
	}
}

// What is not an empty directory is no lock of proper-lockfile: it stays.
func TestAFileInThePlaceOfTheLockStays(t *testing.T) { // O8
	w := newFixture(t)
	old := time.Now().Add(-time.Hour)
	check(t, errors.Join(os.WriteFile(w.path+".lock", nil, 0o600), os.Chtimes(w.path+".lock", old, old)))
	if _, err := w.pool("A").Assign(t.Context(), "kana"); !errors.Is(err, syscall.ENOTDIR) || !errors.Is(err, lease.ErrRefused) {
		t.Errorf("err = %v; want a refusal", err)
	}
	w.wantLock(true)
}

// A process that stood still finds the lock of another in the place of its own.
func TestOnlyTheOwnLockIsRemoved(t *testing.T) { // O8
	w := newFixture(t)
	store := must(operator.Open(w.path))(t)
	store.Now = func() time.Time { // is called during the write
		if os.Remove(w.path+".lock") == nil {
			w.makeLock(time.Second)
		}
		return time.Now()
	}
	_, err := must(operator.New(store, w.path, "A", six, operator.Options{}))(t).Assign(t.Context(), "kana")
	check(t, err)
	w.wantLock(true)
}

// Two programs have found the same stale lock. The first one has removed it, and made its own, before the
// second one removes what it has found; or its owner, which stood still, has refreshed it.
func TestALockThatWasMadeOrRefreshedSinceALookStays(t *testing.T) { // O8
	for name, meanwhile := range map[string]func(w *fixture){
		"made":      func(w *fixture) { check(w, os.Remove(w.path+".lock")); w.makeLock(0) },
		"refreshed": func(w *fixture) { check(w, os.Chtimes(w.path+".lock", time.Now(), time.Now())) },
		"full":      func(w *fixture) { check(w, os.WriteFile(w.path+".lock/x", nil, 0o600)) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t)
			w.makeLock(time.Hour)
			stale := must(os.Lstat(w.path + ".lock"))(t)
			meanwhile(w)
			now := must(os.Lstat(w.path + ".lock"))(t)
			err := operator.RemoveFound(w.path+".lock", stale)
			if after, lost := os.Lstat(w.path + ".lock"); lost != nil || !os.SameFile(now, after) {
				t.Errorf("%v: the lock is lost: %v", err, lost)
			}
			if entries := must(os.ReadDir(filepath.Dir(w.path)))(t); len(entries) != 1 {
				t.Errorf("the folder has %v, want the lock alone", entries)
			}
		})
	}
}

// A second program has removed the stale lock that the first one found, and made its own. A third one wants
// it, and does not get it while the first one looks again.
func TestTheNameOfAnothersLockIsNeverFree(t *testing.T) { // O8
	w := newFixture(t)
	w.makeLock(time.Hour)
	stale := must(os.Lstat(w.path + ".lock"))(t)
	check(t, os.Remove(w.path+".lock"))
	w.makeLock(0)
	ctx, stop := context.WithCancel(t.Context())
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
	if stop(); <-third > 0 {
		t.Error("the third program got the lock")
	}
}

// A program that removes a stale lock has the flock of its directory. If it dies, the next one goes on.
func TestOneProgramAtATimeRemovesAStaleLock(t *testing.T) { // O8
	w := newFixture(t)
	synctest.Test(t, func(t *testing.T) {
		w.makeLock(0)
		check(t, os.Mkdir(w.path+".lock/claim", 0o700))
		lock := must(os.Open(w.path + ".lock"))(t)
		check(t, syscall.Flock(int(lock.Fd()), syscall.LOCK_EX))
		stale := time.Now().Add(-11 * time.Second)
		check(t, os.Chtimes(w.path+".lock", stale, stale))

		_, err := w.pool("A").Assign(context.Background(), "kana")
		if !errors.Is(err, lease.ErrUnavailable) {
			t.Errorf("while another removes it: %v; want ErrUnavailable", err)
		}
		w.wantLock(true)
		check(t, lock.Close())
		must(w.pool("A").Assign(context.Background(), "kana"))(t)
		w.wantLock(false)
	})
}

// In 300 rounds a Node program with proper-lockfile and this package want the same operator at once. In every
// second one they also find the lock of a dead program.
func TestANodeProgramAndAPoolNeverHaveOneOperator(t *testing.T) { // O1, O5
	paths := examplestest.Find(t, "NODE", "node", "npm")
	w := newFixture(t)
	modules := examplestest.Modules(t, paths[1], "testdata")
	dir := t.TempDir()
	examplestest.Copy(t, dir, "testdata/session.mjs")
	check(t, os.Symlink(modules, dir+"/node_modules"))
	node := exec.CommandContext(t.Context(), paths[0], dir+"/session.mjs", w.path, "node")
	node.Stderr = t.Output()
	stdin, stdout := must(node.StdinPipe())(t), must(node.StdoutPipe())(t)
	check(t, node.Start())
	answers := bufio.NewScanner(stdout)

	winners := map[string]int{}
	for round := range 300 {
		if round%2 == 1 {
			w.makeLock(11 * time.Second)
		}
		_, err := fmt.Fprintln(stdin, "kana")
		check(t, err)
		_, err = must(operator.New(must(operator.Open(w.path))(t), w.path, "go", six, operator.Options{}))(t).Assign(t.Context(), "kana")
		if busy := new(operator.BusyError); err != nil && !errors.As(err, &busy) {
			t.Fatal(err)
		}
		answers.Scan()
		winners[fmt.Sprintf("node %s, go %t", answers.Text(), err == nil)]++
		check(t, os.Remove(w.path))
	}
	check(t, stdin.Close())
	check(t, node.Wait())
	if winners["node taken, go false"]+winners["node busy, go true"] != 300 {
		t.Errorf("%v; want one winner in each of 300 rounds", winners)
	}
}
