package orchestrator

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"taskguard/internal/clock"
	"taskguard/internal/text"
)

// endpoint is the analyzer of http: and https:. Only the context bounds the wait for the
// answer, because the analysis runs during that time.
type endpoint struct {
	url      *url.URL
	name     string // the URL without parts that may be secret
	client   *http.Client
	wantJSON bool
	patience time.Duration // see defaultPatience
}

const connectTimeout = 10 * time.Second

func newEndpoint(spec string, o Options) (*endpoint, error) {
	u, err := url.Parse(spec)
	if err != nil {
		// The error quotes a part of the URL, which may be the password.
		return nil, errors.New("orchestrator: the analyzer's URL does not parse")
	}
	if u.Hostname() == "" {
		return nil, errors.New("orchestrator: the analyzer's URL has no host")
	}

	client := &http.Client{
		// A connection for each job, and no HTTP/2, as the dialer is not the default:
		// on a reused connection net/http may send a request a second time by itself.
		Transport: &http.Transport{
			Proxy:                  http.ProxyFromEnvironment,
			DialContext:            (&net.Dialer{Timeout: connectTimeout}).DialContext,
			TLSHandshakeTimeout:    connectTimeout,
			MaxResponseHeaderBytes: 64 << 10,
			DisableKeepAlives:      true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse // a job goes only to the configured address
		},
	}
	name := u.Scheme + "://" + u.Host
	return &endpoint{url: u, name: name, client: client, wantJSON: !o.AnyOutput, patience: defaultPatience}, nil
}

// Analyze implements [Analyzer].
func (e *endpoint) Analyze(ctx context.Context, job Job) (Result, error) {
	lasting, release := Outlast(ctx, job)
	defer release()
	c, end := newCalls(ctx, lasting, job)
	defer end()

	for {
		answer, err := e.call(ctx, c)
		if err != nil {
			return nil, err
		}
		if name, asked := answer.asks(); asked {
			err = c.tell(name)
			if err == nil {
				continue
			}
			return nil, c.unanswered(ctx, err)
		}
		result, err := e.outcome(ctx, answer, job)
		if answer.gone {
			return result, err // an uncertain act is still so in the next attempt
		}
		return result, c.unanswered(ctx, err)
	}
}

// call calls the endpoint once.
func (e *endpoint) call(ctx context.Context, c *calls) (*answer, error) {
	body, err := c.job.encode(c.told)
	if err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		c.undoBegun()
		return nil, contextError(ctx)
	}

	answer, err := e.post(c, body)
	if err == nil {
		return answer, nil
	}
	if unsent(err) {
		c.undoBegun()
	}
	if broken(err) {
		clock.Sleep(ctx, e.patience)
	}
	if ended := contextError(ctx); ended != nil {
		return nil, ended
	}
	if wrapped := (*url.Error)(nil); errors.As(err, &wrapped) { // its URL may contain a key
		err = wrapped.Err
	}
	return nil, &FailureError{Reason: e.name + ": " + err.Error(), Err: err}
}

// outcome returns the result or the error of an answer.
func (e *endpoint) outcome(ctx context.Context, a *answer, job Job) (Result, error) {
	switch {
	case a.status == http.StatusNoContent && !e.wantJSON:
		return nil, nil // without the warning of an empty output: the endpoint says that it is
	case a.reports != nil:
		// With HTTP/1.0, the end of a killed endpoint's connection looks like the end of its lines.
		if a.gone = !a.reports.ended(); a.gone {
			clock.Sleep(ctx, e.patience)
		}
		return a.reports.result(e.name)
	case successful(a.status):
		return a.output.result(job)
	}
	return nil, e.refused(ctx, a)
}

// answer is an endpoint's answer.
type answer struct {
	status  int
	wait    time.Duration // the wait that Retry-After asks for; zero: none
	output  output
	reports *stream // used instead of output for lines of JSON
	gone    bool    // the endpoint may have been stopped: the answer says nothing about its acts
}

// asks returns the name of the act that the endpoint asks for, and is to be called with.
func (a *answer) asks() (name string, asked bool) {
	if a.reports == nil {
		return "", false
	}
	a.reports.end()
	if !a.reports.last.asks() {
		return "", false
	}
	return *a.reports.last.Act, true
}

func successful(status int) bool { return status/100 == 2 }

