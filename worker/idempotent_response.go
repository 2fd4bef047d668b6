package worker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"taskguard/orchestrator"
)

// maxResponse limits the body of a response, in bytes. The body of a request is limited by maxBody.
const maxResponse = 512 << 10

// Errors of a run of a handler that Do does not store.
var (
	errNotStored = &orchestrator.FailureError{Reason: "the response has a status that is not stored"}
	errAborted   = &orchestrator.FailureError{Reason: "the handler has aborted its response"}
	errRefused   = errors.New("worker: the response is replaced by a problem") // of Write
)

// StoredResponse is a response of a handler behind Idempotent, as it is stored.
type StoredResponse struct {
	Status int         `json:"status"` // of HTTP
	Header http.Header `json:"header"` // the stored headers; see IdempotentOptions.Headers
	Body   []byte      `json:"body"`   // at most 512 KiB
}

// send sends the response. Its headers replace the headers of outer handlers; only Vary has both.
func (s StoredResponse) send(w http.ResponseWriter) {
	for name, values := range s.Header {
		if name == "Vary" {
			values = slices.Concat(w.Header()[name], values)
		}
		w.Header()[name] = values
	}
	w.WriteHeader(s.Status)
	_, _ = w.Write(s.Body) // the client may have gone
}

// recorder is a ResponseWriter that keeps the response of a handler in memory. What it answers to
// a handler is what net/http would answer, but that Flush has no effect. Methods of http.ResponseController
// that are about the connection go to outer.
type recorder struct {
	outer  http.ResponseWriter
	header http.Header // of the handler, until it writes
	cancel func()      // ends the context of the handler

	mu       sync.Mutex // a proxy flushes in another goroutine
	response StoredResponse
	length   int    // the Content-Length of the handler; negative: none
	refused  string // the problem that replaces the response; empty: none
	timeout  string // the goroutine in which http.TimeoutHandler has answered 503; empty: none
}

// runHandler calls the handler and returns its response, errAborted, or a *PermanentError that replaces
// the response. A handler that has written nothing has the status 200, except in Echo, where it has
// returned an error instead.
func runHandler(handler http.Handler, request *http.Request, outer http.ResponseWriter) (s StoredResponse, err error) {
	ctx, cancel := context.WithCancel(request.Context())
	defer cancel()
	r := &recorder{outer: outer, header: outer.Header().Clone(), cancel: cancel}
	aborted := r.call(handler, request.WithContext(ctx))
	r.awaitTimedOut()

	r.mu.Lock()
	defer r.mu.Unlock()
	if _, inEcho := outer.(*echo.Response); inEcho && r.response.Status == 0 && !aborted {
		r.refused = "response-missing"
	}
	r.begin(http.StatusOK)
	switch {
	case r.refused != "":
		return s, &orchestrator.PermanentError{Code: r.refused, Message: problems[r.refused].detail}
	case aborted, r.length > len(r.response.Body):
		return s, errAborted
	}
	return r.response, nil
}

// call calls the handler, and reports whether it has panicked with http.ErrAbortHandler. Many handlers
// panic after a failed Write: the panic of one whose response is refused is dropped.
func (r *recorder) call(handler http.Handler, request *http.Request) (aborted bool) {
	defer func() {
		v := recover()
		panicked, _ := v.(error)
		aborted = errors.Is(panicked, http.ErrAbortHandler)
		r.mu.Lock()
		defer r.mu.Unlock()
		if v != nil && !aborted && r.refused == "" {
			panic(v)
		}
	}()
	handler.ServeHTTP(r, request)
	return false
}

// Header returns the header of the response.
func (r *recorder) Header() http.Header { return r.header }

// WriteHeader sets the status, unless it is set already, or informational.
func (r *recorder) WriteHeader(status int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.begin(status)
}

