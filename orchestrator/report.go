package orchestrator

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
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
	// Invalid is called for a report that cannot be used. problem does not show it.
	Invalid(problem string)
}

// Warner is a Reporter that also gets warnings.
type Warner interface {
	// Warn is called for output that was probably meant otherwise. problem does not show it.
	Warn(problem string)
}

func (j Job) warn(problem string) {
	if w, ok := j.Reporter.(Warner); ok {
		w.Warn(problem)
	}
}

// Report reports the part of the work that is done, from 0 to 1, and what the analyzer
// does now. It returns at once; what the job's document shows is written with the lock's
// next renewal, and a newer report replaces an older one.
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

// Checkpoint stores v, the state from which a later attempt continues: it gets v as its
// Resume. It returns when the commit has. Nil clears the checkpoint. Errors: v cannot be
// stored (see [Storable], and [MaxCheckpointBytes]), the lock is lost, or ctx has ended.
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

// newCheckpoint returns the checkpoint of this JSON. An error may quote it.
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

// check makes r's message storable, and returns why r cannot be used, or "".
func (r *Report) check() (problem string) {
	if r.Progress != nil && !(*r.Progress >= 0 && *r.Progress <= 1) { // also NaN
		return "a progress is not between 0 and 1"
	}
	if r.Message != nil {
		message := cutHead(strings.ToValidUTF8(*r.Message, "\uFFFD"), MaxReportMessage)
		r.Message = &message
	}
	return ""
}

// parseReport reads a line of JSON, an object with any of progress, message and
// checkpoint. other has all its fields.
func parseReport(line []byte) (r Report, other map[string]json.RawMessage, problem string) {
	if json.Unmarshal(line, &other) != nil || other == nil {
		return Report{}, nil, "a report is not an object of JSON"
	}
	if !utf8.Valid(line) {
		return Report{}, other, "a report is not valid UTF-8"
	}

	if text, ok := other["progress"]; ok && json.Unmarshal(text, &r.Progress) != nil {
		return Report{}, other, "a progress is not a number"
	}
	if text, ok := other["message"]; ok && json.Unmarshal(text, &r.Message) != nil {
		return Report{}, other, "a message is not a string"
	}
	if text, ok := other["checkpoint"]; ok {
		var err error // not shown, as it may quote the checkpoint
		r.Checkpoint, err = newCheckpoint(text)
		switch {
		case len(text) > MaxCheckpointBytes:
			return Report{}, other, "a checkpoint is over 256 KiB"
		case err != nil:
			return Report{}, other, "a checkpoint cannot be stored in a document"
		}
	}

	// A line may have all fields, and null for those that it does not set.
	if string(other["error"]) == "null" {
		delete(other, "error")
	}
	if string(other["result"]) == "null" && (r != Report{} || other["error"] != nil) {
		delete(other, "result")
	}

	if r == (Report{}) && other["result"] == nil && other["error"] == nil {
		return Report{}, nil, "a report has no progress, message or checkpoint"
	}
	problem = r.check() // first: it changes r
	return r, other, problem
}

// lines splits what is added into lines, and calls take with each. A line over
// limit bytes is cut, and is too long.
type lines struct {
	limit   int
	take    func(line []byte, tooLong bool)
	text    []byte
	tooLong bool
}

func (l *lines) add(b []byte) {
	for len(b) > 0 {
		line, rest, ended := bytes.Cut(b, []byte("\n"))
		if l.tooLong = l.tooLong || len(l.text)+len(line) > l.limit; !l.tooLong {
			l.text = append(l.text, line...)
		}
		if b = rest; ended {
			l.end()
		}
	}
}

// end ends the line that was begun, if any.
func (l *lines) end() {
	if l.tooLong || len(bytes.TrimSpace(l.text)) > 0 {
		l.take(l.text, l.tooLong)
	}
	l.text, l.tooLong = l.text[:0], false
}

// report passes a line of reports on. It returns the line's fields.
func (j Job) report(line []byte, tooLong bool) (other map[string]json.RawMessage) {
	r, problem := Report{}, "a report is too long"
	if !tooLong {
		r, other, problem = parseReport(line)
	}
	switch {
	case j.Reporter == nil:
	case problem != "":
		j.Reporter.Invalid(problem)
	case r != Report{}:
		j.Reporter.Report(r)
	}
	return other
}

// reports reads a program's reports.
type reports struct {
	lines
	failure *failure // the newest error; nil: none
}

func (j Job) reports() *reports {
	r := &reports{}
	r.lines = lines{limit: maxReportLine, take: func(line []byte, tooLong bool) {
		text := j.report(line, tooLong)["error"]
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

// failure is an error as an analyzer reports it.
type failure struct {
	code      string // empty: none that can be used
	message   string
	permanent bool
}

// validCode matches the codes that an analyzer may use.
var validCode = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// parseFailure reads an error of a line of reports. ok is false if it is not an object with
// message and permanent, which may be missing.
func parseFailure(text json.RawMessage) (f failure, ok bool) {
	var fields *struct {
		Code      any    `json:"code"`
		Message   string `json:"message"`
		Permanent bool   `json:"permanent"`
	}
	if json.Unmarshal(text, &fields) != nil || fields == nil {
		return failure{}, false
	}
	if code, _ := fields.Code.(string); validCode.MatchString(code) {
		f.code = code
	}
	f.message, f.permanent = legible(cutHead(fields.Message, messageBytes)), fields.Permanent
	return f, true
}

// error returns f as an error. reason is that of a temporary failure.
func (f failure) error(reason string) error {
	if f.permanent {
		return &PermanentError{Code: cmp.Or(f.code, CodeAnalyzerRejected), Message: cmp.Or(f.message, reason)}
	}
	return &FailureError{Code: f.code, Reason: reason, Message: f.message}
}

// stream reads the answer of an endpoint that reports: lines of application/x-ndjson.
// The line with the result or the error is the last that is read.
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
			s.last, s.overlong = j.report(line, tooLong), tooLong
		}
	}}
	return s
}

// result returns the result or the error of the last line, from the endpoint of that name.
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
