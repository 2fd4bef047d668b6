package orchestrator

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"
)

const (
	// MaxOutputBytes is the largest output of an exec: program and the largest answer
	// of an HTTP endpoint. It is larger than a result, because JSON with escapes and
	// indentation is several times as long as the value.
	MaxOutputBytes = 8 << 20

	readBytes    = 32 << 10 // the size of one read
	messageBytes = 2 << 10  // the length of an analyzer's message of its failure
)

// byteOrderMark may precede JSON, and is skipped.
var byteOrderMark = []byte("\uFEFF")

// output collects the output of a program or an endpoint.
type output struct {
	text     []byte
	tooLarge bool
	wantJSON bool
	doubt    string // why this is probably no result, whatever the text is; empty: unknown
}

// add appends b. It reports false if the output has become too large.
func (o *output) add(b []byte) bool {
	if len(o.text)+len(b) > MaxOutputBytes {
		o.text, o.tooLarge = nil, true
	}
	if !o.tooLarge {
		o.text = append(o.text, b...)
	}
	return !o.tooLarge
}

var (
	// likeReport matches JSON that is a report or an error, and so probably meant for REPORT_FD or for lines.
	likeReport = regexp.MustCompile(`^\s*\{\s*"(?:error"\s*:\s*[{"]|(?:progress|checkpoint)"\s*:)`)
	// likeJSON matches text that begins like JSON, or has a line that does, as after a line of a log or
	// in an event stream. A line like "[1] a footnote" is none.
	likeJSON = regexp.MustCompile(`(?m)\A\s*[{\[]|^(?:data:)?[ \t\x1e]*(?:\{|\[["{\[\]]|\[[-+.,\w\s]*\]\s*\z)`)
)

// result returns the output as a result: JSON if all of it is one JSON value, nil if it is
// only white space, else a string without one newline at its end. It warns, once, of a result that
// is probably none. If JSON is required, other output is a [FailureError]; output that is not
// UTF-8 is a [PermanentError].
func (o *output) result(job Job) (result Result, err error) {
	unmarked := bytes.TrimPrefix(o.text, byteOrderMark)
	doubt := ""
	switch {
	case o.tooLarge:
		return nil, tooMuchOutput()
	case o.wantJSON && !json.Valid(unmarked):
		return nil, &FailureError{Code: CodeInvalidOutput, Reason: notJSON(unmarked)}
	case !utf8.Valid(o.text):
		return nil, notUTF8()

	case json.Valid(unmarked):
		result = printed{unmarked}
		if likeReport.Match(unmarked) {
			doubt = "the output is a report or an error, and is stored as the result"
		}
	case len(bytes.TrimSpace(unmarked)) == 0:
		doubt = "the output is empty, and the result is null"
	default:
		text, terminated := bytes.CutSuffix(o.text, []byte("\n"))
		if terminated {
			text = bytes.TrimSuffix(text, []byte("\r"))
		}
		result = string(text)
		if likeJSON.Match(unmarked) {
			doubt = notJSON(unmarked) + "; a line of it begins like JSON, and it is stored as a string"
		}
	}

	if doubt = cmp.Or(o.doubt, doubt); doubt != "" {
		job.warn(doubt)
	}
	return result, nil
}

func tooMuchOutput() error {
	message := fmt.Sprintf("result has more than %d bytes of output", MaxOutputBytes)
	return &PermanentError{Code: CodeResultTooLarge, Message: message}
}

func notUTF8() error {
	return &PermanentError{Code: CodeResultInvalid, Message: "result is not valid UTF-8"}
}

// notJSON returns an error message with the position of the syntax error. Unlike the
// decoder's message, it does not quote the output.
func notJSON(output []byte) string {
	if len(output) == 0 {
		return "the output is not JSON: it is empty"
	}
	var syntax *json.SyntaxError
	_ = errors.As(json.Unmarshal(output, new(json.RawMessage)), &syntax)
	return fmt.Sprintf("the output is not JSON: parsing stopped after %d of %d bytes", syntax.Offset, len(output))
}

// legible returns a message of s: valid UTF-8, without space around it, and cut to limit bytes by
// text.Head or text.Tail. It returns "" if nothing in s is text.
func legible(s string, cut func(s string, limit int) string, limit int) string {
	s = strings.TrimSpace(cut(strings.ToValidUTF8(s, "\uFFFD"), limit))
	if s == "\uFFFD" {
		return ""
	}
	return s
}
