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
	"taskguard/internal/testing/must"
	"taskguard/lease/analysislock"
	"taskguard/repo"
)

// shipped is the limit that the runtime takes from a container of 512 MiB.
const shipped = "GOMEMLIMIT=460MiB"

// BenchmarkPeakMemory reports the most memory that a worker has had resident, without
// a limit on it and with the one that is shipped.
func BenchmarkPeakMemory(b *testing.B) {
	text := map[string]any{"name": "a.txt", "text": strings.Repeat("words of text. ", 1_000_000/15)}
	booleans, many := hostileInput(1_040_000), "["+strings.Repeat("true,", 1_039_999)+"true]"
	integers := "[" + strings.Repeat("7,", 129_999) + "7]"
	const runs = 10
	for _, c := range []struct {
		name   string
		input  any
		output string  // of the analyzer, once all runs have their input
		aim    float64 // MB
		env    string
	}{
		{"10-texts-of-1-MB", text, `"read"`, 120, ""},
		{"10-inputs-of-1040000-booleans", booleans, `"read"`, 400, ""},
		{"10-inputs-of-1040000-booleans-in-512-MiB", booleans, `"read"`, 400, shipped},
		{"10-results-of-1040000-booleans", "small", many, 600, ""},
		{"10-results-of-1040000-booleans-in-512-MiB", "small", many, 500, shipped},
		{"10-results-of-130000-integers", "small", integers, 400, ""},
	} {
		b.Run(c.name, func(b *testing.B) {
			if b.N > 1 {
				b.Skip("it is measured once")
			}
			w := newCloud(b)
			var in, out sync.WaitGroup
			in.Add(runs)
			analyzer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				in.Done()
				in.Wait() // all are running, and end at once
				_, _ = io.WriteString(w, c.output)
			}))
			defer analyzer.Close()
			p := w.start(b, "ANALYZER="+analyzer.URL, c.env)
			for i := range runs {
				id := strconv.Itoa(i)
				must.OK(b, w.analyses.Create(b.Context(), id, c.input, repo.CreateOptions{}))
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

const mib = 1 << 20

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

// Each crash that an input causes is counted before the input is decoded. The analyzer only reads it, so that
// the worker needs memory only to send that. A worker that has needed more by then is killed, as a kernel
// would have done at that moment.
func TestWorker_DeathsByInput(t *testing.T) {
	if testing.Short() {
		t.Skip("slow: 8 s")
	}
	info, _ := debug.ReadBuildInfo()
	if slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		t.Skip("the race detector multiplies the memory of a worker")
	}
	if _, err := os.Stat("/proc/self/status"); err != nil {
		t.Skip("this system has no /proc, which shows the memory of a process")
	}
	const (
		values      = 260_000     // a quarter of what a document can hold, so that the test is fast
		tooLittle   = 36 * mib    // more than an idle worker takes, 23 MiB, and less than the input takes as JSON
		maxAttempts = 2           // MAX_ATTEMPTS
		ttl         = time.Minute // longer than any delay of a slow machine: the store's clock passes it
	)
	var ahead atomic.Int64 // of the store's clock, a time.Duration
	now := func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	s := firestore.NewServer(firestore.Options{Now: now})
	t.Cleanup(s.Close)
	c := newCloudOn(t, &emulatortest.Backend{Project: emulatortest.Project(), Server: s, Calls: &emulatortest.Calls{}})
	var worker *process
	analyzer := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if peakMemory(t, worker) > tooLittle {
			_ = worker.cmd.Process.Kill()
		}
		_, _ = io.WriteString(out, `"read"`)
	}))
	t.Cleanup(analyzer.Close)
	deliver := func() (int, string, error) {
		worker = c.start(t, "ANALYZER="+analyzer.URL, "LOCK_TTL="+ttl.String(),
			fmt.Sprint("MAX_ATTEMPTS=", maxAttempts), fmt.Sprintf("GOMEMLIMIT=%d", tooLittle/10*9))
		return worker.deliver(t.Context(), "x")
	}

	must.OK(t, c.analyses.Create(t.Context(), "x", hostileInput(values), repo.CreateOptions{}))
	for attempt := 1; attempt <= maxAttempts; attempt++ {
		if code, _, _ := deliver(); code != 0 {
			t.Fatalf("attempt %d: the worker survives with %d MiB: %d", attempt, tooLittle/mib, code)
		}
		worker.wait(t)
		ahead.Add(int64(ttl + time.Second))
		a := c.get(t, "x")
		if a.Attempts != attempt {
			t.Fatalf("%d attempts after death %d", a.Attempts, attempt)
		}
		if a.Lock.Owner == "" || a.Status != analysislock.Processing {
			t.Fatalf("after death %d: owner %q, %s", attempt, a.Lock.Owner, a.Status)
		}
	}
	if code, body, err := deliver(); code != http.StatusOK {
		t.Errorf("the delivery after the last attempt: %d %s %v", code, body, err)
	}
	a := c.get(t, "x")
	if a.Error == nil || a.Error.Code != analysislock.AttemptsExhausted {
		t.Fatalf("error %+v, want %s", a.Error, analysislock.AttemptsExhausted)
	}
	if a.Status != analysislock.Failed || a.Attempts != maxAttempts {
		t.Errorf("%s after %d attempts; want FAILED after %d", a.Status, a.Attempts, maxAttempts)
	}
	if a.Lock.Owner != "" {
		t.Errorf("%s keeps the lock", a.Lock.Owner)
	}
}
