package worker

import (
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"taskguard/internal/delivery"
)

// A settled outcome, and only that, is acknowledged; the statuses slow no queue down in vain.
func TestEachOutcomeHasItsAnswer(t *testing.T) {
	long := strings.Repeat("é", 4000)
	for want, o := range map[string]delivery.Outcome{
		`200 {"k":"x","acquired":true,"status":"READY","lock_token":7}`:                {Case: delivery.Ran, Settled: true, Token: 7},
		`200 {"k":"x","acquired":true,"status":"FAILED","error":"e"}`:                  {Case: delivery.Failed, Settled: true, Token: 7, Err: errors.New("e")},
		`200 {"k":"x","acquired":false,"status":"FAILED","reason":"already_finished"}`: {Case: delivery.AlreadyFinished, Settled: true, Status: "FAILED"},
		`200 {"k":"x","acquired":false,"reason":"booked"}`:                             {Case: delivery.Forwarded, Settled: true},
		`409 {"k":"x","acquired":false,"reason":"locked"}`:                             {Case: delivery.Locked, HeldBy: "them"},
		`200 {"k":"x","acquired":false,"reason":"locked"}`:                             {Case: delivery.Locked, Settled: true},
		`409 {"k":"x","acquired":false,"reason":"waiting","retry_at":"2000-01-01T00:00:00.000Z"}`: {
			Case: delivery.Waiting, RetryAt: time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC),
		},
		`200 {"k":"x","acquired":false,"reason":"waiting"}`:                                {Case: delivery.Waiting, Settled: true},
		`409 {"k":"x","acquired":true,"reason":"lock_lost"}`:                               {Case: delivery.LockLost, Err: errors.New("e")},
		`200 {"k":"x","acquired":true,"status":"READY","reason":"lock_lost"}`:              {Case: delivery.LockLost, Settled: true, Status: "READY"},
		`500 {"k":"x","acquired":true,"reason":"retry","error":"e"}`:                       {Case: delivery.Retry, Err: errors.New("e")},
		`200 {"k":"x","acquired":true,"reason":"retry","error":"e"}`:                       {Case: delivery.Retry, Settled: true, Err: errors.New("e")},
		`500 {"k":"x","acquired":true,"reason":"shutting_down"}`:                           {Case: delivery.ShuttingDown, Err: errors.New("e")},
		`500 {"k":"x","acquired":true,"reason":"continued"}`:                               {Case: delivery.Continued},
		`500 {"k":"x","acquired":false,"reason":"shutting_down"}`:                          {Case: delivery.NotClaimed},
		`503 {"k":"x","acquired":false,"reason":"unavailable"}`:                            {Case: delivery.Unavailable, Err: errors.New("e")},
		`503 {"k":"x","acquired":true,"reason":"unavailable"}`:                             {Case: delivery.FinishUnknown},
		`500 {"k":"x","acquired":false,"reason":"malformed","error":"e"}`:                  {Case: delivery.Malformed, Err: errors.New("e")},
		`500 {"k":"x","acquired":true,"reason":"malformed","error":"` + long[:4096] + `"}`: {Case: delivery.Corrupted, Err: errors.New(long)},
	} {
		o.ID = "x"
		code, a := answerTo(delivery.Record{Outcome: o, Kind: delivery.Kind{IDField: "k"}})
		body, err := json.Marshal(a)
		status, want, _ := strings.Cut(want, " ")
		if err != nil || string(body) != want || status != strconv.Itoa(code) {
			t.Errorf("%s %v: %d %.200s, %v; want %s %.200s", o.Case, o.Settled, code, body, err, status, want)
		}
	}
}

// If it were rounded down, the retry would find the lock held.
func TestRetryAfterIsRoundedUpWithinBounds(t *testing.T) {
	for wait, want := range map[time.Duration]string{
		0: "1", time.Second: "1", time.Second + 1: "2", 10 * time.Minute: "600", 12 * time.Hour: "600",
	} {
		if got := retryAfter(409, delivery.Record{Outcome: delivery.Outcome{Case: delivery.Locked, RetryIn: wait}}); got != want {
			t.Errorf("%v: %s s, want %s", wait, got, want)
		}
	}
}
