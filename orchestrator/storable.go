package orchestrator

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Limits of a result.
const (
	// MaxResultBytes is the largest size of a result, by Firestore's rules: a text
	// has its bytes + 1, a number 8, a bool or null 1, an array the sum of its
	// values, a map the sum of its names (each as a text) and values. Firestore
	// counts an empty map or array as 0; Storable counts 1, because a million of
	// them still fill a request. The limit leaves 8 KiB of a document's 1 MiB for
	// its name and its other fields. If the input is large, that is too little, and
	// the store refuses the write.
	MaxResultBytes = 1<<20 - 8<<10
	// MaxDepth is how deep maps and arrays may nest. A result that is a map or
	// an array is level 1; the map at level 20 may hold strings and numbers.
	MaxDepth = 20
	// MaxPathBytes is the longest name of a field of a map. As in Firestore, it
	// includes the names of the enclosing maps and "result", joined by dots.
	// Arrays add nothing.
	MaxPathBytes = 1500
)

// root is the name of the document's field that holds the result.
const root = "result"

// Storable converts r to a value that a Firestore document can hold: made only of
// map[string]any, []any, string, bool, nil, int64 and float64. It encodes r as JSON
// and decodes that, so struct tags and Marshalers have their effect; as in
// encoding/json, an invalid character in a string becomes U+FFFD.
//
// A number written without fraction and exponent becomes an int64 (so does a
// float64 without a fraction, and -0 becomes 0); one beyond int64 becomes a
// float64 if none of its digits is lost. 1.0 and 1e3 are float64. If a name occurs
// twice in a map, the last value counts.
//
// Storable refuses the rest with a [*PermanentError] whose message begins with the
// path, as in "result.items[3][0]": an array directly in an array, more than
// [MaxDepth] levels, a name that is empty, of the form __x__, or too long
// ([MaxPathBytes]), a number that neither int64 nor float64
// holds, more than [MaxResultBytes], and values that encoding/json cannot encode.
func Storable(r Result) (any, error) {
	text, isText := r.(json.RawMessage)
	if !isText || text == nil {
		var err error
		if text, err = json.Marshal(r); err != nil {
			return nil, refusal(path{}, "is not JSON: "+err.Error(), err)
		}
	}

	d := decoder{json: json.NewDecoder(bytes.NewReader(text))}
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

// decoder reads JSON token by token, because a refusal names the path.
type decoder struct {
	json *json.Decoder
	size int
}

// grow adds the n bytes of the value at p to the size.
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

func (d *decoder) token(p path) (json.Token, error) {
	t, err := d.json.Token()
	if err != nil {
		return nil, refusal(p, "is not JSON: "+err.Error(), err)
	}
	return t, nil
}

// value reads one value. If it is a container, its level is level.
func (d *decoder) value(p path, level int, inArray bool) (any, error) {
	t, err := d.token(p)
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
		return t, d.grow(p, len(t)+1)
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
		t, err := d.token(p)
		if err != nil {
			return nil, err
		}

		name, _ := t.(string) // the decoder accepts only strings as names
		at := p.field(name)
		if err := d.grow(at, len(name)+1); err != nil {
			return nil, err
		}
		if err := checkName(at, name); err != nil {
			return nil, err
		}
		if _, repeated := fields[name]; repeated && strings.ContainsRune(name, utf8.RuneError) {
			return nil, refusal(at, "is not valid UTF-8", nil) // two names that U+FFFD made equal
		}
		if fields[name], err = d.value(at, level+1, false); err != nil {
			return nil, err
		}
	}
	return fields, d.close(p, len(fields))
}

// close reads the end of a container of n values.
func (d *decoder) close(p path, n int) error {
	if _, err := d.token(p); err != nil || n > 0 {
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
		problem := fmt.Sprintf("has a name of %d bytes, with those around it: over %d", p.bytes(), MaxPathBytes)
		return refusal(p, problem, nil)
	}
	return nil
}

// number reads a JSON number: an int64 where it is written as an integer and fits.
func number(p path, text string) (any, error) {
	integral := !strings.ContainsAny(text, ".eE")
	if integral {
		if n, err := strconv.ParseInt(text, 10, 64); err == nil {
			return n, nil
		}
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return nil, refusal(p, "is a number beyond float64", err)
	}
	if integral && strconv.FormatFloat(f, 'f', -1, 64) != text {
		return nil, refusal(p, "is an integer beyond int64 that float64 would change", nil)
	}
	return f, nil
}
