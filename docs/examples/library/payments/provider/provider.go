// Package provider stands for the Go library of your payment provider.
package provider

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"
)

// Payment is a charge, a refund or a mail.
type Payment struct {
	Cents  int    `json:"cents"`
	Charge string `json:"charge,omitempty"` // of a refund
}

// Receipt has the provider's id of a charge or a refund.
type Receipt struct {
	ID string `json:"id"`
}

// Event is what the provider sends to a webhook, at least once.
type Event struct {
	ID      string  `json:"id"`
	Payment Payment `json:"payment"`
}

// ErrDeclined reports that the provider has declined, so that nothing was done. After another error
// of Do, it may have been done.
var ErrDeclined = errors.New("the provider has declined")

// Client is a client of the provider at a URL, such as https://provider.example.
type Client string

// Do does an act, such as "charges", once for a key.
func (c Client) Do(ctx context.Context, act, key string, p Payment) (Receipt, error) {
	return c.send(ctx, http.MethodPost, act, key, p)
}

// Find reports whether an act was done for a key.
func (c Client) Find(ctx context.Context, act, key string) (r Receipt, found bool, err error) {
	r, err = c.send(ctx, http.MethodGet, act+"?key="+key, key, Payment{})
	return r, r.ID != "", err
}

func (c Client) send(ctx context.Context, method, path, key string, p Payment) (r Receipt, err error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	body, err := json.Marshal(p)
	if err != nil {
		return r, err
	}
	request, err := http.NewRequestWithContext(ctx, method, string(c)+"/"+path, bytes.NewReader(body))
	if err != nil {
		return r, err
	}
	request.Header.Set("Idempotency-Key", key)
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return r, err
	}
	defer func() { _ = answer.Body.Close() }()

	switch answer.StatusCode {
	case http.StatusOK:
		err = json.NewDecoder(answer.Body).Decode(&r)
	case http.StatusPaymentRequired:
		err = ErrDeclined
	default:
		err = errors.New("the provider answers " + answer.Status)
	}
	return r, err
}
