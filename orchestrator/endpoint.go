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

// Limits on the way to an endpoint. Between the request's end and the answer's
// beginning there is none but the context's: that is where the analysis runs.
const (
	dialTimeout    = 10 * time.Second
	tlsTimeout     = 10 * time.Second
	maxHeaderBytes = 64 << 10
)

// endpoint is an analyzer behind HTTP.
type endpoint struct {
	url      *url.URL
	name     string // the URL without what may be secret
	client   *http.Client
	wantJSON bool
}

func newEndpoint(spec string, o Options) (*endpoint, error) {
	u, err := url.Parse(spec)
	if err != nil {
		// The error quotes what it does not like, and that may be a password.
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
			Transport: newTransport(),
			CheckRedirect: func(*http.Request, []*http.Request) error {
				return http.ErrUseLastResponse // a job goes where it was told to go
			},
		},
	}, nil
}

// newTransport makes a connection for each job. One handshake is little beside
// an analysis, an idle connection has no owner, and only on a connection that
// was used before does net/http send a request a second time by itself.
func newTransport() *http.Transport {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	return &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            (&net.Dialer{Timeout: dialTimeout}).DialContext,
		TLSHandshakeTimeout:    tlsTimeout,
		MaxResponseHeaderBytes: maxHeaderBytes,
		DisableKeepAlives:      true,
		Protocols:              protocols,
	}
}

// Analyze implements [Analyzer].
func (e *endpoint) Analyze(ctx context.Context, job Job) (Result, error) {
	body, err := job.encode()
	if err != nil {
		return nil, err
	}
	status, output, err := e.post(ctx, job, body)
	if over := ended(ctx); err != nil && over != nil {
		return nil, over
	}
	if err != nil {
		err = withoutURL(err)
		return nil, &FailureError{Reason: e.name + ": " + err.Error(), Err: err}
	}
	if 200 <= status && status <= 299 {
		return output.result()
	}
	return nil, e.refused(status, output)
}

func (e *endpoint) post(ctx context.Context, job Job, body []byte) (int, output, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, e.url.String(), bytes.NewReader(body))
	if err != nil {
		return 0, output{}, err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Idempotency-Key", url.PathEscape(job.AnalysisID)) // net/http trims a header, and two ids would be one
	request.Header.Set("X-Lock-Token", strconv.FormatInt(job.LockToken, 10))
	for name, value := range traced(ctx) {
		request.Header.Set(name, value)
	}
	response, err := e.client.Do(request)
	if err != nil {
		return 0, output{}, err
	}
	defer func() { _ = response.Body.Close() }() // what matters has been read
	if response.StatusCode < 200 || response.StatusCode > 299 {
		// Only the beginning is of use, and it is of use also if the rest fails.
		// With one character more it can be cut between two.
		said, _ := io.ReadAll(io.LimitReader(response.Body, messageBytes+utf8.UTFMax))
		return response.StatusCode, output{text: said}, nil
	}
	out := output{wantJSON: e.wantJSON || callsItselfJSON(response)}
	buffer := make([]byte, readBytes)
	for {
		n, err := response.Body.Read(buffer)
		if !out.add(buffer[:n]) || errors.Is(err, io.EOF) {
			return response.StatusCode, out, nil
		}
		if err != nil {
			return 0, output{}, err
		}
	}
}

// callsItselfJSON reports whether an answer has a body that its header says is JSON.
func callsItselfJSON(r *http.Response) bool {
	mediaType, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	return mediaType == "application/json" && r.StatusCode != http.StatusNoContent
}

// refused is the error of an answer that is no result.
func (e *endpoint) refused(status int, said output) error {
	reason := strings.TrimSpace(strconv.Itoa(status) + " " + http.StatusText(status))
	message := legible(cutHead(string(said.text), messageBytes))
	if permanentStatus(status) {
		if message == "" {
			message = "the analyzer answered " + reason
		}
		return &PermanentError{Code: CodeAnalyzerRejected, Message: message}
	}
	return &FailureError{Reason: e.name + " answered " + reason, Said: message}
}

// permanentStatus: the 4xx but those that say "not now".
func permanentStatus(status int) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusConflict, http.StatusTooEarly, http.StatusTooManyRequests:
		return false
	}
	return 400 <= status && status <= 499
}

// withoutURL takes off the URL that net/http puts before its errors, with a
// query that may hold a key.
func withoutURL(err error) error {
	if wrapped := (*url.Error)(nil); errors.As(err, &wrapped) {
		return wrapped.Err
	}
	return err
}
