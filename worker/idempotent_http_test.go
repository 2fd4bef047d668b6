package worker_test

import (
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"

	"taskguard/internal/testing/emulatortest"
	"taskguard/worker"
)

// served serves h until the end of the test, and does not log its panics.
func served(t *testing.T, h http.Handler) *url.URL {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.Start()
	t.Cleanup(s.Close)
	at, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// ask sends an order to a server, and returns its status, some headers and its body, or "broken".
func ask(t *testing.T, at *url.URL, key string) string {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, at.String(), strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Account", "a")
	r.Header.Set("Idempotency-Key", key)
	r.Header.Set("Accept-Encoding", "identity")
	answer, err := (&http.Transport{DisableCompression: true, DisableKeepAlives: true}).RoundTrip(r)
	if err != nil {
		return "broken"
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		return "broken"
	}
	return fmt.Sprint(answer.StatusCode, answer.Header["Content-Type"], answer.Header["Etag"], " ", string(body))
}

// What a client gets from a handler is the same with Idempotent, without it, and from the store.
func TestBehindIdempotentAHandlerAnswersAsWithoutIt(t *testing.T) {
	type w = http.ResponseWriter
	upstream := served(t, http.HandlerFunc(func(w w, r *http.Request) {
		w.Header().Set("Etag", r.Header.Get("Accept-Encoding"))
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, "x")
		w.(http.Flusher).Flush() // so the proxy flushes too, if it can
	}))
	proxy := httputil.NewSingleHostReverseProxy(upstream)
	proxy.FlushInterval = time.Nanosecond // in another goroutine
	inEcho := func(guard ...echo.MiddlewareFunc) http.Handler {
		e := echo.New()
		e.Use(append(guard, middleware.Proxy(middleware.NewRoundRobinBalancer([]*middleware.ProxyTarget{{URL: upstream}})))...)
		return e
	}
	status := func(codes ...int) http.Handler {
		return http.HandlerFunc(func(w w, _ *http.Request) {
			for _, code := range codes {
				w.WriteHeader(code)
			}
			w.Header().Set("Etag", "late")
			_, _ = io.WriteString(w, "x")
		})
	}
	length := func(n string) http.Handler {
		return http.HandlerFunc(func(w w, _ *http.Request) {
			w.Header().Set("Content-Length", n)
			for range 4 {
				if _, err := io.WriteString(w, "xy"); err != nil && !errors.Is(err, http.ErrContentLength) {
					t.Errorf("Content-Length %s: %v", n, err)
				}
			}
		})
	}
	controlled := func(do func(w w, c *http.ResponseController)) http.Handler {
		return http.HandlerFunc(func(w w, _ *http.Request) { do(w, http.NewResponseController(w)) })
	}

	g := open(t, emulatortest.Embedded(t), nil)
	once := worker.IdempotentOptions{Scope: account, Stored: func(int) bool { return true }}
	for name, handler := range map[string]http.Handler{
		"a proxy":                 proxy,
		"no status":               status(0),
		"a status of two digits":  status(99),
		"the greatest status":     status(999),
		"a status of four digits": status(1000),
		"a hint":                  status(103, 201),
		"two statuses":            status(201, 500),
		"a wrong one later":       status(201, 0),
		"no content, but a body":  status(204),
		"not modified":            status(304),
		"as long as announced":    length("8"),
		"longer":                  length("5"),
		"shorter":                 length("9"),
		"no length":               length("x"),
		"aborted":                 controlled(func(w, *http.ResponseController) { panic(http.ErrAbortHandler) }),
		"a panic after a flush": controlled(func(w w, c *http.ResponseController) {
			_, _ = io.WriteString(w, "x")
			_ = c.Flush()
			panic("oh")
		}),
		"a flush before the status": controlled(func(w w, c *http.ResponseController) {
			_ = c.Flush()
			w.WriteHeader(http.StatusAccepted)
		}),
		"flushed by another goroutine": controlled(func(w w, c *http.ResponseController) {
			var flushes sync.WaitGroup
			_, direct := w.(http.Hijacker) // of net/http, where no other goroutine may flush
			flushes.Go(func() {
				for range 100 {
					if direct {
						break
					}
					_ = c.Flush()
				}
			})
			for range 100 {
				_, _ = io.WriteString(w, "x")
			}
			flushes.Wait()
		}),
		"the connection's deadlines": controlled(func(w w, c *http.ResponseController) {
			later := time.Now().Add(time.Hour)
			_, _ = fmt.Fprint(w, c.SetReadDeadline(later), c.SetWriteDeadline(later), c.EnableFullDuplex())
		}),
	} {
		t.Run(name, func(t *testing.T) {
			calls := atomic.Int32{}
			counted := http.HandlerFunc(func(w w, r *http.Request) {
				calls.Add(1)
				handler.ServeHTTP(w, r)
			})
			want, guarded := ask(t, served(t, handler), "a"), served(t, g.Idempotent(once)(counted))
			for range 2 {
				if got := ask(t, guarded, `"`+name+`"`); got != want {
					t.Errorf("%q, want %q", got, want)
				}
			}
			if n := calls.Load(); (n == 2) != (want == "broken") {
				t.Errorf("%d calls, the answer is %q", n, want)
			}
		})
	}
	want, guarded := ask(t, served(t, inEcho()), "a"), served(t, inEcho(g.IdempotentEcho(once)))
	for range 2 {
		if got := ask(t, guarded, "echo"); got != want {
			t.Errorf("Echo's proxy: %q, want %q", got, want)
		}
	}
}

