package orchestrator

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	"taskguard/internal/text"
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

// The roots of paths: the names of the document's fields.
const (
	resultRoot     = "result"
	inputRoot      = "input"
	checkpointRoot = "checkpoint"
)

// Storable converts r to a value that a Firestore document can hold: made only of
// map[string]any, []any, string, bool, nil, int64 and float64. It encodes r as JSON
// and decodes that, so struct tags and Marshalers have their effect; as in
// encoding/json, an invalid character in a string becomes U+FFFD.
//
// A number written without fraction and exponent becomes an int64 (so does a
// float64 without a fraction, and -0 becomes 0); one beyond int64, and any other number,
// becomes the float64 that prints as the same number. 1.0 and 1e3 are float64. If a name
// occurs twice in a map, the last value counts.
//
// Storable refuses the rest with a [*PermanentError] whose message begins with the
// path, as in "result.items[3][0]": an array directly in an array, more than
// [MaxDepth] levels, a name that is empty, of the form __x__, or too long
// ([MaxPathBytes]), a number that neither int64 nor float64
// holds, such as 1234567890123456.78, more than [MaxResultBytes], and values that encoding/json
// cannot encode.
func Storable(r Result) (any, error) {
	d := decoder{root: resultRoot}
	return d.decode(r)
}

// StorableInput is Storable for the input of an analysis: paths begin with "input", and the code of
// its errors is [CodeInvalidInput].
func StorableInput(input any) (any, error) {
	d := decoder{root: inputRoot}
	return d.decode(input)
}

// printed is a result as an analyzer has printed it: JSON. A decimal that float64 does not hold is
// rounded, with a warning.
type printed struct{ json.RawMessage }

// storable is Storable for the result of a run.
func (j Job) storable(ctx context.Context, r Result) (any, error) {
	output, rounds := r.(printed)
	if rounds {
		r = output.RawMessage
	}
	d := decoder{root: resultRoot, rounds: rounds}
	if admitter, ok := j.Reporter.(Admitter); ok {
		d.admit = func() { admitter.Admit(ctx) }
	}
	v, err := d.decode(r)
	if d.rounded {
		j.warn(roundedProblem)
	}
	return v, err
}

const roundedProblem = "a number has more digits than a document can hold: it is rounded"

// refuse returns why a document cannot hold a value. problem continues a sentence that begins with
// the path of the value, which locate adds.
func refuse(problem string, err error) *PermanentError {
	return &PermanentError{Code: CodeResultInvalid, Message: " " + problem, Err: err}
}

// locate adds a step to the beginning of the path.
func locate(step string, refused *PermanentError) *PermanentError {
	refused.Message = step + refused.Message
	return refused
}

const maxShownName = 64

