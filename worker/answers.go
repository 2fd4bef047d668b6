package worker

import (
	"encoding/json"
	"math"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"taskguard/internal/delivery"
	"taskguard/lease/iso8601"
)

// answers is the one table from an outcome that is not settled to its answer. A 2xx status deletes
// the task, so only a settled outcome has one, and what is no delivery. For a locked analysis
// the status is 409, since 429 or 503 would slow the whole queue.
var answers = [...]struct {
	code     int    // zero: the outcome is always settled
	acquired *bool  // nil: not in the body
	status   string // in the place of a reason
	tries    int    // from this try on a task is rejected; zero: never
	error    bool   // the body has Err
	counts   bool   // the body has the numbers of Recovery
}{
	delivery.Ran:             {acquired: new(true), status: "READY"},
	delivery.Failed:          {acquired: new(true), status: "FAILED", error: true},
	delivery.AlreadyFinished: {acquired: new(false)},
	delivery.Forwarded:       {acquired: new(false)},
	delivery.Locked:          {code: http.StatusConflict, acquired: new(false)},
	delivery.Waiting:         {code: http.StatusConflict, acquired: new(false)},
	delivery.Busy:            {code: http.StatusConflict, acquired: new(false)},
	delivery.LockLost:        {code: http.StatusConflict, acquired: new(true)},
	delivery.Retry:           {code: http.StatusInternalServerError, acquired: new(true), error: true},
	delivery.ShuttingDown:    {code: http.StatusInternalServerError, acquired: new(true)},
	delivery.Continued:       {code: http.StatusInternalServerError, acquired: new(true)},
	delivery.NotClaimed:      {code: http.StatusInternalServerError, acquired: new(false)},
	delivery.NotFound:        {code: http.StatusNotFound, tries: 6},
	delivery.BadRequest:      {code: http.StatusBadRequest, tries: 1, error: true},
	delivery.Incomplete:      {code: http.StatusBadRequest, error: true},
	delivery.TooLarge:        {code: http.StatusRequestEntityTooLarge, tries: 1},
	delivery.Unavailable:     {code: http.StatusServiceUnavailable, acquired: new(false)},
	delivery.FinishUnknown:   {code: http.StatusServiceUnavailable, acquired: new(true)},
	delivery.Malformed:       {code: http.StatusInternalServerError, acquired: new(false), tries: 6, error: true},
	delivery.Corrupted:       {code: http.StatusInternalServerError, acquired: new(true), tries: 6, error: true},
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
	IDField    string `json:"-"` // the name of AnalysisID
	AnalysisID string `json:"-"`
	Acquired   *bool  `json:"acquired,omitempty"`
	Status     string `json:"status,omitempty"`
	LockToken  int64  `json:"lock_token,omitempty"`
	Reason     string `json:"reason,omitempty"`
	RetryAt    string `json:"retry_at,omitempty"`
	Error      string `json:"error,omitempty"`
	Found      *int   `json:"found,omitempty"`
	Booked     *int   `json:"booked,omitempty"`
	More       *bool  `json:"more,omitempty"`
	Rejected   bool   `json:"rejected,omitempty"`
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
	a = answer{IDField: r.Kind.IDField, AnalysisID: r.ID, Acquired: row.acquired, Status: row.status}
	if row.status == "" && r.Case != delivery.Recovered {
		a.Reason = r.Case.String()
	}
	if r.Status != "" {
		a.Status = r.Status
	}
	if r.Case == delivery.Ran {
		a.LockToken = r.Token
	}
	if !r.RetryAt.IsZero() {
		a.RetryAt = iso8601.Format(r.RetryAt)
	}
	if row.error && r.Err != nil {
		a.Error = delivery.Bounded(r.Err.Error())
	}
	if row.counts {
		a.Found, a.Booked, a.More = &r.Found, &r.Booked, &r.More
	}

	a.Rejected = rejected(r)
	if r.Settled || a.Rejected {
		return http.StatusOK, a
	}
	return row.code, a
}

// rejected reports whether no later try of the task can be expected to succeed. The answer
// is then a success, so that Cloud Tasks deletes the task. A caller that is not Cloud Tasks
// gets the status of the case.
func rejected(r delivery.Record) bool {
	from := answers[r.Case].tries
	return from > 0 && r.Task != "" && max(r.Tries, 1) >= from
}

// maxRetryAfter limits Retry-After. A wrong clock may set an expiry a year ahead, but the
// lock may be freed in a minute, and this task may be the only one.
const maxRetryAfter = 10 * time.Minute

// retryAfter returns a wait in whole seconds, from 1 to 600.
func retryAfter(wait time.Duration) int {
	return max(1, int(math.Ceil(min(wait, maxRetryAfter).Seconds())))
}

// send answers a request with the record r.
func send(c echo.Context, r delivery.Record) error {
	code, a := answerTo(r)
	if code == http.StatusConflict && r.Case != delivery.LockLost {
		c.Response().Header().Set("Retry-After", strconv.Itoa(retryAfter(r.RetryIn)))
	}
	if code == http.StatusUnauthorized {
		c.Response().Header().Set("WWW-Authenticate", "Bearer")
	}
	return c.JSON(code, a)
}
