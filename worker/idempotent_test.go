package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"

	"taskguard/internal/testing/emulatortest"
	"taskguard/lease"
	"taskguard/worker"
)

func account(r *http.Request) string { return r.Header.Get("Account") }

// order returns a request of the account a for the route /orders.
func order(t testing.TB, key, body string) *http.Request {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/orders?a=1", strings.NewReader(body))
	r.Header.Set("Account", "a")
	r.Header.Set("Content-Type", "application/json")
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	return r
}

// answer serves a request, compares the summary of the answer with want, and returns its header.
func answer(t testing.TB, h http.Handler, r *http.Request, want string) http.Header {
	t.Helper()
	recorded := httptest.NewRecorder()
	h.ServeHTTP(recorded, r)
	if got := summary(t, recorded); got != want {
		t.Errorf("%s %s, key %q: %s; want %s", r.Method, r.URL, r.Header["Idempotency-Key"], got, want)
	}
	return recorded.Header()
}

// summary returns the status of an answer, "replayed" if it is, and the body or the last part of
// the type of a problem.
func summary(t testing.TB, recorded *httptest.ResponseRecorder) string {
	t.Helper()
	status, header, got := recorded.Code, recorded.Header(), fmt.Sprint(recorded.Code, " ")
	if header.Get("Idempotency-Replayed") == "true" {
		got += "replayed "
	}
	if header.Get("Content-Type") != "application/problem+json" {
		return got + recorded.Body.String()
	}

	var problem struct {
		Type, Title, Detail string
		Status              int
	}
	if err := json.Unmarshal(recorded.Body.Bytes(), &problem); err != nil || problem.Status != status || problem.Title == "" || problem.Detail == "" {
		t.Errorf("problem %s, %v", recorded.Body, err)
	}
	repeatable := status == http.StatusConflict || status == http.StatusServiceUnavailable
	if after := header.Get("Retry-After"); (after == "1") != repeatable {
		t.Errorf("%d with Retry-After %q", status, after)
	}
	return got + strings.TrimPrefix(problem.Type, "urn:problem-type:idempotency:")
}

// counting returns a handler that answers 201 with the number of its calls and the body.
func counting(t testing.TB, calls *atomic.Int32) http.Handler {
	t.Helper()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		w.Header().Set("Location", "/orders/1")
		w.Header().Set("Set-Cookie", "a=b")
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprint(w, calls.Add(1), string(body[:min(len(body), 9)]))
	})
}

func TestIdempotentKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, calls := open(t, emulatortest.Embedded(t), nil), &atomic.Int32{}
		h := g.Idempotent(worker.IdempotentOptions{Scope: account})(counting(t, calls))
		with := func(change func(*http.Request)) *http.Request {
			r := order(t, `"a"`, "x")
			change(r)
			return r
		}
		long := strings.Repeat("k", 255)
		for _, c := range []struct {
			r    *http.Request
			want string
		}{
			{order(t, "", "x"), "400 key-missing"},
			{order(t, `""`, "x"), "400 key-malformed"},
			{order(t, `"`, "x"), "400 key-malformed"},
			{order(t, `"a`, "x"), "400 key-malformed"},
			{order(t, `a"`, "x"), "400 key-malformed"},
			{order(t, `"a";b`, "x"), "400 key-malformed"},
			{order(t, `"a\b"`, "x"), "400 key-malformed"},
			{order(t, `"ä"`, "x"), "400 key-malformed"},
			{order(t, "a b", "x"), "400 key-malformed"},
			{order(t, "a,b", "x"), "400 key-malformed"},
			{order(t, long+"k", "x"), "400 key-malformed"},
			{order(t, `"`+long+`k"`, "x"), "400 key-malformed"},
			{with(func(r *http.Request) { r.Header.Add("Idempotency-Key", `"a"`) }), "400 key-malformed"},
			{with(func(r *http.Request) { r.Header.Del("Account") }), "403 scope-missing"},

			{order(t, `"a"`, "x"), "201 1x"},
			{order(t, `"a"`, "x"), "201 replayed 1x"},
			{order(t, "a", "x"), "201 replayed 1x"},
			{order(t, "a", "y"), "422 key-reused"},
			{with(func(r *http.Request) { r.Method = http.MethodPatch }), "422 key-reused"},
			{with(func(r *http.Request) { r.RequestURI = "/orders?a=2" }), "422 key-reused"},
			{with(func(r *http.Request) { r.RequestURI = "/refunds?a=1" }), "422 key-reused"},
			{with(func(r *http.Request) { r.Header.Set("Content-Type", "text/plain") }), "422 key-reused"},
			{with(func(r *http.Request) { r.Header.Set("Account", "b") }), "201 2x"},
			{order(t, `"b c"`, "x"), "201 3x"},
			{with(func(r *http.Request) { r.Header.Set("Account", "a b"); r.Header.Set("Idempotency-Key", "c") }), "201 4x"},
			{order(t, `" a/b,;\"\\"`, "x"), "201 5x"},
			{order(t, `" a/b,;\"\\"`, "x"), "201 replayed 5x"},
			{order(t, "8e03978e-40d5-43e8-bc93-6894a57f9324", ""), "201 6"},
			{order(t, `"8e03978e-40d5-43e8-bc93-6894a57f9324"`, ""), "201 replayed 6"},
			{order(t, long, "x"), "201 7x"},
			{order(t, `"`+long+`"`, "x"), "201 replayed 7x"},
			{with(func(r *http.Request) { r.Method = http.MethodPut }), "201 8x"}, // not guarded
			{with(func(r *http.Request) { r.Method = http.MethodPut }), "201 9x"},
		} {
			if strings.HasPrefix(c.want, "400") || strings.HasPrefix(c.want, "403") {
				c.r.Body = io.NopCloser(unread{t})
			}
			answer(t, h, c.r, c.want)
		}

		other := g.Idempotent(worker.IdempotentOptions{Scope: account, Operation: "other", Optional: true, Methods: []string{http.MethodPut}})(counting(t, calls))
		put := func(key string) *http.Request {
			r := order(t, key, "x")
			r.Method = http.MethodPut
			return r
		}
		empty := put("")
		empty.Header.Set("Idempotency-Key", "") // a client that has lost its key
		answer(t, other, empty, "400 key-malformed")
		answer(t, other, put(""), "201 10x")
		answer(t, other, put(""), "201 11x")
		answer(t, other, put("a"), "201 12x")
		answer(t, other, put("a"), "201 replayed 12x")
		answer(t, other, order(t, "a", "x"), "201 13x")
		without := order(t, "without a body", "")
		without.Header.Set("Idempotency-Key", "none")
		without.Body = nil
		answer(t, h, without, "201 14")
	})
}

// unread is a body that must not be read.
type unread struct{ t testing.TB }

func (u unread) Read([]byte) (int, error) {
	u.t.Error("the body is read before the key and the scope are checked")
	return 0, io.EOF
}

// A form that is sent again has another boundary.
func TestIdempotentComparesThePartsOfAForm(t *testing.T) {
	form := func(boundary string, replaced ...string) string {
		const parts = "--B\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n" +
			"--B\r\nContent-Disposition: form-data; name=\"b\"; filename=\"b.txt\"\r\nContent-Type: text/csv\r\n\r\n2\r\n" +
			"--B--\r\n"
		return strings.ReplaceAll(strings.NewReplacer(replaced...).Replace(parts), "--B", "--"+boundary)
	}
	const data, same, differs = "multipart/form-data; boundary=", "201 replayed 1", "422 key-reused"
	type sent struct{ contentType, body string }
	first := sent{data + "B", form("B")}
	synctest.Test(t, func(t *testing.T) {
		g := open(t, emulatortest.Embedded(t), nil)
		for name, c := range map[string]struct {
			first, again sent
			want         string
		}{
			"a new boundary":           {first, sent{data + "C", form("C")}, same},
			"its type otherwise":       {first, sent{`Multipart/Form-Data;BOUNDARY="C"`, form("C")}, same},
			"other content":            {first, sent{data + "C", form("C", "\r\n2", "\r\n3")}, differs},
			"another name":             {first, sent{data + "C", form("C", `"b"`, `"c"`)}, differs},
			"another file":             {first, sent{data + "C", form("C", "b.txt", "c.txt")}, differs},
			"another type of a part":   {first, sent{data + "C", form("C", "csv", "tsv")}, differs},
			"content changed places":   {first, sent{data + "C", form("C", "\r\n1", "\r\n2", "\r\n2", "\r\n1")}, differs},
			"another type of form":     {first, sent{"multipart/mixed; boundary=C", form("C")}, differs},
			"another parameter":        {first, sent{data + "C; charset=utf-8", form("C")}, differs},
			"without its end":          {first, sent{data + "C", form("C", "--B--\r\n", "")}, differs},
			"in no form":               {sent{data + "D", form("B")}, sent{data + "D", form("B", "csv", "tsv")}, differs},
			"not as a form":            {sent{"text/plain", form("B")}, sent{"text/plain", form("C")}, differs},
			"text, its type otherwise": {sent{"text/plain; charset=utf-8", "x"}, sent{"TEXT/plain;charset=utf-8", "x"}, same},
			"of no type":               {sent{"a b", "x"}, sent{"a b", "x"}, same},
			"of another no type":       {sent{"a b", "x"}, sent{"A b", "x"}, differs},
		} {
			calls := 0
			h := g.Idempotent(worker.IdempotentOptions{Scope: account})(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				calls++
				w.WriteHeader(http.StatusCreated)
				_, _ = fmt.Fprint(w, calls)
			}))
			for i, sent := range []sent{c.first, c.again} {
				r := order(t, `"`+name+`"`, sent.body)
				r.Header.Set("Content-Type", sent.contentType)
				answer(t, h, r, []string{"201 1", c.want}[i])
			}
		}
	})
}

