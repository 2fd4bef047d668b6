package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// within fails at ten times the aim: machines are noisy, regressions are not.
func within(b *testing.B, what string, got, aim float64) {
	b.Helper()
	b.ReportMetric(got, what)
	if got > 10*aim {
		b.Errorf("%s = %.0f, more than ten times the aim of %.0f", what, got, aim)
	}
}

func BenchmarkColdStart(b *testing.B) {
	c := newCloud(b)
	var spent time.Duration
	for i := range b.N {
		id := fmt.Sprint(i)
		c.create(b, id)
		began := time.Now()
		p := c.start(b)
		if code, body, err := p.deliver(b.Context(), id); err != nil || code != 200 {
			b.Fatalf("%d %s %v", code, body, err)
		}
		spent += time.Since(began)
		if i == 0 {
			within(b, "idle-MB", float64(memory(b, p.cmd.Process.Pid, "VmRSS"))/mib, 40)
		}
		_ = p.cmd.Process.Kill()
	}
	b.ReportMetric(0, "ns/op")
	within(b, "ms-to-first-answer", float64(spent.Milliseconds())/float64(b.N), 150)
}

// BenchmarkRunsInFlight holds 1,000 runs, each with its heartbeats, in one
// worker, until every lock has been renewed.
func BenchmarkRunsInFlight(b *testing.B) {
	const n = 1000
	c := newCloud(b)
	for round := range b.N {
		finish := make(chan struct{})
		var in sync.WaitGroup
		in.Add(n)
		analyzer := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			in.Done()
			<-finish
		}))
		p := c.start(b, "MAX_RUNS=1000", "ANALYZER="+analyzer.URL, "LOCK_TTL=20s", "LOCK_HEARTBEAT=2s")
		var out sync.WaitGroup
		codes := make([]int, n)
		for i := range n {
			id := fmt.Sprintf("%d-%d-%d", b.N, round, i)
			c.create(b, id)
			out.Go(func() { codes[i], _, _ = p.deliver(context.WithoutCancel(b.Context()), id) })
		}
		in.Wait()
		writes := c.Server.Usage().Writes
		for c.Server.Usage().Writes < writes+2*n {
			time.Sleep(100 * time.Millisecond)
		}
		within(b, "MB-at-1000-runs", float64(memory(b, p.cmd.Process.Pid, "VmRSS"))/mib, 150)
		close(finish)
		out.Wait()
		analyzer.Close()
		for i, code := range codes {
			if code != 200 {
				b.Errorf("run %d answered %d", i, code)
			}
		}
		_ = p.cmd.Process.Kill()
	}
	b.ReportMetric(0, "ns/op")
}

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
				if err := w.analyses.Create(b.Context(), id, c.input); err != nil {
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
			within(b, "MB-peak", float64(memory(b, p.cmd.Process.Pid, peak))/mib, c.aim)
		})
	}
}
