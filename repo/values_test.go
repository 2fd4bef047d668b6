package repo

import (
	"bytes"
	"errors"
	"log/slog"
	"math"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/genproto/googleapis/type/latlng"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"taskguard/internal/testing/emulatortest"
	"taskguard/lease"
)

// decoded decodes the fields as if they were read from a document.
func decoded(fields map[string]*value) map[string]any {
	return decodeReading(&firestorepb.BatchGetDocumentsResponse{
		Result: &firestorepb.BatchGetDocumentsResponse_Found{Found: &firestorepb.Document{Fields: fields}},
	}, "x", nil).fields
}

// Analyzers get as JSON what JSON can hold of it.
func TestAValueOfEachTypeIsDecoded(t *testing.T) {
	at := time.Unix(1, 2).UTC()
	double := func(n float64) *value { return &value{ValueType: &firestorepb.Value_DoubleValue{DoubleValue: n}} }
	array := func(values ...*value) *value {
		return &value{ValueType: &firestorepb.Value_ArrayValue{ArrayValue: &firestorepb.ArrayValue{Values: values}}}
	}
	typed := func(name string) *value {
		m := mapOf("__type__", stringValue(name))
		m.GetMapValue().Fields["value"] = array(double(1.5))
		return m
	}
	for want, tc := range map[string]struct {
		stored  *value
		decoded any
	}{
		`null`:                             {&value{ValueType: &firestorepb.Value_NullValue{}}, nil},
		`true`:                             {&value{ValueType: &firestorepb.Value_BooleanValue{BooleanValue: true}}, true},
		`9007199254740993`:                 {integer(9007199254740993), int64(9007199254740993)},
		`1.5`:                              {double(1.5), 1.5},
		`"NaN"`:                            {double(math.NaN()), "NaN"},
		`"Infinity"`:                       {double(math.Inf(1)), "Infinity"},
		`"-Infinity"`:                      {double(math.Inf(-1)), "-Infinity"},
		`"1970-01-01T00:00:01.000000002Z"`: {&value{ValueType: &firestorepb.Value_TimestampValue{TimestampValue: timestamppb.New(at)}}, at},
		`"<a & b>"`:                        {stringValue("<a & b>"), "<a & b>"},
		`"aGk="`:                           {&value{ValueType: &firestorepb.Value_BytesValue{BytesValue: []byte("hi")}}, []byte("hi")},
		`"projects/p"`:                     {&value{ValueType: &firestorepb.Value_ReferenceValue{ReferenceValue: "projects/p"}}, "projects/p"},
		`{"latitude":1.5,"longitude":-2}`: {
			&value{ValueType: &firestorepb.Value_GeoPointValue{GeoPointValue: &latlng.LatLng{Latitude: 1.5, Longitude: -2}}},
			map[string]any{"latitude": 1.5, "longitude": -2.0},
		},
		`[]`:                             {array(), []any{}},
		`[1,["s"]]`:                      {array(integer(1), array(stringValue("s"))), []any{int64(1), []any{"s"}}},
		`{}`:                             {&value{ValueType: &firestorepb.Value_MapValue{}}, map[string]any{}},
		`{"a":{"b":["NaN"]}}`:            {mapOf("a", mapOf("b", array(double(math.NaN())))), map[string]any{"a": map[string]any{"b": []any{"NaN"}}}},
		`[1.5]`:                          {typed("__vector__"), []any{1.5}},
		`{"__type__":"x","value":[1.5]}`: {typed("x"), map[string]any{"__type__": "x", "value": []any{1.5}}},
	} {
		got := decoded(map[string]*value{want: tc.stored})
		same(t, map[string]any{want: tc.decoded}, got)
		if text, err := Plain(got[want]); err != nil || string(text) != want {
			t.Errorf("%s, %v; want %s", text, err, want)
		}
	}
	if got, err := Plain(make(chan int)); err == nil || got != nil {
		t.Errorf("a channel: %s, %v", got, err)
	}
}

