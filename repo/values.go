package repo

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"time"

	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"taskguard/lease"
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
