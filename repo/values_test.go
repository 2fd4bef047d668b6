package repo

import (
	"math"
	"testing"
	"time"

	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/genproto/googleapis/type/latlng"

	"taskguard/internal/testing/must"
	"taskguard/lease"
)

// decoded decodes the fields as if they were read from a document.
func decoded(fields map[string]*value) doc {
	return decodeReading(&firestorepb.BatchGetDocumentsResponse{
		Result: &firestorepb.BatchGetDocumentsResponse_Found{Found: &firestorepb.Document{Fields: fields}},
	}, "x", nil).fields
}

// Analyzers get as JSON what JSON can hold of it.
func TestDecodeValue(t *testing.T) {
	at, nan := time.Unix(1, 2).UTC(), math.NaN()
	bytes := &value{ValueType: &firestorepb.Value_BytesValue{BytesValue: []byte("hi")}}
	reference := &value{ValueType: &firestorepb.Value_ReferenceValue{ReferenceValue: "p/x"}}
	nested := doc{"a": doc{"b": []any{"NaN", nil}}}
	place := &latlng.LatLng{Latitude: 1.5, Longitude: -2}
	point := &value{ValueType: &firestorepb.Value_GeoPointValue{GeoPointValue: place}}
	vector, typed := doc{"__type__": "__vector__", "value": []any{1.5}}, doc{"__type__": "x", "value": []any{1.5}}
	for want, tc := range map[string]struct {
		stored  *value
		decoded any
	}{
		`null`:                             {encoded(nil), nil},
		`true`:                             {encoded(true), true},
		`9007199254740993`:                 {encoded(int64(9007199254740993)), int64(9007199254740993)},
		`1.5`:                              {encoded(1.5), 1.5},
		`"NaN"`:                            {encoded(nan), "NaN"},
		`"Infinity"`:                       {encoded(math.Inf(1)), "Infinity"},
		`"-Infinity"`:                      {encoded(math.Inf(-1)), "-Infinity"},
		`"1970-01-01T00:00:01.000000002Z"`: {encoded(at), at},
		`"<a & b>"`:                        {encoded("<a & b>"), "<a & b>"},
		`"aGk="`:                           {bytes, []byte("hi")},
		`"p/x"`:                            {reference, "p/x"},
		`{"latitude":1.5,"longitude":-2}`:  {point, doc{"latitude": 1.5, "longitude": -2.0}},
		`[]`:                               {encoded([]any{}), []any{}},
		`[1,["s"]]`:                        {encoded([]any{1, []any{"s"}}), []any{int64(1), []any{"s"}}},
		`{}`:                               {encoded(doc{}), doc{}},
		`{"a":{"b":["NaN",null]}}`:         {encoded(doc{"a": doc{"b": []any{nan, nil}}}), nested},
		`[1.5]`:                            {encoded(vector), []any{1.5}},
		`{"__type__":"x","value":[1.5]}`:   {encoded(typed), typed},
	} {
		got := decoded(map[string]*value{"v": tc.stored})
		same(t, doc{"v": tc.decoded}, got)
		same(t, want, string(must.Get(Plain(got["v"]))(t)))
	}
	if got, err := Plain(make(chan int)); err == nil || got != nil {
		t.Errorf("a channel: %s, %v", got, err)
	}
}

func TestEncodeValue_Refused(t *testing.T) {
	for _, v := range []any{uint8(1), []any{uint8(1)}, doc{"a": uint8(1)}} {
		wantErr(t, lease.ErrRefused, errorOf(encodeValue(v)), v)
	}
}
