package orchestrator_test

import (
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/propagation"

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

// answerer returns the URL of an endpoint that answers so.
func answerer(t *testing.T, status int, contentType, body string) string {
	t.Helper()
	return serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header()["Content-Type"] = []string{contentType}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}).URL
}

func TestEndpoint_Request(t *testing.T) {
	var got *http.Request
	var body []byte
	s := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		got = r
		body, _ = io.ReadAll(r.Body)
	})
	url := strings.Replace(s.URL, "http://", "http://u:p@", 1) + "/analyze?key=k"
	result, err := post(t.Context(), t, url, orchestrator.Job{
		AnalysisID: " a,ä", LockToken: 7, Attempt: 2, Input: json.RawMessage(`{"n": 12345678901234567890, "s": "<&>"}`),
	})
	if err != nil || result != nil {
		t.Fatalf("got %v, %v; want null for an empty body", result, err)
	}
	equal(t, got.Method+" "+got.URL.RequestURI(), "POST /analyze?key=k")
	want := `{"analysis_id":" a,ä","lock_token":7,"attempt":2,"input":{"n":12345678901234567890,"s":"<&>"}}`
	equal(t, string(body), want+"\n")
	if !got.Close {
		t.Error("the connection is kept open")
	}
	for name, want := range map[string]string{
		"Content-Type":    "application/json",
		"Accept":          "application/json, application/x-ndjson;q=0.9, */*;q=0.8",
		"Idempotency-Key": "%20a%2C%C3%A4", // a header is trimmed, and must be ASCII
		"X-Lock-Token":    "7",
		"Authorization":   "Basic dTpw",
	} {
		if got := got.Header.Get(name); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}

func TestEndpoint_Answer(t *testing.T) {
	const cutOff, plain, problem = `{"a": 1,`, "text/plain", "application/problem+json"
	invalid := errors.New(orchestrator.CodeInvalidOutput)
	for name, c := range map[string]struct {
		status  int
		form    string // the content type
		body    string
		want    any  // or invalid
		json    bool // not Options.AnyOutput
		warning string
	}{
		"JSON":                  {status: 299, form: "Application/JSON; charset=utf-8", body: `"x"`, want: "x"},
		"cut off":               {status: 201, form: "application/json; charset=utf-8", body: cutOff, want: invalid},
		"cut off, bad header":   {status: 200, form: "application/json; charset", body: cutOff, want: invalid},
		"no content":            {status: 204, form: "application/json"},
		"text":                  {status: 200, form: plain, body: cutOff, want: cutOff, warning: "like JSON"},
		"JSON wanted":           {status: 200, form: plain, body: cutOff, want: invalid, json: true},
		"a problem":             {status: 200, form: problem, body: `{}`, want: map[string]any{}, warning: "a problem"},
		"accepted":              {status: 202, form: "application/json", body: `7`, want: int64(7), warning: "202"},
		"accepted, without one": {status: 202, warning: "202"},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAnalyzer(t, answerer(t, c.status, c.form, c.body), orchestrator.Options{AnyOutput: !c.json})
			var warned recorder
			got, err := orchestrator.Run(t.Context(), a, orchestrator.Job{Reporter: &warned})
			if c.want == invalid { //nolint:errorlint // a row's want is any value
				wantInvalidOutput(t, err, "bytes")
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			equal(t, got, c.want)
			wantWarning(t, name, warned.warned, c.warning)
		})
	}
}

func TestEndpoint_RetryAfter(t *testing.T) {
	date := func(in time.Duration) string { return time.Now().Add(in).UTC().Format(http.TimeFormat) }
	ahead := date(time.Hour) // their clock
	for _, c := range []struct {
		status    int
		text, now string // the header, and the answer's date
		want      time.Duration
	}{
		{status: 429, text: "120", want: 2 * time.Minute},
		{status: 503, text: "0.2", want: time.Second},
		{status: 429, text: "1.001", want: 1001 * time.Millisecond},
		{status: 429, text: "43201", want: 12 * time.Hour},
		{status: 429, text: strings.Repeat("9", 400), want: 12 * time.Hour}, // infinite
		{status: 503, text: date(2 * time.Hour), now: ahead, want: time.Hour},
		{status: 503, text: date(8760 * time.Hour), now: ahead, want: 12 * time.Hour},
		{status: 503, text: ahead, now: ahead},
		{status: 503, text: date(-time.Hour), now: "today"},
		{status: 500, text: "120"}, {status: 408, text: "120"},
		{status: 429, text: "soon"}, {status: 429, text: "NaN"}, {status: 429, text: "0"},
		{status: 429, text: "-5"}, {status: 429, text: ""},
	} {
		s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", c.text)
			w.Header().Set("Date", cmp.Or(c.now, date(0)))
			w.WriteHeader(c.status)
		})
		_, err := post(t.Context(), t, s.URL, orchestrator.Job{})
		if !errors.As(err, new(*orchestrator.FailureError)) {
			t.Errorf("%+v: got %v, want a FailureError", c, err)
		}
		later := &orchestrator.RetryAfterError{} // of no wait
		_ = errors.As(err, &later)
		if later.Wait != c.want {
			t.Errorf("%+v: got %v", c, later.Wait)
		}
	}
}

