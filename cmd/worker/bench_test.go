package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"taskguard/emulator/firestore"
	"taskguard/internal/testing/emulatortest"
	"taskguard/repo"
)

// shipped is the limit that the runtime takes from a container of 512 MiB.
const shipped = "GOMEMLIMIT=460MiB"

// BenchmarkPeakMemory reports the most memory that a worker has had resident, without
// a limit on it and with the one that is shipped.
func BenchmarkPeakMemory(b *testing.B) {
	text := map[string]any{"name": "a.txt", "text": strings.Repeat("words of text. ", 1_000_000/15)}
	for _, c := range []struct {
		name  string
		n     int
		input any
		// output is the analyzer's, once n runs have their input.
		output string
		aim    float64 // MB
		env    string
	}{
		{"10-texts-of-1-MB", 10, text, `"read"`, 120, ""},
		{"10-inputs-of-1040000-booleans", 10, hostileInput(1_040_000), `"read"`, 400, ""},
		{"10-inputs-of-1040000-booleans-in-512-MiB", 10, hostileInput(1_040_000), `"read"`, 400, shipped},
		{"10-results-of-1040000-booleans", 10, "small", "[" + strings.Repeat("true,", 1_039_999) + "true]", 600, ""},
		{"10-results-of-1040000-booleans-in-512-MiB", 10, "small", "[" + strings.Repeat("true,", 1_039_999) + "true]", 500, shipped},
		{"10-results-of-130000-integers", 10, "small", "[" + strings.Repeat("7,", 129_999) + "7]", 400, ""},
	} {
		b.Run(c.name, func(b *testing.B) {
			if b.N > 1 {
				b.Skip("it is measured once")
			}
			w := newCloud(b)
			var in, out sync.WaitGroup
			in.Add(c.n)
			analyzer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				in.Done()
				in.Wait() // all are running, and end at once
				_, _ = io.WriteString(w, c.output)
			}))
			defer analyzer.Close()
			p := w.start(b, "ANALYZER="+analyzer.URL, c.env)
			for i := range c.n {
				id := strconv.Itoa(i)
				if err := w.analyses.Create(b.Context(), id, c.input, repo.CreateOptions{}); err != nil {
					b.Fatal(err)
				}
				out.Go(func() {
					if code, body, err := p.deliver(b.Context(), id); code != http.StatusOK {
						b.Errorf("%s: %d %s %v", id, code, body, err)
					}
				})
			}
			out.Wait()
			b.ReportMetric(0, "ns/op")
			got := float64(peakMemory(b, p)) / mib
			b.ReportMetric(got, "MB-peak")
			if got > 10*c.aim { // machines are noisy, regressions are not
				b.Errorf("%.0f MB, more than ten times the aim of %.0f", got, c.aim)
			}
		})
	}
}

const (
	mib = 1 << 20
	// hostile is the number of values of a hostile input: a quarter of what a document
	// can hold, so that the tests are fast.
	hostile = 260_000
	// tooLittle is more than an idle worker takes, which is 23 MiB, and less than it
	// takes to encode one hostile input as JSON.
	tooLittle = 36 * mib
	// mostAttempts is MAX_ATTEMPTS here.
	mostAttempts = 2
	// ttlInTests is LOCK_TTL here: longer than any delay of a slow machine. The
	// store's clock is what passes it.
	ttlInTests = time.Minute
)

// hostileInput returns an input of n values, each of which takes about 100 bytes when it
// is decoded. A document of 1 MiB can hold 1,040,000 of them: more than 100 MiB.
func hostileInput(n int) map[string]any {
	a := make([]any, n)
	for i := range a {
		a[i] = true
	}
	return map[string]any{"a": a}
}

// peakMemory returns the most memory in bytes that a process has had resident.
func peakMemory(t testing.TB, p *process) int64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		t.Error(err)
		return 0
	}
	_, rest, _ := bytes.Cut(status, []byte("VmHWM:"))
	kb, err := strconv.ParseInt(string(bytes.Fields(rest)[0]), 10, 64)
	if err != nil {
		t.Error(err)
	}
	return kb << 10
}

// small is a cloud whose clock can be advanced, with one worker of limited memory at a
// time, which the test kills as a kernel would.
type small struct {
	*cloud
	ahead    atomic.Int64 // of the store's clock, a time.Duration
	analyzer *httptest.Server
	worker   *process
	limit    int64
	killed   atomic.Bool
}

func newSmall(t *testing.T) *small {
	t.Helper()
	if _, err := os.Stat("/proc/self/status"); err != nil {
		t.Skip("this system has no /proc, which shows the memory of a process")
	}
	w := &small{}
	s := firestore.NewServer(firestore.Options{Now: func() time.Time { return time.Now().Add(time.Duration(w.ahead.Load())) }})
	t.Cleanup(s.Close)
	w.cloud = newCloudOn(t, &emulatortest.Backend{Project: emulatortest.Project(), Server: s, Calls: &emulatortest.Calls{}})
	// It only reads its input, so that the worker needs memory only to send that. A worker that has
	// needed more than its limit by then is killed, as a kernel would have done at that moment.
	w.analyzer = httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if !w.killed.Load() && peakMemory(t, w.worker) > w.limit && !w.killed.Swap(true) {
			_ = w.worker.cmd.Process.Kill()
		}
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
		t.Skip("slow: 8 s")
	}
	info, _ := debug.ReadBuildInfo()
	if slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		t.Skip("the race detector multiplies the memory of a worker")
	}
}

// start starts a worker of limit bytes, which its runtime has as from a cgroup.
func (w *small) start(t testing.TB, limit int64) {
	t.Helper()
	w.killed.Store(false)
	w.limit, w.worker = limit, w.cloud.start(t, "ANALYZER="+w.analyzer.URL, "LOCK_TTL="+ttlInTests.String(),
		fmt.Sprint("MAX_ATTEMPTS=", mostAttempts), fmt.Sprintf("GOMEMLIMIT=%d", limit/10*9))
}

// expire waits for the end of the worker, and lets its locks expire.
func (w *small) expire(t testing.TB) {
	t.Helper()
	w.worker.wait(t)
	w.ahead.Add(int64(ttlInTests + time.Second))
}
