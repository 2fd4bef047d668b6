package orchestrator

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"
)

const (
	// MaxCheckpointBytes is the largest checkpoint, as JSON.
	MaxCheckpointBytes = 256 << 10
	// MaxReportMessage is the longest message of a report. A longer one is cut.
	MaxReportMessage = 1 << 10

	maxReportLine = MaxCheckpointBytes + 16<<10
)

// Report is a report of a running analyzer. A nil field changes nothing. As JSON it is a
// line of reports.
type Report struct {
	Progress   *float64    `json:"progress,omitempty"`   // 0 to 1
	Message    *string     `json:"message,omitempty"`    // at most MaxReportMessage bytes
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
	// Commit writes r, and returns when that is committed. It returns an error if
	// that is impossible, or when ctx ends.
	Commit(ctx context.Context, r Report) error
	// Invalid is called for a report that cannot be used. problem does not quote it.
	Invalid(problem string)
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
// v as its Resume. Nil clears the checkpoint. It blocks until v is committed. Errors: v
// cannot be stored (see [Storable] and [MaxCheckpointBytes]), the lock is lost, or ctx has
// ended.
func (j Job) Checkpoint(ctx context.Context, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	checkpoint, err := newCheckpoint(text)
	if err != nil || j.Reporter == nil {
		return err
	}
	return j.Reporter.Commit(ctx, Report{Checkpoint: checkpoint})
}

// newCheckpoint decodes a checkpoint. Its error may quote text.
func newCheckpoint(text json.RawMessage) (*Checkpoint, error) {
	if len(text) > MaxCheckpointBytes {
		return nil, fmt.Errorf("orchestrator: a checkpoint of %d bytes is over 256 KiB", len(text))
	}
	v, err := Storable(text)
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
		message := cutHead(strings.ToValidUTF8(*r.Message, "\uFFFD"), MaxReportMessage)
		r.Message = &message
	}
	return ""
}

// parseReport reads a line of JSON, an object with any of progress, message, checkpoint,
// error, retry_after and result. It also returns all fields of the object, and why the line is not a
// report, or "".
func parseReport(line []byte) (r Report, fields map[string]json.RawMessage, problem string) {
	if json.Unmarshal(line, &fields) != nil || fields == nil {
		return r, nil, "a report is not an object of JSON"
	}
	if !utf8.Valid(line) {
		return r, fields, "a report is not valid UTF-8"
	}

	if text, ok := fields["progress"]; ok && json.Unmarshal(text, &r.Progress) != nil {
		return r, fields, "a progress is not a number"
	}
	if text, ok := fields["retry_after"]; ok && json.Unmarshal(text, new(float64)) != nil {
		return r, fields, "a retry_after is not a number"
	}
	if text, ok := fields["message"]; ok && json.Unmarshal(text, &r.Message) != nil {
		return r, fields, "a message is not a string"
	}
	if text, ok := fields["checkpoint"]; ok {
		var err error // not reported, as it may quote the checkpoint
		r.Checkpoint, err = newCheckpoint(text)
		switch {
		case len(text) > MaxCheckpointBytes:
			return r, fields, "a checkpoint is over 256 KiB"
		case err != nil:
			return r, fields, "a checkpoint cannot be stored in a document"
		}
	}

	// Null means that a field is not set. A result may be null, if nothing else is set.
	for _, name := range []string{"error", "retry_after"} {
		if string(fields[name]) == "null" {
			delete(fields, name)
		}
	}
	if string(fields["result"]) == "null" && (r != Report{} || fields["error"] != nil) {
		delete(fields, "result")
	}

	if r == (Report{}) && fields["result"] == nil && fields["error"] == nil && fields["retry_after"] == nil {
		return r, fields, "a report has no progress, message or checkpoint"
	}
	problem = r.check() // before r is copied to the caller: it changes r
	return r, fields, problem
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
	if l.tooLong || len(bytes.TrimSpace(l.text)) > 0 {
		l.take(l.text, l.tooLong)
	}
	l.text, l.tooLong = l.text[:0], false
}

