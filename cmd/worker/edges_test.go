package main

import (
	"encoding/json"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

func TestTheContainersMemoryLimitIsTheRuntimesUnlessOneIsSet(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	contained := int64(math.MaxInt64) // none
	if limit, err := memlimit.FromCgroup(); err == nil {
		contained = int64(float64(limit) * 0.9)
	}
	for env, want := range map[string]int64{"LOG_LEVEL=info": contained, "GOMEMLIMIT=100MiB": 100 << 20} {
		var line struct {
			Limit int64 `json:"memory_limit"`
		}
		if err := json.Unmarshal([]byte(c.start(t, env).config), &line); err != nil || line.Limit != want {
			t.Errorf("%s: a limit of %d bytes, want %d (%v)", env, line.Limit, want, err)
		}
	}
}

func TestMaxRunsIsHowManyDeliveriesAWorkerTakes(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	analyzer := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // only then is the end of the caller noticed
		if r.Header.Get("Idempotency-Key") == "x" {
			<-r.Context().Done()
		}
	}))
	t.Cleanup(analyzer.Close)
	p := c.start(t, "MAX_RUNS=1", "ANALYZER="+analyzer.URL)
	c.create(t, "x")
	c.create(t, "y")
	_ = p.delivered(t, "x")
	c.until(t, "x", "running", running)
	code, body, err := p.deliver(t.Context(), "y")
	if err != nil || code != 409 || !strings.Contains(body, `"reason":"busy"`) {
		t.Errorf("%d %s %v, want 409 busy", code, body, err)
	}
	if a := c.get(t, "y"); a.Lock.Token != 0 {
		t.Errorf("y was acquired: %+v", a)
	}
}

func TestAnalyzerOutputSaysWhetherTextIsAResult(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	const half = `{"a":1,`
	for mode, want := range map[string]int{"any": 200, "json": 500} {
		c.create(t, mode)
		code, body, err := c.start(t, "ANALYZER_OUTPUT="+mode, "ANALYZER=exec:echo "+half).deliver(t.Context(), mode)
		if err != nil || code != want || strings.Contains(body, half) {
			t.Errorf("%s: %d %s %v, want %d", mode, code, body, err, want)
		}
	}
	if got := c.get(t, "any").Result; got != half {
		t.Errorf("result = %v, want the text", got)
	}
	if e := c.get(t, "json").LastError; e == nil || e.Code != "invalid_output" || e.Message != "orchestrator: the output is not JSON: parsing stopped after 8 of 8 bytes" {
		t.Errorf("lastError = %+v", e)
	}
}
