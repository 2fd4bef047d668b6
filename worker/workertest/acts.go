package workertest

import (
	"context"
	"errors"
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
	counts map[string]int   // by name
	tokens map[string]int64 // the highest, by name
	keys   map[string]bool  // Idempotency-Keys, each with the name
}

var errContext = errors.New("workertest: an act has not the context of the run or of the request")

// Do calls do, and records the act if it returns no error. A nil do has no effect: the act is only
// counted. Like a request on its way, do may be called after ctx has ended, so its own context does not
// end. An act that may be repeated, but not be late, has a name that begins with PUT or DELETE and a
// space. Do returns the error of do, or of ctx, or one for a lost reply. While the process is dead, it
// does not return.
func (a *Acts) Do(ctx context.Context, name string, do func(ctx context.Context) error) error {
	return a.do(ctx, name, func(ctx context.Context) (key string, done bool, err error) {
		if do != nil {
			err = do(ctx)
		}
		return "", err == nil, err
	})
}

// do is Do with a key, for which the receiver does the act once; empty: none.
func (a *Acts) do(ctx context.Context, name string,
	do func(context.Context) (key string, done bool, err error),
) error {
	p, ok := ctx.Value(processKey{}).(*process)
	if !ok {
		a.schedule.mu.Lock()
		defer a.schedule.mu.Unlock()
		a.schedule.fail("%v: %q", errContext, name)
		return errContext
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return p.pass(ctx, act, name, func(ctx context.Context) error {
		key, done, err := do(ctx)
		if done {
			a.record(p, name, key)
		}
		return err
	})
}

// record records an act of the process.
func (a *Acts) record(p *process, name, key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	keyed := name + " " + key
	if key != "" && a.keys[keyed] {
		return
	}
	a.keys[keyed] = true

	a.counts[name]++
	if p.token < a.tokens[name] && !a.repeatable(name) {
		p.fail("act %q of an attempt that had lost the lock was done after that of a newer attempt", name)
	}
	a.tokens[name] = max(a.tokens[name], p.token)
}

// repeatable reports whether an act may be done again, and late.
func (a *Acts) repeatable(name string) bool {
	allowed := a.schedule.options.Repeatable
	return allowed != nil && allowed(name)
}

// judge compares the acts with those without a fault. If the work is not complete, some may be missing.
// The caller holds the mutex.
func (a *Acts) judge(usual map[string]int, complete bool) {
	for name, n := range a.counts {
		idempotent := strings.HasPrefix(name, http.MethodPut+" ") || strings.HasPrefix(name, http.MethodDelete+" ")
		if n > max(1, usual[name]) && !idempotent && !a.repeatable(name) {
			a.schedule.fail("act %q was done %d times, want %d", name, n, max(1, usual[name]))
		}
	}
	for name, n := range usual {
		if complete && a.counts[name] < n {
			a.schedule.fail("act %q was done %d times, want %d", name, a.counts[name], n)
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
// A PUT or a DELETE may be repeated, but not be late. Requests with one Idempotency-Key are one act.
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
	reads := slices.Contains([]string{http.MethodGet, http.MethodHead, http.MethodOptions}, r.Method)
	var w *httptest.ResponseRecorder
	send := func(ctx context.Context) (key string, done bool, err error) {
		w = serve(c.receiver, r.WithContext(ctx))
		return r.Header.Get("Idempotency-Key"), !reads && w.Code < http.StatusBadRequest, nil
	}
	if err := c.acts.do(r.Context(), r.Method+" "+r.URL.RequestURI(), send); err != nil {
		return nil, err
	}
	answer := w.Result()
	answer.Request = r
	return answer, nil
}
