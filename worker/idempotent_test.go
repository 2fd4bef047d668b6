package worker_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"

	"taskguard/internal/testing/emulatortest"
	"taskguard/lease"
	"taskguard/worker"
)

func TestIdempotencyRecord(t *testing.T) {
	const uuid = "8e03978e-40d5-43e8-bc93-6894a57f9324"
	long := strings.Repeat("k", 255)
	for _, malformed := range []string{
		"", `""`, `"`, `"a`, `a"`, `"a";b`, `"a\b"`, `"ä"`, "a b", "a,b", long + "k", `"` + long + `k"`,
	} {
		if id, err := worker.IdempotencyRecord("", "a", malformed); err == nil {
			t.Errorf("%s has the record %s", malformed, id)
		}
	}
	ids := map[string]bool{}
	for _, c := range []struct{ operation, scope, key string }{
		{"", "a", "a"}, {"http", "a", `"a"`},
		{"", "a", uuid}, {"", "a", `"` + uuid + `"`},
		{"", "a", long}, {"", "a", `"` + long + `"`},
		{"", "b", "a"}, {"refund", "a", "a"},
		{"", "a", `"b c"`}, {"", "a b", "c"}, {"", "a", `" a/b,;\"\\"`},
	} {
		id, err := worker.IdempotencyRecord(c.operation, c.scope, c.key)
		if err != nil || !strings.HasPrefix(id, cmp.Or(c.operation, "http")+":") {
			t.Errorf("%v: %s, %v", c, id, err)
		}
		ids[id] = true
	}
	if len(ids) != 8 { // a quoted key and a token are one
		t.Errorf("%d records", len(ids))
	}
}

func TestIdempotent_Request(t *testing.T) {
	withGuard(t, func(t *testing.T, _ *emulatortest.Backend, g *worker.Guard) {
		calls := &atomic.Int32{}
		other := func(change func(r *http.Request)) *http.Request {
			r := order(t, "a", "x")
			change(r)
			return r
		}
		put := func(r *http.Request) { r.Method = http.MethodPut }
		bodiless := order(t, "none", "")
		bodiless.Body = nil
		h := g.Idempotent(worker.IdempotentOptions{Scope: account})(counting(t, calls))
		for _, c := range []struct {
			r    *http.Request
			want string
		}{
			{order(t, "", "x"), "400 key-missing"},
			{order(t, "a b", "x"), "400 key-malformed"},
			{other(func(r *http.Request) { r.Header.Add("Idempotency-Key", "a") }), "400 key-malformed"},
			{other(func(r *http.Request) { r.Header.Del("Account") }), "403 scope-missing"},

			{order(t, "a", "x"), "201 1x"},
			{order(t, `"a"`, "x"), "201 replayed 1x"},
			{order(t, "a", "y"), "422 key-reused"},
			{other(func(r *http.Request) { r.Method = http.MethodPatch }), "422 key-reused"},
			{other(func(r *http.Request) { r.RequestURI = "/orders?a=2" }), "422 key-reused"},
			{other(func(r *http.Request) { r.RequestURI = "/refunds?a=1" }), "422 key-reused"},
			{other(func(r *http.Request) { r.Header.Set("Content-Type", "text/plain") }), "422 key-reused"},
			{other(func(r *http.Request) { r.Header.Set("Account", "b") }), "201 2x"},
			{other(put), "201 3x"}, // not guarded
			{other(put), "201 4x"},
			{bodiless, "201 5"},
		} {
			if strings.HasPrefix(c.want, "40") { // the body is not read before
				c.r.Body = io.NopCloser(iotest.ErrReader(errBroken))
			}
			answer(t, h, c.r, c.want)
		}

		methods := []string{http.MethodPut}
		o := worker.IdempotentOptions{Scope: account, Operation: "other", Optional: true, Methods: methods}
		optional := g.Idempotent(o)(counting(t, calls))
		keyless := func(r *http.Request) { put(r); r.Header.Del("Idempotency-Key") }
		lost := func(r *http.Request) { put(r); r.Header.Set("Idempotency-Key", "") } // by its client
		answer(t, optional, other(lost), "400 key-malformed")
		answer(t, optional, other(keyless), "201 6x")
		answer(t, optional, other(keyless), "201 7x")
		answer(t, optional, other(put), "201 8x")
		answer(t, optional, other(put), "201 replayed 8x")
		answer(t, optional, order(t, "a", "x"), "201 9x") // a POST
	})
}

