package workertest

import (
	"context"
	"errors"
	"net/http"
	"os"
	"strings"
	"testing"

	"taskguard/internal/testing/emulatortest"
	"taskguard/worker"
)

func TestMain(m *testing.M) { os.Exit(emulatortest.Main(m)) }

// service is what Run takes.
type service = func(*Acts) func(*worker.Guard) worker.Kind

// simple is a service whose processes have the Run.
func simple(run func(ctx context.Context, a *Acts, job worker.Job) (any, error)) service {
	return func(a *Acts) func(*worker.Guard) worker.Kind {
		return func(*worker.Guard) worker.Kind {
			return worker.Kind{Run: func(ctx context.Context, job worker.Job) (any, error) { return run(ctx, a, job) }}
		}
	}
}

// failing does no act, and fails with err.
func failing(err error) service {
	return simple(func(context.Context, *Acts, worker.Job) (any, error) { return nil, err })
}

// charges charges within the act, or wrongly before it.
func charges(before bool) service {
	return simple(func(ctx context.Context, a *Acts, job worker.Job) (any, error) {
		charge := func(ctx context.Context) (string, error) { return "receipt", a.Do(ctx, "charge", nil) }
		if before {
			if _, err := charge(ctx); err != nil {
				return nil, err
			}
			charge = func(context.Context) (string, error) { return "receipt", nil }
		}
		return worker.Once(ctx, job, "charge", charge)
	})
}

// keyed is charges with a limit for each customer.
func keyed(limit func() int) service {
	return func(a *Acts) func(*worker.Guard) worker.Kind {
		start := charges(false)(a)
		return func(g *worker.Guard) worker.Kind {
			k := start(g)
			k.KeyFields, k.KeyLimit = []string{"input.customer"}, func(string) int { return limit() }
			return k
		}
	}
}

// ask sends a request about charges, and returns the status of its answer.
func ask(ctx context.Context, client *http.Client, method string, header http.Header) (int, error) {
	r, err := http.NewRequestWithContext(ctx, method, "http://bank.test/charges", http.NoBody)
	if err != nil {
		return 0, err
	}
	r.Header = header
	resp, err := client.Do(r)
	if err != nil {
		return 0, err
	}
	return resp.StatusCode, resp.Body.Close()
}

// withKey is the header of a request with an Idempotency-Key.
func withKey(key string) http.Header { return http.Header{"Idempotency-Key": {key}} }

// asks is a service whose runs have a client of the receiver.
func asks(receiver http.Handler, run func(ctx context.Context, job worker.Job, client *http.Client) error) service {
	return func(a *Acts) func(*worker.Guard) worker.Kind {
		client := a.Client(receiver)
		return func(*worker.Guard) worker.Kind {
			return worker.Kind{Run: func(ctx context.Context, job worker.Job) (any, error) {
				return 1, run(ctx, job, client)
			}}
		}
	}
}

// refusal charges, and declines if the bank refuses, or wrongly for each answer but 200.
func refusal(each bool) func(context.Context, worker.Job, *http.Client) error {
	return func(ctx context.Context, job worker.Job, client *http.Client) error {
		_, err := worker.Once(ctx, job, "charge", func(ctx context.Context) (int, error) {
			status, err := ask(ctx, client, http.MethodPost, nil)
			switch {
			case err != nil:
				return 0, err
			case status == http.StatusPaymentRequired, each && status != http.StatusOK:
				return 0, worker.NotDone(worker.Permanent("declined", "", nil))
			case status != http.StatusOK:
				return 0, errors.New("the bank does not say")
			}
			return status, nil
		})
		return err
	}
}

// inputKey makes an act with the input as its key.
func inputKey(ctx context.Context, job worker.Job, client *http.Client) error {
	_, err := ask(ctx, client, http.MethodPost, withKey(string(job.Input)))
	return err
}

// orders is a handler that charges once for a key, or wrongly again for each try.
func orders(once bool) func(*Acts) func(*worker.Guard) http.Handler {
	return func(a *Acts) func(*worker.Guard) http.Handler {
		client := a.Client(nil)
		charge := func(ctx context.Context) (int, error) {
			return ask(ctx, client, http.MethodPost, nil)
		}
		order := func(w http.ResponseWriter, r *http.Request) {
			act := charge
			if once {
				act = func(ctx context.Context) (int, error) {
					job, _ := worker.JobFromContext(ctx)
					return worker.Once(ctx, job, "charge", charge)
				}
			}
			if _, err := act(r.Context()); err != nil {
				w.WriteHeader(http.StatusInternalServerError)
			}
		}
		return func(g *worker.Guard) http.Handler {
			guarded := g.Idempotent(worker.IdempotentOptions{Scope: func(*http.Request) string { return "account" }})
			return guarded(http.HandlerFunc(order))
		}
	}
}

func order() *http.Request {
	r, err := http.NewRequest(http.MethodPost, "http://service.test/orders", strings.NewReader("42"))
	if err != nil {
		panic(err)
	}
	r.Header = withKey("key")
	return r
}