// A handler inside http.TimeoutHandler, which knows nothing of its end, keeps the lock until it has returned.
func TestIdempotentAwaitsAHandlerThatATimeoutHasGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, calls := open(t, emulatortest.Embedded(t), nil), &atomic.Int32{}
		slow := func(w http.ResponseWriter, _ *http.Request) {
			if calls.Add(1) == 1 {
				time.Sleep(time.Minute)
			}
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(w, "own")
		}
		h := g.Idempotent(worker.IdempotentOptions{Scope: account})(http.TimeoutHandler(http.HandlerFunc(slow), time.Second, "late"))
		went, began := make(chan time.Duration), time.Now()
		go func() {
			answer(t, h, order(t, "a", "x"), "503 late")
			went <- time.Since(began)
		}()
		time.Sleep(59 * time.Second)
		answer(t, h, order(t, "a", "x"), "409 in-progress")
		if took := <-went; took < time.Minute || took > 63*time.Second {
			t.Errorf("answered after %v, the handler returned after 1 min", took)
		}
		answer(t, h, order(t, "a", "x"), "503 own")
		if n := calls.Load(); n != 2 || time.Since(began) > 64*time.Second {
			t.Errorf("%d calls in %v; a 503 of the handler itself is answered at once", n, time.Since(began))
		}
	})
}

// A server logs nothing of this panic, and neither does the guard call it one.
func TestAResponseThatAHandlerAbortsIsNoPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, log := openLogged(t, emulatortest.Embedded(t), nil)
		h := g.Idempotent(worker.IdempotentOptions{Scope: account})(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "x")
			panic(fmt.Errorf("copy: %w", http.ErrAbortHandler))
		}))
		checkPanic(t, http.ErrAbortHandler.Error(), func() { h.ServeHTTP(httptest.NewRecorder(), order(t, "a", "x")) })
		got := log.String()
		if strings.Contains(got, "panic") || !strings.Contains(got, `code=analyzer_failed reason="the handler has aborted its response"`) {
			t.Error(got)
		}
	})
}