// post sends the job and reads the answer.
func (e *endpoint) post(c *calls, body []byte) (*answer, error) {
	request, err := http.NewRequestWithContext(c.lineCtx, http.MethodPost, e.url.String(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	// JSON first: a framework that chooses the type by Accept answers as it does without.
	request.Header.Set("Accept", "application/json, application/x-ndjson;q=0.9, */*;q=0.8")
	request.Header.Set("Idempotency-Key", c.nextKey())
	request.Header.Set("X-Lock-Token", strconv.FormatInt(c.job.LockToken, 10))
	for name, value := range traceHeaders(c.lineCtx) {
		request.Header.Set(name, value)
	}

	response, err := e.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	return e.read(response, c)
}

// read reads an answer. If the status is not 2xx, it reads only the beginning, for a
// message, and ignores an error.
func (e *endpoint) read(response *http.Response, c *calls) (*answer, error) {
	a := &answer{status: response.StatusCode}
	if !successful(a.status) {
		a.wait = waitOf(response)
		a.output.text, _ = io.ReadAll(io.LimitReader(response.Body, readBytes))
		return a, nil
	}

	declared, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type"))
	add := a.output.add
	switch {
	case lineType.MatchString(declared):
		a.reports = c.job.stream(c)
		add = func(b []byte) bool { a.reports.add(b); return !a.reports.ended() }
	case declared == "application/problem+json":
		a.output.doubt = "the endpoint answered a problem, but not with the status of an error"
	case a.status == http.StatusAccepted:
		a.output.doubt = "the endpoint answered 202 Accepted, as if its work was still to be done"
	}
	a.output.wantJSON = e.wantJSON || jsonType.MatchString(declared)

	buffer := make([]byte, readBytes)
	for {
		n, err := response.Body.Read(buffer)
		if !add(buffer[:n]) || errors.Is(err, io.EOF) {
			return a, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

var (
	// lineType matches the names of lines of JSON. None is registered, so there are many.
	lineType = regexp.MustCompile(
		`^(?:application|text)/(?:x-)?(?:ndjson|ldjson|jsonl|json-?lines|json-stream|stream\+json)$`)
	jsonType = regexp.MustCompile(`^(?:application|text)/(?:.+\+)?json$`)
)

// waitOf returns the wait that a 429 or 503 asks for, or 0. A date is compared with the answer's own
// Date header, or without one with the present time.
func waitOf(r *http.Response) time.Duration {
	if r.StatusCode != http.StatusTooManyRequests && r.StatusCode != http.StatusServiceUnavailable {
		return 0
	}
	text := r.Header.Get("Retry-After")
	if n, _ := strconv.ParseFloat(text, 64); n != 0 { // it is infinite if it is out of range
		return retryAfter(n)
	}
	date, err := http.ParseTime(text)
	if err != nil {
		return 0
	}
	now, err := http.ParseTime(r.Header.Get("Date"))
	if err != nil {
		now = time.Now()
	}
	return retryAfter(date.Sub(now).Seconds())
}

// broken reports whether the endpoint, or its end of the connection, has gone away.
func broken(err error) bool {
	return slices.ContainsFunc([]error{
		io.EOF, io.ErrUnexpectedEOF, syscall.ECONNRESET, syscall.EPIPE, syscall.ECONNREFUSED,
	}, func(target error) bool { return errors.Is(err, target) })
}

// unsent reports whether no request has been sent: no connection was made.
func unsent(err error) bool {
	failed, ok := errors.AsType[*net.OpError](err)
	return ok && failed.Op == "dial"
}

// refused returns the error for an answer whose status is not 2xx. Any 5xx may be that of a server, or of the
// proxy before it, that is being stopped: a framework that cancels its handlers answers 500. One with a
// code or a wait is the application's own.
func (e *endpoint) refused(ctx context.Context, a *answer) error {
	reason := strings.TrimSpace(strconv.Itoa(a.status) + " " + http.StatusText(a.status))
	f := explained(a.output.text)
	f.wait = a.wait
	if a.gone = a.status >= 500 && f.code == "" && f.wait == 0; a.gone {
		clock.Sleep(ctx, e.patience)
	}

	// A retry cannot help after a 4xx, except these.
	temporary := []int{http.StatusRequestTimeout, http.StatusConflict, http.StatusTooEarly, http.StatusTooManyRequests}
	if f.permanent = a.status/100 == 4 && !slices.Contains(temporary, a.status); f.permanent {
		return f.error("the analyzer answered " + reason)
	}
	return f.error(e.name + " answered " + reason)
}

// explained returns what the body of an error says: {"error": {"code", "message"}}, or the problem details
// of RFC 9457 with a "code" beside them. The message of any other body is its text.
func explained(body []byte) (f failure) {
	body = bytes.TrimPrefix(body, byteOrderMark)
	var problem struct {
		Error         json.RawMessage
		Title, Detail string
	}
	_ = json.Unmarshal(body, &problem) // a field of another type remains empty

	if !f.parse(problem.Error) || f == (failure{}) { // it is missing, or null
		f.parse(body)
		if f.code+problem.Title != "" { // else it is no problem of RFC 9457
			f.message = cmp.Or(f.message, legible(cmp.Or(problem.Detail, problem.Title), text.Head, messageBytes))
		}
	}
	f.message = cmp.Or(f.message, legible(string(body), text.Head, messageBytes))
	return f
}