// begin sets the status and the header of the response.
func (r *recorder) begin(status int) {
	switch {
	case r.response.Status != 0:
		return
	case status < 100 || status > 999:
		panic(fmt.Sprintf("invalid WriteHeader code %v", status)) // as net/http
	case status < http.StatusOK && status != http.StatusSwitchingProtocols:
		return
	}

	r.response.Status, r.response.Header, r.length = status, r.header.Clone(), -1
	media, _, _ := mime.ParseMediaType(r.header.Get("Content-Type"))
	if media == "text/event-stream" || status == http.StatusSwitchingProtocols {
		r.refused = "response-streamed"
		r.cancel() // or it may stream to nobody until RunTimeout
	}
	if n, err := strconv.Atoi(r.header.Get("Content-Length")); err == nil && bodyAllowed(status) {
		r.length = n
	}
	r.response.Header.Del("Content-Length") // the server sets it again
	if status == http.StatusServiceUnavailable {
		r.timeout = inTimeoutHandler()
	}
}

// bodyAllowed reports whether a response of this status has a body.
func bodyAllowed(status int) bool {
	return status != http.StatusNoContent && status != http.StatusNotModified
}

// Write appends to the body. Beyond maxResponse, it fails and refuses the response.
func (r *recorder) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.begin(http.StatusOK)
	size := len(r.response.Body) + len(p)

	switch {
	case len(p) == 0:
		return 0, nil
	case !bodyAllowed(r.response.Status):
		return 0, http.ErrBodyNotAllowed
	case r.length >= 0 && size > r.length:
		return 0, http.ErrContentLength
	case size > maxResponse && r.refused == "":
		r.refused = "response-too-large"
	}
	if r.refused != "" {
		return 0, errRefused
	}
	r.response.Body = append(r.response.Body, p...)
	return len(p), nil
}

// Flush is like FlushError.
func (r *recorder) Flush() { _ = r.FlushError() }

// FlushError begins the response, which is sent when the handler has returned.
func (r *recorder) FlushError() error {
	r.WriteHeader(http.StatusOK)
	return nil
}

// SetReadDeadline sets the deadline of the connection.
func (r *recorder) SetReadDeadline(deadline time.Time) error {
	return http.NewResponseController(r.outer).SetReadDeadline(deadline)
}

// SetWriteDeadline sets the deadline of the connection.
func (r *recorder) SetWriteDeadline(deadline time.Time) error {
	return http.NewResponseController(r.outer).SetWriteDeadline(deadline)
}

// EnableFullDuplex applies to the connection.
func (r *recorder) EnableFullDuplex() error {
	return http.NewResponseController(r.outer).EnableFullDuplex()
}

// timeoutHandler is the function of net/http that answers 503 and leaves its handler running.
const timeoutHandler = "net/http.(*timeoutHandler).ServeHTTP"

// inTimeoutHandler returns the number of this goroutine if http.TimeoutHandler has called the caller.
func inTimeoutHandler() (goroutine string) {
	stack := debug.Stack() // begins with: goroutine NUMBER
	if !bytes.Contains(stack, []byte("\n"+timeoutHandler+"(")) {
		return ""
	}
	return string(bytes.Fields(stack)[1])
}

// awaitTimedOut waits for the handler that an http.TimeoutHandler has left running. Its goroutine is
// known only by the stacks: net/http does not tell when it ends, and the lock must be held until then.
func (r *recorder) awaitTimedOut() {
	r.mu.Lock()
	left := []byte("created by " + timeoutHandler + " in goroutine " + r.timeout + "\n")
	timedOut := r.timeout != ""
	r.mu.Unlock()
	for wait := time.Millisecond; timedOut; wait = min(2*wait, 2*time.Second) {
		time.Sleep(wait)
		stacks := make([]byte, 1<<20)
		n := runtime.Stack(stacks, true)
		for n == len(stacks) {
			stacks = make([]byte, 2*n)
			n = runtime.Stack(stacks, true)
		}
		timedOut = bytes.Contains(stacks[:n], left)
	}
}
