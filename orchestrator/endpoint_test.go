package orchestrator_test

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace"

	"taskguard/orchestrator"
)

func serve(t *testing.T, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s
}

func post(ctx context.Context, t *testing.T, url string, job orchestrator.Job) (any, error) {
	t.Helper()
	a := newAnalyzer(t, url, orchestrator.Options{AnyOutput: true})
	orchestrator.SetPatience(a, time.Millisecond)
	return orchestrator.Run(ctx, a, job)
}

func TestEndpointReceivesTheJob(t *testing.T) {
	var got struct {
		method, uri, contentType, accept, key, token, user, password, body string
		last                                                               bool // request on its connection
	}
	s := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got.method, got.uri, got.body = r.Method, r.URL.RequestURI(), string(body)
		got.accept, got.contentType, got.key, got.token = r.Header.Get("Accept"), r.Header.Get("Content-Type"), r.Header.Get("Idempotency-Key"), r.Header.Get("X-Lock-Token")
		got.user, got.password, _ = r.BasicAuth()
		got.last = r.Close
	})
	url := strings.Replace(s.URL, "http://", "http://u:p@", 1) + "/analyze?key=k"
	result, err := post(t.Context(), t, url, orchestrator.Job{
		AnalysisID: " a,ä", LockToken: 7, Attempt: 2, Input: json.RawMessage(`{"n": 12345678901234567890, "s": "<&>"}`),
	})
	if err != nil || result != nil {
		t.Fatalf("got %v, %v; want null for an empty body", result, err)
	}
	if !got.last {
		t.Error("the connection is kept open")
	}
	for what, pair := range map[string][2]string{
		"method":          {got.method, "POST"},
		"target":          {got.uri, "/analyze?key=k"},
		"Content-Type":    {got.contentType, "application/json"},
		"Accept":          {got.accept, "application/json, application/x-ndjson;q=0.9, */*;q=0.8"},
		"Idempotency-Key": {got.key, "%20a%2C%C3%A4"}, // a header is trimmed, and must be ASCII
		"X-Lock-Token":    {got.token, "7"},
		"user":            {got.user + ":" + got.password, "u:p"},
		"body":            {got.body, `{"analysis_id":" a,ä","lock_token":7,"attempt":2,"input":{"n":12345678901234567890,"s":"<&>"}}` + "\n"},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s: got %q, want %q", what, pair[0], pair[1])
		}
	}
}

func TestEndpointsAnswerIsTheResult(t *testing.T) {
	for name, c := range map[string]struct {
		contentType, body string
		status            int
		json              bool   // not Options.AnyOutput
		want              any    // if it is a result
		stopped           string // if it is not
	}{
		"JSON":                  {"application/json", `{"n":1}`, 200, false, map[string]any{"n": int64(1)}, ""},
		"JSON of a charset":     {"Application/JSON; charset=utf-8", `"x"`, 299, false, "x", ""},
		"cut off":               {"application/json", `{"a": 1,`, 200, false, nil, "after 8 of 8 bytes"},
		"cut off, of a charset": {"application/json; charset=utf-8", `{"a": 1,`, 201, false, nil, "after 8 of 8 bytes"},
		"cut off, bad header":   {"application/json; charset", `{"a": 1,`, 200, false, nil, "after 8 of 8 bytes"},
		"two values":            {"application/json", `{"n":1} {"n":2}`, 200, false, nil, "after 9 of 15 bytes"},
		"nothing":               {"application/json", "", 200, false, nil, "it is empty"},
		"no content":            {"application/json", "", 204, false, nil, ""},
		"text":                  {"text/plain", `{"a": 1,`, 200, false, `{"a": 1,`, ""},
		"untyped text":          {"", "done\n", 200, false, "done", ""},
		"untyped JSON":          {"", `{"n":1}`, 200, false, map[string]any{"n": int64(1)}, ""},
		"untyped, two values":   {"", `{"n":1} {"n":2}`, 200, false, `{"n":1} {"n":2}`, ""},
		"untyped, NaN":          {"", " {\"s3\":NaN}\n", 200, false, " {\"s3\":NaN}", ""},
		"untyped, an array":     {"", "[1,", 200, false, "[1,", ""},
		"untyped newlines":      {"", "a\n\n", 200, false, "a\n", ""},
		"JSON wanted":           {"text/plain", ` {"n": 1} `, 200, true, map[string]any{"n": int64(1)}, ""},
		"wanted, nothing":       {"text/plain", "", 200, true, nil, "it is empty"},
		"wanted, blanks":        {"text/plain", " \n", 200, true, nil, "after 2 of 2 bytes"},
		"wanted, text":          {"text/plain", "s3cret", 200, true, nil, "after 1 of 6 bytes"},
		"wanted, text inside":   {"text/plain", "[1, s3cret]", 200, true, nil, "after 5 of 11 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header()["Content-Type"] = []string{c.contentType}
				w.WriteHeader(c.status)
				_, _ = io.WriteString(w, c.body)
			})
			a := newAnalyzer(t, s.URL, orchestrator.Options{AnyOutput: !c.json})
			orchestrator.SetPatience(a, time.Millisecond)
			var warned recorder
			got, err := orchestrator.Run(t.Context(), a, orchestrator.Job{Reporter: &warned})
			text, _ := c.want.(string)
			if want := strings.HasPrefix(strings.TrimSpace(text), "{") || strings.HasPrefix(text, "["); want != (len(warned.warned) == 1) || strings.Contains(fmt.Sprint(warned.warned), "s3") {
				t.Errorf("warned %q", warned.warned)
			}
			if c.stopped != "" {
				wantInvalidOutput(t, err, c.stopped)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			equal(t, got, c.want)
		})
	}
}