// CORS inside Idempotent reaches a browser with the stored response, unless an outer one has answered already.
func TestIdempotentReplaysTheHeadersOfCORS(t *testing.T) {
	withGuard(t, func(t *testing.T, _ *emulatortest.Backend, g *worker.Guard) {
		cors := func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Add("Vary", "Origin")
				w.Header().Set("Access-Control-Allow-Origin", r.Header.Get("Origin"))
				w.Header().Set("Access-Control-Allow-Credentials", "true")
				w.Header().Set("Access-Control-Expose-Headers", "Idempotency-Replayed")
				next.ServeHTTP(w, r)
			})
		}
		compressed := func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Add("Vary", "Accept-Encoding")
				next.ServeHTTP(w, r)
			})
		}
		none := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
		once := g.Idempotent(worker.IdempotentOptions{Scope: account})
		for key, c := range map[string]struct {
			h      http.Handler
			origin string // in the second answer
			vary   []string
		}{
			"inside":  {compressed(once(cors(none))), "https://a", []string{"Accept-Encoding", "Origin"}},
			"outside": {cors(once(compressed(none))), "https://b", []string{"Origin", "Accept-Encoding"}},
		} {
			for i, want := range []string{"200 ", "200 replayed "} {
				r := order(t, key, "x")
				r.Header.Set("Origin", []string{"https://a", "https://b"}[i])
				got := answer(t, c.h, r, want)
				if diff := cmp.Diff(c.vary, got["Vary"]); diff != "" {
					t.Errorf("%s, Vary (-want +got):\n%s", key, diff)
				}
				if got.Get("Access-Control-Allow-Credentials") != "true" || got.Get("Access-Control-Expose-Headers") == "" ||
					i == 1 && got.Get("Access-Control-Allow-Origin") != c.origin {
					t.Errorf("%s: %v", key, got)
				}
			}
		}
	})
}

// The client of the stored response may accept another encoding.
func TestIdempotentAsksItsHandlerForNoEncoding(t *testing.T) {
	withGuard(t, func(t *testing.T, _ *emulatortest.Backend, g *worker.Guard) {
		h := g.Idempotent(worker.IdempotentOptions{Scope: account})(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = fmt.Fprint(w, r.Header["Accept-Encoding"], r.Header.Get("Account"))
		}))
		for key, encodings := range map[string][]string{"gzip": {"gzip"}, "two": {"gzip", "br"}, "any": nil} {
			r := order(t, key, "x")
			r.Header["Accept-Encoding"] = encodings
			answer(t, h, r, "200 [identity]a")
			if diff := cmp.Diff(encodings, r.Header["Accept-Encoding"]); diff != "" {
				t.Errorf("the request of outer handlers (-want +got):\n%s", diff)
			}
		}
	})
}

// Support finds the answer that a client got.
func TestLookupFindsTheResponseOfAKey(t *testing.T) {
	withGuard(t, func(t *testing.T, b *emulatortest.Backend, g *worker.Guard) {
		o := worker.DoOptions{Params: "other", Collection: "orders_of_clients"}
		for _, operation := range []string{"", "refund"} {
			h := g.Idempotent(worker.IdempotentOptions{Scope: account, Operation: operation, Do: o})
			answer(t, h(counting(t, &atomic.Int32{})), order(t, `"k"`, operation), "201 1"+operation)
		}
		type key struct{ operation, scope, key string }
		for asked, want := range map[key]string{
			{"", "a", "k"}: "201 /orders/1 1 <nil>", {"http", "a", `"k"`}: "201 /orders/1 1 <nil>",
			{"refund", "a", "k"}: "201 /orders/1 1refund <nil>",
			{"", "b", "k"}:       "0   lease: not found", {"", "a", "kk"}: "0   lease: not found", {"refunds", "a", "k"}: "0   lease: not found",
			{"", "a", "k k"}: "0   worker: the Idempotency-Key \"k k\" is no quoted string or token of 1 to 255 bytes of ASCII",
		} {
			got, err := g.Lookup(t.Context(), asked.operation, asked.scope, asked.key, o)
			text := fmt.Sprint(got.Value.Status, " ", got.Value.Header.Get("Location"), " ", string(got.Value.Body), " ", err)
			if text != want && (!errors.Is(err, worker.ErrNotFound) || !strings.HasPrefix(want, "0   lease")) {
				t.Errorf("%v: %s, want %s", asked, text, want)
			}
			id, _ := worker.IdempotencyRecord(asked.operation, asked.scope, asked.key)
			if found := id != "" && fields(t, collection(t, b, o.Collection).Doc(id)) != nil; found != (got.Value.Status > 0) {
				t.Errorf("%v: a document %q: %v", asked, id, found)
			}
		}
	})
}
