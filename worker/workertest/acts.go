package workertest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
)

// Acts records the acts of one schedule: what the processes do to the world outside. The act of a
// dead process is not done. An act that fails, or that its receiver refuses, is not recorded. Its
// methods are safe for concurrent use. They find the process by the context of the run, or of the
// request, which every act needs.
type Acts struct {
	of *schedule

	// The mutex of the schedule guards these.
	counts map[string]int   // by name, and by name and content
	newest map[string]int64 // the highest token, by name
	keys   map[string]bool  // Idempotency-Keys, with the name
}

// Do does the act, which is counted, and has no other effect. It returns an error if the process
// learns nothing of it: the reply is lost, or ctx has ended.
func (a *Acts) Do(ctx context.Context, name string) error {
	return a.do(ctx, name, func(context.Context) (did, error) { return did{}, nil })
}

// Count returns how often an act was done, by its name: that of Do, or a method and the path and
// query of a URL, such as "POST /charges", with or without a space and the body.
func (a *Acts) Count(name string) int {
	a.of.mu.Lock()
	defer a.of.mu.Unlock()
	return a.counts[name]
}

// did is what is known of an act after it was done.
type did struct {
	content string // in an act of that name
	key     string // with which the receiver does it once
	refused bool
}

// do does an act at the gate of its process, and records it.
func (a *Acts) do(ctx context.Context, name string, do func(context.Context) (did, error)) error {
	p, ok := ctx.Value(processKey{}).(*process)
	if !ok {
		a.of.t.Error(errAlone)
		return errAlone
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return p.pass(ctx, act, name, func(ctx context.Context) error {
		d, err := do(ctx)
		if err == nil && !d.refused {
			a.record(p, name, d)
		}
		return err
	})
}

// record records an act that was done.
func (a *Acts) record(p *process, name string, d did) {
	a.of.mu.Lock()
	defer a.of.mu.Unlock()
	if key := name + " " + d.key; d.key != "" {
		if a.keys[key] {
			return
		}
		a.keys[key] = true
	}

	a.counts[name]++
	if d.content != "" {
		a.counts[name+" "+d.content]++
	}
	if p.token < a.newest[name] && !a.repeatable(name, false) {
		a.of.fail("act %q of an attempt that had lost the lock was done after that of a newer attempt", name)
	}
	a.newest[name] = max(a.newest[name], p.token)
}

// repeatable reports whether an act may be done again. late: and in any order.
func (a *Acts) repeatable(name string, methods bool) bool {
	idempotent := strings.HasPrefix(name, http.MethodPut+" ") || strings.HasPrefix(name, http.MethodDelete+" ")
	return methods && idempotent || a.of.options.Repeatable != nil && a.of.options.Repeatable(name)
}

// judgeRepeated reports the acts that were done more often than without a fault. The caller holds
// the mutex.
func (a *Acts) judgeRepeated(base *Acts) {
	reported := ""
	for _, name := range slices.Sorted(maps.Keys(a.counts)) {
		done, usual := a.counts[name], max(1, base.counts[name])
		again := reported != "" && strings.HasPrefix(name, reported)
		if done > usual && !again && !a.repeatable(name, true) {
			a.of.fail("act %q was done %d times, and %d without a fault", name, done, usual)
			reported = name + " "
		}
	}
}

// judgeMissing reports the acts that were done less often than without a fault, although the work is
// finished. The caller holds the mutex.
func (a *Acts) judgeMissing(base *Acts) {
	for _, name := range slices.Sorted(maps.Keys(base.newest)) {
		if done, usual := a.counts[name], base.counts[name]; done < usual {
			a.of.fail("act %q was done %d times, and %d without a fault", name, done, usual)
		}
	}
}

// Client returns a client whose requests receiver serves, in this process: the provider of the
// test's own; nil: one that answers 204 to all. Each request but GET, HEAD and OPTIONS is an act,
// unless it is answered 400 or above. A PUT or a DELETE may be repeated, but not be late. Requests
// with one Idempotency-Key are one act.
func (a *Acts) Client(receiver http.Handler) *http.Client {
	if receiver == nil {
		receiver = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusNoContent)
		})
	}
	return &http.Client{Transport: client{a, local{receiver}}}
}

// client is the transport of Client.
type client struct {
	acts     *Acts
	receiver http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (c client) RoundTrip(r *http.Request) (resp *http.Response, err error) {
	var body []byte
	if r.Body != nil {
		if body, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
		_ = r.Body.Close()
	}
	send := func(ctx context.Context) error {
		sent := r.Clone(ctx)
		sent.Body = io.NopCloser(bytes.NewReader(body))
		resp, err = c.receiver.RoundTrip(sent)
		return err
	}
	if slices.Contains([]string{http.MethodGet, http.MethodHead, http.MethodOptions}, r.Method) {
		p, ok := r.Context().Value(processKey{}).(*process)
		if !ok {
			return nil, errAlone
		}
		if err := p.wait(); err != nil {
			return nil, err
		}
		err := send(r.Context())
		return resp, err
	}

	err = c.acts.do(r.Context(), fmt.Sprint(r.Method, " ", r.URL.RequestURI()), func(ctx context.Context) (did, error) {
		if err := send(ctx); err != nil {
			return did{}, err
		}
		return did{string(body), r.Header.Get("Idempotency-Key"), resp.StatusCode >= http.StatusBadRequest}, nil
	})
	if err != nil {
		return nil, err
	}
	return resp, nil
}