func TestIdempotentComparesBodiesOf1MiB(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, calls := open(t, emulatortest.Embedded(t), nil), &atomic.Int32{}
		h := g.Idempotent(worker.IdempotentOptions{Scope: account})(counting(t, calls))
		body := strings.Repeat("x", 1<<20-1)
		answer(t, h, order(t, "a", body+"y"+"z"), "413 body-too-large")
		answer(t, h, order(t, "a", body+"y"), "201 1xxxxxxxxx")
		answer(t, h, order(t, "a", body+"y"), "201 replayed 1xxxxxxxxx")
		answer(t, h, order(t, "a", body+"z"), "422 key-reused")
		answer(t, h, order(t, "a", body), "422 key-reused")
		incomplete := order(t, "b", "")
		incomplete.Body = io.NopCloser(io.MultiReader(strings.NewReader("x"), failing{}))
		answer(t, h, incomplete, "400 body-incomplete")
	})
}

func TestIdempotentRefusesABodyThatWasReadBefore(t *testing.T) {
	form := func(r *http.Request) { _ = r.PostFormValue("b") }
	synctest.Test(t, func(t *testing.T) {
		g := open(t, emulatortest.Embedded(t), nil)
		for name, c := range map[string]struct {
			before func(*http.Request)
			want   string
		}{
			"a form":            {form, "500 body-read"},
			"a chunked form":    {func(r *http.Request) { r.ContentLength = -1; form(r) }, "500 body-read"},
			"a chunked body":    {func(r *http.Request) { r.ContentLength = -1; _, _ = io.ReadAll(r.Body) }, "500 body-read"},
			"chunked, not read": {func(r *http.Request) { r.ContentLength = -1 }, "201 1b=1"},
			"a byte":            {func(r *http.Request) { _, _ = r.Body.Read(make([]byte, 1)) }, "500 body-read"},
			"only the query":    {func(r *http.Request) { r.Header.Set("Content-Type", "application/json"); _ = r.FormValue("a") }, "201 1b=1"},
			"all, and put back": {func(r *http.Request) { form(r); r.Body = io.NopCloser(strings.NewReader("b=1")) }, "201 1b=1"},
			"decompressed":      {func(r *http.Request) { r.Header.Set("Content-Encoding", "gzip"); r.ContentLength = 23 }, "201 1b=1"},
		} {
			r := order(t, `"`+name+`"`, "b=1")
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			c.before(r)
			answer(t, g.Idempotent(worker.IdempotentOptions{Scope: account})(counting(t, &atomic.Int32{})), r, c.want)
		}
	})
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// Each handler is called with one key twice.
func TestIdempotentStoresResponses(t *testing.T) {
	write := func(status, size int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusEarlyHints)
			w.WriteHeader(status)
			_, _ = fmt.Fprint(w, strings.Repeat("x", size))
		}
	}
	large := strings.Repeat("x", 512<<10)
	tooLarge := func(panicked error) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			for {
				if _, err := io.WriteString(w, large); err != nil {
					panic(panicked)
				}
			}
		}
	}
	for name, c := range map[string]struct {
		handler       http.HandlerFunc
		first, second string
		calls         int32
		stored        func(int) bool
	}{
		"nothing written":  {func(http.ResponseWriter, *http.Request) {}, "200 ", "200 replayed ", 1, nil},
		"a status":         {write(204, 0), "204 ", "204 replayed ", 1, nil},
		"a refusal":        {write(400, 1), "400 x", "400 replayed x", 1, nil},
		"a conflict":       {write(409, 1), "409 x", "409 x", 2, nil},
		"a timeout":        {write(408, 1), "408 x", "408 x", 2, nil},
		"too early":        {write(425, 1), "425 x", "425 x", 2, nil},
		"too many":         {write(429, 1), "429 x", "429 x", 2, nil},
		"a failure":        {write(500, 1), "500 x", "500 x", 2, nil},
		"a stored failure": {write(500, 1), "500 x", "500 replayed x", 1, func(status int) bool { return status == 500 }},
		"binary":           {func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte{0, 255}) }, "200 \x00\xff", "200 replayed \x00\xff", 1, nil},
		"512 KiB":          {write(200, 512<<10), "200 " + large, "200 replayed " + large, 1, nil},
		"a byte more":      {write(200, 512<<10+1), "500 response-too-large", "500 response-too-large", 1, nil},
		"too large, abort": {tooLarge(http.ErrAbortHandler), "500 response-too-large", "500 response-too-large", 1, nil},
		"too large, panic": {tooLarge(errBroken), "500 response-too-large", "500 response-too-large", 1, nil},
		"a stream of events": {func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "Text/Event-Stream; charset=utf-8")
			flusher, ok := w.(http.Flusher) // many handlers ask so
			if !ok {
				t.Error("no http.Flusher")
				return
			}
			flusher.Flush()
			<-r.Context().Done() // as a handler that looks at no error of Write
		}, "500 response-streamed", "500 response-streamed", 1, nil},
		"no stream of events": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-streams")
			_, _ = fmt.Fprint(w, "x")
		}, "200 x", "200 replayed x", 1, nil},
		"another protocol": {write(101, 0), "500 response-streamed", "500 response-streamed", 1, nil},
		"not hijacked": {func(w http.ResponseWriter, _ *http.Request) {
			if _, _, err := http.NewResponseController(w).Hijack(); !errors.Is(err, http.ErrNotSupported) {
				t.Errorf("Hijack: %v", err)
			}
			_, _ = fmt.Fprint(w, "x")
		}, "200 x", "200 replayed x", 1, nil},
		"an uncertain act": {func(w http.ResponseWriter, r *http.Request) {
			job, _ := worker.JobFromContext(r.Context())
			_, err := worker.Once(r.Context(), job, "charge", func(context.Context) (int, error) { return 0, errBroken })
			w.WriteHeader(http.StatusInternalServerError)
			_, _ = fmt.Fprint(w, errors.Is(err, errBroken), errors.As(err, new(*worker.UncertainError)))
		}, "500 true false", "500 false true", 2, nil},
		"headers that no document can hold": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", strings.Repeat("x", 400<<10))
			_, _ = fmt.Fprint(w, large)
		}, "500 no-response", "500 no-response", 1, nil},
	} {
		worker.Subtest(t, name, func(t *testing.T) {
			g, calls := open(t, emulatortest.Embedded(t), nil), &atomic.Int32{}
			o := worker.IdempotentOptions{Scope: account, Stored: c.stored}
			h := g.Idempotent(o)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				calls.Add(1)
				c.handler(w, r)
			}))
			answer(t, h, order(t, "a", "x"), c.first)
			answer(t, h, order(t, "a", "x"), c.second)
			if n := calls.Load(); n != c.calls {
				t.Errorf("%d calls, want %d", n, c.calls)
			}
		})
	}
}

