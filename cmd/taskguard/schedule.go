package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// recoveryTimeout bounds one call of recovery, as Cloud Scheduler's attempt
// deadline does.
const recoveryTimeout = time.Minute

// callRecovery is Cloud Scheduler: it calls the workers' recovery every so
// often, with a token, until ctx ends.
func (l *locality) callRecovery(ctx context.Context) {
	transport := &http.Transport{Proxy: nil, DisableKeepAlives: true}
	due := time.NewTicker(l.every)
	defer due.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-due.C:
		}
		r, err := l.recoverOnce(ctx, transport)
		switch {
		case ctx.Err() != nil:
		case err != nil:
			l.show.note(bad, "recovery: %v", err)
		case r.Booked > 0:
			l.show.note(strong, "recovery found %d that nobody works on, booked %d", r.Found, r.Booked)
		}
	}
}

func (l *locality) recoverOnce(ctx context.Context, transport http.RoundTripper) (r recovered, err error) {
	ctx, cancel := context.WithTimeout(ctx, recoveryTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, l.route.target+"/internal/tasks/recover", http.NoBody)
	if err != nil {
		return r, err
	}
	token, err := l.cloud.issuer.Token(demoCaller, l.route.target)
	if err != nil {
		return r, err
	}
	request.Header.Set("Authorization", "Bearer "+token)
	response, err := transport.RoundTrip(request)
	if err != nil {
		return r, err
	}
	const most = 64 << 10
	answer, err := io.ReadAll(io.LimitReader(response.Body, most))
	if err = errors.Join(err, response.Body.Close()); err != nil {
		return r, err
	}
	if response.StatusCode != http.StatusOK {
		return r, fmt.Errorf("answered %d %s", response.StatusCode, answer)
	}
	err = json.Unmarshal(answer, &r)
	return r, err
}
