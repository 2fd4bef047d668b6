package orchestrator

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"

	"taskguard/internal/text"
)

const (
	// MaxCheckpointBytes is the largest checkpoint, as JSON.
	MaxCheckpointBytes = 256 << 10
	// MaxReportMessage is the longest message of a report. A longer one is cut.
	MaxReportMessage = 1 << 10

	maxReportLine = 1 << 20 // longer than any valid report, so that a report that is too long gets its reply
)

// Report is a report of a running analyzer. A nil field changes nothing. As JSON it is a
// line of reports.
type Report struct {
	Progress   *float64    `json:"progress,omitempty"`   // 0 to 1
	Message    *string     `json:"message,omitempty"`    // up to MaxReportMessage bytes
	Checkpoint *Checkpoint `json:"checkpoint,omitempty"` // one whose Value is nil clears the stored one
}

// Checkpoint is the state from which a later attempt can continue: a Value as Storable
// converts it. Nil clears the checkpoint.
type Checkpoint struct{ Value any }

// MarshalJSON returns the value as JSON.
func (c *Checkpoint) MarshalJSON() ([]byte, error) { return json.Marshal(c.Value) }

// Reporter receives the reports of a run. Its methods may be called concurrently, until
// the run has ended.
type Reporter interface {
	// Report keeps r to be written with the lock's next renewal.
	Report(r Report)
	// Commit writes r, and returns when that is committed. An error means that it certainly
	// was not, unless it matches ErrUnknown, as when ctx ends first.
	Commit(ctx context.Context, r Report) error
	// Invalid is called for a report that cannot be used. problem does not quote it.
	Invalid(problem string)
}

// Batcher is a Reporter that also writes reports whose commits can wait a little.
type Batcher interface {
	// CommitSoon writes r, with others: there is at most one commit a second. It does not block.
	// done, which must not block, is called with the outcome, as Commit returns it; it may be called
	// after the run, or never if the run ends without a commit.
	CommitSoon(r Report, done func(error))
}

// commitSoon commits r, and calls done with the outcome.
func (j Job) commitSoon(ctx context.Context, r Report, done func(error)) {
	switch reporter := j.Reporter.(type) {
	case nil:
		done(nil)
	case Batcher:
		reporter.CommitSoon(r, done)
	default:
		done(reporter.Commit(ctx, r))
	}
}

// Outlaster is a Reporter whose run has a context that outlasts a stop.
type Outlaster interface {
	// Outlast returns a copy of ctx for work that should not be cut off, as it cannot be repeated. If
	// a stop of the process ends ctx, the copy ends later, while there is still time to record what
	// happened, or when the run's lock is lost. With any other end of ctx it ends at once. Call the
	// CancelFunc after the work.
	Outlast(ctx context.Context) (context.Context, context.CancelFunc)
}

// Outlast calls the Outlaster of the job. Without one, it returns ctx.
func Outlast(ctx context.Context, job Job) (context.Context, context.CancelFunc) {
	if outlaster, ok := job.Reporter.(Outlaster); ok {
		return outlaster.Outlast(ctx)
	}
	return ctx, func() {}
}

// Admitter is a Reporter that also limits how many large results are in memory.
type Admitter interface {
	// Admit blocks until the result of the run may be decoded, whose JSON has over 64 KiB, or
	// until ctx ends.
	Admit(ctx context.Context)
}

// Warner is a Reporter that also gets warnings.
type Warner interface {
	// Warn is called for output that is probably a mistake. problem does not quote it.
	Warn(problem string)
}

func (j Job) warn(problem string) {
	if w, ok := j.Reporter.(Warner); ok {
		w.Warn(problem)
	}
}

// Report reports the part of the work that is done, from 0 to 1, and what the analyzer
// does now. It returns at once. The report is written to the job's document with the
// lock's next renewal; a newer report replaces an older one.
func (j Job) Report(progress float64, message string) {
	if j.Reporter == nil {
		return
	}

	r := Report{Progress: &progress, Message: &message}
	if problem := r.check(); problem != "" {
		j.Reporter.Invalid(problem)
		return
	}
	j.Reporter.Report(r)
}

// Checkpoint commits v, the state from which a later attempt continues: that attempt gets
// v as its Resume. Nil clears the checkpoint. It blocks until v is committed. With an error that
// matches [ErrUnknown], v may be committed or not, as when ctx ends first. With any other it is
// not: v cannot be stored (see [Storable] and [MaxCheckpointBytes]), the lock is lost, the run has
// ended, or no guard made the job ([ErrNoGuard]).
func (j Job) Checkpoint(ctx context.Context, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	checkpoint, err := newCheckpoint(&decoder{root: checkpointRoot}, text)
	switch {
	case err != nil:
		return err
	case j.Reporter == nil:
		return ErrNoGuard
	}
	return j.Reporter.Commit(ctx, Report{Checkpoint: checkpoint})
}