func TestEachErrorOfFirestoreIsClassified(t *testing.T) {
	all := []error{lease.ErrConflict, lease.ErrRefused, lease.ErrUnavailable}
	for code, want := range map[codes.Code][3]error{ // of a call, of a query, of a call that is made once
		codes.FailedPrecondition: {lease.ErrConflict, lease.ErrRefused, lease.ErrUnavailable},
		codes.Aborted:            {nil, lease.ErrUnavailable, lease.ErrUnavailable},
		codes.NotFound:           {lease.ErrConflict, lease.ErrUnavailable, lease.ErrUnavailable},
		codes.AlreadyExists:      {lease.ErrConflict, lease.ErrUnavailable, lease.ErrUnavailable},
		codes.InvalidArgument:    {lease.ErrRefused, lease.ErrRefused, lease.ErrRefused},
		codes.Unavailable:        {nil, lease.ErrUnavailable, lease.ErrUnavailable},
		codes.PermissionDenied:   {nil, lease.ErrUnavailable, lease.ErrUnavailable},
	} {
		cause := status.Error(code, "words of Firestore")
		call := storeError("write", "analysis", "x", cause)
		for i, err := range []error{call, queryError("list", cause), unavailable(call)} {
			if err == nil || !errors.Is(err, cause) || !strings.Contains(err.Error(), "words of Firestore") {
				t.Errorf("%v, %d: %v lacks its cause", code, i, err)
			}
			for _, kind := range all {
				if i == 2 && errors.Is(kind, lease.ErrConflict) {
					continue // it matches both
				}
				if errors.Is(err, kind) != errors.Is(kind, want[i]) {
					t.Errorf("%v, %d: %v; want %v", code, i, err, want[i])
				}
			}
		}
		if text := queryError("list", cause).Error(); !strings.Contains(text, "repo: list: ") {
			t.Errorf("%v: %q does not name the operation", code, text)
		}
		if text := call.Error(); !strings.Contains(text, `write analysis "x"`) {
			t.Errorf("%v: %q does not name the operation", code, text)
		}
	}
	if err := unavailable(lease.ErrMalformed); !errors.Is(err, lease.ErrMalformed) || errors.Is(err, lease.ErrUnavailable) {
		t.Errorf("a malformed document: %v", err)
	}
}

// The warning has the type of the field and not its value.
func TestAnUnreadableLockFieldIsLogged(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		var log bytes.Buffer
		a, err := Open(t.Context(), b.Project, optionsFor(b, Options{Log: slog.New(slog.NewTextHandler(&log, nil))}), b.Client(t)...)
		fatal(t, err)
		now := time.Now()
		for want, fields := range map[string]map[string]any{
			"":                                           {"lockOwner": "js", "lockHeartbeatAt": now, "lockExpiresAt": timeValue(now)},
			`field=lockOwner type="a bool"`:              {"lockOwner": true},
			`field=lockHeartbeatAt type="a string"`:      {"lockOwner": "js", "lockHeartbeatAt": "secret"},
			`field=lockExpiresAt type="an array"`:        {"lockOwner": "js", "lockExpiresAt": []any{"secret"}},
			`field=lockExpiresAt type="a time.Time"`:     {"lockOwner": "js", "lockExpiresAt": now.Add(25 * time.Hour)},
			`field=lockHeartbeatAt type="the number -1"`: {"lockOwner": "js", "lockHeartbeatAt": -1},
		} {
			log.Reset()
			b.Put(t, "x", fields)
			d, err := a.Get(t.Context(), "x")
			fatal(t, err)
			got := log.String()
			if want == "" && got != "" || want != "" && (strings.Count(got, "\n") != 1 || !strings.Contains(got, "level=WARN") || !strings.Contains(got, "analysis_id=x "+want)) || strings.Contains(got, "secret") {
				t.Errorf("%v: log %q, want %q", fields, got, want)
			}
			if strings.Contains(want, "lockHeartbeatAt") && !d.Lock.HeartbeatAt.IsZero() {
				t.Errorf("%v: the heartbeat is %v", fields, d.Lock.HeartbeatAt)
			}
			if want != "" && strings.Contains(want, "lockOwner") != (d.Lock.Owner == unreadableOwner) {
				t.Errorf("%v: the owner is %q", fields, d.Lock.Owner)
			}
		}
	})
}

func TestAValueOfEachTypeIsEncodedAsItIsDecoded(t *testing.T) {
	at := time.Unix(1, 2).UTC()
	want := map[string]any{
		"null": nil, "boolean": true, "integer": int64(-7), "double": 1.5, "string": "é", "time": at,
		"array": []any{int64(1), nil, map[string]any{"a": "b"}, map[string]any{}}, "map": map[string]any{"a": []any{}},
	}
	encoded, err := encodeValue(want)
	fatal(t, err)
	same(t, want, decoded(encoded.GetMapValue().GetFields()))
	if v, err := encodeValue(3); err != nil || v.GetIntegerValue() != 3 {
		t.Errorf("an int: %v, %v", v, err)
	}
	for _, v := range []any{uint8(1), []any{uint8(1)}, map[string]any{"a": uint8(1)}} {
		if _, err := encodeValue(v); !errors.Is(err, lease.ErrRefused) {
			t.Errorf("%v: %v, want ErrRefused", v, err)
		}
	}
}
