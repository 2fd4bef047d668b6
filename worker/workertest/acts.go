package workertest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
)

// Acts records the acts of one schedule: what the processes do to the world outside. An act that
// fails, or that its receiver refuses, is not recorded. Its methods are safe for concurrent use. They
// find the process by the context that the function, or the request, was called with; an act with
// another context fails the test.
type Acts struct {
	T testing.TB // of the schedule, for what each schedule opens and its Cleanup closes

	schedule *schedule

	// The mutex of the schedule guards these.
	counts   map[string]int     // by name and key
	tokens   map[string]int64   // the highest, by name
	requests map[string]request // the first with each Idempotency-Key, by host and key
}

// request is a request of Client. Without a key, only its name is compared.
type request struct{ name, key, host, body string }

var errContext = errors.New("workertest: an act has not the context of the run or of the request")

// Do calls do, and records the act if it returns no error. A nil do has no effect: the act is only
// counted. Like a request on its way, do may be called after ctx has ended, so its own context does not
// end. An act that may be repeated, but not be late, has a name that begins with PUT or DELETE and a
// space. Do returns the error of do, or of ctx, or one for a lost reply. While the process is dead, it
// does not return.
func (a *Acts) Do(ctx context.Context, name string, do func(ctx context.Context) error) error {
	return a.doRequest(ctx, request{name: name}, func(ctx context.Context) (done bool, err error) {
		if do != nil {
			err = do(ctx)
		}
		return err == nil, err
	})
}

// doRequest is Do for a request. do also reports whether the act was done, which is then recorded.
func (a *Acts) doRequest(ctx context.Context, r request, do func(context.Context) (done bool, err error)) error {
	p, ok := ctx.Value(processKey{}).(*process)
	if !ok {
		a.schedule.mu.Lock()
		defer a.schedule.mu.Unlock()
		a.schedule.fail("%v: %q", errContext, r.name)
		return errContext
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return p.pass(ctx, act, r.name, func(ctx context.Context) error {
		done, err := do(ctx)
		if done {
			a.record(p, r)
		}
		return err
	})
}

// record records an act of the process. The receiver ignores another request with one key.
func (a *Acts) record(p *process, r request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	counted := r.name
	if r.key != "" {
		id := r.host + " " + r.key
		earlier, again := a.requests[id]
		if again && (p.base == nil || earlier != r) && !a.repeatable(r.name) {
			p.fail("%q and %q have one Idempotency-Key, %q%s: the receiver does only the first",
				earlier.name, r.name, r.key, map[bool]string{true: ", in two works"}[p.works > 1])
		}
		if again {
			return
		}
		a.requests[id] = r
		if !a.idempotent(r.name) {
			counted += " (key " + r.key + ")"
		}
	}

	a.counts[counted]++
	if p.token < a.tokens[r.name] && !a.repeatable(r.name) {
		p.fail("an attempt that had lost the lock did act %q after a newer attempt did", r.name)
	}
	a.tokens[r.name] = max(a.tokens[r.name], p.token)
}

// repeatable reports whether an act may be done again, and late.
func (a *Acts) repeatable(name string) bool {
	allowed := a.schedule.options.Repeatable
	return allowed != nil && allowed(name)
}

// idempotent reports whether an act may be done again.
func (a *Acts) idempotent(name string) bool {
	return strings.HasPrefix(name, http.MethodPut+" ") || strings.HasPrefix(name, http.MethodDelete+" ") ||
		a.repeatable(name)
}

// judge compares the acts with those without a fault. If the work is not complete, some may be missing.
// The caller holds the mutex.
func (a *Acts) judge(usual map[string]int, complete bool) {
	all := maps.Clone(a.counts)
	maps.Copy(all, usual)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		n, want := a.counts[name], usual[name]
		if n > want && !a.idempotent(name) || n < want && complete {
			a.schedule.fail("act %q was done %d times, want %d", name, n, want)
		}
	}
}

// total returns the number of acts.
func (a *Acts) total() (n int) {
	for _, times := range a.counts {
		n += times
	}
	return n
}

// Client returns a client whose requests receiver handles, in this process: the test's own provider.
// A nil receiver answers 200. A request is an act unless its method is GET, HEAD or OPTIONS, or the
// answer is 400 or above; its name is the method and the path with the query, such as "POST /charges".
// A PUT or a DELETE may be repeated, but not be late. A request that is sent again with its
// Idempotency-Key is one act; another request with that key fails the test, as a provider drops it.
func (a *Acts) Client(receiver http.Handler) *http.Client {
	if receiver == nil {
		receiver = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	}
	return &http.Client{Transport: client{a, receiver}}
}

// client is the transport of Client.
type client struct {
	acts     *Acts
	receiver http.Handler
}

// RoundTrip implements http.RoundTripper.
func (c client) RoundTrip(r *http.Request) (*http.Response, error) {
	var body bytes.Buffer
	if r.Body != nil {
		defer func() { _ = r.Body.Close() }()
		if _, err := io.Copy(&body, r.Body); err != nil {
			return nil, err
		}
	}
	sent := request{r.Method + " " + r.URL.RequestURI(), r.Header.Get("Idempotency-Key"), r.URL.Host, body.String()}
	reads := slices.Contains([]string{http.MethodGet, http.MethodHead, http.MethodOptions}, r.Method)

	var w *httptest.ResponseRecorder
	err := c.acts.doRequest(r.Context(), sent, func(ctx context.Context) (done bool, err error) {
		received := r.Clone(ctx)
		received.Body = io.NopCloser(&body)
		w = serve(c.receiver, received)
		return !reads && w.Code < http.StatusBadRequest, nil
	})
	if errors.Is(err, errGateway) {
		w, err = &httptest.ResponseRecorder{Code: http.StatusGatewayTimeout}, nil
	}
	if err != nil {
		return nil, err
	}
	answer := w.Result()
	answer.Request = r
	return answer, nil
}
