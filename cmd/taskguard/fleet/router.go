package fleet

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"
)

// Delivery is one request to a worker, and what came of it.
type Delivery struct {
	Worker     *Worker
	AnalysisID string
	Task       string // the task's short name, where a queue has sent it
	Status     int    // 0: no answer
	Acquired   bool
	Reason     string // of a skip or a failure
	Result     string // READY or FAILED, where the answer says so
	Error      string // why it failed, where the answer says so
	Err        error  // why there was no answer
	Ended      time.Time
}

// Skip reports whether the worker rightly did nothing.
func (d Delivery) Skip() bool {
	return d.Status != 0 && !d.Acquired && (d.Reason == "locked" || d.Reason == "already_finished")
}

// FollowedUp reports whether the delivery met a lock and was acknowledged, as a
// later one is booked in its place.
func (d Delivery) FollowedUp() bool { return d.Reason == "locked" && d.Status/100 == 2 }

// Router is the Transport of a queue: it sends each request to one of the
// workers in turn, whatever host the request names. A dead worker gets its
// share too, as at Cloud Run's front end: it refuses the connection, and the
// queue tries again. It is safe for concurrent use.
type Router struct {
	observe func(Delivery)
	inner   http.RoundTripper

	mu      sync.Mutex
	changed chan struct{} // closed, and made anew, when a waiting pick may go on
	slots   []*slot
	next    int
	chosen  string
	alone   *slot // has the chosen analysis and no other
	running bool
}

// slot is a place for a worker, which may die and be replaced.
type slot struct {
	worker   *Worker
	inFlight map[string]int
}

// NewRouter makes a Router over workers. While it has none, deliveries wait.
// observe is called after each delivery, concurrently.
func NewRouter(workers []*Worker, observe func(Delivery)) *Router {
	r := &Router{observe: observe, inner: &http.Transport{Proxy: nil, DisableKeepAlives: true}, changed: make(chan struct{})}
	r.Add(workers...)
	return r
}

// Add gives the Router more workers.
func (r *Router) Add(workers ...*Worker) {
	r.change(func() {
		for _, w := range workers {
			r.slots = append(r.slots, &slot{worker: w, inFlight: map[string]int{}})
		}
	})
}

// Isolate makes the first delivery of the analysis id wait for a worker that
// has nothing to do. Until Running or Release, that worker gets nothing else,
// and the other deliveries of id wait.
func (r *Router) Isolate(id string) {
	r.change(func() { r.chosen, r.alone, r.running = id, nil, false })
}

// Running says that the isolated analysis is being run: its other deliveries go
// on, to other workers.
func (r *Router) Running() { r.change(func() { r.running = true }) }

// Release ends what Isolate began.
func (r *Router) Release() { r.Isolate("") }

// Replace puts another worker in old's place.
func (r *Router) Replace(old, with *Worker) {
	r.change(func() {
		for _, s := range r.slots {
			if s.worker == old {
				s.worker = with
			}
		}
	})
}

// InFlight reports whether w has a delivery of id, and whether it has it alone.
func (r *Router) InFlight(w *Worker, id string) (has, alone bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.slots {
		if s.worker == w {
			return s.inFlight[id] > 0, s.inFlight[id] == s.load()
		}
	}
	return false, false
}

func (r *Router) change(what func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	what()
	close(r.changed)
	r.changed = make(chan struct{})
}

func (s *slot) load() int {
	n := 0
	for _, k := range s.inFlight {
		n += k
	}
	return n
}

// RoundTrip makes Router an http.RoundTripper.
func (r *Router) RoundTrip(request *http.Request) (*http.Response, error) {
	id, body, err := analysisOf(request)
	if err != nil {
		return nil, err
	}
	s, w, err := r.pick(request.Context(), id)
	if err != nil {
		return nil, err
	}
	d := Delivery{Worker: w, AnalysisID: id, Task: request.Header.Get("X-CloudTasks-TaskName")}
	response, err := r.send(request, body, w, &d)
	d.Err, d.Ended = err, time.Now()
	r.observe(d)
	r.change(func() {
		if s.inFlight[id]--; s.inFlight[id] == 0 {
			delete(s.inFlight, id)
		}
	})
	return response, err
}

// pick chooses a worker and counts the delivery as in flight.
func (r *Router) pick(ctx context.Context, id string) (*slot, *Worker, error) {
	for {
		r.mu.Lock()
		s := r.choose(id)
		if s != nil {
			s.inFlight[id]++
			w := s.worker
			r.mu.Unlock()
			return s, w, nil
		}
		changed := r.changed
		r.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, nil, fmt.Errorf("fleet: no worker is free: %w", context.Cause(ctx))
		}
	}
}

// choose answers nil where the delivery has to wait.
func (r *Router) choose(id string) *slot {
	if id != "" && id == r.chosen && !r.running {
		for _, s := range r.slots {
			if (r.alone == nil || r.alone == s) && s.load() == 0 {
				r.alone = s
				return s
			}
		}
		return nil
	}
	for range r.slots {
		s := r.slots[r.next%len(r.slots)]
		r.next++
		if s != r.alone {
			return s
		}
	}
	return nil
}

// maxAnswer is how much of an answer is read.
const maxAnswer = 64 << 10

func (r *Router) send(request *http.Request, body []byte, w *Worker, d *Delivery) (*http.Response, error) {
	sent := request.Clone(request.Context())
	sent.URL.Scheme, sent.URL.Host, sent.Host = "http", w.Address, w.Address
	sent.Body, sent.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	response, err := r.inner.RoundTrip(sent)
	if err != nil {
		return nil, err
	}
	answer, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err = errors.Join(err, response.Body.Close()); err != nil {
		return nil, err
	}
	var said struct {
		Acquired bool   `json:"acquired"`
		Status   string `json:"status"`
		Reason   string `json:"reason"`
		Error    string `json:"error"`
	}
	if json.Unmarshal(answer, &said) == nil {
		d.Acquired, d.Result, d.Reason, d.Error = said.Acquired, said.Status, said.Reason, said.Error
	}
	d.Status = response.StatusCode
	response.Body = io.NopCloser(bytes.NewReader(answer))
	return response, nil
}

// analysisOf reads which analysis a task is for.
func analysisOf(request *http.Request) (id string, body []byte, err error) {
	if request.Body != nil {
		defer request.Body.Close()
		if body, err = io.ReadAll(request.Body); err != nil {
			return "", nil, fmt.Errorf("fleet: read task: %w", err)
		}
	}
	var task struct {
		AnalysisID string `json:"analysis_id"`
	}
	_ = json.Unmarshal(body, &task) // what is no task is for the worker to refuse
	return task.AnalysisID, body, nil
}
