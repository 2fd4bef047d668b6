package charge_test

import (
	"testing"

	"taskguard/worker"
	"taskguard/worker/workertest"

	"example.com/library/charge"
)

func TestOrders(t *testing.T) {
	workertest.Run(t, func(acts *workertest.Acts) func(*worker.Guard) worker.Kind {
		provider := acts.Client(nil) // it answers 200, and records each request as an act
		return func(*worker.Guard) worker.Kind { return charge.Orders(provider) }
	}, charge.Order{Cents: 4200}, workertest.Options{})
}