func TestIdempotentReplaysChosenHeaders(t *testing.T) {
	withGuard(t, func(t *testing.T, _ *emulatortest.Backend, g *worker.Guard) {
		calls := 0
		h := g.Idempotent(worker.IdempotentOptions{Scope: account, Headers: []string{"x-order"}})(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Del("Vary")
			w.Header().Set("Cache-Control", "a")
			for _, name := range []string{"Location", "ETag", "X-Order", "X-Other", "Set-Cookie"} {
				w.Header().Add(name, "a")
				w.Header().Add(name, "b")
			}
		}))
		outer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			calls++
			for _, name := range []string{"X-Outer", "Link", "Vary", "Set-Cookie", "X-Order", "Cache-Control"} {
				w.Header().Set(name, fmt.Sprint(calls))
			}
			h.ServeHTTP(w, r)
		})
		all := http.Header{"X-Outer": {"1"}, "Link": {"1"}, "Cache-Control": {"a"}}
		for _, name := range []string{"Location", "Etag", "X-Order", "X-Other", "Set-Cookie"} {
			all[name] = []string{"a", "b"}
		}
		all["Set-Cookie"], all["X-Order"] = []string{"1", "a", "b"}, []string{"1", "a", "b"}
		if diff := cmp.Diff(all, answer(t, outer, order(t, "a", "x"), "200 ")); diff != "" {
			t.Errorf("the headers (-want +got):\n%s", diff)
		}
		delete(all, "X-Other")
		all["X-Order"] = []string{"a", "b"}
		for _, name := range []string{"X-Outer", "Link", "Vary", "Set-Cookie"} {
			all.Set(name, "2")
		}
		all.Set("Idempotency-Replayed", "true")
		if diff := cmp.Diff(all, answer(t, outer, order(t, "a", "x"), "200 replayed ")); diff != "" {
			t.Errorf("the replayed headers (-want +got):\n%s", diff)
		}
	})
}