// newCheckpoint decodes a checkpoint with d. Its error may quote text.
func newCheckpoint(d *decoder, text json.RawMessage) (*Checkpoint, error) {
	if len(text) > MaxCheckpointBytes {
		return nil, fmt.Errorf("orchestrator: a checkpoint of %d bytes is over 256 KiB", len(text))
	}
	v, err := d.decode(text)
	if err != nil {
		return nil, fmt.Errorf("orchestrator: the checkpoint cannot be stored: %w", err)
	}
	return &Checkpoint{v}, nil
}

// check makes the message of r storable. It returns why r cannot be used, or "".
func (r *Report) check() (problem string) {
	if r.Progress != nil && !(*r.Progress >= 0 && *r.Progress <= 1) { // true for NaN too
		return "a progress is not between 0 and 1"
	}
	if r.Message != nil {
		message := text.Head(strings.ToValidUTF8(*r.Message, "\uFFFD"), MaxReportMessage)
		r.Message = &message
	}
	return ""
}

// line is a line of JSON that a program or an endpoint writes: a report, and what only its
// kind of analyzer may add. A missing field is nil. So is a null one, except Checkpoint, Ack and Done.
type line struct {
	Progress   *float64        `json:"progress"`
	Message    *string         `json:"message"`
	Checkpoint json.RawMessage `json:"checkpoint"`
	Error      json.RawMessage `json:"error"`
	RetryAfter *float64        `json:"retry_after"` // seconds; from an endpoint only beside an error
	Result     json.RawMessage `json:"result"`      // only from an endpoint; null if it is an answer of its own

	Act     *string         `json:"effect"` // with Done or NotDone it ends, otherwise it begins
	Done    json.RawMessage `json:"done"`
	NotDone *bool           `json:"not_done"`
	Ack     json.RawMessage `json:"ack"` // only from a program

	unreadable bool // no field can be read
	rounded    bool // a number of the checkpoint is not as it was written
}

// reports reports whether a line has a part that is for a Report, an error or a wait.
func (l *line) reports() bool {
	return l.Progress != nil || l.Message != nil || l.Checkpoint != nil || l.Error != nil || l.RetryAfter != nil
}

// ends reports whether the act of a line ends.
func (l *line) ends() bool { return l.Done != nil || l.NotDone != nil }

// asks reports whether an endpoint ends its answer with the line, to be called again when an act has begun.
func (l *line) asks() bool { return l.Act != nil && !l.ends() && l.Result == nil && l.Error == nil }

// parseLine reads a line, and its report. problem is why the line is not a report, or "".
func parseLine(text []byte) (l line, r Report, problem string) {
	err := json.Unmarshal(text, &l) // one field of a wrong type does not stop it
	if string(l.Error) == "null" {
		l.Error = nil
	}
	if string(l.Result) == "null" && (l.reports() || l.Act != nil && !l.ends()) {
		l.Result = nil
	}

	mismatch := (*json.UnmarshalTypeError)(nil)
	switch {
	case errors.As(err, &mismatch) && mismatch.Field != "":
		return l, Report{}, "the " + mismatch.Field + " of a report has a wrong type"
	case err != nil:
		return line{unreadable: true}, Report{}, "a report is not an object of JSON"
	case !utf8.Valid(text):
		return l, Report{}, "a report is not valid UTF-8"
	case len(l.Checkpoint) > MaxCheckpointBytes:
		return l, Report{}, "a checkpoint is over 256 KiB"
	case !l.reports() && l.Result == nil:
		return l, Report{}, "a report has no progress, message or checkpoint"
	}

	r = Report{Progress: l.Progress, Message: l.Message}
	if l.Checkpoint != nil {
		d := &decoder{root: checkpointRoot, rounds: true}
		if r.Checkpoint, err = newCheckpoint(d, l.Checkpoint); err != nil {
			return l, Report{}, "a checkpoint cannot be stored in a document" // err may quote it
		}
		l.rounded = d.rounded
	}
	problem = r.check() // before r is returned, since it may change r
	return l, r, problem
}

// lines splits the bytes that are added to it into lines, and calls take with each. For a
// line over limit bytes, take gets an empty line and tooLong.
type lines struct {
	limit   int
	take    func(line []byte, tooLong bool)
	text    []byte
	tooLong bool
}

func (l *lines) add(b []byte) {
	for len(b) > 0 {
		line, rest, ended := bytes.Cut(b, []byte("\n"))
		if l.tooLong = l.tooLong || len(l.text)+len(line) > l.limit; l.tooLong {
			l.text = l.text[:0]
		} else {
			l.text = append(l.text, line...)
		}
		if b = rest; ended {
			l.end()
		}
	}
}