func TestIdempotent_Body(t *testing.T) {
	worker.Subtest(t, "of 1 MiB, and more", func(t *testing.T) {
		h := idempotent(open(t, emulatortest.Embedded(t), nil), counting(t, &atomic.Int32{}).ServeHTTP)
		body := strings.Repeat("x", 1<<20-1)
		answer(t, h, order(t, "a", body+"y"+"z"), "413 body-too-large")
		answer(t, h, order(t, "a", body+"y"), "201 1xxxxxxxxx")
		answer(t, h, order(t, "a", body+"y"), "201 replayed 1xxxxxxxxx")
		answer(t, h, order(t, "a", body+"z"), "422 key-reused")
		incomplete := order(t, "b", "")
		incomplete.Body = io.NopCloser(io.MultiReader(strings.NewReader("x"), iotest.ErrReader(errBroken)))
		answer(t, h, incomplete, "400 body-incomplete")
	})
	form := func(r *http.Request) { _ = r.PostFormValue("b") }
	chunked := func(r *http.Request) { r.ContentLength = -1 }
	for name, c := range map[string]struct {
		before func(*http.Request)
		read   bool
	}{
		"a form":            {form, true},
		"a chunked form":    {func(r *http.Request) { chunked(r); form(r) }, true},
		"a chunked body":    {func(r *http.Request) { chunked(r); _, _ = io.ReadAll(r.Body) }, true},
		"a byte":            {func(r *http.Request) { _, _ = r.Body.Read(make([]byte, 1)) }, true},
		"chunked, not read": {chunked, false},
		"only the query": {func(r *http.Request) {
			r.Header.Set("Content-Type", "text/plain")
			_ = r.FormValue("a")
		}, false},
		"all, and put back": {func(r *http.Request) {
			form(r)
			r.Body = io.NopCloser(strings.NewReader("b=1"))
		}, false},
		"decompressed": {func(r *http.Request) {
			r.Header.Set("Content-Encoding", "gzip")
			r.ContentLength = 23
		}, false},
	} {
		worker.Subtest(t, "read before: "+name, func(t *testing.T) {
			r := order(t, "a", "b=1")
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			c.before(r)
			h := idempotent(open(t, emulatortest.Embedded(t), nil), counting(t, &atomic.Int32{}).ServeHTTP)
			answer(t, h, r, map[bool]string{true: "500 body-read", false: "201 1b=1"}[c.read])
		})
	}
}

func TestIdempotent_Status(t *testing.T) {
	withGuard(t, func(t *testing.T, _ *emulatortest.Backend, g *worker.Guard) {
		check := func(o worker.IdempotentOptions, status int, stored bool) {
			t.Helper()
			h := g.Idempotent(o)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(status)
			}))
			again := fmt.Sprint(status, " ")
			if stored {
				again += "replayed "
			}
			answer(t, h, order(t, fmt.Sprint(status), "x"), fmt.Sprint(status, " "))
			answer(t, h, order(t, fmt.Sprint(status), "x"), again)
		}
		for _, status := range []int{200, 204, 400, 499} {
			check(worker.IdempotentOptions{Scope: account}, status, true)
		}
		for _, status := range []int{408, 409, 425, 429, 500, 503} {
			check(worker.IdempotentOptions{Scope: account}, status, false)
		}
		own := worker.IdempotentOptions{Scope: account, Operation: "own", Stored: func(s int) bool { return s == 500 }}
		check(own, 500, true)
		check(own, 200, false)
	})
}

