package firestore

import (
	"math"
	"strings"
	"time"

	"cloud.google.com/go/firestore/apiv1/firestorepb"
)

const (
	// maxDocumentBytes is Firestore's limit on one document.
	maxDocumentBytes = 1 << 20
	// maxDepth is how deep maps and arrays may nest.
	maxDepth = 20
	// maxStringBytes is Firestore's limit on one string or bytes value.
	maxStringBytes = 1<<20 - 89
	// maxDimensions is Firestore's limit on one vector.
	maxDimensions = 2048
	// inQuery is the depth and the prefix of a value in a query, where nesting, empty names and
	// the length of paths have no limits.
	inQuery = math.MinInt / 2
)

var errTooDeep = invalid("maps and arrays nest deeper than %d", maxDepth)

// checkMap refuses fields that a document of any size cannot hold. It also cuts their timestamps to
// microseconds, as Firestore stores them.
//
// depth counts the map and the maps and arrays around it; it is 0 for the document's own
// fields. prefix is the length of the map's dotted path with a dot after it, as the limit
// is on the whole path. Arrays add nothing to the path.
func checkMap(f fields, depth, prefix int) error {
	if depth > maxDepth {
		return errTooDeep
	}
	for name, v := range f {
		path := prefix + len(name)
		switch {
		case name == "" && depth >= 0:
			return invalid("a field name is empty")
		case isReserved(name):
			return invalid("the field name %q is reserved", name)
		case path > maxPathBytes:
			return invalid("a field path has %d bytes, the limit is %d", path, maxPathBytes)
		}
		if err := checkValue(v, depth, path+1); err != nil {
			return err
		}
	}
	return nil
}

// checkValue checks a value that is inside depth maps and arrays, and cuts its timestamps.
func checkValue(v *value, depth, prefix int) error {
	switch t := v.GetValueType().(type) {
	case *firestorepb.Value_NullValue, *firestorepb.Value_BooleanValue:
	case *firestorepb.Value_IntegerValue, *firestorepb.Value_DoubleValue:
	case *firestorepb.Value_TimestampValue:
		if err := t.TimestampValue.CheckValid(); err != nil {
			return invalid("%v", err)
		}
		// Cut in place, but never write to a timestamp that is cut already: it may be a stored one, which
		// others read.
		if rest := t.TimestampValue.GetNanos() % int32(time.Microsecond); rest != 0 {
			t.TimestampValue.Nanos -= rest
		}
	case *firestorepb.Value_StringValue, *firestorepb.Value_BytesValue:
		if n := len(v.GetStringValue()) + len(v.GetBytesValue()); n > maxStringBytes {
			return invalid("a value has %d bytes, the limit is %d", n, maxStringBytes)
		}
	case *firestorepb.Value_ReferenceValue:
		_, err := databaseOf(t.ReferenceValue)
		return err
	case *firestorepb.Value_GeoPointValue:
		// NaN is in no range.
		if p := t.GeoPointValue; !(math.Abs(p.GetLatitude()) <= 90 && math.Abs(p.GetLongitude()) <= 180) {
			return invalid("a latitude or longitude is out of range: %v", p)
		}
	case *firestorepb.Value_ArrayValue:
		return checkArray(t.ArrayValue.GetValues(), depth+1, prefix)
	case *firestorepb.Value_MapValue:
		if isVector(v) {
			return checkVector(t.MapValue.GetFields())
		}
		return checkMap(t.MapValue.GetFields(), depth+1, prefix)
	default:
		return invalid("a value has no type, or one that is not stored: %T", t)
	}
	return nil
}

func checkArray(elements []*value, depth, prefix int) error {
	if depth > maxDepth {
		return errTooDeep
	}
	for _, e := range elements {
		_, nested := e.GetValueType().(*firestorepb.Value_ArrayValue)
		if depth >= 0 && (nested || isVector(e)) {
			return invalid("an array cannot hold an array or a vector directly")
		}
		if err := checkValue(e, depth, prefix); err != nil {
			return err
		}
	}
	return nil
}

// isVector reports whether v is the map that stands for a vector.
func isVector(v *value) bool {
	return v.GetMapValue().GetFields()["__type__"].GetStringValue() == "__vector__"
}

func checkVector(f fields) error {
	dimensions := elements(f["value"])
	if len(f) != 2 || len(dimensions) == 0 || len(dimensions) > maxDimensions {
		return invalid("a vector has %d dimensions, want 1 to %d and nothing else", len(dimensions), maxDimensions)
	}
	for _, v := range dimensions {
		if _, double := v.GetValueType().(*firestorepb.Value_DoubleValue); !double || isNaN(v) {
			return invalid("a vector has a dimension that is NaN or not a double")
		}
	}
	return nil
}

// checkSize refuses a document over the limit, by Firestore's own rules of size.
func checkSize(d *document) error {
	if n := nameBytes(d.Name) + fieldsBytes(d.Fields) + 32; n > maxDocumentBytes {
		return invalid("document %q has %d bytes, the limit is %d", d.Name, n, maxDocumentBytes)
	}
	return nil
}

// nameBytes returns the size of a name: 16 bytes, and the bytes of each id plus one.
func nameBytes(name string) int {
	_, ids, _ := strings.Cut(name, "/documents/")
	return 16 + len(ids) + 1
}

func fieldsBytes(f fields) int {
	n := 0
	for name, v := range f {
		n += len(name) + 1 + valueBytes(v)
	}
	return n
}

func valueBytes(v *value) int {
	switch t := v.GetValueType().(type) {
	case *firestorepb.Value_StringValue:
		return len(t.StringValue) + 1
	case *firestorepb.Value_BytesValue:
		return len(t.BytesValue)
	case *firestorepb.Value_ReferenceValue:
		return nameBytes(t.ReferenceValue)
	case *firestorepb.Value_ArrayValue:
		n := 0
		for _, e := range t.ArrayValue.GetValues() {
			n += valueBytes(e)
		}
		return n
	case *firestorepb.Value_MapValue:
		if isVector(v) {
			return 8 * len(elements(t.MapValue.GetFields()["value"]))
		}
		return fieldsBytes(t.MapValue.GetFields())
	case *firestorepb.Value_NullValue, *firestorepb.Value_BooleanValue:
		return 1
	case *firestorepb.Value_GeoPointValue:
		return 16
	}
	return 8
}