// report passes the report of a line to the Reporter, unless answers handles it; nil: nothing
// does. It returns the fields of the line.
func (j Job) report(line []byte, tooLong bool, answers *replies) (fields map[string]json.RawMessage) {
	r, problem := Report{}, "a report is too long"
	if !tooLong {
		r, fields, problem = parseReport(line)
	}
	switch {
	case answers != nil && answers.answer(fields, r, problem):
	case j.Reporter == nil:
	case problem != "":
		j.Reporter.Invalid(problem)
	case r != Report{}:
		j.Reporter.Report(r)
	}
	return fields
}

// reports reads a program's reports.
type reports struct {
	lines
	failure *failure      // the newest error; nil: none
	wait    time.Duration // the newest retry_after; not positive: none
}

func (j Job) reports(answers *replies) *reports {
	r := &reports{}
	r.lines = lines{limit: maxReportLine, take: func(line []byte, tooLong bool) {
		fields := j.report(line, tooLong, answers)
		if n := 0.0; json.Unmarshal(fields["retry_after"], &n) == nil {
			r.wait = seconds(n)
		}

		text := fields["error"]
		switch f, ok := parseFailure(text); {
		case ok:
			r.failure = &f
		case text != nil && j.Reporter != nil:
			j.Reporter.Invalid("an error is " + notAnError)
		}
	}}
	return r
}

const notAnError = "not an object with code, message and permanent"

// failure is an error that an analyzer reports.
type failure struct {
	code      string // empty: missing or invalid
	message   string
	permanent bool
	wait      time.Duration // until the next attempt, unless permanent; not positive: the usual
}

// seconds returns n seconds, or MaxRetryAfter if they are more.
func seconds(n float64) time.Duration {
	return time.Duration(min(n, MaxRetryAfter.Seconds()) * float64(time.Second))
}

// validCode matches the codes that an analyzer may use.
var validCode = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// parseFailure reads the error of a line. ok is false if text is not an object, or if its
// message or permanent has the wrong type. All its fields are optional.
func parseFailure(text json.RawMessage) (f failure, ok bool) {
	var fields *struct {
		Code      any    `json:"code"`
		Message   string `json:"message"`
		Permanent bool   `json:"permanent"`
	}
	if json.Unmarshal(text, &fields) != nil || fields == nil {
		return f, false
	}
	if code, _ := fields.Code.(string); validCode.MatchString(code) {
		f.code = code
	}
	f.message, f.permanent = legible(cutHead(fields.Message, messageBytes)), fields.Permanent
	return f, true
}

// error returns f as an error. reason is the Reason of a temporary failure, and the message
// of a permanent one that has none.
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

// stream reads an endpoint's answer of application/x-ndjson. It ignores all lines after
// the one with the result or the error.
type stream struct {
	lines
	last     map[string]json.RawMessage
	overlong bool // the last line is too long
}

// ended reports whether the line with the result or the error has been read.
func (s *stream) ended() bool { return s.last["result"] != nil || s.last["error"] != nil }

func (j Job) stream() *stream {
	s := &stream{}
	s.lines = lines{limit: MaxOutputBytes, take: func(line []byte, tooLong bool) {
		if !s.ended() {
			s.last, s.overlong = j.report(line, tooLong, nil), tooLong
		}
	}}
	return s
}

// result returns the result or the error of the last line. endpoint names the endpoint in
// errors.
func (s *stream) result(endpoint string) (Result, error) {
	s.end()
	failed, ok := parseFailure(s.last["error"])
	switch result := s.last["result"]; {
	case s.overlong:
		return nil, tooMuchOutput()
	case !utf8.Valid(result):
		return nil, refusal(path{}, "is not valid UTF-8", nil)
	case result != nil:
		return result, nil
	case s.last["error"] == nil:
		return nil, &FailureError{Reason: endpoint + " answered without a result"}
	case !ok:
		return nil, &FailureError{Reason: endpoint + " answered an error that is " + notAnError}
	}
	return nil, failed.error(endpoint + " reported an error")
}