// Each handler is called with one key twice.
func TestIdempotent_Response(t *testing.T) {
	large := strings.Repeat("x", 512<<10)
	write := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) }
	}
	endless := func(panicked error) http.HandlerFunc {
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
	}{
		"nothing written":  {write(""), "200 ", "200 replayed "},
		"binary":           {write("\x00\xff"), "200 \x00\xff", "200 replayed \x00\xff"},
		"512 KiB":          {write(large), "200 " + large, "200 replayed " + large},
		"a byte more":      {write(large + "x"), "500 response-too-large", "500 response-too-large"},
		"too large, abort": {endless(http.ErrAbortHandler), "500 response-too-large", "500 response-too-large"},
		"too large, panic": {endless(errBroken), "500 response-too-large", "500 response-too-large"},
		"a stream of events": {func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "Text/Event-Stream; charset=utf-8")
			w.(http.Flusher).Flush() //nolint:forcetypeassert // as many handlers do
			<-r.Context().Done()     // as a handler that looks at no error of Write
		}, "500 response-streamed", "500 response-streamed"},
		"no stream of events": {func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/event-streams")
			write("x")(w, r)
		}, "200 x", "200 replayed x"},
		"another protocol": {func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusSwitchingProtocols)
		}, "500 response-streamed", "500 response-streamed"},
		"not hijacked": {func(w http.ResponseWriter, _ *http.Request) {
			_, _, err := http.NewResponseController(w).Hijack()
			_, _ = fmt.Fprint(w, errors.Is(err, http.ErrNotSupported))
		}, "200 true", "200 replayed true"},
		"headers that no document can hold": {func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Location", strings.Repeat("x", 400<<10))
			write(large)(w, r)
		}, "500 no-response", "500 no-response"},
	} {
		worker.Subtest(t, name, func(t *testing.T) {
			calls := 0
			h := idempotent(open(t, emulatortest.Embedded(t), nil), func(w http.ResponseWriter, r *http.Request) {
				calls++
				c.handler(w, r)
			})
			answer(t, h, order(t, "a", "x"), c.first)
			answer(t, h, order(t, "a", "x"), c.second)
			if calls != 1 {
				t.Errorf("%d calls", calls)
			}
		})
	}
}

// The second request comes while the first is in the handler, which ends in different ways.
func TestIdempotent_AtOnce(t *testing.T) {
	emulatortest.Each(t, func(t *testing.T, b *emulatortest.Backend) {
		calls, entered, leave := &atomic.Int32{}, make(chan worker.Job), make(chan any)
		handler := func(w http.ResponseWriter, r *http.Request) {
			job, _ := worker.JobFromContext(r.Context())
			entered <- job
			if v := <-leave; v != nil {
				panic(v)
			}
			counting(t, calls).ServeHTTP(w, r)
		}
		here, there := idempotent(open(t, b, nil), handler), idempotent(open(t, b, nil), handler)

		var token int64
		for i, v := range []any{http.ErrAbortHandler, "oh", nil} {
			panicked := make(chan any)
			go func() {
				defer func() { panicked <- recover() }()
				answer(t, here, order(t, "a", "x"), "201 1x") // unless it panics
			}()
			job := <-entered
			if job.LockToken <= token || job.Attempt != i+1 {
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

func TestIdempotent_HangUp(t *testing.T) {
	for end, want := range map[bool][]string{
		false: {"201 1x", "201 replayed 1x"}, true: {"503 1x", "201 2x"},
	} {
		withGuard(t, func(t *testing.T, _ *emulatortest.Backend, g *worker.Guard) {
			calls, o := &atomic.Int32{}, worker.IdempotentOptions{Scope: account, EndWithClient: end}
			h := g.Idempotent(o)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if _, err := lasting(time.Minute)(r.Context()); err != nil {
					w.WriteHeader(http.StatusServiceUnavailable)
				}
				counting(t, calls).ServeHTTP(w, r)
			}))
			ctx, hangUp := context.WithTimeout(t.Context(), time.Second)
			defer hangUp()
			answer(t, h, order(t, "a", "x").WithContext(ctx), want[0])
			answer(t, h, order(t, "a", "x"), want[1])
		})
	}
}

// Firestore is unavailable before the handler, and from the handler on, as after a crash: then the
// handler runs again once its lock has expired, 30 s after its last heartbeat, for one of the clients that wait.
func TestIdempotent_Unavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, calls := ahead(t), &atomic.Int32{}
		g, wall := openWalled(t, b)
		h := idempotent(g, func(w http.ResponseWriter, r *http.Request) {
			wall.Up.Store(true)
			counting(t, calls).ServeHTTP(w, r)
		})

		wall.Up.Store(true)
		answer(t, h, order(t, "a", "x"), "503 not-processed")
		wall.Up.Store(false)
		go answer(t, h, order(t, "a", "x"), "500 outcome-unknown")
		synctest.Wait()
		began, answers := time.Now(), make(chan string)
		for range 3 { // each at a process of its own
			there := idempotent(open(t, b, nil), counting(t, calls).ServeHTTP)
			go func() { answers <- repeated(t, there, time.Second) }()
		}
		got := map[string]int{}
		for range 3 {
			got[<-answers]++
		}
		if took := time.Since(began); took < 30*time.Second || took > 31*time.Second {
			t.Errorf("answered after %v, want the expiry of the lock", took)
		}
		if want := map[string]int{"201 2x": 1, "201 replayed 2x": 2}; !maps.Equal(got, want) {
			t.Errorf("answers %v, want %v", got, want)
		}
		wall.Up.Store(false)
		answer(t, h, order(t, "a", "x"), "201 replayed 2x")
	})
}

