package orchestrator

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// What Storable accepts.
const (
	// MaxResultBytes is the largest result, by Firestore's rules for the size of
	// a value: text is its bytes + 1, a number 8, a bool or null 1, an array the
	// sum of its values, a map that of its names (each as text) and values. A map
	// or array that is empty is 0 there and 1 here, since a million of them still
	// fill a request. The limit leaves 8 KiB of a document's 1 MiB for its name
	// and its other fields; an input that is itself large leaves less, which only
	// the document's store can tell.
	MaxResultBytes = 1<<20 - 8<<10
	// MaxDepth is how deep maps and arrays may nest. A result that is a map or
	// an array is level 1. What is no container has no level of its own, so the
	// map at level 20 may hold strings.
	MaxDepth = 20
	// MaxPathBytes is the longest name of a field of a map, counted as Firestore
	// does: with the names of the maps around it and "result", joined by dots.
	// Arrays add nothing.
	MaxPathBytes = 1500
)

// root is the name of the document's field that holds the result.
const root = "result"

// Storable turns r into what a Firestore document can hold: map[string]any,
// []any, string, bool, nil, int64 and float64, nothing else. It encodes r as
// JSON and reads that back, so struct tags and Marshalers have their effect.
//
// A number written without fraction and exponent becomes an int64 (so does a
// float64 without a fraction, and -0 becomes 0); one beyond int64 becomes a
// float64 if none of its digits is lost. 1.0 and 1e3 are float64, rounded to
// the nearest where they have more digits than it holds. Of a name that occurs
// twice in a map, the last counts.
//
// What a document cannot hold is refused with a [*PermanentError] whose message
// begins with the path, as in "result.items[3][0]": an array directly in an
// array, more than [MaxDepth] levels, a name that is empty, of the form __x__,
// or too long ([MaxPathBytes]), text that is not UTF-8 or is half of a surrogate
// pair, a number that neither int64 nor float64 holds, more than
// [MaxResultBytes], and what encoding/json cannot encode.
func Storable(r Result) (any, error) {
	text, isText := r.(json.RawMessage)
	if !isText || text == nil {
		var err error
		if text, err = json.Marshal(r); err != nil {
			return nil, refusal(path{}, "is not JSON: "+err.Error(), err)
		}
	}
	d := decoder{text: text, foreign: isText, json: json.NewDecoder(bytes.NewReader(text))}
	d.json.UseNumber()
	v, err := d.value(newPath(), 1, false)
	if err != nil {
		return nil, err
	}
	if _, err := d.json.Token(); !errors.Is(err, io.EOF) {
		return nil, refusal(path{}, "is more than one JSON value", nil)
	}
	return v, nil
}

func refusal(p path, problem string, err error) *PermanentError {
	return &PermanentError{Code: CodeResultInvalid, Message: p.String() + " " + problem, Err: err}
}

// decoder reads JSON token by token, because what it refuses needs a path, and
// because text that was replaced can only be told from the token as it stood.
type decoder struct {
	text    []byte
	foreign bool // text was not written by encoding/json
	json    *json.Decoder
	size    int
}

// grow counts n bytes more, of what is at p.
func (d *decoder) grow(p path, n int) error {
	if d.size += n; d.size <= MaxResultBytes {
		return nil
	}
	message := fmt.Sprintf("%v has more than %d bytes", path{}, MaxResultBytes)
	if len(p.steps) > 0 {
		message += ": the limit is passed at " + p.String()
	}
	return &PermanentError{Code: CodeResultTooLarge, Message: message}
}

// token also returns the token as it stands in the text, with what is between
// it and the token before.
func (d *decoder) token(p path) (json.Token, []byte, error) {
	before := d.json.InputOffset()
	t, err := d.json.Token()
	if err != nil {
		return nil, nil, refusal(p, "is not JSON: "+err.Error(), err)
	}
	return t, d.text[before:d.json.InputOffset()], nil
}

// value reads one value. level is that of the container it would be.
func (d *decoder) value(p path, level int, inArray bool) (any, error) {
	t, raw, err := d.token(p)
	if err != nil {
		return nil, err
	}
	switch t := t.(type) {
	case json.Delim:
		switch {
		case t == '[' && inArray:
			return nil, refusal(p, "is an array directly in an array", nil)
		case level > MaxDepth:
			return nil, refusal(p, fmt.Sprintf("is deeper than %d levels", MaxDepth), nil)
		case t == '[':
			return d.array(p, level)
		}
		return d.object(p, level)
	case json.Number:
		if err := d.grow(p, 8); err != nil {
			return nil, err
		}
		return number(p, t.String())
	case string:
		return t, d.string(p, t, raw)
	}
	return t, d.grow(p, 1) // a bool or nil
}

func (d *decoder) array(p path, level int) (any, error) {
	values := []any{}
	for d.json.More() {
		v, err := d.value(p.index(len(values)), level+1, true)
		if err != nil {
			return nil, err
		}
		values = append(values, v)
	}
	return values, d.close(p, len(values))
}

func (d *decoder) object(p path, level int) (any, error) {
	fields := map[string]any{}
	for d.json.More() {
		t, raw, err := d.token(p)
		if err != nil {
			return nil, err
		}
		name, _ := t.(string) // the decoder lets nothing else pass for a name
		at := p.field(name)
		if err := d.string(at, name, raw); err != nil {
			return nil, err
		}
		if err := checkName(at, name); err != nil {
			return nil, err
		}
		if fields[name], err = d.value(at, level+1, false); err != nil {
			return nil, err
		}
	}
	return fields, d.close(p, len(fields))
}

// close reads the end of a container of n values.
func (d *decoder) close(p path, n int) error {
	if _, _, err := d.token(p); err != nil || n > 0 {
		return err
	}
	return d.grow(p, 1)
}

func checkName(p path, name string) error {
	switch {
	case name == "":
		return refusal(p, "has an empty name", nil)
	case len(name) >= 4 && strings.HasPrefix(name, "__") && strings.HasSuffix(name, "__"):
		return refusal(p, "has a reserved name: __ at both ends", nil)
	case p.bytes() > MaxPathBytes:
		return refusal(p, fmt.Sprintf("has a name of %d bytes, with those around it: over %d", p.bytes(), MaxPathBytes), nil)
	}
	return nil
}

// string counts s, and refuses it if reading it from raw has put U+FFFD where raw had none:
// for what is no UTF-8 or half of a surrogate pair. encoding/json writes \ufffd
// for what it could not encode, and a U+FFFD that was there as it is; others may
// well write \ufffd for U+FFFD.
func (d *decoder) string(p path, s string, raw []byte) error {
	if err := d.grow(p, len(s)+1); err != nil {
		return err
	}
	have := strings.Count(s, string(utf8.RuneError))
	if have == 0 {
		return nil
	}
	meant := bytes.Count(raw, []byte(string(utf8.RuneError)))
	if d.foreign {
		meant += escapesOfReplacement(raw)
	}
	if have != meant {
		return refusal(p, "is not valid UTF-8", nil)
	}
	return nil
}

func escapesOfReplacement(raw []byte) int {
	n := 0
	for i := 0; i < len(raw); i++ {
		if raw[i] != '\\' {
			continue
		}
		if i+6 <= len(raw) && strings.EqualFold(string(raw[i+1:i+6]), "ufffd") && raw[i+1] == 'u' {
			n++
		}
		i++ // what a backslash escapes begins no escape of its own
	}
	return n
}
