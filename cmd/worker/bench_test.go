package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
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
			got := float64(peakMemory(b, p)) / mib
			b.ReportMetric(got, "MB-peak")
			if got > 10*c.aim { // machines are noisy, regressions are not
				b.Errorf("%.0f MB, more than ten times the aim of %.0f", got, c.aim)
			}
		})
	}
}