// The second request comes while the first is in the handler, which ends in different ways.
func TestIdempotentRunsOneHandlerAtATime(t *testing.T) {
	emulatortest.Each(t, func(t *testing.T, b *emulatortest.Backend) {
		g, other, calls := open(t, b, nil), open(t, b, nil), &atomic.Int32{}
		entered, leave := make(chan worker.Job), make(chan any)
		handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			job, _ := worker.JobFromContext(r.Context())
			entered <- job
			if v := <-leave; v != nil {
				panic(v)
			}
			counting(t, calls).ServeHTTP(w, r)
		})
		here := g.Idempotent(worker.IdempotentOptions{Scope: account})(handler)
		there := other.Idempotent(worker.IdempotentOptions{Scope: account})(handler)

		var token int64
		for i, v := range []any{http.ErrAbortHandler, "oh", nil} {
			panicked := make(chan any)
			go func() {
				defer func() { panicked <- recover() }()
				want := "201 1x"
				if v != nil {
					want = "none"
				}
				answer(t, here, order(t, "a", "x"), want)
			}()
			job := <-entered
			if job.LockToken <= token || job.Attempt != i+1 || !strings.HasPrefix(job.AnalysisID, "http:") {
				t.Errorf("call %d: job %+v after the token %d", i, job, token)
			}
			token = job.LockToken
			answer(t, there, order(t, "a", "x"), "409 in-progress")
			answer(t, there, order(t, "a", "y"), "422 key-reused")
			leave <- v
			if got := <-panicked; got != v {
				t.Errorf("call %d: panic %v, want %v", i, got, v)
			}
		}
		answer(t, there, order(t, "a", "x"), "201 replayed 1x")
	})
}

func TestIdempotentGoesOnWithoutItsClient(t *testing.T) {
	for end, want := range map[bool]string{false: "201 1x", true: "503 1x"} {
		synctest.Test(t, func(t *testing.T) {
			g, calls := open(t, emulatortest.Embedded(t), nil), &atomic.Int32{}
			o := worker.IdempotentOptions{Scope: account, EndWithClient: end}
			h := g.Idempotent(o)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				select {
				case <-time.After(time.Minute):
				case <-r.Context().Done():
					w.WriteHeader(http.StatusServiceUnavailable)
				}
				counting(t, calls).ServeHTTP(w, r)
			}))
			ctx, hangUp := context.WithTimeout(t.Context(), time.Second)
			defer hangUp()
			answer(t, h, order(t, "a", "x").WithContext(ctx), want)
			if end {
				answer(t, h, order(t, "a", "x"), "201 2x")
			} else {
				answer(t, h, order(t, "a", "x"), "201 replayed 1x")
			}
		})
	}
}

