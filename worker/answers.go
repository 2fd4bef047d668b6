package worker

import (
	"encoding/json"
	"math"
	"net/http"
	"slices"
	"strconv"
	"time"

	"taskguard/internal/delivery"
)

// form is the fixed part of an answer.
type form struct {
	outcome  string // in logs and metrics, and the reason in the body
	code     int    // the status, unless the task is acknowledged by 200
	acquired *bool  // nil: not in the body
	status   string // in the body, in place of the reason
	error    bool   // the body has the error
}

// The answers that say nothing about a delivery.
var (
	badRequest      = form{outcome: "bad_request", code: http.StatusBadRequest, error: true}
	tooLarge        = form{outcome: "too_large", code: http.StatusRequestEntityTooLarge}
	busy            = form{outcome: "busy", code: http.StatusConflict, acquired: new(false)}
	wrongMethod     = form{outcome: "method_not_allowed", code: http.StatusMethodNotAllowed}
	noSuchRoute     = form{outcome: "no_such_route", code: http.StatusNotFound}
	internalError   = form{outcome: "internal", code: http.StatusInternalServerError}
	unauthenticated = form{outcome: "unauthenticated", code: http.StatusUnauthorized}
	forbidden       = form{outcome: "forbidden", code: http.StatusForbidden}
	recovered       = form{outcome: "recovered", code: http.StatusOK}
	notRecovered    = form{outcome: "unavailable", code: http.StatusServiceUnavailable}
	noQueue         = form{outcome: "no_queue", code: http.StatusNotImplemented, error: true}
	selfTested      = form{outcome: "ok", code: http.StatusOK, status: "ok"}
	selfTestFailed  = form{outcome: "self_test_failed", code: http.StatusInternalServerError, error: true}
	notConfigured   = form{outcome: "not_configured", code: http.StatusNotFound}
)

// forms has the answer to a delivery for each reason; see formOf. The status for a locked analysis is 409,
// since 429 or 503 would slow the whole queue.
var forms = [...]form{
	delivery.Completed:       {code: http.StatusOK, acquired: new(true), status: "READY"},
	delivery.Failed:          {code: http.StatusOK, acquired: new(true), status: "FAILED", error: true},
	delivery.AlreadyFinished: {code: http.StatusOK, acquired: new(false)},
	delivery.Forwarded:       {code: http.StatusOK, acquired: new(false)},
	delivery.Started:         {code: http.StatusOK, acquired: new(false)},
	delivery.Locked:          {code: http.StatusConflict, acquired: new(false)},
	delivery.Waiting:         {code: http.StatusConflict, acquired: new(false)},
	delivery.Suspect:         {code: http.StatusConflict, acquired: new(false)},
	delivery.KeyBusy:         {code: http.StatusConflict, acquired: new(false)},
	delivery.LockLost:        {code: http.StatusConflict, acquired: new(true)},
	delivery.Retry:           {code: http.StatusInternalServerError, acquired: new(true), error: true},
	delivery.ShuttingDown:    {code: http.StatusInternalServerError, acquired: new(true)},
	delivery.Continued:       {code: http.StatusInternalServerError, acquired: new(true)},
	delivery.NotClaimed:      {code: http.StatusInternalServerError, acquired: new(false)},
	delivery.NotFound:        {code: http.StatusNotFound},
	delivery.InvalidID:       {code: http.StatusBadRequest, error: true},
	delivery.Unavailable:     {code: http.StatusServiceUnavailable, acquired: new(false)},
	delivery.FinishUnknown:   {code: http.StatusServiceUnavailable, acquired: new(true)},
	delivery.Malformed:       {code: http.StatusInternalServerError, acquired: new(false), error: true},
	delivery.Corrupted:       {code: http.StatusInternalServerError, acquired: new(true), error: true},
}

func formOf(r delivery.Reason) form {
	f := forms[r]
	f.outcome = r.String()
	return f
}

// answer is the body of every answer.
type answer struct {
	IDField    string `json:"-"` // the name of AnalysisID in JSON
	AnalysisID string `json:"-"`
	Acquired   *bool  `json:"acquired,omitempty"`
	Status     string `json:"status,omitempty"`
	LockToken  int64  `json:"lock_token,omitempty"`
	Reason     string `json:"reason,omitempty"`
	RetryAt    string `json:"retry_at,omitempty"`
	Error      string `json:"error,omitempty"`
	*delivery.Recovery
	Rejected bool `json:"rejected,omitempty"`
}

// MarshalJSON writes AnalysisID, unless it is empty, under the name IDField.
func (a answer) MarshalJSON() ([]byte, error) {
	type rest answer
	body, err := json.Marshal(rest(a))
	if err != nil || a.AnalysisID == "" {
		return body, err
	}

	id, err := json.Marshal(map[string]string{a.IDField: a.AnalysisID})
	if err != nil || len(body) == len("{}") {
		return id, err
	}
	return slices.Concat(id[:len(id)-1], []byte(","), body[1:]), nil
}

// maxRetryAfter limits the Retry-After of a 409. A wrong clock may set an expiry that is a year ahead. An
// operator may free that lock in a minute, and this may be the only task.
const maxRetryAfter = 10 * time.Minute

// retryAfter returns the Retry-After of a delivery that is not acknowledged, in whole seconds and at
// least 1, or "". Without a booked attempt, the analyzer's own wait is for the sender of the delivery.
func retryAfter(r delivery.Reason, wait time.Duration) string {
	switch {
	case r == delivery.Locked || r == delivery.Waiting || r == delivery.Suspect:
		wait = min(wait, maxRetryAfter)
	case r != delivery.Retry || wait <= 0:
		return ""
	}
	return strconv.Itoa(max(1, int(math.Ceil(wait.Seconds()))))
}
