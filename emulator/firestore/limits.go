package firestore

import (
	"strings"
	"time"
	"unicode/utf8"

	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

const (
	// maxDocumentBytes is Firestore's limit on one document.
	maxDocumentBytes = 1 << 20
	// maxDepth is how deep maps and arrays may nest.
	maxDepth = 20
	// maxStringBytes is Firestore's limit on one string or bytes value.
	maxStringBytes = 1<<20 - 89
)

// checkFields refuses what a document cannot hold, whatever its size. It cuts
// timestamps to microseconds, as Firestore stores them.
func checkFields(f fields) error {
	if f[typeKey] != nil {
		return invalid("the field name %q is reserved", typeKey)
	}
	return checkMap(f, 1, 0)
}

// checkMap checks a map whose own dotted path, with the dot that follows it,
// has prefix bytes: the limit is on the path, and arrays add nothing to it.
func checkMap(f fields, depth, prefix int) error {
	for name, v := range f {
		if err := checkFieldName(name); err != nil {
			return err
		}
		path := prefix + len(name)
		if path > maxPathBytes {
			return invalid("a field path has %d bytes, the limit is %d", path, maxPathBytes)
		}
		if err := checkValue(v, depth, path+1); err != nil {
			return err
		}
	}
	return nil
}

func checkFieldName(name string) error {
	switch {
	case name == "":
		return invalid("a field name is empty")
	case isReserved(name):
		return invalid("the field name %q is reserved", name)
	case !utf8.ValidString(name):
		return invalid("a field name is not valid UTF-8")
	}
	return nil
}

// checkValue checks a value that is the depth-th in a nest of maps and arrays.
func checkValue(v *value, depth, prefix int) error {
	switch t := v.GetValueType().(type) {
	case nil:
		return invalid("a value has no type")
	case *firestorepb.Value_TimestampValue:
		return cutTimestamp(t.TimestampValue)
	case *firestorepb.Value_ReferenceValue:
		_, err := parseDocument("", t.ReferenceValue)
		return err
	case *firestorepb.Value_StringValue:
		return checkLength(len(t.StringValue))
	case *firestorepb.Value_BytesValue:
		return checkLength(len(t.BytesValue))
	case *firestorepb.Value_GeoPointValue:
		lat, lng := t.GeoPointValue.GetLatitude(), t.GeoPointValue.GetLongitude()
		if !(lat >= -90 && lat <= 90 && lng >= -180 && lng <= 180) {
			return invalid("a geo point is off the globe")
		}
	case *firestorepb.Value_ArrayValue:
		return checkArray(t.ArrayValue.GetValues(), depth, prefix)
	case *firestorepb.Value_MapValue:
		return checkNested(t.MapValue.GetFields(), depth, prefix)
	case *firestorepb.Value_NullValue, *firestorepb.Value_BooleanValue, *firestorepb.Value_IntegerValue,
		*firestorepb.Value_DoubleValue:
	default:
		return invalid("a stored value cannot be a %T", t)
	}
	return nil
}

func checkLength(n int) error {
	if n > maxStringBytes {
		return invalid("a value has %d bytes, the limit is %d", n, maxStringBytes)
	}
	return nil
}

// checkNested checks a map that is a value. One with a __type__ is a vector.
func checkNested(f fields, depth, prefix int) error {
	if depth > maxDepth {
		return invalid("maps and arrays nest deeper than %d", maxDepth)
	}
	kind, typed := f[typeKey]
	if !typed {
		return checkMap(f, depth+1, prefix)
	}
	if kind.GetStringValue() != vectorType || f[vectorKey] == nil || len(f) != 2 {
		return invalid("a map with %s is not a vector", typeKey)
	}
	for _, e := range f[vectorKey].GetArrayValue().GetValues() {
		if _, ok := e.GetValueType().(*firestorepb.Value_DoubleValue); !ok {
			return invalid("a vector holds other values than doubles")
		}
	}
	return nil
}

func checkArray(elements []*value, depth, prefix int) error {
	if depth > maxDepth {
		return invalid("maps and arrays nest deeper than %d", maxDepth)
	}
	for _, e := range elements {
		if _, nested := e.GetValueType().(*firestorepb.Value_ArrayValue); nested {
			return invalid("an array cannot hold an array directly")
		}
		if err := checkValue(e, depth+1, prefix); err != nil {
			return err
		}
	}
	return nil
}

func cutTimestamp(t *timestamppb.Timestamp) error {
	if t.CheckValid() != nil {
		return invalid("a timestamp is out of range")
	}
	// A stored timestamp is cut already, and others may be reading it.
	if rest := t.Nanos % int32(time.Microsecond); rest != 0 {
		t.Nanos -= rest
	}
	return nil
}

// checkSize refuses a document over the limit, by Firestore's own rules of size.
func checkSize(d *document) error {
	if n := nameBytes(d.pb.Name) + fieldsBytes(d.pb.Fields) + 32; n > maxDocumentBytes {
		return invalid("document %q has %d bytes, the limit is %d", d.pb.Name, n, maxDocumentBytes)
	}
	return nil
}

// nameBytes counts 16 bytes, and the ids' bytes plus one each.
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
		return fieldsBytes(t.MapValue.GetFields())
	case *firestorepb.Value_NullValue, *firestorepb.Value_BooleanValue:
		return 1
	case *firestorepb.Value_GeoPointValue:
		return 16
	}
	return 8
}
