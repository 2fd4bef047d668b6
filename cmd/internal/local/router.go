package local

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"

	"taskguard/cmd/internal/cli"
)

// exchange is one request to a worker, and its answer.
type exchange struct {
	worker     *process
	analysisID string
	status     int // 0: no answer
	answer     answer
}

// answer is the part of a worker's answer that local and demo print.
type answer struct {
	Acquired bool   `json:"acquired"`
	Result   string `json:"status"` // READY or FAILED
	Reason   string `json:"reason"` // of a skip or a failure
	Error    string `json:"error"`
	RetryAt  string `json:"retry_at"`
	Rejected bool   `json:"rejected"`
}

// skipped reports whether the worker did nothing because nothing was to be done.
func (e exchange) skipped() bool {
	reason := e.answer.Reason == "locked" || e.answer.Reason == "already_finished"
	return e.status != 0 && !e.answer.Acquired && reason
}

// String describes the delivery.
func (e exchange) String() string {
	if e.status == 0 {
		return fmt.Sprintf("no answer from %v: the queue will try again", e.worker)
	}
	if e.skipped() {
		return fmt.Sprintf("delivered to %v: %s, skipped%s", e.worker, e.answer.Reason, e.next())
	}

	text := fmt.Sprintf("%s, by %v", e.answer.Result, e.worker)
	if e.answer.Result == "" {
		text = fmt.Sprintf("%v answered %d %s", e.worker, e.status, e.answer.Reason)
	}
	if e.answer.Error != "" {
		text += ": " + cli.Shorten(e.answer.Error, 500)
	}
	return text + e.next()
}

// next describes the next delivery of the task, if there is something to say.
func (e exchange) next() string {
	switch {
	case e.answer.Rejected:
		return "; it is rejected: the task is deleted"
	case e.answer.Reason == "retry" && e.answer.RetryAt != "":
		return "; the next attempt is due at " + e.answer.RetryAt
	case e.skipped() && e.answer.Reason == "locked" && e.status/100 == 2:
		return "; a follow-up is booked"
	case e.skipped() && e.answer.Reason == "locked":
		return "; the queue will try again"
	}
	return ""
}

// router is an http.RoundTripper that sends each request to the next worker that is not full,
// whatever the request's host is. It also sends requests to a dead worker, as Cloud Run may: the
// connection is refused, and the queue tries again. It is safe for concurrent use.
type router struct {
	observe func(exchange) // called after each delivery
	limit   int            // of the deliveries at once to a worker; 0: none

	mu      sync.Mutex
	workers []*process
	last    int // index of the last request's worker, modulo the number of workers
}

// add gives the router more workers.
func (r *router) add(workers ...*process) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.workers = append(r.workers, workers...)
}

// replace puts the worker next in the place of ended.
func (r *router) replace(ended, next *process) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.workers[slices.Index(r.workers, ended)] = next
}

// pick returns the next worker that has room for n more deliveries, or any if all are full.
func (r *router) pick(n int32) (w *process, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.workers) == 0 {
		return nil, errors.New("no worker serves yet")
	}
	for range r.workers {
		r.last++
		w = r.workers[r.last%len(r.workers)]
		if r.limit == 0 || int(w.deliveries.Load()+n) <= r.limit {
			break
		}
	}
	w.deliveries.Add(n)
	return w, nil
}

var toWorkers = &http.Transport{Proxy: nil, DisableKeepAlives: true}

// RoundTrip implements http.RoundTripper.
func (r *router) RoundTrip(request *http.Request) (*http.Response, error) {
	var body []byte
	if request.Body != nil {
		defer request.Body.Close()
		var err error
		if body, err = io.ReadAll(request.Body); err != nil {
			return nil, fmt.Errorf("read task: %w", err)
		}
	}

	n := int32(min(len(body), 1)) // a call of recovery has no body, and does not count towards MAX_RUNS
	w, err := r.pick(n)
	if err != nil {
		return nil, err
	}
	defer w.deliveries.Add(-n)

	e := exchange{worker: w, analysisID: analysisOf(body)}
	sent := request.Clone(request.Context())
	sent.URL.Scheme, sent.URL.Host, sent.Host = "http", w.address, w.address
	sent.Body, sent.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	response, err := e.send(sent)
	r.observe(e)
	return response, err
}

// analysisOf returns the id in the body of a task, or "". A worker refuses a task without id.
func analysisOf(body []byte) string {
	var task struct {
		AnalysisID string `json:"analysis_id"`
	}
	_ = json.Unmarshal(body, &task)
	return task.AnalysisID
}

const maxAnswer = 64 << 10

// send makes the request and reads the answer.
func (e *exchange) send(request *http.Request) (*http.Response, error) {
	response, err := toWorkers.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err = errors.Join(err, response.Body.Close()); err != nil {
		return nil, err
	}
	_ = json.Unmarshal(text, &e.answer) // of an answer that is not JSON only the status is shown
	e.status = response.StatusCode
	response.Body = io.NopCloser(bytes.NewReader(text))
	return response, nil
}
