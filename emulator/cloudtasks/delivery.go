package cloudtasks

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"strconv"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
)

// maxRead limits the size of an answer whose connection is used again. After a larger one
// it is closed.
const maxRead = 1 << 20

// outcome is the result of one delivery.
type outcome struct {
	status     int       // 0: no complete answer
	retryAfter time.Time // zero: not requested
	err        error
}

func success(status int) bool { return 200 <= status && status <= 299 }

// code returns the outcome for X-CloudTasks-TaskPreviousResponse.
func (o outcome) code() int {
	switch {
	case o.status != 0:
		return o.status
	case errors.Is(o.err, context.DeadlineExceeded):
		return http.StatusGatewayTimeout
	}
	return http.StatusServiceUnavailable
}

// deliver sends a, reports it and settles it. It blocks for at most the dispatch
// deadline and Observe.
func (s *Server) deliver(a *attempt) {
	began := time.Now()
	o := s.send(a)
	ended := time.Now()
	if s.options.Observe != nil {
		s.options.Observe(Delivery{
			Task: a.task.id, Attempt: a.number, Duplicate: a.duplicate,
			Status: o.status, Err: o.err, Started: began,
		})
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	a.task.queue.settle(a, ended, o)
}

// send makes the request. It returns at the dispatch deadline or on Close, even if the
// transport does not.
func (s *Server) send(a *attempt) outcome {
	ctx, cancel := context.WithTimeout(s.ctx, a.task.deadline)
	defer cancel()
	answered := make(chan outcome, 1)
	s.running.Go(func() { answered <- s.roundTrip(ctx, a) })

	select {
	case o := <-answered:
		return o
	case <-ctx.Done():
		return outcome{err: ctx.Err()}
	}
}

// roundTrip makes the request and reads the whole answer. It follows no redirect.
func (s *Server) roundTrip(ctx context.Context, a *attempt) outcome {
	req, err := a.httpRequest(ctx)
	if err != nil {
		return outcome{err: err}
	}
	if err := s.authorize(req, a.task.request); err != nil {
		return outcome{err: err}
	}

	resp, err := s.options.Transport.RoundTrip(req)
	if err != nil {
		return outcome{err: err}
	}
	defer resp.Body.Close()
	if _, err = io.CopyN(io.Discard, resp.Body, maxRead); err != nil && !errors.Is(err, io.EOF) {
		return outcome{err: err}
	}
	return outcome{status: resp.StatusCode, retryAfter: retryAfter(resp.Header, time.Now())}
}

// httpRequest returns the request of a delivery, without its token. An attempt and its
// duplicates have the same request.
func (a *attempt) httpRequest(ctx context.Context) (*http.Request, error) {
	r := a.task.request
	req, err := http.NewRequestWithContext(ctx, r.HttpMethod.String(), r.Url, bytes.NewReader(r.Body))
	if err != nil {
		return nil, err
	}
	for name, value := range r.Headers {
		req.Header.Set(name, value)
	}

	h := req.Header
	h.Set("X-CloudTasks-QueueName", path.Base(a.task.queue.pb.Name))
	h.Set("X-CloudTasks-TaskName", a.task.id)
	h.Set("X-CloudTasks-TaskETA", fmt.Sprintf("%d.%06d", a.eta.Unix(), a.eta.Nanosecond()/1000))
	h.Set("X-CloudTasks-TaskRetryCount", strconv.Itoa(a.number))
	h.Set("X-CloudTasks-TaskExecutionCount", strconv.Itoa(a.executed))
	if a.previous != 0 {
		h.Set("X-CloudTasks-TaskPreviousResponse", strconv.Itoa(a.previous))
		h.Set("X-CloudTasks-TaskRetryReason", "")
	}
	return req, nil
}

// authorize replaces the creator's Authorization by the token that the task asks for.
// Each delivery gets a new one, as a token may expire while the task waits.
func (s *Server) authorize(req *http.Request, r *cloudtaskspb.HttpRequest) error {
	if r.AuthorizationHeader == nil {
		return nil
	}
	req.Header.Del("Authorization")
	oidc := r.GetOidcToken()
	if oidc == nil || s.options.Token == nil {
		return nil
	}

	token, err := s.options.Token(oidc.ServiceAccountEmail, cmp.Or(oidc.Audience, r.Url))
	if err != nil {
		return fmt.Errorf("cloud tasks emulator: token: %w", err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	return nil
}

// retryAfter returns the earliest time of the next attempt by an answer's Retry-After,
// which is in seconds or an HTTP date. It is zero if there is no valid one.
func retryAfter(h http.Header, now time.Time) time.Time {
	if seconds, err := strconv.ParseUint(h.Get("Retry-After"), 10, 31); err == nil {
		return now.Add(time.Duration(seconds) * time.Second)
	}
	at, _ := http.ParseTime(h.Get("Retry-After")) // zero on an error
	return at
}