// end ends an unfinished line.
func (l *lines) end() {
	text := bytes.TrimPrefix(l.text, byteOrderMark)
	if l.tooLong || len(bytes.TrimSpace(text)) > 0 {
		l.take(text, l.tooLong)
	}
	l.text, l.tooLong = l.text[:0], false
}

// lineHandler handles the lines that do more than report.
type lineHandler interface {
	// answer handles a line with the report r. problem is why r is none, or "". If handled is false, the
	// caller passes on the report.
	answer(l line, r Report, problem string) (handled bool)
}

// report parses a line. It passes its report to the Reporter, unless the handler handles it.
func (j Job) report(text []byte, tooLong bool, handler lineHandler) (l line) {
	r, problem := Report{}, "a report is too long"
	if tooLong {
		l.unreadable = true
	} else {
		l, r, problem = parseLine(text)
	}
	if l.rounded {
		j.warn(roundedProblem)
	}
	switch {
	case handler.answer(l, r, problem):
	case j.Reporter == nil:
	case problem != "":
		j.Reporter.Invalid(problem)
	case r != Report{}:
		j.Reporter.Report(r)
	}
	return l
}

// reports reads a program's reports.
type reports struct {
	lines
	failure failure // the newest error, and the newest wait
	failed  bool    // there is an error
}

func (j Job) reports(handler lineHandler) *reports {
	r := &reports{}
	r.lines = lines{limit: maxReportLine, take: func(text []byte, tooLong bool) {
		l := j.report(text, tooLong, handler)
		if l.RetryAfter != nil {
			r.failure.wait = retryAfter(*l.RetryAfter)
		}
		switch {
		case l.Error == nil:
		case r.failure.parse(l.Error):
			r.failed = true
		case j.Reporter != nil:
			j.Reporter.Invalid("an error is not an object with code, message and permanent")
		}
	}}
	return r
}

// failure is an error that an analyzer reports.
type failure struct {
	code      string // empty: missing or invalid
	message   string
	permanent bool
	wait      time.Duration // until the next attempt; zero: the usual backoff
}

// validCode matches the codes that an analyzer may use.
var validCode = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// parse sets all of f but its wait to the error of a line, whose fields are optional. It
// reports false if object is not an object, or if its message or permanent has a wrong type.
func (f *failure) parse(object json.RawMessage) bool {
	var fields struct {
		Code      any    `json:"code"`
		Message   string `json:"message"`
		Permanent bool   `json:"permanent"`
	}
	if json.Unmarshal(object, &fields) != nil {
		return false
	}
	f.code, _ = fields.Code.(string)
	if !validCode.MatchString(f.code) {
		f.code = ""
	}
	f.message, f.permanent = legible(fields.Message, text.Head, messageBytes), fields.Permanent
	return true
}

// error returns f as an error. reason is the Reason of a temporary failure, and the message
// of a permanent failure without one.
func (f failure) error(reason string) error {
	if f.permanent {
		return &PermanentError{Code: cmp.Or(f.code, CodeAnalyzerRejected), Message: cmp.Or(f.message, reason)}
	}
	failure := &FailureError{Code: f.code, Reason: reason, Message: f.message}
	if f.wait > 0 {
		return &RetryAfterError{Wait: f.wait, Err: failure}
	}
	return failure
}

// stream reads an endpoint's answer of lines of JSON. It ignores all lines after
// the one with the result or the error, or that begins an act.
type stream struct {
	lines
	last     line
	overlong bool // the last line is too long
}

// ended reports whether the last line has been read.
func (s *stream) ended() bool { return s.last.Result != nil || s.last.Error != nil || s.last.asks() }

func (j Job) stream(handler lineHandler) *stream {
	s := &stream{}
	s.lines = lines{limit: MaxOutputBytes, take: func(text []byte, tooLong bool) {
		if !s.ended() {
			s.last, s.overlong = j.report(text, tooLong, handler), tooLong
		}
	}}
	return s
}

// result returns the result or the error of the last line. endpoint names the endpoint in
// errors.
func (s *stream) result(endpoint string) (Result, error) {
	s.end()
	switch result := s.last.Result; {
	case s.overlong:
		return nil, tooMuchOutput()
	case !s.ended():
		return nil, &FailureError{Reason: endpoint + " answered without a result"}
	case !utf8.Valid(result):
		return nil, notUTF8()
	case result != nil:
		return printed{result}, nil
	}
	var f failure
	f.parse(s.last.Error) // an error of another form is a temporary one
	if s.last.RetryAfter != nil {
		f.wait = retryAfter(*s.last.RetryAfter)
	}
	return nil, f.error(endpoint + " reported an error")
}
