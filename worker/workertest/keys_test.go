package workertest

import (
	"context"
	"strings"
	"testing"
	"time"

	"taskguard/worker"
)

// keyed is a service that charges once, with a limit for each customer.
func keyed(limit func() int) service {
	return func(a *Acts) func(*worker.Guard) worker.Kind {
		run := func(ctx context.Context, job worker.Job) (any, error) {
			return worker.Once(ctx, job, "charge", func(ctx context.Context) (string, error) {
				return "receipt", a.Do(ctx, "charge", nil)
			})
		}
		return func(*worker.Guard) worker.Kind {
			return worker.Kind{
				KeyFields: []string{"input.customer"}, KeyLimit: func(string) int { return limit() }, Run: run,
			}
		}
	}
}

func TestRun_Key(t *testing.T) {
	customer := map[string]any{"customer": "acme"}
	t.Run("a kind with a key passes", func(t *testing.T) {
		Run(t, keyed(func() int { return 2 }), customer, Options{})
	})
	t.Run("recovery wakes what is parked", func(t *testing.T) {
		resumed := time.Date(2000, 1, 1, 0, 10, 0, 0, time.UTC) // the time of a bubble begins ten minutes earlier
		paused := func() int {
			if time.Now().Before(resumed) {
				return 0
			}
			return 2
		}
		Run(t, keyed(paused), customer, Options{})
	})
	t.Run("a key that stays paused is reported", func(t *testing.T) {
		found := search(t, Options{}, deliveries(keyed(func() int { return 0 }), customer))
		if found == nil || !strings.Contains(found.report(t.Name()), "parked behind its key, and is not finished") {
			t.Errorf("found %v, want that the work is parked", found)
		}
	})
}
