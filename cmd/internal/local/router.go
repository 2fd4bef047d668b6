package local

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
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

// answer is the part of a worker's answer that is shown.
type answer struct {
	Acquired bool   `json:"acquired"`
	Result   string `json:"status"` // READY or FAILED
	Reason   string `json:"reason"` // of a skip or a failure
	Error    string `json:"error"`
	RetryAt  string `json:"retry_at"`
	Rejected bool   `json:"rejected"`
}

// skipped reports whether the worker rightly did nothing.
func (d exchange) skipped() bool {
	return d.status != 0 && !d.answer.Acquired && (d.answer.Reason == "locked" || d.answer.Reason == "already_finished")
}

// String describes the delivery.
func (d exchange) String() string {
	locked := d.answer.Reason == "locked"
	switch {
	case d.status == 0:
		return fmt.Sprintf("no answer from %v: the queue will try again", d.worker)
	case d.skipped() && locked && d.status/100 == 2:
		return fmt.Sprintf("delivered to %v: locked, skipped; a follow-up is booked", d.worker)
	case d.skipped() && locked:
		return fmt.Sprintf("delivered to %v: locked, skipped; the queue will try again", d.worker)
	case d.skipped():
		return fmt.Sprintf("delivered to %v: %s, skipped", d.worker, d.answer.Reason)
	}

	text := fmt.Sprintf("%s, by %v", d.answer.Result, d.worker)
	if d.answer.Result == "" {
		text = fmt.Sprintf("%v answered %d %s", d.worker, d.status, d.answer.Reason)
	}
	if d.answer.Error != "" {
		text += ": " + cli.Shorten(d.answer.Error, 500)
	}
	switch {
	case d.answer.Rejected:
		text += "; it is rejected: the task is deleted"
	case d.answer.Reason == "retry" && d.answer.RetryAt != "":
		text += "; the next attempt is due at " + d.answer.RetryAt
	}
	return text
}

// router is an http.RoundTripper that sends each request to the next worker that is not full,
// and ignores the request's host. It also sends requests to a dead worker, as Cloud Run may: the
// connection is refused, and the queue tries again. It is safe for concurrent use.
type router struct {
	observe func(exchange) // called after each delivery
	most    int            // deliveries at once to a worker; 0: not limited

	mu      sync.Mutex
	workers []*process
	next    int
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
	for i, w := range r.workers {
		if w == ended {
			r.workers[i] = next
		}
	}
}

// pick returns the worker for n more deliveries: the next that is not full, or else the next.
func (r *router) pick(n int32) (w *process, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.workers) == 0 {
		return nil, errors.New("no worker serves yet")
	}
	for range r.workers {
		r.next++
		if w = r.workers[r.next%len(r.workers)]; r.most == 0 || int(w.deliveries.Load()+n) <= r.most {
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

	n := int32(min(len(body), 1)) // recovery has no body, and does not count towards MAX_RUNS
	w, err := r.pick(n)
	if err != nil {
		return nil, err
	}
	defer w.deliveries.Add(-n)

	d := exchange{worker: w, analysisID: analysisOf(body)}
	sent := request.Clone(request.Context())
	sent.URL.Scheme, sent.URL.Host, sent.Host = "http", w.address, w.address
	sent.Body, sent.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	response, err := d.send(sent)
	r.observe(d)
	return response, err
}

// analysisOf returns the id in the body of a task; "": there is none, and the worker refuses it.
func analysisOf(body []byte) string {
	var task struct {
		AnalysisID string `json:"analysis_id"`
	}
	_ = json.Unmarshal(body, &task)
	return task.AnalysisID
}

const maxAnswer = 64 << 10

// send makes the request and reads the answer.
func (d *exchange) send(request *http.Request) (*http.Response, error) {
	response, err := toWorkers.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err = errors.Join(err, response.Body.Close()); err != nil {
		return nil, err
	}
	_ = json.Unmarshal(text, &d.answer) // another answer has a status alone
	d.status = response.StatusCode
	response.Body = io.NopCloser(bytes.NewReader(text))
	return response, nil
}
