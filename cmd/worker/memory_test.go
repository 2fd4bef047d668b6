package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"taskguard/emulator/emulatortest"
	"taskguard/emulator/firestore"
)

const (
	mib  = 1 << 20
	peak = "VmHWM" // the most that a process has had resident
	// enough is the memory of a small container. Four hostile documents at once must
	// fit, as they did not when each was decoded whole, all at once.
	enough = 384 * mib
	// tooLittle is more than an idle worker takes, which is 23 MiB, and less than it
	// takes to encode one hostile input as JSON.
	tooLittle = 64 * mib
	// mostAttempts is MAX_ATTEMPTS here.
	mostAttempts = 2
	// ttlInTests is LOCK_TTL here: longer than any delay of a slow machine. The
	// store's clock is what passes it.
	ttlInTests = time.Minute
)

// hostileInput is as many values as a document of 1 MiB can hold: 4 MiB on the
// wire, and more than 100 MiB when it is decoded.
func hostileInput() map[string]any {
	a := make([]any, 1_040_000)
	for i := range a {
		a[i] = true
	}
	return map[string]any{"a": a}
}

// memory returns a field of the kernel's status of a process, in bytes; 0 once it has
// ended.
func memory(t testing.TB, pid int, field string) int64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if errors.Is(err, fs.ErrNotExist) {
		return 0
	}
	if err != nil {
		t.Error(err)
	}
	_, rest, found := bytes.Cut(status, []byte(field+":"))
	if !found {
		return 0
	}
	kb, err := strconv.ParseInt(string(bytes.Fields(rest)[0]), 10, 64)
	if err != nil {
		t.Error(err)
	}
	return kb << 10
}

// container is a worker whose memory is limited: the test is the kernel that
// kills it.
type container struct {
	*process
	t      testing.TB
	limit  int64
	killed atomic.Bool
	ended  chan struct{}
	looks  sync.WaitGroup
}

// contain starts a worker and looks at its memory every millisecond. The runtime
// knows the limit, as from a cgroup.
func (c *cloud) contain(t testing.TB, limit int64, env ...string) *container {
	t.Helper()
	p := c.start(t, append(env, fmt.Sprintf("GOMEMLIMIT=%d", limit/10*9))...)
	k := &container{process: p, t: t, limit: limit, ended: make(chan struct{})}
	k.looks.Go(func() {
		for {
			select {
			case <-k.ended:
				return
			case <-time.After(time.Millisecond):
				k.look()
			}
		}
	})
	t.Cleanup(k.release)
	return k
}

// look kills the worker if it has ever had more memory than it may. A kernel
// would have killed it at that moment: where what it did since must not count,
// look is to be called before.
func (k *container) look() {
	if memory(k.t, k.cmd.Process.Pid, peak) > k.limit && !k.killed.Swap(true) {
		_ = k.cmd.Process.Kill()
	}
}

// release ends the looking. The process may be waited for after it, and not before.
func (k *container) release() {
	select {
	case <-k.ended:
	default:
		close(k.ended)
	}
	k.looks.Wait()
}

// small is a cloud whose clock can be advanced, with one worker of limited memory at a
// time.
type small struct {
	*cloud
	ahead    atomic.Int64 // of the store's clock, a time.Duration
	analyzer *httptest.Server
	worker   atomic.Pointer[container]
}

func newSmall(t *testing.T) *small {
	t.Helper()
	if _, err := os.Stat("/proc/self/status"); err != nil {
		t.Skip("no /proc on this system, which tells the memory of a process")
	}
	w := &small{}
	s := firestore.NewServer(firestore.Options{Now: func() time.Time { return time.Now().Add(time.Duration(w.ahead.Load())) }})
	t.Cleanup(s.Close)
	w.cloud = newCloudOn(t, &emulatortest.Backend{Project: emulatortest.Project(), Server: s, Calls: &emulatortest.Calls{}})
	// It reads its input, and needs no memory of the worker's but for sending it.
	w.analyzer = httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.worker.Load().look()
		_, _ = io.WriteString(out, `"read"`)
	}))
	t.Cleanup(w.analyzer.Close)
	return w
}

// slowWithoutRace skips a test with hostile inputs where there is little time, and
// where the race detector, which the worker then has too, multiplies its memory.
func slowWithoutRace(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("slow: 10 s")
	}
	info, _ := debug.ReadBuildInfo()
	if slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		t.Skip("the race detector multiplies the memory of a worker")
	}
}

// start starts a worker of limit bytes.
func (w *small) start(t testing.TB, limit int64, env ...string) {
	t.Helper()
	w.worker.Store(w.contain(t, limit, append([]string{
		"ANALYZER=" + w.analyzer.URL, "LOCK_TTL=" + ttlInTests.String(), fmt.Sprint("MAX_ATTEMPTS=", mostAttempts),
	}, env...)...))
}

// expire waits for the end of the worker, and lets its locks expire.
func (w *small) expire(t testing.TB) {
	t.Helper()
	k := w.worker.Load()
	k.release()
	k.wait(t)
	w.ahead.Add(int64(ttlInTests + time.Second))
}