// Firestore is unavailable before the handler, and from the handler on, as after a crash: then the
// handler runs again once its lock has expired, 30 s after its last heartbeat.
func TestIdempotentWithoutFirestore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, w, calls := ahead(t), &worker.Wall{}, &atomic.Int32{}
		g, other := open(t, b, func(o *worker.Options) { o.FirestoreOptions = w.Client(t, b) }), open(t, b, nil)
		h := g.Idempotent(worker.IdempotentOptions{Scope: account})(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			w.Up.Store(true)
			counting(t, calls).ServeHTTP(rw, r)
		}))
		there := other.Idempotent(worker.IdempotentOptions{Scope: account})(counting(t, calls))

		w.Up.Store(true)
		answer(t, h, order(t, "a", "x"), "503 not-processed")
		w.Up.Store(false)
		go answer(t, h, order(t, "a", "x"), "500 outcome-unknown")
		time.Sleep(29 * time.Second)
		answer(t, there, order(t, "a", "x"), "409 in-progress")
		time.Sleep(time.Second)
		answer(t, there, order(t, "a", "x"), "201 2x")
		w.Up.Store(false)
		answer(t, h, order(t, "a", "x"), "201 replayed 2x")
	})
}

func TestIdempotentAfterShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, calls := emulatortest.Embedded(t), &atomic.Int32{}
		g := opened(t, b, nil)
		h := g.Idempotent(worker.IdempotentOptions{Scope: account})(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if calls.Add(1) == 1 {
				<-r.Context().Done()
			}
			w.WriteHeader(http.StatusServiceUnavailable)
		}))
		go answer(t, h, order(t, "a", "x"), "503 ")
		synctest.Wait()
		if err := g.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		answer(t, h, order(t, "b", "x"), "503 not-processed")
	})
}

// If a handler of Echo returns an error, the response is the one of Echo's error handler.
func TestIdempotentInEcho(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, calls := open(t, emulatortest.Embedded(t), nil), 0
		for wrapped, wants := range map[string][]string{
			"returns": {"400 {\"message\":\"no\"}\n", "400 replayed {\"message\":\"no\"}\n"},
			"writes":  {"201 x", "201 replayed x"},
			"flushes": {"200 {\"message\":\"no\"}\n", "200 replayed {\"message\":\"no\"}\n"}, // as without the guard
			"wrapped": {"500 response-missing", "500 response-missing"},
			"panics":  {"500 {\"message\":\"Internal Server Error\"}\n", "500 {\"message\":\"Internal Server Error\"}\n"},
		} {
			o := worker.IdempotentOptions{Scope: account}
			once := g.IdempotentEcho(o)
			if wrapped == "wrapped" {
				once = echo.WrapMiddleware(g.Idempotent(o))
			}
			e := echo.New()
			e.Use(middleware.Recover())
			e.POST("/orders", func(c echo.Context) error {
				calls++
				switch wrapped {
				case "writes":
					return c.String(http.StatusCreated, "x")
				case "flushes":
					c.Response().Flush()
				case "panics":
					panic("oh")
				}
				return echo.NewHTTPError(http.StatusBadRequest, "no")
			}, once)
			for _, want := range wants {
				answer(t, e, order(t, wrapped, "x"), want)
			}
		}
		if calls != 6 {
			t.Errorf("%d calls", calls)
		}
	})
}

func TestIdempotentPanicsIfItCannotWork(t *testing.T) {
	g := open(t, emulatortest.Embedded(t), nil)
	for want, o := range map[string]worker.IdempotentOptions{
		"worker: idempotent: no Scope":                               {},
		`worker: idempotent: worker: do: the operation "a b" is not`: {Scope: account, Operation: "a b"},
		"Keep 1m0s is under 1h":                                      {Scope: account, Do: worker.DoOptions{Keep: time.Minute}},
		"TTL 1s is under":                                            {Scope: account, Do: worker.DoOptions{Lock: lease.Policy{TTL: time.Second, Heartbeat: time.Second}}},
	} {
		checkPanic(t, want, func() { g.Idempotent(o) })
	}
}
