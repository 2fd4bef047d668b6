package chaos

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"taskguard/emulator/google"
	"taskguard/internal/testing/emulatortest"
)

// system is a Firestore behind a proxy, and an analyzer.
type system struct {
	docs     *emulatortest.Backend // without the proxy, as another program
	proxy    *proxy
	analyzer *analyzer
	journal  string // file name
	queue    *queue
	workers  atomic.Int64 // started so far
}

func newSystem(t testing.TB, host string, a *analyzer) *system {
	t.Helper()
	return &system{docs: emulatortest.At(host), proxy: newProxy(t, host), analyzer: a, journal: filepath.Join(t.TempDir(), "journal")}
}

// newFirestore starts a Firestore in a process of its own, Google's emulator
// where the chaos is in full.
func newFirestore(t testing.TB, full bool) (host string, signal func(syscall.Signal) error) {
	t.Helper()
	if !full {
		p, err := start("firestore")
		check(t, err)
		t.Cleanup(p.end)
		return p.address, p.signal
	}
	e, err := google.Start(t.Context(), "512m")
	if errors.Is(err, google.ErrNotFound) && !emulatortest.Required() {
		t.Skipf("CHAOS needs Google's emulator: %v", err)
	}
	check(t, err)
	t.Cleanup(func() {
		if err := e.Stop(); err != nil {
			t.Error(err)
		}
	})
	child, err := listener(t.Context(), e.Host())
	check(t, err)
	return e.Host(), func(s syscall.Signal) error { return syscall.Kill(child, s) }
}

// listener returns the child process that listens on host.
func listener(ctx context.Context, host string) (pid int, err error) {
	_, port, err := net.SplitHostPort(host)
	if err != nil {
		return 0, err
	}
	out, err := exec.CommandContext(ctx, "ps", "-A", "-o", "pid=,ppid=,args=").Output()
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(out)) {
		words := strings.Fields(line)
		if len(words) > 2 && words[1] == strconv.Itoa(os.Getpid()) && words[len(words)-1] == "--port="+port {
			return strconv.Atoi(words[0])
		}
	}
	return 0, fmt.Errorf("no child of this process listens at %s", host)
}

// startWorker starts the next worker, with an address of its own at each proxy.
func (s *system) startWorker(env ...string) (number int, p *process, err error) {
	number = int(s.workers.Add(1))
	host, err := s.proxy.listen(number)
	tasks, noTasks := s.queue.proxy.listen(number)
	if err = errors.Join(err, noTasks); err != nil {
		return 0, nil, err
	}
	all := []string{
		"PORT=0", "TASK_AUTH=none", "GOOGLE_CLOUD_PROJECT=" + s.docs.Project, "FIRESTORE_EMULATOR_HOST=" + host,
		"TASK_QUEUE=" + s.queue.name, "TASK_TARGET_URL=http://worker.test", "CLOUD_TASKS_EMULATOR_HOST=" + tasks,
		fmt.Sprintf("ANALYZER=exec:env %s=analyzer %s %s/%d %s", role, os.Args[0], s.analyzer.URL, number, s.journal),
	}
	p, err = start("worker", append(all, env...)...)
	return number, p, err
}

// create creates an analysis.
func (s *system) create(t testing.TB, id string) {
	t.Helper()
	now := time.Now().UTC().Format("2006-01-02T15:04:05.000Z")
	s.docs.Put(t, id, map[string]any{"status": "QUEUED", "attempts": 0, "createdAt": now, "updatedAt": now})
}
