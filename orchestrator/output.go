package orchestrator

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

const (
	// MaxOutputBytes is how much an exec: program may print and an HTTP endpoint
	// may answer. JSON with escapes and indentation takes several times the room
	// of the result that it says.
	MaxOutputBytes = 8 << 20

	// readBytes is how much is read at a time.
	readBytes = 32 << 10
)

// output is what an analyzer outside of this process has answered.
type output struct {
	text     []byte
	tooLarge bool
	wantJSON bool
}

// add reports whether more is wanted.
func (o *output) add(b []byte) bool {
	if len(o.text)+len(b) > MaxOutputBytes {
		o.text, o.tooLarge = nil, true
	}
	if !o.tooLarge {
		o.text = append(o.text, b...)
	}
	return !o.tooLarge
}

// result is the output as JSON if all of it is one JSON value. Other output is a
// failure for now if JSON is wanted, else nil if there is nothing but white space,
// and else a string, without one newline at its end.
func (o *output) result() (Result, error) {
	switch {
	case o.tooLarge:
		return nil, &PermanentError{
			Code:    CodeResultTooLarge,
			Message: fmt.Sprintf("%v has more than %d bytes of output", path{}, MaxOutputBytes),
		}
	case json.Valid(o.text):
		return json.RawMessage(o.text), nil
	case o.wantJSON:
		return nil, &FailureError{Code: CodeInvalidOutput, Reason: o.notJSON()}
	case len(bytes.TrimSpace(o.text)) == 0:
		return nil, nil
	}
	text, ended := bytes.CutSuffix(o.text, []byte("\n"))
	if ended {
		text = bytes.TrimSuffix(text, []byte("\r"))
	}
	return string(text), nil
}

// notJSON says where the output stops being JSON. It does not show the output, as
// the decoder's own words do.
func (o *output) notJSON() string {
	var syntax *json.SyntaxError
	_ = errors.As(json.Unmarshal(o.text, new(json.RawMessage)), &syntax)
	return fmt.Sprintf("the output is not JSON: parsing stopped after %d of %d bytes", syntax.Offset, len(o.text))
}
