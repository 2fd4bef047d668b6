package local

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"sync"
	"time"

	"taskguard/cmd/internal/cli"
)

// delivery is one request to a worker, and its answer.
type delivery struct {
	worker     *process
	analysisID string
	status     int // 0: no answer
	answer     answer
}

// answer is the part of a worker's answer that local and demo read.
type answer struct {
	Acquired bool   `json:"acquired"`
	Result   string `json:"status"` // READY or FAILED
	Reason   string `json:"reason"` // of a skip or a failure
	Error    string `json:"error"`
	RetryAt  string `json:"retry_at"`
	Rejected bool   `json:"rejected"`
}

// String describes the delivery.
func (d *delivery) String() string {
	name := cmp.Or(d.analysisID, "a task without an analysis_id")
	if d.status == 0 {
		return fmt.Sprintf("%s: %v did not answer; the queue will try again", name, d.worker)
	}

	text := fmt.Sprintf("%s: %v answered %d %s", name, d.worker, d.status, cmp.Or(d.answer.Reason, d.answer.Result))
	if d.answer.Error != "" {
		text += ": " + cli.Shorten(d.answer.Error, 500)
	}
	if d.answer.RetryAt != "" {
		text += "; the next delivery is due at " + d.answer.RetryAt
	}
	if d.answer.Rejected {
		text += "; the task is deleted"
	}
	return text
}

// router is an http.Handler in front of worker processes. It sends each request to the next one
// that is not full. It also sends requests to a dead worker, as Cloud Run may: then the queue tries
// again.
type router struct {
	show    *cli.Progress
	command command
	observe func(*delivery) // called after each delivery
	limit   int             // of the deliveries at once to a worker; 0: none

	mu      sync.Mutex
	workers []*process
	last    int // index of the last request's worker, modulo the number of workers
}

// startWorkers starts n workers, numbered from 1. Also after an error the caller stops them.
func (r *router) startWorkers(ctx context.Context, n int) error {
	for number := 1; number <= n; number++ {
		w, err := startProcess(ctx, number, r.command)
		if err != nil {
			return err
		}
		r.show.Print("%v serves on %s, process %d", w, w.address, w.pid())
		r.mu.Lock()
		r.workers = append(r.workers, w)
		r.mu.Unlock()
	}
	return nil
}

// stopGrace covers a worker's own 8 s for releasing its locks.
const stopGrace = 9 * time.Second

// stopWorkers stops all workers at the same time.
func (r *router) stopWorkers() {
	var stopping sync.WaitGroup
	for _, w := range r.workers {
		stopping.Go(func() { w.stop(stopGrace) })
	}
	stopping.Wait()
}

// replace puts the worker next in the place of ended.
func (r *router) replace(ended, next *process) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.workers[slices.Index(r.workers, ended)] = next
}

// pick returns the next worker that has room for n more deliveries, or a full one; nil: none has
// started.
func (r *router) pick(n int32) (w *process) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for range r.workers {
		r.last++
		w = r.workers[r.last%len(r.workers)]
		if r.limit == 0 || int(w.deliveries.Load()+n) <= r.limit {
			break
		}
	}
	if w != nil {
		w.deliveries.Add(n)
	}
	return w
}

var toWorkers = &http.Transport{Proxy: nil, DisableKeepAlives: true}

// ServeHTTP implements http.Handler.
func (r *router) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	body, err := io.ReadAll(request.Body)
	if err != nil {
		return // the caller has gone
	}
	request.Body = io.NopCloser(bytes.NewReader(body))
	var task struct {
		AnalysisID string `json:"analysis_id"`
	}
	_ = json.Unmarshal(body, &task) // a worker refuses a task without id

	n := int32(min(len(body), 1)) // a call of recovery has no body, and does not count towards MAX_RUNS
	d := &delivery{worker: r.pick(n), analysisID: task.AnalysisID}
	if d.worker == nil {
		http.Error(w, "no worker serves yet", http.StatusServiceUnavailable)
		return
	}
	defer d.worker.deliveries.Add(-n)
	proxy := httputil.ReverseProxy{
		Transport:      toWorkers,
		Rewrite:        func(p *httputil.ProxyRequest) { p.SetURL(&url.URL{Scheme: "http", Host: d.worker.address}) },
		ModifyResponse: d.read,
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			http.Error(w, err.Error(), http.StatusBadGateway)
		},
	}
	proxy.ServeHTTP(w, request)
	if n > 0 {
		r.observe(d)
	}
}

// read reads the worker's answer.
func (d *delivery) read(response *http.Response) error {
	text, err := io.ReadAll(response.Body)
	if err = cmp.Or(err, response.Body.Close()); err != nil {
		return err
	}
	d.status = response.StatusCode
	_ = json.Unmarshal(text, &d.answer) // of an answer that is not JSON only the status is shown
	response.Body = io.NopCloser(bytes.NewReader(text))
	return nil
}
