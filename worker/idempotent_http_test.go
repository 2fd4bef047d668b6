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
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"

	"taskguard/internal/testing/emulatortest"
	"taskguard/internal/testing/must"
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
	must.OK(t, err)
	return at
}

// ask sends an order to a server, and returns its status, some headers and its body, or "broken".
func ask(t *testing.T, at *url.URL, key string) string {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, at.String(), strings.NewReader("x"))
	must.OK(t, err)
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
func TestIdempotent_Transparent(t *testing.T) {
	type w = http.ResponseWriter
	upstream := served(t, http.HandlerFunc(func(w w, r *http.Request) {
		w.Header().Set("Etag", r.Header.Get("Accept-Encoding"))
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, "x")
		w.(http.Flusher).Flush() // so the proxy flushes too, if it can
	}))
	proxy := httputil.NewSingleHostReverseProxy(upstream)
	proxy.FlushInterval = time.Nanosecond // in another goroutine
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
	o := worker.IdempotentOptions{Scope: account, Stored: func(int) bool { return true }}
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
			want, guarded := ask(t, served(t, handler), "a"), served(t, g.Idempotent(o)(counted))
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
	t.Run("Echo's proxy", func(t *testing.T) {
		e, balancer := echo.New(), middleware.NewRoundRobinBalancer([]*middleware.ProxyTarget{{URL: upstream}})
		e.Use(g.IdempotentEcho(o), middleware.Proxy(balancer))
		want, guarded := ask(t, upstream, "a"), served(t, e)
		for range 2 {
			if got := ask(t, guarded, "echo"); got != want {
				t.Errorf("%q, want %q", got, want)
			}
		}
	})
}

// A handler inside http.TimeoutHandler, which knows nothing of its end, keeps the lock until it has returned.
func TestIdempotent_TimeoutHandler(t *testing.T) {
	withGuard(t, func(t *testing.T, _ *emulatortest.Backend, g *worker.Guard) {
		calls, began, went := &atomic.Int32{}, time.Now(), make(chan time.Duration)
		slow := func(w http.ResponseWriter, _ *http.Request) {
			if calls.Add(1) == 1 {
				time.Sleep(time.Minute)
			}
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(w, "own")
		}
		h := idempotent(g, http.TimeoutHandler(http.HandlerFunc(slow), time.Second, "late").ServeHTTP)
		go func() {
			answer(t, h, order(t, "a", "x"), "503 late")
			went <- time.Since(began)
		}()
		time.Sleep(59 * time.Second)
		answer(t, h, order(t, "a", "x"), "409 in-progress")
		if took := <-went; took < time.Minute || took > 63*time.Second {
			t.Errorf("answered after %v, the handler returned after 1 min", took)
		}
		again := time.Now()
		answer(t, h, order(t, "a", "x"), "503 own")
		if took := time.Since(again); calls.Load() != 2 || took > time.Second {
			t.Errorf("%d calls; a 503 of the handler itself is answered after %v", calls.Load(), took)
		}
	})
}

// A server logs nothing of this panic, and neither does the guard call it one.
func TestIdempotent_Abort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, log := openLogged(t, emulatortest.Embedded(t), nil)
		h := idempotent(g, func(http.ResponseWriter, *http.Request) {
			panic(fmt.Errorf("copy: %w", http.ErrAbortHandler))
		})
		checkPanic(t, http.ErrAbortHandler.Error(), func() { h.ServeHTTP(httptest.NewRecorder(), order(t, "a", "x")) })
		if got := log.String(); strings.Contains(got, "panic") || !strings.Contains(got, "code=analyzer_failed") {
			t.Error(got)
		}
	})
}

// CORS inside Idempotent reaches a browser with the stored response.
func TestIdempotent_Headers(t *testing.T) {
	withGuard(t, func(t *testing.T, _ *emulatortest.Backend, g *worker.Guard) {
		h := idempotent(g, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Add("Vary", "Origin")
			w.Header().Set("Access-Control-Allow-Origin", r.Header.Get("Origin"))
		})
		outer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Add("Vary", "Accept-Encoding")
			h.ServeHTTP(w, r)
		})
		for _, want := range []string{"200 ", "200 replayed "} {
			r := order(t, "a", "x")
			r.Header.Set("Origin", "https://a")
			got := answer(t, outer, r, want)
			if vary := strings.Join(got["Vary"], " "); vary != "Accept-Encoding Origin" {
				t.Errorf("%s: Vary %s", want, vary)
			}
			if origin := got.Get("Access-Control-Allow-Origin"); origin != "https://a" {
				t.Errorf("%s: Access-Control-Allow-Origin %s", want, origin)
			}
		}
	})
}

// The client of the stored response may accept another encoding.
func TestIdempotent_Encoding(t *testing.T) {
	withGuard(t, func(t *testing.T, _ *emulatortest.Backend, g *worker.Guard) {
		h := idempotent(g, func(w http.ResponseWriter, r *http.Request) {
			_, _ = fmt.Fprint(w, r.Header["Accept-Encoding"], r.Header.Get("Account"))
		})
		for key, encodings := range map[string][]string{"two": {"gzip", "br"}, "any": nil} {
			r := order(t, key, "x")
			r.Header["Accept-Encoding"] = encodings
			answer(t, h, r, "200 [identity]a")
			if got := r.Header["Accept-Encoding"]; !slices.Equal(got, encodings) {
				t.Errorf("the request of outer handlers has %q, want %q", got, encodings)
			}
		}
	})
}

// Support finds the answer that a client got.
func TestGuard_Lookup(t *testing.T) {
	withGuard(t, func(t *testing.T, _ *emulatortest.Backend, g *worker.Guard) {
		o := worker.DoOptions{Params: "other", Collection: "orders"}
		for _, operation := range []string{"", "refund"} {
			h := g.Idempotent(worker.IdempotentOptions{Scope: account, Operation: operation, Do: o})
			answer(t, h(counting(t, &atomic.Int32{})), order(t, `"k"`, operation), "201 1"+operation)
		}
		for asked, want := range map[[3]string]string{
			{"", "a", "k"}:       "201 /orders/1 1",
			{"http", "a", `"k"`}: "201 /orders/1 1",
			{"refund", "a", "k"}: "201 /orders/1 1refund",
			{"", "b", "k"}:       "0  ",
			{"", "a", "k k"}:     "0  ",
		} {
			out, err := g.Lookup(t.Context(), asked[0], asked[1], asked[2], o)
			got := fmt.Sprintf("%d %s %s", out.Value.Status, out.Value.Header.Get("Location"), out.Value.Body)
			if missing := errors.Is(err, worker.ErrNotFound); got != want || missing != (asked[1] == "b") {
				t.Errorf("%q: %s, %v; want %s", asked, got, err, want)
			}
		}
	})
}
