package worker

import (
	"math"
	"net/http"
	"strings"
	"time"

	"taskguard/lease/iso8601"
)

// Case is the result of a request.
type Case int

// The cases of the contract.
const (
	Ran Case = iota
	Failed
	AlreadyFinished
	Locked       // and no follow-up could be booked
	LockedBooked // and one is
	Retry
	LockLost
	Busy               // as many deliveries as Server.MaxRuns are under way
	ShuttingDown       // stopped during the run, and no delivery could be booked
	ShuttingDownBooked // and one is
	NotClaimed         // stopped before it
	NotFound
	BadRequest
	TooLarge
	Unavailable // before the run
	Unfinished  // Firestore out of reach for the run's finish
	Malformed   // before the run
	Corrupted   // malformed by others during it
	WrongMethod
	NoSuchRoute
	Internal
	Unauthenticated
	Forbidden
	Recovered
	NotRecovered // or not all
	NoQueue
)

// String is the case's stable name in logs.
func (c Case) String() string {
	row := answers[c]
	switch {
	case c == Recovered:
		return "recovered"
	case row.reason != "":
		return row.reason
	}
	return strings.ToLower(row.status)
}

// Measures are a delivery in figures, for its log line.
type Measures struct {
	Asked   bool // for the lock
	Acquire time.Duration
	Owner   string // ours, once the lock was acquired or the analysis given up
	Attempt int
	Stolen  bool

	Ran        bool
	Run        time.Duration
	Heartbeats int    // successful renewals
	Lost       string // the reason: taken, finished, deleted or out_of_time

	FollowUp string // booked or failed, where that was tried

	Task  string // the task's short name
	Tries int    // which of the task's tries this delivery is, from 1; zero: unknown
}

// Outcome is the result of a delivery, with what its answer reports.
type Outcome struct {
	Case    Case
	ID      string
	Status  string // of the document, AlreadyFinished
	Token   int64  // Ran, and Failed
	HeldBy  string // owner of the lock in the way
	RetryAt time.Time
	RetryIn time.Duration
	Recovery
	Measures
	Err error
	// Code and Reason are the cause of Failed and Retry in the log, which must
	// not show Err: an analyzer's message may hold its input.
	Code, Reason string
}

type acquired int

const (
	unknown acquired = iota
	yes
	no
)

// answers is the one table from outcome to answer. A 2xx deletes the task: it
// stands only where no later delivery is needed or one is booked. Contention is
// 409, not 429 or 503, which would slow the whole queue.
var answers = [...]struct {
	code     int
	acquired acquired
	reason   string
	status   string // of the analysis, where the case alone decides it
	error    bool   // answer Err
	counts   bool   // answer Recovery
}{
	Ran:                {code: http.StatusOK, acquired: yes, status: "READY"},
	Failed:             {code: http.StatusOK, acquired: yes, status: "FAILED", error: true},
	AlreadyFinished:    {code: http.StatusOK, acquired: no, reason: "already_finished"},
	Locked:             {code: http.StatusConflict, acquired: no, reason: "locked"},
	LockedBooked:       {code: http.StatusOK, acquired: no, reason: "locked"},
	Retry:              {code: http.StatusInternalServerError, acquired: yes, reason: "retry", error: true},
	LockLost:           {code: http.StatusConflict, acquired: yes, reason: "lock_lost"},
	Busy:               {code: http.StatusConflict, acquired: no, reason: "busy"},
	ShuttingDown:       {code: http.StatusInternalServerError, acquired: yes, reason: "shutting_down"},
	ShuttingDownBooked: {code: http.StatusOK, acquired: yes, reason: "shutting_down"},
	NotClaimed:         {code: http.StatusInternalServerError, acquired: no, reason: "shutting_down"},
	NotFound:           {code: http.StatusNotFound, reason: "not_found"},
	BadRequest:         {code: http.StatusBadRequest, reason: "bad_request", error: true},
	TooLarge:           {code: http.StatusRequestEntityTooLarge, reason: "too_large"},
	Unavailable:        {code: http.StatusServiceUnavailable, acquired: no, reason: "unavailable"},
	Unfinished:         {code: http.StatusServiceUnavailable, acquired: yes, reason: "unavailable"},
	Malformed:          {code: http.StatusInternalServerError, acquired: no, reason: "malformed", error: true},
	Corrupted:          {code: http.StatusInternalServerError, acquired: yes, reason: "malformed", error: true},
	WrongMethod:        {code: http.StatusMethodNotAllowed, reason: "method_not_allowed"},
	NoSuchRoute:        {code: http.StatusNotFound, reason: "no_such_route"},
	Internal:           {code: http.StatusInternalServerError, reason: "internal"},
	Unauthenticated:    {code: http.StatusUnauthorized, reason: "unauthenticated"},
	Forbidden:          {code: http.StatusForbidden, reason: "forbidden"},
	Recovered:          {code: http.StatusOK, counts: true},
	NotRecovered:       {code: http.StatusServiceUnavailable, reason: "unavailable", counts: true},
	NoQueue:            {code: http.StatusNotImplemented, reason: "no_queue", error: true},
}

// Answer is the body of every answer.
type Answer struct {
	AnalysisID string `json:"analysis_id,omitempty"`
	Acquired   *bool  `json:"acquired,omitempty"`
	Status     string `json:"status,omitempty"`
	LockToken  int64  `json:"lock_token,omitempty"`
	Reason     string `json:"reason,omitempty"`
	RetryAt    string `json:"retry_at,omitempty"`
	Error      string `json:"error,omitempty"`
	Found      *int   `json:"found,omitempty"`
	Booked     *int   `json:"booked,omitempty"`
}

// maxText bounds what others have written, in bytes: an analyzer may write megabytes.
const maxText = 4096

func bounded(s string) string { return strings.ToValidUTF8(s[:min(maxText, len(s))], "") }

// answer looks o up in the table.
func (o Outcome) answer() (code int, a Answer) {
	row := answers[o.Case]
	a = Answer{AnalysisID: o.ID, Status: row.status, Reason: row.reason}
	if row.acquired != unknown {
		a.Acquired = new(bool)
		*a.Acquired = row.acquired == yes
	}
	if o.Status != "" {
		a.Status = o.Status
	}
	if o.Case == Ran {
		a.LockToken = o.Token
	}
	if !o.RetryAt.IsZero() {
		a.RetryAt = iso8601.Format(o.RetryAt)
	}
	if row.error && o.Err != nil {
		a.Error = bounded(o.Err.Error())
	}
	if row.counts {
		a.Found, a.Booked = &o.Found, &o.Booked
	}
	return row.code, a
}

// maxRetryAfter bounds Retry-After: a lock may expire in a year by a wrong clock,
// and be freed in a minute, and this task may be the only one.
const maxRetryAfter = 10 * time.Minute

// retryAfter is RetryIn in whole seconds, from 1 to 600.
func (o Outcome) retryAfter() int {
	return max(1, int(math.Ceil(min(o.RetryIn, maxRetryAfter).Seconds())))
}
