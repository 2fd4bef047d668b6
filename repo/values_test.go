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
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"taskguard/internal/testing/emulatortest"
	"taskguard/lease"
)

func TestAnalyzersGetOfEachTypeWhatJSONCanHold(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 6, time.FixedZone("", 3600))
	for want, v := range map[string]any{
		`null`: nil, `true`: true, `"<a & b>"`: "<a & b>", `9007199254740993`: int64(9007199254740993), `1.5`: 1.5,
		`"NaN"`: math.NaN(), `"Infinity"`: math.Inf(1), `"-Infinity"`: math.Inf(-1),
		`"2026-01-02T02:04:05.000000006Z"`: at, `"aGk="`: []byte("hi"),
		`{"latitude":1.5,"longitude":-2}`: &latlng.LatLng{Latitude: 1.5, Longitude: -2},
		`{"a":["NaN",{"b":"Infinity"}]}`:  map[string]any{"a": []any{math.NaN(), map[string]any{"b": math.Inf(1)}}},
		`{}`:                              map[string]any{}, `[]`: []any{},
	} {
		if got, err := Plain(v); err != nil || string(got) != want {
			t.Errorf("%v: %s, %v; want %s", v, got, err, want)
		}
	}
	if got, err := Plain(make(chan int)); err == nil || got != nil {
		t.Errorf("a channel: %s, %v", got, err)
	}
}

// decoded decodes the fields as those of a document that was read.
func decoded(t *testing.T, fields map[string]*value) map[string]any {
	t.Helper()
	document, err := proto.Marshal(&firestorepb.Document{Fields: fields})
	fatal(t, err)
	var r reading
	fatal(t, r.decodeDocument(document, nil))
	return r.fields
}

func TestAFieldOfEachTypeIsDecoded(t *testing.T) {
	at := time.Unix(1, 2).UTC()
	mapped := func(fields map[string]*firestorepb.Value) *firestorepb.Value {
		return &firestorepb.Value{ValueType: &firestorepb.Value_MapValue{MapValue: &firestorepb.MapValue{Fields: fields}}}
	}
	array := func(values ...*firestorepb.Value) *firestorepb.Value {
		return &firestorepb.Value{ValueType: &firestorepb.Value_ArrayValue{ArrayValue: &firestorepb.ArrayValue{Values: values}}}
	}
	number := &firestorepb.Value{ValueType: &firestorepb.Value_DoubleValue{DoubleValue: 1.5}}
	point := &latlng.LatLng{Latitude: 1}
	for name, c := range map[string]struct {
		v    *firestorepb.Value
		want any
	}{
		"null":         {&firestorepb.Value{ValueType: &firestorepb.Value_NullValue{}}, nil},
		"a boolean":    {&firestorepb.Value{ValueType: &firestorepb.Value_BooleanValue{BooleanValue: true}}, true},
		"an integer":   {integer(7), int64(7)},
		"a double":     {number, 1.5},
		"a Timestamp":  {&firestorepb.Value{ValueType: &firestorepb.Value_TimestampValue{TimestampValue: timestamppb.New(at)}}, at},
		"a string":     {text("s"), "s"},
		"bytes":        {&firestorepb.Value{ValueType: &firestorepb.Value_BytesValue{BytesValue: []byte("b")}}, []byte("b")},
		"a reference":  {&firestorepb.Value{ValueType: &firestorepb.Value_ReferenceValue{ReferenceValue: "projects/p"}}, "projects/p"},
		"an array":     {array(integer(1), array(text("s"))), []any{int64(1), []any{"s"}}},
		"a map":        {mapped(map[string]*firestorepb.Value{"a": mapOf("b", integer(1))}), map[string]any{"a": map[string]any{"b": int64(1)}}},
		"a vector":     {mapped(map[string]*firestorepb.Value{"__type__": text("__vector__"), "value": array(number)}), []any{1.5}},
		"another type": {mapped(map[string]*firestorepb.Value{"__type__": text("x"), "value": number}), map[string]any{"__type__": "x", "value": 1.5}},
	} {
		same(t, map[string]any{name: c.want}, decoded(t, map[string]*value{name: c.v}))
	}
	got := decoded(t, map[string]*value{"": {ValueType: &firestorepb.Value_GeoPointValue{GeoPointValue: point}}})
	if p, ok := got[""].(*latlng.LatLng); !ok || !proto.Equal(p, point) {
		t.Errorf("a geo point: %v", got)
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
			`field=lockOwner type="a boolean"`:           {"lockOwner": true},
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
	same(t, want, decoded(t, encoded.GetMapValue().GetFields()))
	if v, err := encodeValue(3); err != nil || v.GetIntegerValue() != 3 {
		t.Errorf("an int: %v, %v", v, err)
	}
	for _, v := range []any{uint8(1), []any{uint8(1)}, map[string]any{"a": uint8(1)}} {
		if _, err := encodeValue(v); !errors.Is(err, lease.ErrRefused) {
			t.Errorf("%v: %v, want ErrRefused", v, err)
		}
	}
}

// A document that the server has cut, or a field that no client knows, is no reason to crash.
func TestAnAnswerThatIsCutIsAnErrorAtEachByte(t *testing.T) {
	found := &firestorepb.BatchGetDocumentsResponse_Found{Found: &firestorepb.Document{
		Fields: map[string]*value{"a": mapOf("b", text("c")), "l": {ValueType: &firestorepb.Value_ArrayValue{ArrayValue: &firestorepb.ArrayValue{Values: []*value{integer(1)}}}}},
	}}
	answer, err := proto.Marshal(&firestorepb.BatchGetDocumentsResponse{Result: found})
	fatal(t, err)
	for n := range answer {
		if err := new(reading).decode(answer[:n], nil); err == nil {
			t.Errorf("%d of %d bytes: no error", n, len(answer))
		}
	}
	check(t, new(reading).decode(append(answer, 0x7a, 1, 'x', 0x7d, 1, 2, 3, 4), nil))
}
