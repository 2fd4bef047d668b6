// Package charge has a handler that charges each order once; its test shows that it does.
package charge

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"taskguard/worker"
)

// Order is the input of a document orders/{id}.
type Order struct{ Cents int }

// Orders returns the kind of work that charges an order at a provider.
func Orders(provider *http.Client) worker.Kind {
	return worker.Kind{Name: "order", Collection: "orders", Run: worker.Typed(
		func(ctx context.Context, order Order, job worker.Job) (string, error) {
			return worker.Once(ctx, job, "charge", func(ctx context.Context) (string, error) {
				return charge(ctx, provider, order.Cents)
			})
		})}
}

// charge asks the provider for a charge, and returns the status of its answer.
func charge(ctx context.Context, provider *http.Client, cents int) (string, error) {
	form := url.Values{"cents": {fmt.Sprint(cents)}}.Encode()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://provider.example/charges", strings.NewReader(form))
	if err != nil {
		return "", err
	}
	answer, err := provider.Do(r)
	if err != nil {
		return "", err
	}
	return answer.Status, answer.Body.Close()
}
