package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
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

// resident is the memory of a process in MB, where the system tells it.
func resident(b *testing.B, pid int) float64 {
	b.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		b.Skip("no /proc on this system")
	}
	_, rest, _ := strings.Cut(string(status), "VmRSS:")
	kb, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		b.Fatal(err)
	}
	return float64(kb) / 1024
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
			within(b, "idle-MB", resident(b, p.cmd.Process.Pid), 40)
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
		within(b, "MB-at-1000-runs", resident(b, p.cmd.Process.Pid), 150)
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