// wantInvalidOutput wants a FailureError with the code and the position where parsing
// stopped, without the output itself.
func wantInvalidOutput(t *testing.T, err error, stopped string) {
	t.Helper()
	var failure *orchestrator.FailureError
	if !errors.As(err, &failure) || failure.Code != orchestrator.CodeInvalidOutput || !strings.HasSuffix(failure.Reason, stopped) {
		t.Errorf("got %v, want %s, %s", err, orchestrator.CodeInvalidOutput, stopped)
	}
	if err != nil && (strings.Contains(err.Error(), "s3") || strings.ContainsAny(err.Error(), `{["'`)) {
		t.Errorf("%v shows the output", err)
	}
}

func TestAnEndpointsRetryAfterIsTheWait(t *testing.T) {
	date := func(in time.Duration) string { return time.Now().Add(in).UTC().Format(http.TimeFormat) }
	for name, tc := range map[string]struct {
		status              int
		retryAfter, answers string // the header, and the answer's Date unless empty
		want                time.Duration
	}{
		"seconds":            {429, "120", "", 2 * time.Minute},
		"also of a 503":      {503, "1", "", time.Second},
		"not of a 500":       {500, "120", "", 0},
		"nor of a 408":       {408, "120", "", 0},
		"12 h":               {429, "43200", "", 12 * time.Hour},
		"more":               {429, "43201", "", 12 * time.Hour},
		"more than a number": {429, strings.Repeat("9", 400), "", 12 * time.Hour},
		"a date":             {503, date(2 * time.Hour), date(time.Hour), time.Hour}, // their clock is ahead
		"a date in a year":   {503, date(8760 * time.Hour), date(0), 12 * time.Hour},
		"a date that is now": {503, date(0), date(0), 0},
		"a date in the past": {503, date(-time.Hour), date(0), 0},
		"nor of a bad Date":  {503, date(-time.Hour), "today", 0},
		"a part of a second": {429, "0.2", "", time.Second},
		"no time at all":     {429, "soon", "", 0},
		"no number":          {429, "NaN", "", 0},
		"zero":               {429, "0", "", 0},
		"negative":           {429, "-5", "", 0},
		"missing":            {429, "", "", 0},
	} {
		s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", tc.retryAfter)
			if tc.answers != "" {
				w.Header().Set("Date", tc.answers)
			}
			w.WriteHeader(tc.status)
		})
		_, err := post(t.Context(), t, s.URL, orchestrator.Job{})
		var later *orchestrator.RetryAfterError
		if got := errors.As(err, &later); got != (tc.want > 0) || got && later.Wait != tc.want {
			t.Errorf("%s: got %#v, want a wait of %v", name, err, tc.want)
		}
		if failure := (*orchestrator.FailureError)(nil); !errors.As(err, &failure) {
			t.Errorf("%s: got %v, want a FailureError", name, err)
		}
	}
}

func TestEndpointsStatusDecidesWhetherToRetry(t *testing.T) {
	for status, permanent := range map[int]bool{
		400: true, 401: true, 403: true, 404: true, 410: true, 413: true, 422: true, 499: true,
		408: false, 409: false, 425: false, 429: false,
		301: false, 302: false, 304: false, 307: false, 500: false, 502: false, 503: false, 504: false, 599: false,
	} {
		requests := 0
		s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			requests++
			w.Header().Set("Location", "/elsewhere")
			w.WriteHeader(status)
			if status != http.StatusNotModified {
				_, _ = io.WriteString(w, " because\n")
			}
		})
		got, err := post(t.Context(), t, s.URL, orchestrator.Job{})
		var refused *orchestrator.PermanentError
		switch {
		case err == nil:
			t.Errorf("%d: got %v, want an error", status, got)
		case errors.As(err, &refused) != permanent:
			t.Errorf("%d: got %v, want permanent: %t", status, err, permanent)
		case permanent && (refused.Code != orchestrator.CodeAnalyzerRejected || refused.Message != "because"):
			t.Errorf("%d: got %s: %q", status, refused.Code, refused.Message)
		case requests != 1:
			t.Errorf("%d: %d requests, want 1", status, requests)
		}
	}
}