func TestEndpoint_Status(t *testing.T) {
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
		_, err := post(t.Context(), t, s.URL, orchestrator.Job{})
		if permanent {
			wantPermanent(t, err, orchestrator.CodeAnalyzerRejected, "because")
		} else {
			wantRetry(t, err)
		}
		if requests != 1 {
			t.Errorf("%d: %d requests, want 1", status, requests)
		}
	}
}

func TestEndpoint_ErrorBody(t *testing.T) {
	const title = `"type":"https://host/no-page","title":"No page"`
	type explained = [2]string // code and message
	all := map[string]explained{
		"\uFEFF" + `{"error":{"code":"no_page","message":"m"}}`:              {"no_page", "m"},
		`{"error":{"code":"no_page","message":"m","permanent":true}}`:        {"no_page", "m"},
		`{"error":{"code":"no page!","message":"m"}}`:                        {"", "m"},
		`{"error":{"code":"a\n","message":"m"}}`:                             {"", "m"},
		`{"error":{"code":404,"message":"m","status":"NOT_FOUND"}}`:          {"", "m"},
		`{"error":{"code":"` + strings.Repeat("c", 64) + `","message":"m"}}`: {strings.Repeat("c", 64), "m"},
		`{"error":{"code":"` + strings.Repeat("c", 65) + `","message":"m"}}`: {"", "m"},
		`{"error":{"message":"` + strings.Repeat("é", 2000) + `"}}`:          {"", strings.Repeat("é", 1024)},
		`{` + title + `,"detail":"page 7 is missing","code":"no_page"}`:      {"no_page", "page 7 is missing"},
		`{` + title + `,"code":"no_page"}`:                                   {"no_page", "No page"},
		`{` + title + `,"status":404,"detail":"page 7"}`:                     {"", "page 7"},
		`{"error":null,` + title + `,"code":"no_page"}`:                      {"no_page", "No page"},
		"x" + strings.Repeat("é", 40_000):                                    {"", "x" + strings.Repeat("é", 1023)},
		"\xff" + "bad":                                                       {"", "\uFFFDbad"},
	}
	for _, body := range []string{`{"error":{"code":7}}`, `{"detail":"alone"}`, "null"} {
		all[body] = explained{"", body}
	}
	for _, body := range []string{`{"error":"a","code":"no_page"}`, `{"error":{"code":"no_page"}}`} {
		all[body] = explained{"no_page", body}
	}
	for body, want := range all {

		_, err := post(t.Context(), t, answerer(t, 422, "application/json", body), orchestrator.Job{})
		code := cmp.Or(want[0], orchestrator.CodeAnalyzerRejected)
		equal(t, permanent(t, err), orchestrator.PermanentError{Code: code, Message: want[1]})
		_, err = post(t.Context(), t, answerer(t, 500, "application/json", body), orchestrator.Job{})
		failure, ok := errors.AsType[*orchestrator.FailureError](err)
		if !ok {
			t.Fatalf("%.80s: got %v, want a FailureError", body, err)
		}
		equal(t, [2]string{failure.Code, failure.Message}, want)
	}
	_, err := post(t.Context(), t, answerer(t, 400, "", ""), orchestrator.Job{})
	wantPermanent(t, err, orchestrator.CodeAnalyzerRejected, "400")
}

func TestEndpoint_TooLarge(t *testing.T) {
	over := strings.Repeat(" ", orchestrator.MaxOutputBytes)
	compressed := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		_, _ = io.WriteString(z, over+"1")
		_ = z.Close()
	})
	_, err := post(t.Context(), t, compressed.URL, orchestrator.Job{})
	wantTooLarge(t, err)
	got, err := post(t.Context(), t, answerer(t, 200, "", over[1:]+"7"), orchestrator.Job{})
	want7(t, got, err)
}

func TestEndpoint_Unreachable(t *testing.T) {
	s := httptest.NewServer(http.NotFoundHandler())
	url := strings.Replace(s.URL, "http://", "http://user:s3cret@", 1) + "/p?key=s3cret"
	s.Close()
	_, err := post(t.Context(), t, url, orchestrator.Job{})
	if wantRetry(t, err, s.URL); strings.Contains(err.Error(), "s3cret") {
		t.Errorf("%v shows the secret", err)
	}
}

func TestEndpoint_ContextEnds(t *testing.T) {
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
			if !errors.Is(err, errLost) || !errors.Is(err, context.Canceled) {
				t.Fatalf("got %v, want the context's cause", err)
			}
			if strings.Contains(err.Error(), "s3cret") {
				t.Errorf("%v shows the secret", err)
			}
			<-ended
		})
	}
}

var errLost = errors.New("the lock was lost")

const traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

// withSpan is in the span that traceparent names, with a tracestate.
func withSpan(t *testing.T) context.Context {
	t.Helper()
	header := propagation.MapCarrier{"traceparent": traceparent, "tracestate": "vendor=1"}
	return propagation.TraceContext{}.Extract(t.Context(), header)
}

func TestEndpoint_Trace(t *testing.T) {
	var got http.Header
	s := serve(t, func(_ http.ResponseWriter, r *http.Request) { got = r.Header.Clone() })
	for ctx, want := range map[context.Context]string{withSpan(t): traceparent + " vendor=1", t.Context(): " "} {
		if _, err := post(ctx, t, s.URL, orchestrator.Job{}); err != nil {
			t.Fatal(err)
		}
		equal(t, got.Get("traceparent")+" "+got.Get("tracestate"), want)
	}
}
