package orchestrator

import (
	"bytes"
	"context"
	"errors"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// endpoint is the analyzer of http: and https:. Only the context bounds the wait for the
// answer, because the analysis runs during that time.
type endpoint struct {
	url      *url.URL
	name     string // the URL without parts that may be secret
	client   *http.Client
	wantJSON bool
}

func newEndpoint(spec string, o Options) (*endpoint, error) {
	u, err := url.Parse(spec)
	if err != nil {
		// The error quotes a part of the URL, which may be the password.
		return nil, errors.New("orchestrator: the analyzer's URL does not parse")
	}
	if u.Hostname() == "" {
		return nil, errors.New("orchestrator: the analyzer's URL has no host")
	}
	return &endpoint{
		url:      u,
		name:     u.Scheme + "://" + u.Host,
		wantJSON: o.JSON,
		client: &http.Client{
			// A connection for each job, and no HTTP/2, as the dialer is not the default:
			// on a reused connection net/http may send a request a second time by itself.
			Transport: &http.Transport{
				Proxy:                  http.ProxyFromEnvironment,
				DialContext:            (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
				TLSHandshakeTimeout:    10 * time.Second,
				MaxResponseHeaderBytes: 64 << 10,
				DisableKeepAlives:      true,
			},
			CheckRedirect: func(*http.Request, []*http.Request) error {
				return http.ErrUseLastResponse // a job goes only to the configured address
			},
		},
	}, nil
}

// Analyze implements [Analyzer].
func (e *endpoint) Analyze(ctx context.Context, job Job) (Result, error) {
	body, err := job.encode()
	if err != nil {
		return nil, err
	}
	status, output, reports, err := e.post(ctx, job, body)
	if err != nil {
		if ended := contextError(ctx); ended != nil {
			return nil, ended
		}
		err = withoutURL(err)
		return nil, &FailureError{Reason: e.name + ": " + err.Error(), Err: err}
	}
	switch {
	case reports != nil:
		return reports.result(e.name)
	case 200 <= status && status <= 299:
		return output.result(job)
	}
	return nil, e.refused(status, output)
}

// post sends the job, and reads the answer: if it is 2xx and declared as
// application/x-ndjson, as reports.
func (e *endpoint) post(ctx context.Context, job Job, body []byte) (status int, out output, reports *stream, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, e.url.String(), bytes.NewReader(body))
	if err != nil {
		return 0, output{}, nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	// JSON first: a framework that chooses the type by Accept answers as it does without.
	request.Header.Set("Accept", "application/json, application/x-ndjson;q=0.9, */*;q=0.8")
	request.Header.Set("Idempotency-Key", url.PathEscape(job.AnalysisID)) // net/http trims headers, which would make two ids one
	request.Header.Set("X-Lock-Token", strconv.FormatInt(job.LockToken, 10))
	for name, value := range traceHeaders(ctx) {
		request.Header.Set(name, value)
	}
	response, err := e.client.Do(request)
	if err != nil {
		return 0, output{}, nil, err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode < 200 || response.StatusCode > 299 {
		// Only the beginning is used, also if the rest cannot be read. One more
		// character is read, so that the cut is between two.
		message, _ := io.ReadAll(io.LimitReader(response.Body, messageBytes+utf8.UTFMax))
		return response.StatusCode, output{text: message}, nil, nil
	}
	out.wantJSON = e.wantJSON || declares(response, "application/json")
	add := out.add
	if declares(response, "application/x-ndjson") {
		reports = job.stream()
		add = func(b []byte) bool { reports.add(b); return !reports.ended() }
	}
	buffer := make([]byte, readBytes)
	for {
		n, err := response.Body.Read(buffer)
		if !add(buffer[:n]) || errors.Is(err, io.EOF) {
			return response.StatusCode, out, reports, nil
		}
		if err != nil {
			return 0, output{}, nil, err
		}
	}
}

// declares reports whether an answer has a body that its header declares as this type.
func declares(r *http.Response, mediaType string) bool {
	got, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	return got == mediaType && r.StatusCode != http.StatusNoContent
}

// refused returns the error for an answer whose status is not 2xx.
func (e *endpoint) refused(status int, body output) error {
	reason := strings.TrimSpace(strconv.Itoa(status) + " " + http.StatusText(status))
	message := legible(cutHead(string(body.text), messageBytes))
	if permanentStatus(status) {
		if message == "" {
			message = "the analyzer answered " + reason
		}
		return &PermanentError{Code: CodeAnalyzerRejected, Message: message}
	}
	return &FailureError{Reason: e.name + " answered " + reason, Message: message}
}

// permanentStatus reports whether status is a 4xx that a retry cannot cure.
func permanentStatus(status int) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusConflict, http.StatusTooEarly, http.StatusTooManyRequests:
		return false
	}
	return 400 <= status && status <= 499
}

// withoutURL removes the URL from an error of net/http: its query may contain a key.
func withoutURL(err error) error {
	if wrapped := (*url.Error)(nil); errors.As(err, &wrapped) {
		return wrapped.Err
	}
	return err
}
