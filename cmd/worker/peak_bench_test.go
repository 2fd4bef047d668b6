package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"taskguard/lease/analysislock"
	"testing"
	"time"
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
		say   string  // the analyzer's answer, when n runs have their input
		aim   float64 // MB
		env   string
	}{
		{"10-texts-of-1-MB", 10, text, `"read"`, 120, ""},
		{"10-inputs-of-1040000-booleans", 10, hostileInput(), `"read"`, 400, ""},
		{"10-inputs-of-1040000-booleans-in-512-MiB", 10, hostileInput(), `"read"`, 400, shipped},
		{"10-results-of-1040000-booleans", 10, "small", "[" + strings.Repeat("true,", 1_039_999) + "true]", 600, ""},
		{"10-results-of-1040000-booleans-in-512-MiB", 10, "small", "[" + strings.Repeat("true,", 1_039_999) + "true]", 500, shipped},
		{"10-results-of-130000-integers", 10, "small", "[" + strings.Repeat("7,", 129_999) + "7]", 400, ""},
	} {
		b.Run(c.name, func(b *testing.B) {
			once(b, func() {
				w := newCloud(b)
				ids := w.fill(b, c.n, c.input)
				var in sync.WaitGroup
				in.Add(c.n)
				analyzer := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
					_, _ = io.Copy(io.Discard, r.Body)
					in.Done()
					in.Wait() // all are under way, and end at once
					_, _ = io.WriteString(out, c.say)
				}))
				defer analyzer.Close()
				p := w.start(b, "ANALYZER="+analyzer.URL, c.env)
				p.crowd(b, ids)
				w.checkAllReady(b, ids)
				within(b, "MB-peak", float64(peakMemory(b, p.cmd.Process.Pid))/mib, c.aim)
			})
		})
	}
}

// BenchmarkPeakMemoryOfACrowd delivers 1,000 documents of 1 MB at once, to a
// worker that takes 100: the others are told that it is busy, and come again.
func BenchmarkPeakMemoryOfACrowd(b *testing.B) {
	once(b, func() {
		const n, most = 1000, 100
		w := newCloud(b)
		ids := w.fill(b, n, map[string]any{"name": "a.txt", "text": strings.Repeat("words of text. ", 1_000_000/15)})
		var now, peak atomic.Int64
		analyzer := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
			running := now.Add(1)
			defer now.Add(-1)
			for p := peak.Load(); running > p && !peak.CompareAndSwap(p, running); p = peak.Load() {
			}
			_, _ = io.Copy(io.Discard, r.Body)
			time.Sleep(100 * time.Millisecond)
			_, _ = io.WriteString(out, `"read"`)
		}))
		defer analyzer.Close()
		p := w.start(b, "ANALYZER="+analyzer.URL)
		began := time.Now()
		busy := p.crowd(b, ids)
		memory := float64(peakMemory(b, p.cmd.Process.Pid)) / mib
		b.Logf("%.0f MB, %d runs at once, %d answers busy, %v", memory, peak.Load(), busy, time.Since(began).Round(time.Second))
		b.ReportMetric(float64(busy), "busy-answers")
		b.ReportMetric(float64(peak.Load()), "runs-at-once")
		if peak.Load() > most {
			b.Errorf("%d runs at once, want %d at most", peak.Load(), most)
		}
		if busy < n-most {
			b.Errorf("%d deliveries were answered busy, want %d at least", busy, n-most)
		}
		w.checkAllReady(b, ids)
		within(b, "MB-peak", memory, 600)
	})
}

// once measures a single time, however many iterations are asked for.
func once(b *testing.B, measure func()) {
	b.Helper()
	for first := true; b.Loop(); first = false {
		if first {
			measure()
		}
	}
	b.ReportMetric(0, "ns/op")
}

// fill creates n analyses of input.
func (c *cloud) fill(b *testing.B, n int, input any) []string {
	b.Helper()
	ids := make([]string, n)
	for i := range ids {
		ids[i] = strconv.Itoa(i)
		if err := c.analyses.Create(b.Context(), ids[i], input); err != nil {
			b.Fatal(err)
		}
	}
	return ids
}

func (c *cloud) checkAllReady(b *testing.B, ids []string) {
	b.Helper()
	list, err := c.analyses.List(b.Context(), len(ids)+1)
	if err != nil {
		b.Fatal(err)
	}
	for i := range list {
		if a := &list[i]; a.Status != analysislock.Ready || a.Attempts != 1 {
			b.Errorf("%s: %s after %d attempts, %v", a.ID, a.Status, a.Attempts, a.Error)
		}
	}
	if len(list) != len(ids) {
		b.Errorf("%d analyses, want %d", len(list), len(ids))
	}
}

// crowd delivers the tasks of ids at once, each until it is acknowledged, and
// answers how often it was told to come again because the worker is busy. No
// other answer is right.
func (p *process) crowd(b *testing.B, ids []string) (busy int64) {
	b.Helper()
	var told atomic.Int64
	var done sync.WaitGroup
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: len(ids)}}
	defer client.CloseIdleConnections()
	for _, id := range ids {
		done.Go(func() {
			for {
				code, after, body, err := p.try(b.Context(), client, id)
				switch {
				case err == nil && code == http.StatusOK:
					return
				case err == nil && code == http.StatusConflict && strings.Contains(body, `"reason":"busy"`) && after >= 1:
					told.Add(1)
					// Sooner than it asks for: nobody else is served meanwhile.
					time.Sleep(time.Duration((0.5 + rand.Float64()) * float64(min(after, 2)) * float64(time.Second)))
				default:
					b.Errorf("%s: answered %d %s, Retry-After %d, %v", id, code, body, after, err)
					return
				}
			}
		})
	}
	done.Wait()
	return told.Load()
}

func (p *process) try(ctx context.Context, client *http.Client, id string) (code, retryAfter int, body string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url+"/internal/tasks/analysis", strings.NewReader(fmt.Sprintf(`{"analysis_id":%q}`, id)))
	if err != nil {
		return 0, 0, "", err
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, 0, "", err
	}
	defer resp.Body.Close()
	said, err := io.ReadAll(resp.Body)
	retryAfter, _ = strconv.Atoi(resp.Header.Get("Retry-After"))
	return resp.StatusCode, retryAfter, string(said), err
}
