package repo

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"strings"
	"time"

	"cloud.google.com/go/firestore"
	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"taskguard/internal/text"
	"taskguard/lease"
	"taskguard/lease/iso8601"
)

// decodeValue decodes a value as Google's client does, with these exceptions: NaN and the infinities
// are the strings "NaN", "Infinity" and "-Infinity", a geo point is a map, a vector is an array, and a
// reference is its full path. It returns nil for no value.
func decodeValue(value *firestorepb.Value) any {
	switch v := value.GetValueType().(type) {
	case *firestorepb.Value_BooleanValue:
		return v.BooleanValue
	case *firestorepb.Value_IntegerValue:
		return v.IntegerValue
	case *firestorepb.Value_DoubleValue:
		return decodeDouble(v.DoubleValue)
	case *firestorepb.Value_TimestampValue:
		return v.TimestampValue.AsTime()
	case *firestorepb.Value_StringValue:
		return v.StringValue
	case *firestorepb.Value_BytesValue:
		return v.BytesValue
	case *firestorepb.Value_ReferenceValue:
		return v.ReferenceValue
	case *firestorepb.Value_GeoPointValue:
		point := v.GeoPointValue
		return map[string]any{"latitude": point.GetLatitude(), "longitude": point.GetLongitude()}

	case *firestorepb.Value_ArrayValue:
		array := make([]any, len(v.ArrayValue.GetValues()))
		for i, e := range v.ArrayValue.GetValues() {
			array[i] = decodeValue(e)
		}
		return array
	case *firestorepb.Value_MapValue:
		m := make(map[string]any, len(v.MapValue.GetFields()))
		for name, e := range v.MapValue.GetFields() {
			m[name] = decodeValue(e)
		}
		if m["__type__"] == "__vector__" {
			return m["value"]
		}
		return m
	}
	return nil
}

// decodeDouble returns a number, or a string if JSON has no such number.
func decodeDouble(n float64) any {
	switch {
	case math.IsNaN(n):
		return "NaN"
	case math.IsInf(n, 1):
		return "Infinity"
	case math.IsInf(n, -1):
		return "-Infinity"
	}
	return n
}

// Plain returns the JSON form of a value that Analyses has read, as analyzers get it: a Timestamp as
// RFC 3339, bytes as base64, and the others as decodeValue returns them.
func Plain(v any) (json.RawMessage, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, fmt.Errorf("repo: encode value: %w", err)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// encodeValue encodes a value of the types that the codecs and orchestrator.Storable make.
func encodeValue(v any) (_ *firestorepb.Value, err error) {
	switch v := v.(type) {
	case nil:
		return &firestorepb.Value{ValueType: &firestorepb.Value_NullValue{}}, nil
	case bool:
		return &firestorepb.Value{ValueType: &firestorepb.Value_BooleanValue{BooleanValue: v}}, nil
	case int:
		return encodeValue(int64(v))
	case int64:
		return &firestorepb.Value{ValueType: &firestorepb.Value_IntegerValue{IntegerValue: v}}, nil
	case float64:
		return &firestorepb.Value{ValueType: &firestorepb.Value_DoubleValue{DoubleValue: v}}, nil
	case string:
		return &firestorepb.Value{ValueType: &firestorepb.Value_StringValue{StringValue: v}}, nil
	case time.Time:
		return &firestorepb.Value{ValueType: &firestorepb.Value_TimestampValue{TimestampValue: timestamppb.New(v)}}, nil

	case []any:
		array := &firestorepb.ArrayValue{Values: make([]*firestorepb.Value, len(v))}
		for i, e := range v {
			if array.Values[i], err = encodeValue(e); err != nil {
				return nil, err
			}
		}
		return &firestorepb.Value{ValueType: &firestorepb.Value_ArrayValue{ArrayValue: array}}, nil
	case map[string]any:
		m := &firestorepb.MapValue{Fields: make(map[string]*firestorepb.Value, len(v))}
		for name, e := range v {
			if m.Fields[name], err = encodeValue(e); err != nil {
				return nil, err
			}
		}
		return &firestorepb.Value{ValueType: &firestorepb.Value_MapValue{MapValue: m}}, nil
	}
	return nil, fmt.Errorf("%w: a value of the type %T", lease.ErrRefused, v)
}

// orDelete returns v, or the value that deletes its field if v is zero.
func orDelete[T comparable](v T) any {
	if v == *new(T) {
		return firestore.Delete
	}
	return v
}

// present removes from m the fields that are not stored, and returns m.
func present(m map[string]any) map[string]any {
	maps.DeleteFunc(m, func(_ string, v any) bool { return v == any(firestore.Delete) })
	return m
}

func timeValue(t time.Time) any {
	if t.IsZero() {
		return firestore.Delete
	}
	return iso8601.Format(t)
}

// maxText is the limit, in bytes, of a string that another program has written and a record
// contains. The strings of this program, such as owners, are shorter.
const maxText = 4 << 10

// cut returns a string, cut after maxText bytes, and "" for a value of another type.
func cut(v any) string {
	s, _ := v.(string)
	if len(s) > maxText {
		s = strings.Clone(text.Head(s, maxText)) // a part would keep the whole in memory
	}
	return s
}

// maxMillis is the year 9999, the last that ISO 8601 and Firestore can write.
const maxMillis = 253402300799999

// parseTime reads ISO 8601 of any precision, which is in UTC if it has no zone, a Timestamp, or a
// number of milliseconds since 1970. A missing value is the zero time. ok is false for a value that
// is not a time.
func parseTime(v any) (t time.Time, ok bool) {
	switch v := v.(type) {
	case nil:
		return time.Time{}, true
	case time.Time:
		return v, true
	case string:
		return iso8601.Parse(v)
	case int64:
		return parseTime(float64(v))
	case float64:
		if v >= 0 && v <= maxMillis {
			return time.UnixMilli(int64(v)), true
		}
	}
	return time.Time{}, false
}

// parseInt reads an integer, even if another client wrote it as a double. A missing
// value is 0.
func parseInt(v any) (n int64, ok bool) {
	switch v := v.(type) {
	case nil:
		return 0, true
	case int64:
		return v, true
	case float64:
		if v == math.Trunc(v) && math.Abs(v) < 1<<53 {
			return int64(v), true
		}
	}
	return 0, false
}

// kind names the type of a document's value.
func kind(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case int64, float64:
		return fmt.Sprintf("the number %v", v)
	case map[string]any:
		return "a map"
	case []any:
		return "an array"
	}
	return fmt.Sprintf("a %T", v)
}