func TestEndpointsMessageIsCutBetweenCharacters(t *testing.T) {
	body := ""
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, body)
	})
	for output, want := range map[string]string{
		"":                              "the analyzer answered 400 Bad Request",
		"x" + strings.Repeat("é", 5000): "x" + strings.Repeat("é", 1023),
		"\xff" + "bad":                  "\uFFFDbad",
	} {
		body = output
		_, err := post(t.Context(), t, s.URL, orchestrator.Job{})
		equal(t, permanent(t, err).Message, want)
	}
}

func TestTooLargeAnAnswerIsPermanent(t *testing.T) {
	over := strings.Repeat(" ", orchestrator.MaxOutputBytes)
	compressed := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		_, _ = io.WriteString(z, over+"1")
		_ = z.Close()
	})
	_, err := post(t.Context(), t, compressed.URL, orchestrator.Job{})
	wantTooLarge(t, err)
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, over[1:]+"1") })
	if got, err := post(t.Context(), t, s.URL, orchestrator.Job{}); got != int64(1) || err != nil {
		t.Errorf("at the limit: got %v, %v; want 1", got, err)
	}
}

func TestAnUnreachableEndpointIsRetriedAndItsErrorShowsNoSecret(t *testing.T) {
	s := httptest.NewServer(http.NotFoundHandler())
	url := strings.Replace(s.URL, "http://", "http://user:s3cret@", 1) + "/p?key=s3cret"
	s.Close()
	_, err := post(t.Context(), t, url, orchestrator.Job{})
	wantRetry(t, err)
	if strings.Contains(err.Error(), "s3cret") || !strings.HasPrefix(err.Error(), "orchestrator: "+s.URL+": ") {
		t.Errorf("got %q", err)
	}
}

func TestATruncatedAnswerIsRetried(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "10")
		_, _ = io.WriteString(w, `{"n":1}`)
	})
	_, err := post(t.Context(), t, s.URL, orchestrator.Job{})
	wantRetry(t, err, io.ErrUnexpectedEOF.Error())
}

func TestEndpointsRequestEndsWithItsContext(t *testing.T) {
	for name, begin := range map[string]string{"before the answer": "", "within the answer": `{"n":`} {
		t.Run(name, func(t *testing.T) {
			arrived, ended := make(chan struct{}), make(chan struct{})
			s := serve(t, func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				if begin != "" {
					_, _ = io.WriteString(w, begin)
					w.(http.Flusher).Flush()
				}
				close(arrived)
				<-r.Context().Done()
				close(ended)
			})
			ctx, cancel := context.WithCancelCause(t.Context())
			go func() {
				<-arrived
				cancel(errLost)
			}()
			_, err := post(ctx, t, s.URL+"/?s3cret", orchestrator.Job{})
			if !errors.Is(err, errLost) || !errors.Is(err, context.Canceled) || strings.Contains(err.Error(), "s3cret") {
				t.Errorf("got %v, want the context's cause", err)
			}
			<-ended
		})
	}
}

var errLost = errors.New("the lock was lost")

func wantTooLarge(t *testing.T, err error) {
	t.Helper()
	wantPermanent(t, err, orchestrator.CodeResultTooLarge, " bytes")
}

const traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

// withSpan is in the span that traceparent names, with a tracestate.
func withSpan(t *testing.T) context.Context {
	t.Helper()
	state, err := trace.ParseTraceState("vendor=1")
	if err != nil {
		t.Fatal(err)
	}
	return trace.ContextWithSpanContext(t.Context(), trace.NewSpanContext(trace.SpanContextConfig{
		TraceID:    trace.TraceID{0x0a, 0xf7, 0x65, 0x19, 0x16, 0xcd, 0x43, 0xdd, 0x84, 0x48, 0xeb, 0x21, 0x1c, 0x80, 0x31, 0x9c},
		SpanID:     trace.SpanID{0xb7, 0xad, 0x6b, 0x71, 0x69, 0x20, 0x33, 0x31},
		TraceFlags: trace.FlagsSampled, TraceState: state,
	}))
}

func TestEndpointReceivesTheTraceOfTheRun(t *testing.T) {
	var got http.Header
	s := serve(t, func(_ http.ResponseWriter, r *http.Request) { got = r.Header.Clone() })
	for ctx, want := range map[context.Context]string{withSpan(t): traceparent + " vendor=1", t.Context(): " "} {
		if _, err := post(ctx, t, s.URL, orchestrator.Job{}); err != nil {
			t.Fatal(err)
		}
		equal(t, got.Get("traceparent")+" "+got.Get("tracestate"), want)
	}
}