var identifier = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,63}$`)

// fieldStep returns the step to a field of a map. A name that is no identifier is in brackets
// and quotes, and a long one is cut.
func fieldStep(name string) string {
	if len(name) > maxShownName {
		name = text.Head(name, maxShownName) + "…"
	}
	if identifier.MatchString(name) {
		return "." + name
	}
	return "[" + strconv.Quote(name) + "]"
}

// decoder reads JSON token by token: it stops at the limit of the size, before it has decoded
// the rest.
type decoder struct {
	root    string // what the paths of errors begin with
	rounds  bool   // decimals that float64 does not hold are rounded, instead of refused
	rounded bool   // one was
	json    *json.Decoder
	size    int
	dry     bool   // only checks: it makes no arrays and maps
	admit   func() // called before a large value is made; nil: nothing
}

// largeText is the length of JSON that is checked before it is decoded: a value that is refused because
// of its last byte may take a hundred times its bytes in memory.
const largeText = 64 << 10

// decode converts r as Storable does.
func (d *decoder) decode(r any) (any, error) {
	text, isText := r.(json.RawMessage)
	if !isText || text == nil {
		var err error
		if text, err = json.Marshal(r); err != nil {
			return nil, d.error(refuse("is not JSON: "+err.Error(), err))
		}
	}

	if len(text) > largeText {
		d.dry = true // only check it, before it takes memory
		if _, err := d.walk(text); err != nil {
			return nil, err
		}
		d.dry = false
		if d.admit != nil {
			d.admit()
		}
	}
	return d.walk(text)
}

// walk reads text, or only checks it.
func (d *decoder) walk(text []byte) (any, error) {
	d.json, d.size = json.NewDecoder(bytes.NewReader(text)), 0
	d.json.UseNumber()
	v, refused := d.value(1, len(d.root), false)
	if refused != nil {
		return nil, d.error(refused)
	}
	if _, err := d.json.Token(); !errors.Is(err, io.EOF) {
		return nil, d.error(refuse("is more than one JSON value", nil))
	}
	return v, nil
}

// error completes refused for the caller of decode.
func (d *decoder) error(refused *PermanentError) error {
	if d.root == inputRoot {
		if refused.Code == CodeResultTooLarge {
			refused.Message += "; put it in Cloud Storage and submit its name"
		}
		refused.Code = CodeInvalidInput
	}
	return locate(d.root, refused)
}

// grow adds the n bytes of a value to the size.
func (d *decoder) grow(n int) *PermanentError {
	if d.size += n; d.size <= MaxResultBytes {
		return nil
	}
	refused := refuse(fmt.Sprintf("does not fit: the limit is %d bytes", MaxResultBytes), nil)
	refused.Code = CodeResultTooLarge
	return refused
}

func (d *decoder) token() (json.Token, *PermanentError) {
	t, err := d.json.Token()
	if err != nil {
		return nil, refuse("is not JSON: "+err.Error(), err)
	}
	return t, nil
}

// value reads one value, whose path has pathBytes by Firestore's rule. level is the depth at which a
// container would be.
func (d *decoder) value(level, pathBytes int, inArray bool) (any, *PermanentError) {
	t, refused := d.token()
	if refused != nil {
		return nil, refused
	}

	switch t := t.(type) {
	case json.Delim:
		switch {
		case t == '[' && inArray:
			return nil, refuse("is an array directly in an array", nil)
		case level > MaxDepth:
			return nil, refuse(fmt.Sprintf("is deeper than %d levels", MaxDepth), nil)
		case t == '[':
			return d.array(level, pathBytes)
		}
		return d.object(level, pathBytes)
	case json.Number:
		if refused := d.grow(8); refused != nil {
			return nil, refused
		}
		return d.number(t.String())
	case string:
		return t, d.grow(len(t) + 1)
	}
	return t, d.grow(1) // a bool or nil
}

func (d *decoder) array(level, pathBytes int) (any, *PermanentError) {
	values, n := []any{}, 0
	for ; d.json.More(); n++ {
		v, refused := d.value(level+1, pathBytes, true)
		if refused != nil {
			return nil, locate("["+strconv.Itoa(n)+"]", refused)
		}
		if !d.dry {
			values = append(values, v)
		}
	}
	return values, d.close(n)
}

func (d *decoder) object(level, pathBytes int) (any, *PermanentError) {
	var fields map[string]any
	if !d.dry {
		fields = map[string]any{}
	}
	n := 0
	for ; d.json.More(); n++ {
		t, refused := d.token()
		if refused != nil {
			return nil, refused
		}

		name, _ := t.(string) // the decoder accepts only strings as names
		v, refused := d.field(name, level, pathBytes+1+len(name))
		if refused != nil {
			return nil, locate(fieldStep(name), refused)
		}
		if !d.dry {
			fields[name] = v
		}
	}
	return fields, d.close(n)
}

// field checks the name of a field, and reads its value.
func (d *decoder) field(name string, level, pathBytes int) (any, *PermanentError) {
	if refused := d.grow(len(name) + 1); refused != nil {
		return nil, refused
	}
	switch {
	case name == "":
		return nil, refuse("has an empty name", nil)
	case len(name) >= 4 && strings.HasPrefix(name, "__") && strings.HasSuffix(name, "__"):
		return nil, refuse("has a reserved name: __ at both ends", nil)
	case pathBytes > MaxPathBytes:
		problem := fmt.Sprintf("has a name of %d bytes, with those around it: over %d", pathBytes, MaxPathBytes)
		return nil, refuse(problem, nil)
	}
	return d.value(level+1, pathBytes, false)
}

// close reads the end of a container of n values.
func (d *decoder) close(n int) *PermanentError {
	if _, refused := d.token(); refused != nil || n > 0 {
		return refused
	}
	return d.grow(1)
}

// number reads a JSON number: an int64 where it is written as an integer and fits.
func (d *decoder) number(text string) (any, *PermanentError) {
	integral := !strings.ContainsAny(text, ".eE")
	if integral {
		if n, err := strconv.ParseInt(text, 10, 64); err == nil {
			return n, nil
		}
	}

	f, err := strconv.ParseFloat(text, 64)
	switch {
	case err != nil:
		return nil, refuse("is a number beyond float64", err)
	case digitsOf(text) == digitsOf(strconv.FormatFloat(f, 'e', -1, 64)):
		return f, nil
	case integral:
		return nil, refuse("is an integer beyond int64 that float64 would change", nil)
	case d.rounds:
		d.rounded = true
		return f, nil
	}
	return nil, refuse("is a number with more digits than float64 holds: write it as a string", nil)
}

// decimal is a number without its sign: its digits, without zeros at the ends, and the power of ten
// of the last. No digits are zero.
type decimal struct {
	digits string
	power  int
}

// digitsOf returns the decimal that a JSON number is. Only zero, and a number beyond float64, can
// have an exponent that is no int.
func digitsOf(text string) decimal {
	mantissa, exponent, _ := strings.Cut(strings.ToLower(strings.TrimPrefix(text, "-")), "e")
	integer, fraction, _ := strings.Cut(mantissa, ".")
	digits := strings.TrimLeft(integer+fraction, "0")
	significant := strings.TrimRight(digits, "0")
	if significant == "" {
		return decimal{}
	}
	power, _ := strconv.Atoi(exponent)
	return decimal{significant, power + len(digits) - len(significant) - len(fraction)}
}
