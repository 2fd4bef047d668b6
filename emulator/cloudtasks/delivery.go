package cloudtasks

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/genproto/googleapis/rpc/status"
)

const (
	// keptBody is how much of an answer a Delivery carries.
	keptBody = 64 << 10
	// drained is how much more of an answer is read so that its connection can be
	// used again; after it the connection is closed.
	drained = 1 << 20
)

// outcome is what came of one delivery.
type outcome struct {
	status     int // 0: no complete answer
	body       []byte
	retryAfter time.Time // zero: not asked for
	err        error
}

func (o outcome) success() bool { return 200 <= o.status && o.status <= 299 }

// code is the outcome as X-CloudTasks-TaskPreviousResponse tells it.
func (o outcome) code() int {
	switch {
	case o.status != 0:
		return o.status
	case isDeadline(o.err):
		return http.StatusGatewayTimeout
	default:
		return http.StatusServiceUnavailable
	}
}

func (o outcome) rpcStatus() *status.Status {
	c := rpcCode(o.code())
	what := fmt.Sprintf("HTTP status code %d", o.status)
	switch {
	case o.status != 0:
	case isDeadline(o.err):
		what = "dispatch deadline exceeded"
	default:
		what = "no answer"
	}
	return &status.Status{Code: int32(c), Message: fmt.Sprintf("%s(%d): %s", c, int32(c), what)}
}

// rpcCode maps an HTTP status as google.rpc.Code documents.
func rpcCode(httpStatus int) code.Code {
	switch httpStatus {
	case http.StatusBadRequest:
		return code.Code_INVALID_ARGUMENT
	case http.StatusUnauthorized:
		return code.Code_UNAUTHENTICATED
	case http.StatusForbidden:
		return code.Code_PERMISSION_DENIED
	case http.StatusNotFound:
		return code.Code_NOT_FOUND
	case http.StatusConflict:
		return code.Code_ABORTED
	case http.StatusTooManyRequests:
		return code.Code_RESOURCE_EXHAUSTED
	case http.StatusInternalServerError:
		return code.Code_INTERNAL
	case http.StatusNotImplemented:
		return code.Code_UNIMPLEMENTED
	case http.StatusServiceUnavailable:
		return code.Code_UNAVAILABLE
	case http.StatusGatewayTimeout:
		return code.Code_DEADLINE_EXCEEDED
	}
	if 200 <= httpStatus && httpStatus <= 299 {
		return code.Code_OK
	}
	return code.Code_UNKNOWN
}

// deliver sends a, reports it and settles it. It blocks for at most the dispatch
// deadline and Observe.
func (s *Server) deliver(a attempt) {
	began := time.Now()
	if s.extra != nil && a.number == 0 && !a.duplicate {
		s.repeat(a, began)
	}
	o := s.send(a)
	ended := time.Now()
	q := a.task.queue
	s.log.Debug("delivered", "queue", q.id(), "task", a.task.id, "attempt", a.number,
		"duplicate", a.duplicate, "status", o.status, "duration", ended.Sub(began))
	if s.observe != nil {
		s.observe(Delivery{
			Task: a.task.id, Queue: q.id(), TaskName: a.task.name,
			Attempt: a.number, Duplicate: a.duplicate,
			Status: o.status, Body: o.body, Err: o.err,
			Scheduled: a.due, Started: began, Ended: ended,
			RequestBody: a.task.request.Body,
		})
	}
	s.mu.Lock()
	spent := q.settle(a, began, ended, o)
	s.mu.Unlock()
	if spent {
		s.log.Warn("task given up: retries spent", "queue", q.id(), "task", a.task.id, "last_status", o.status)
	}
}

// repeat asks for the duplicates of a first attempt that begins now. The callback
// runs unlocked: it may call the API.
func (s *Server) repeat(a attempt, now time.Time) {
	s.mu.Lock()
	t := a.task.copyOut()
	s.mu.Unlock()
	delays := s.extra(t)
	s.mu.Lock()
	a.task.queue.repeat(a, now, delays)
	s.mu.Unlock()
}

// send makes the request and stops listening at the dispatch deadline or on
// Close, also where the transport does not.
func (s *Server) send(a attempt) outcome {
	ctx, cancel := context.WithTimeout(s.ctx, a.task.deadline)
	defer cancel()
	answered := make(chan outcome, 1)
	s.running.Go(func() { answered <- s.roundTrip(ctx, a) })
	select {
	case o := <-answered:
		if o.err != nil && ctx.Err() != nil {
			o.err = ctx.Err()
		}
		return o
	case <-ctx.Done():
		return outcome{err: ctx.Err()}
	}
}

// roundTrip makes the request and reads the whole answer. It follows no redirect.
func (s *Server) roundTrip(ctx context.Context, a attempt) outcome {
	req, err := a.httpRequest(ctx)
	if err != nil {
		return outcome{err: err}
	}
	if err := s.authorize(req, a.task.request); err != nil {
		// Not the error itself: it may name the audience, which is a URL.
		s.log.WarnContext(ctx, "no token for a delivery, which was not sent", "queue", a.task.queue.id(), "task", a.task.id, "attempt", a.number)
		return outcome{err: err}
	}
	resp, err := s.transport.RoundTrip(req)
	if err != nil {
		return outcome{err: err}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, keptBody))
	if err == nil {
		_, err = io.CopyN(io.Discard, resp.Body, drained)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return outcome{err: err}
	}
	return outcome{status: resp.StatusCode, body: body, retryAfter: retryAfter(resp.Header, time.Now())}
}

// httpRequest builds the request of one delivery, without its token. A
// duplicate's is the same.
func (a attempt) httpRequest(ctx context.Context) (*http.Request, error) {
	r := a.task.request
	req, err := http.NewRequestWithContext(ctx, r.HttpMethod.String(), r.Url, bytes.NewReader(r.Body))
	if err != nil {
		return nil, err
	}
	for name, value := range r.Headers {
		req.Header.Set(name, value)
	}
	h := req.Header
	h.Set("X-CloudTasks-QueueName", a.task.queue.id())
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

// authorize gives req the Authorization that the task asks for, which takes the
// place of the creator's. The token is minted here, at dispatch, for each delivery
// anew: a task may have waited for longer than a token lives.
func (s *Server) authorize(req *http.Request, r *cloudtaskspb.HttpRequest) error {
	if r.AuthorizationHeader == nil {
		return nil
	}
	req.Header.Del("Authorization")
	oidc := r.GetOidcToken()
	if oidc == nil || s.token == nil {
		return nil
	}
	audience := oidc.Audience
	if audience == "" {
		audience = r.Url
	}
	token, err := s.token(oidc.ServiceAccountEmail, audience)
	if err != nil {
		return fmt.Errorf("cloud tasks emulator: token: %w", err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	return nil
}
