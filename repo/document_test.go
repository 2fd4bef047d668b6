package repo

import (
	"errors"
	"math"
	"testing"
	"time"

	"taskguard/internal/testing/emulatortest"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/lease/iso8601"
)

// The lock of a document that another program wrote (G5).
func TestLockFields(t *testing.T) {
	now := time.Now().UTC().Truncate(time.Millisecond)
	future, past := now.Add(time.Hour), now.Add(-time.Hour)
	cases := map[string]struct {
		lock map[string]any
		want string // "" for acquired
		err  error
	}{
		"no owner":                  {lock: map[string]any{"lockExpiresAt": iso8601.Format(future)}},
		"empty owner":               {lock: map[string]any{"lockOwner": "", "lockExpiresAt": iso8601.Format(future)}},
		"null owner":                {lock: map[string]any{"lockOwner": nil, "lockExpiresAt": iso8601.Format(future)}},
		"ISO future":                {lock: map[string]any{"lockOwner": "js", "lockExpiresAt": iso8601.Format(future)}, want: analysislock.Locked},
		"ISO past":                  {lock: map[string]any{"lockOwner": "js", "lockExpiresAt": iso8601.Format(past)}},
		"ISO without decimals":      {lock: map[string]any{"lockOwner": "js", "lockExpiresAt": future.Format("2006-01-02T15:04:05Z")}, want: analysislock.Locked},
		"ISO nanoseconds and zone":  {lock: map[string]any{"lockOwner": "js", "lockExpiresAt": future.In(time.FixedZone("", 9*3600)).Format(time.RFC3339Nano)}, want: analysislock.Locked},
		"Timestamp future":          {lock: map[string]any{"lockOwner": "js", "lockExpiresAt": future}, want: analysislock.Locked},
		"Timestamp past":            {lock: map[string]any{"lockOwner": "js", "lockExpiresAt": past}},
		"milliseconds future":       {lock: map[string]any{"lockOwner": "js", "lockExpiresAt": future.UnixMilli()}, want: analysislock.Locked},
		"milliseconds past":         {lock: map[string]any{"lockOwner": "js", "lockExpiresAt": float64(past.UnixMilli())}},
		"missing expiry":            {lock: map[string]any{"lockOwner": "js"}},
		"null expiry":               {lock: map[string]any{"lockOwner": "js", "lockExpiresAt": nil}},
		"unreadable, heartbeat old": {lock: map[string]any{"lockOwner": "js", "lockExpiresAt": "soon", "lockHeartbeatAt": iso8601.Format(past)}},
		"unreadable, heartbeat now": {lock: map[string]any{"lockOwner": "js", "lockExpiresAt": map[string]any{"s": 1}, "lockHeartbeatAt": iso8601.Format(future)}, want: analysislock.Locked},
		"unreadable, updated now":   {lock: map[string]any{"lockOwner": "js", "lockExpiresAt": true}, want: analysislock.Locked},
		"year 9999, heartbeat old":  {lock: map[string]any{"lockOwner": "js", "lockExpiresAt": "9999-01-01T00:00:00Z", "lockHeartbeatAt": iso8601.Format(past)}},
		"year 9999, heartbeat now":  {lock: map[string]any{"lockOwner": "js", "lockExpiresAt": "9999-01-01T00:00:00Z", "lockHeartbeatAt": iso8601.Format(now)}, want: analysislock.Locked},
		"ISO in 23 hours":           {lock: map[string]any{"lockOwner": "js", "lockExpiresAt": iso8601.Format(now.Add(23 * time.Hour)), "lockHeartbeatAt": iso8601.Format(past)}, want: analysislock.Locked},
		"Timestamp in 25 hours":     {lock: map[string]any{"lockOwner": "js", "lockExpiresAt": now.Add(25 * time.Hour), "lockHeartbeatAt": iso8601.Format(past)}},
		"owner is a number":         {lock: map[string]any{"lockOwner": 5, "lockExpiresAt": iso8601.Format(future)}, want: analysislock.Locked},
		"owner is a number, stale":  {lock: map[string]any{"lockOwner": 5, "lockExpiresAt": iso8601.Format(past)}},
		"attempts is a string":      {lock: map[string]any{"attempts": "3"}},
		"attempts is a map":         {lock: map[string]any{"attempts": map[string]any{"n": 10}}},
		"attempts is a double":      {lock: map[string]any{"attempts": 10.0}, want: analysislock.AttemptsExhausted},
		"attempts is huge":          {lock: map[string]any{"attempts": int64(math.MaxInt64), "lastError": []any{"c"}}, want: analysislock.AttemptsExhausted},
		"token is a double":         {lock: map[string]any{"lockToken": 3.0}},
		"token is a string":         {lock: map[string]any{"lockToken": "3"}, err: lease.ErrMalformed},
		"token is negative":         {lock: map[string]any{"lockToken": -1}, err: lease.ErrMalformed},
		"token is a fraction":       {lock: map[string]any{"lockToken": 1.5}, err: lease.ErrMalformed},
		"token is NaN":              {lock: map[string]any{"lockToken": math.NaN()}, err: lease.ErrMalformed},
		"finished, token malformed": {lock: map[string]any{"status": analysislock.Ready, "lockToken": "3"}, want: analysislock.AlreadyFinished},
		"status is a number":        {lock: map[string]any{"status": 1}},
		"status is another word":    {lock: map[string]any{"status": "ARCHIVED"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			b := emulatortest.Embedded(t)
			a := open(t, b)
			b.Put(t, "x", tc.lock)
			acq, err := a.acquire(t.Context(), "x", "w/1")
			if !errors.Is(err, tc.err) {
				t.Fatalf("error = %v, want %v", err, tc.err)
			}
			if err == nil && acq.Reason != tc.want {
				t.Errorf("acquire: %+v, want %q", acq, tc.want)
			}
		})
	}
}
