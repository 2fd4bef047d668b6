package delivery

import (
	"cmp"
	"encoding/json"
	"math"
	"net/http"
	"slices"
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
	Locked       // and no follow-up was booked
	LockedBooked // and a follow-up is booked
	Retry        // and no delivery was booked
	RetryBooked  // and the next attempt is booked
	Waiting      // for the next attempt, which could not be booked
	WaitingBooked
	LockLost           // and no follow-up was booked
	LockLostOver       // there is a queue, and a follow-up is booked or the analysis was finished or deleted
	Busy               // Server.MaxRuns deliveries are in progress
	ShuttingDown       // stopped during the run, and no delivery was booked
	ShuttingDownBooked // stopped during the run, and a delivery is booked
	Continued          // the run passed its deadline after a checkpoint, and no delivery was booked
	ContinuedBooked    // the run passed its deadline after a checkpoint, and a delivery is booked
	Booked             // the delivery only had to book another
	NotClaimed         // stopped before the acquisition
	NotFound
	BadRequest
	Incomplete // the body did not arrive in full; another try may succeed
	TooLarge
	Unavailable   // before the run
	FinishUnknown // Firestore was unavailable at the finish of the run
	Malformed     // before the run
	Corrupted     // malformed by another program during the run
	WrongMethod
	NoSuchRoute
	Internal
	Unauthenticated
	Forbidden
	Recovered
	NotRecovered // or only in part
	NoQueue
	SelfTested
	SelfTestFailed
	NotConfigured // no input for a self-test
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

// Measures are the measured values of a delivery, for its log line.
type Measures struct {
	Asked   bool // an acquisition was tried
	Acquire time.Duration
	Owner   string // of this delivery, if it acquired the lock or recorded that none can
	Attempt int
	Stolen  bool
	// ToStart and ToReady are the times from the analysis's creation to its first acquisition,
	// if it is this one, and to READY. Zero: unknown.
	ToStart, ToReady time.Duration

	Ran        bool
	Run        time.Duration
	Heartbeats int    // successful renewals
	Lost       string // the reason: taken, finished, cancelled, deleted or out_of_time
	// Checkpoints is the number of commits with a checkpoint.
	Checkpoints int

	FollowUp string // booked or failed, if a booking was tried

	Task  string // the task's short name
	Tries int    // which of the task's tries this delivery is, from 1; zero: unknown
}

// Outcome is the result of a request, with the values of its answer and its log line.
type Outcome struct {
	Case    Case
	Kind    Kind
	ID      string
	Status  string // of the document, AlreadyFinished and LockLost; of Ran and Failed, if another program has set it
	Token   int64  // Ran, and Failed
	HeldBy  string // owner of the other worker's lock
	RetryAt time.Time
	RetryIn time.Duration
	Recovery
	Measures
	Err error
	// Code and Reason are the cause of Failed and Retry in the log. The log does not
	// show Err then, since an analyzer's message may contain its input.
	Code, Reason string
}

// answers is the one table from outcome to answer. A 2xx status deletes the task, so it
// is used only if no later delivery is needed or one is booked. For a locked analysis
// the status is 409, since 429 or 503 would slow the whole queue.
var answers = [...]struct {
	code     int
	acquired *bool // nil: not in the body
	reason   string
	status   string // of the analysis, if the case determines it
	tries    int    // from this try on a task is rejected; zero: never
	error    bool   // the body has Err
	counts   bool   // the body has the numbers of Recovery
}{
	Ran:                {code: http.StatusOK, acquired: new(true), status: "READY"},
	Failed:             {code: http.StatusOK, acquired: new(true), status: "FAILED", error: true},
	AlreadyFinished:    {code: http.StatusOK, acquired: new(false), reason: "already_finished"},
	Locked:             {code: http.StatusConflict, acquired: new(false), reason: "locked"},
	LockedBooked:       {code: http.StatusOK, acquired: new(false), reason: "locked"},
	Retry:              {code: http.StatusInternalServerError, acquired: new(true), reason: "retry", error: true},
	RetryBooked:        {code: http.StatusOK, acquired: new(true), reason: "retry", error: true},
	Waiting:            {code: http.StatusConflict, acquired: new(false), reason: "waiting"},
	WaitingBooked:      {code: http.StatusOK, acquired: new(false), reason: "waiting"},
	LockLost:           {code: http.StatusConflict, acquired: new(true), reason: "lock_lost"},
	LockLostOver:       {code: http.StatusOK, acquired: new(true), reason: "lock_lost"},
	Busy:               {code: http.StatusConflict, acquired: new(false), reason: "busy"},
	ShuttingDown:       {code: http.StatusInternalServerError, acquired: new(true), reason: "shutting_down"},
	ShuttingDownBooked: {code: http.StatusOK, acquired: new(true), reason: "shutting_down"},
	Continued:          {code: http.StatusInternalServerError, acquired: new(true), reason: "continued"},
	ContinuedBooked:    {code: http.StatusOK, acquired: new(true), reason: "continued"},
	Booked:             {code: http.StatusOK, acquired: new(false), reason: "booked"},
	NotClaimed:         {code: http.StatusInternalServerError, acquired: new(false), reason: "shutting_down"},
	NotFound:           {code: http.StatusNotFound, reason: "not_found", tries: 6},
	BadRequest:         {code: http.StatusBadRequest, reason: "bad_request", tries: 1, error: true},
	Incomplete:         {code: http.StatusBadRequest, reason: "bad_request", error: true},
	TooLarge:           {code: http.StatusRequestEntityTooLarge, reason: "too_large", tries: 1},
	Unavailable:        {code: http.StatusServiceUnavailable, acquired: new(false), reason: "unavailable"},
	FinishUnknown:      {code: http.StatusServiceUnavailable, acquired: new(true), reason: "unavailable"},
	Malformed:          {code: http.StatusInternalServerError, acquired: new(false), reason: "malformed", tries: 6, error: true},
	Corrupted:          {code: http.StatusInternalServerError, acquired: new(true), reason: "malformed", tries: 6, error: true},
	WrongMethod:        {code: http.StatusMethodNotAllowed, reason: "method_not_allowed"},
	NoSuchRoute:        {code: http.StatusNotFound, reason: "no_such_route"},
	Internal:           {code: http.StatusInternalServerError, reason: "internal"},
	Unauthenticated:    {code: http.StatusUnauthorized, reason: "unauthenticated"},
	Forbidden:          {code: http.StatusForbidden, reason: "forbidden"},
	Recovered:          {code: http.StatusOK, counts: true},
	NotRecovered:       {code: http.StatusServiceUnavailable, reason: "unavailable", counts: true},
	NoQueue:            {code: http.StatusNotImplemented, reason: "no_queue", error: true},
	SelfTested:         {code: http.StatusOK, status: "ok"},
	SelfTestFailed:     {code: http.StatusInternalServerError, reason: "self_test_failed", error: true},
	NotConfigured:      {code: http.StatusNotFound, reason: "not_configured"},
}

// Answer is the body of every answer.
type Answer struct {
	IDField    string `json:"-"` // the name of AnalysisID; empty: analysis_id
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
func (a Answer) MarshalJSON() ([]byte, error) {
	type rest Answer
	body, err := json.Marshal(rest(a))
	if err != nil || a.AnalysisID == "" {
		return body, err
	}
	id, err := json.Marshal(map[string]string{cmp.Or(a.IDField, analysisField): a.AnalysisID})
	if err != nil || len(body) == len("{}") {
		return id, err
	}
	return slices.Concat(id[:len(id)-1], []byte(","), body[1:]), nil
}

// maxText limits text from other programs, in bytes: an analyzer may return megabytes.
const maxText = 4096

func bounded(s string) string { return strings.ToValidUTF8(s[:min(maxText, len(s))], "") }

// answer looks o up in the table.
func (o Outcome) answer() (code int, a Answer) {
	row := answers[o.Case]
	a = Answer{IDField: o.Kind.IDField, AnalysisID: o.ID, Acquired: row.acquired, Status: row.status, Reason: row.reason}
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
		a.Found, a.Booked, a.More = &o.Found, &o.Booked, &o.More
	}
	if o.rejected() {
		a.Rejected = true
		return answers[Ran].code, a
	}
	return row.code, a
}

// rejected reports whether no later try of the task can be expected to succeed. The answer
// is then a success, so that Cloud Tasks deletes the task. A caller that is not Cloud Tasks
// gets the status of the case.
func (o Outcome) rejected() bool {
	from := answers[o.Case].tries
	return from > 0 && o.Task != "" && max(o.Tries, 1) >= from
}

// maxRetryAfter limits Retry-After. A wrong clock may set an expiry a year ahead, but the
// lock may be freed in a minute, and this task may be the only one.
const maxRetryAfter = 10 * time.Minute

// retryAfter returns RetryIn in whole seconds, from 1 to 600.
func (o Outcome) retryAfter() int {
	return max(1, int(math.Ceil(min(o.RetryIn, maxRetryAfter).Seconds())))
}