func TestIdempotent_Shutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := opened(t, emulatortest.Embedded(t), nil)
		h := idempotent(g, func(w http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
			w.WriteHeader(http.StatusServiceUnavailable)
		})
		go answer(t, h, order(t, "a", "x"), "503 ")
		synctest.Wait()
		shutDown(t, g, 8*time.Second)
		answer(t, h, order(t, "b", "x"), "503 not-processed")
	})
}

// If a handler of Echo returns an error, the response is the one of Echo's error handler.
func TestIdempotentEcho(t *testing.T) {
	const no, failed = "{\"message\":\"no\"}\n", "{\"message\":\"Internal Server Error\"}\n"
	refused := echo.NewHTTPError(http.StatusBadRequest, "no")
	for name, c := range map[string]struct {
		handler       echo.HandlerFunc
		first, second string
	}{
		"returns": {func(echo.Context) error { return refused }, "400 " + no, "400 replayed " + no},
		"writes":  {func(c echo.Context) error { return c.String(http.StatusCreated, "x") }, "201 x", "201 replayed x"},
		"panics":  {func(echo.Context) error { panic("oh") }, "500 " + failed, "500 " + failed},
		"flushes": {func(c echo.Context) error {
			c.Response().Flush()
			return refused
		}, "200 " + no, "200 replayed " + no}, // as without the guard
		"wrapped": {func(echo.Context) error { return refused }, "500 response-missing", "500 response-missing"},
	} {
		worker.Subtest(t, name, func(t *testing.T) {
			g, calls, o := open(t, emulatortest.Embedded(t), nil), 0, worker.IdempotentOptions{Scope: account}
			once := g.IdempotentEcho(o)
			if name == "wrapped" { // as nobody should
				once = echo.WrapMiddleware(g.Idempotent(o))
			}
			e := echo.New()
			e.Logger.SetOutput(io.Discard)
			e.Use(middleware.Recover())
			e.POST("/orders", func(ctx echo.Context) error { calls++; return c.handler(ctx) }, once)
			answer(t, e, order(t, "a", "x"), c.first)
			answer(t, e, order(t, "a", "x"), c.second)
			if again := name == "panics"; (calls == 2) != again {
				t.Errorf("%d calls", calls)
			}
		})
	}
}

func TestIdempotent_Refused(t *testing.T) {
	g := open(t, emulatortest.Embedded(t), nil)
	second := lease.Policy{TTL: time.Second, Heartbeat: time.Second}
	for want, o := range map[string]worker.IdempotentOptions{
		"no Scope":      {},
		"the operation": {Scope: account, Operation: "a b"},
		"Keep":          {Scope: account, Do: worker.DoOptions{Keep: time.Minute}},
		"TTL":           {Scope: account, Do: worker.DoOptions{Lock: second}},
	} {
		checkPanic(t, want, func() { g.Idempotent(o) })
	}
}
