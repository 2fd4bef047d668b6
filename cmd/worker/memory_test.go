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
	"taskguard/lease/analysislock"
)

const (
	mib = 1 << 20
	// enough is the memory of a small container. Six hostile documents at once
	// must fit, as they did not when each was decoded whole, all at once.
	enough = 512 * mib
	// tooLittle is more than an idle worker takes, which is 23 MiB, and
	// less than it takes to turn one hostile input into JSON. A change that makes that
	// cheaper, so that a worker survives, has to lower it.
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

// peakMemory is the most memory that a process has had resident, in bytes; 0
// once it has ended.
func peakMemory(t testing.TB, pid int) int64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if errors.Is(err, fs.ErrNotExist) {
		return 0
	}
	if err != nil {
		t.Error(err)
	}
	_, rest, found := bytes.Cut(status, []byte("VmHWM:"))
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
	if peakMemory(k.t, k.cmd.Process.Pid) > k.limit && !k.killed.Swap(true) {
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

// ward is a cloud whose clock can be advanced, and the workers in it, one after
// another.
type ward struct {
	*cloud
	ahead    atomic.Int64 // of the store's clock, a time.Duration
	analyzer *httptest.Server
	worker   atomic.Pointer[container]
	deaths   int
	broken   map[string]int // deliveries of an analysis that a death broke off
}

func newWard(t *testing.T) *ward {
	t.Helper()
	if _, err := os.Stat("/proc/self/status"); err != nil {
		t.Skip("no /proc on this system, which tells the memory of a process")
	}
	w := &ward{broken: map[string]int{}}
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

func (w *ward) env(more ...string) []string {
	return append([]string{
		"ANALYZER=" + w.analyzer.URL, "LOCK_TTL=" + ttlInTests.String(), fmt.Sprint("MAX_ATTEMPTS=", mostAttempts),
	}, more...)
}

// start starts a worker of limit bytes.
func (w *ward) start(t testing.TB, limit int64, env ...string) {
	t.Helper()
	w.worker.Store(w.contain(t, limit, w.env(env...)...))
}

// bury notes that the worker has died, and lets its locks expire.
func (w *ward) bury(t testing.TB) {
	t.Helper()
	k := w.worker.Load()
	k.release()
	k.wait(t)
	w.deaths++
	w.ahead.Add(int64(ttlInTests + time.Second))
}

// all reads the analyses without their inputs, by id.
func (w *ward) all(t testing.TB) map[string]analysislock.Analysis {
	t.Helper()
	list, err := w.analyses.List(t.Context(), 1000)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]analysislock.Analysis{}
	for i := range list {
		all[list[i].ID] = list[i]
	}
	return all
}

// deliver delivers the tasks of ids at once, and answers which of them are not
// acknowledged.
func (w *ward) deliver(t testing.TB, ids []string) (left []string) {
	t.Helper()
	k := w.worker.Load()
	answers := make([]int, len(ids))
	var delivered sync.WaitGroup
	for i, id := range ids {
		delivered.Go(func() { answers[i], _, _ = k.deliver(t.Context(), id) })
	}
	delivered.Wait()
	for i, id := range ids {
		if answers[i] != http.StatusOK {
			left = append(left, id)
		}
		if answers[i] == 0 {
			w.broken[id]++
		}
	}
	return left
}

// fewRounds is more than a queue needs here: each death is one of at most twelve.
const fewRounds = 20

// deliverAll delivers as Cloud Tasks does until each task is acknowledged: what
// a death breaks off comes again to the next worker. The neighbours are delivered
// beside the others at first, and those that a death broke off come again when
// the others have ended, as they may by chance.
func (w *ward) deliverAll(t testing.TB, limit int64, ids, neighbours []string) {
	t.Helper()
	w.start(t, limit)
	round := slices.Concat(ids, neighbours)
	var waiting []string
	counted := 0
	for range fewRounds {
		left := w.deliver(t, round)
		if w.worker.Load().killed.Load() {
			w.bury(t)
			counted = w.checkDeath(t, ids, counted)
			w.start(t, limit)
		}
		round = nil
		for _, id := range left {
			if slices.Contains(neighbours, id) {
				waiting = append(waiting, id)
			} else {
				round = append(round, id)
			}
		}
		if len(round) == 0 {
			round, waiting = waiting, nil
		}
		if len(round) == 0 {
			return
		}
	}
	t.Errorf("after %d rounds and %d deaths these are still delivered: %v", fewRounds, w.deaths, round)
}

// checkDeath checks that the last death has been counted as an attempt of one of
// ids, which had counted so many before, and answers how many they have now.
func (w *ward) checkDeath(t testing.TB, ids []string, before int) (counted int) {
	t.Helper()
	all := w.all(t)
	for _, id := range ids {
		counted += all[id].Attempts
		if a := all[id]; a.Attempts > w.broken[id]+1 || a.Attempts > mostAttempts {
			t.Errorf("%s: %d attempts, and %d deliveries were broken off", id, a.Attempts, w.broken[id])
		}
	}
	if counted <= before {
		t.Fatalf("death %d: %d attempts are counted, as before it", w.deaths, counted)
	}
	return counted
}

// checkNeighbours: each is READY, and has spent an attempt more only on what was
// broken off.
func (w *ward) checkNeighbours(t testing.TB, neighbours []string) {
	t.Helper()
	all := w.all(t)
	for _, id := range neighbours {
		if a := all[id]; a.Status != analysislock.Ready || a.Attempts < 1 || a.Attempts > 1+w.broken[id] {
			t.Errorf("neighbour %s: %s after %d attempts, %d deliveries broken off; error %v", id, a.Status, a.Attempts, w.broken[id], a.Error)
		}
	}
}
