package firestore

import (
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
)

var errTooDeep = invalid("maps and arrays nest deeper than %d", maxDepth)

// checkFields refuses fields that a document of any size cannot hold. It cuts
// timestamps to microseconds, as Firestore stores them.
func checkFields(f fields) error {
	return checkMap(f, 0, 0)
}

// checkMap checks a map that lies in depth maps and arrays, itself included, but not
// the document. Its own dotted path, with the dot that follows it, has prefix bytes:
// the limit is on the path, and arrays add nothing to it.
func checkMap(f fields, depth, prefix int) error {
	if depth > maxDepth {
		return errTooDeep
	}
	for name, v := range f {
		path := prefix + len(name)
		switch {
		case name == "":
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

// checkValue checks a value that lies in depth maps and arrays.
func checkValue(v *value, depth, prefix int) error {
	switch t := v.GetValueType().(type) {
	case *firestorepb.Value_TimestampValue:
		// A stored timestamp is cut already, and others may be reading it.
		if rest := t.TimestampValue.GetNanos() % int32(time.Microsecond); rest != 0 {
			t.TimestampValue.Nanos -= rest
		}
	case *firestorepb.Value_StringValue:
		return checkLength(len(t.StringValue))
	case *firestorepb.Value_BytesValue:
		return checkLength(len(t.BytesValue))
	case *firestorepb.Value_ArrayValue:
		return checkArray(t.ArrayValue.GetValues(), depth+1, prefix)
	case *firestorepb.Value_MapValue:
		return checkMap(t.MapValue.GetFields(), depth+1, prefix)
	}
	return nil
}

func checkLength(n int) error {
	if n > maxStringBytes {
		return invalid("a value has %d bytes, the limit is %d", n, maxStringBytes)
	}
	return nil
}

func checkArray(elements []*value, depth, prefix int) error {
	if depth > maxDepth {
		return errTooDeep
	}
	for _, e := range elements {
		if _, nested := e.GetValueType().(*firestorepb.Value_ArrayValue); nested {
			return invalid("an array cannot hold an array directly")
		}
		if err := checkValue(e, depth, prefix); err != nil {
			return err
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
