package worker

import (
	"cmp"
	"encoding/json"
	"math"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"taskguard/internal/delivery"
	"taskguard/lease/iso8601"
	"taskguard/orchestrator"
)

// answers has the answer to each outcome. A 2xx status deletes the task, so a delivery gets one
// only if its outcome is settled. The status for a locked analysis is 409, since 429 or 503 would
// slow the whole queue.
var answers = [...]struct {
	code     int    // unless the outcome is settled
	acquired *bool  // nil: not in the body
	status   string // replaces the reason
	maxTries int    // the task is rejected at this try; zero: never
	error    bool   // the body has Err
	counts   bool   // the body has the numbers of Recovery
}{
	delivery.Ran:             {code: http.StatusOK, acquired: new(true), status: "READY"},
	delivery.Failed:          {code: http.StatusOK, acquired: new(true), status: "FAILED", error: true},
	delivery.AlreadyFinished: {code: http.StatusOK, acquired: new(false)},
	delivery.Forwarded:       {code: http.StatusOK, acquired: new(false)},
	delivery.Locked:          {code: http.StatusConflict, acquired: new(false)},
	delivery.Waiting:         {code: http.StatusConflict, acquired: new(false)},
	delivery.Busy:            {code: http.StatusConflict, acquired: new(false)},
	delivery.LockLost:        {code: http.StatusConflict, acquired: new(true)},
	delivery.Retry:           {code: http.StatusInternalServerError, acquired: new(true), error: true},
	delivery.ShuttingDown:    {code: http.StatusInternalServerError, acquired: new(true)},
	delivery.Continued:       {code: http.StatusInternalServerError, acquired: new(true)},
	delivery.NotClaimed:      {code: http.StatusInternalServerError, acquired: new(false)},
	delivery.NotFound:        {code: http.StatusNotFound, maxTries: 6},
	delivery.BadRequest:      {code: http.StatusBadRequest, maxTries: 1, error: true},
	delivery.Incomplete:      {code: http.StatusBadRequest, error: true},
	delivery.TooLarge:        {code: http.StatusRequestEntityTooLarge, maxTries: 1},
	delivery.Unavailable:     {code: http.StatusServiceUnavailable, acquired: new(false)},
	delivery.FinishUnknown:   {code: http.StatusServiceUnavailable, acquired: new(true)},
	delivery.Malformed:       {code: http.StatusInternalServerError, acquired: new(false), maxTries: 6, error: true},
	delivery.Corrupted:       {code: http.StatusInternalServerError, acquired: new(true), maxTries: 6, error: true},
	delivery.WrongMethod:     {code: http.StatusMethodNotAllowed},
	delivery.NoSuchRoute:     {code: http.StatusNotFound},
	delivery.Internal:        {code: http.StatusInternalServerError},
	delivery.Unauthenticated: {code: http.StatusUnauthorized},
	delivery.Forbidden:       {code: http.StatusForbidden},
	delivery.Recovered:       {code: http.StatusOK, counts: true},
	delivery.NotRecovered:    {code: http.StatusServiceUnavailable, counts: true},
	delivery.NoQueue:         {code: http.StatusNotImplemented, error: true},
	delivery.SelfTested:      {code: http.StatusOK, status: "ok"},
	delivery.SelfTestFailed:  {code: http.StatusInternalServerError, error: true},
	delivery.NotConfigured:   {code: http.StatusNotFound},
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

// answerTo returns the status and the body of the answer to a request with the record r.
func answerTo(r delivery.Record) (code int, a answer) {
	row := answers[r.Case]
	a = answer{IDField: r.Kind.IDField, AnalysisID: r.ID, Acquired: row.acquired}
	a.Status = cmp.Or(r.Status, row.status)
	if row.status == "" && r.Case != delivery.Recovered {
		a.Reason = r.Case.String()
	}
	if r.Case == delivery.Ran {
		a.LockToken = r.Token
	}
	if !r.RetryAt.IsZero() {
		a.RetryAt = iso8601.Format(r.RetryAt)
	}
	if row.error && r.Err != nil {
		a.Error = delivery.Bounded(orchestrator.Text(r.Err))
	}
	if row.counts {
		a.Recovery = &r.Recovery
	}

	a.Rejected = rejected(r)
	if r.Settled || a.Rejected {
		return http.StatusOK, a
	}
	return row.code, a
}

// rejected reports whether no later try of the task is expected to succeed. The answer is then
// 200, so that Cloud Tasks deletes the task. A request without a task gets the status of the case.
func rejected(r delivery.Record) bool {
	limit := answers[r.Case].maxTries
	return limit > 0 && r.Task != "" && max(r.Tries, 1) >= limit
}

// maxRetryAfter limits the Retry-After of a 409. A wrong clock may set an expiry that is a year ahead. An
// operator may free that lock in a minute, and this may be the only task.
const maxRetryAfter = 10 * time.Minute

// retryAfter returns the Retry-After of the answer to r, in whole seconds and at least 1, or "". A 409
// has one, unless the lock was lost, and so has an unbooked retry with a wait.
func retryAfter(code int, r delivery.Record) string {
	switch {
	case code == http.StatusConflict && r.Case != delivery.LockLost:
		r.RetryIn = min(r.RetryIn, maxRetryAfter)
	case code == http.StatusOK, r.Case != delivery.Retry, r.RetryIn <= 0: // the analyzer's own wait is bounded already
		return ""
	}
	return strconv.Itoa(max(1, int(math.Ceil(r.RetryIn.Seconds()))))
}

// send answers a request with the record r.
func send(c echo.Context, r delivery.Record) error {
	code, a := answerTo(r)
	if wait := retryAfter(code, r); wait != "" {
		c.Response().Header().Set("Retry-After", wait)
	}
	if code == http.StatusUnauthorized {
		c.Response().Header().Set("WWW-Authenticate", "Bearer")
	}
	return c.JSON(code, a)
}
