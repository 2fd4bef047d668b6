package firestore_test

import (
	"strings"
	"testing"
	"time"

	"taskguard/internal/testing/must"

	client "cloud.google.com/go/firestore"
	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/type/latlng"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// transformed writes one transform to a document whose field n holds old (nil:
// no field) and returns n.
func transformed(t *testing.T, r *rig, old, change any) any {
	t.Helper()
	data := object{"other": 1}
	if old != nil {
		data["n"] = old
	}
	ref := r.doc(data)
	r.ok(ref.Update(r.ctx, []client.Update{{Path: "n", Value: change}}))
	return r.get(ref).Data()["n"]
}

var transformCases = []conformanceCase{
	{"TransformsComputeFromTheStoredValue", func(t *testing.T, r *rig) {
		for _, c := range []struct{ old, change, want any }{
			{1, client.Increment(2), int64(3)},
			{1.5, client.Increment(1), 2.5},
			{"text", client.Increment(2), int64(2)},
			{nil, client.Increment(2), int64(2)},
			{1, client.Increment(.5), 1.5},
			{nil, client.Increment(.5), .5},
			{[]any{1, "a"}, client.ArrayUnion("b", 1.0, "b"), []any{int64(1), "a", "b"}},
			{"text", client.ArrayUnion(1), []any{int64(1)}},
			{[]any{1, "a", 1.0, "b"}, client.ArrayRemove(1, "b"), []any{"a"}},
			{nil, client.ArrayRemove(1), []any{}},
		} {
			if diff := cmp.Diff(c.want, transformed(t, r, c.old, c.change)); diff != "" {
				t.Errorf("%v %v (-want +got):\n%s", c.old, c.change, diff)
			}
		}
	}},
	{"ServerTimestampIsTheCommitsInMilliseconds", func(t *testing.T, r *rig) {
		ref := r.doc(nil)
		value := object{"t": client.ServerTimestamp, "n": object{"t": client.ServerTimestamp}}
		result := must.Get(ref.Set(r.ctx, value))(t)
		data := r.get(ref).Data()
		outer, inner := data["t"].(time.Time), data["n"].(object)["t"].(time.Time)
		if want := outer.Truncate(time.Millisecond); !outer.Equal(want) || !inner.Equal(want) {
			t.Errorf("server timestamps %v and %v", outer, inner)
		}
		if outer.After(result.UpdateTime) {
			t.Errorf("server timestamp %v, update time %v", outer, result.UpdateTime)
		}
	}},
}

// nested is a value inside depth maps.
func nested(depth int, leaf *value) *value {
	for range depth {
		leaf = mapValue(fields{"a": leaf})
	}
	return leaf
}

var limitCases = []conformanceCase{
	{"DocumentOf1MiBFitsAndOneByteMoreDoesNot", func(t *testing.T, r *rig) {
		ref := r.client.Doc("size/y")
		// 16 + "size/y" with a byte each more, the fields' names and a byte each,
		// the texts and a byte each, 32, and the values of v.
		rest := 1<<20 - (16 + 5 + 2 + 32) - (1 + 1 + 1_000_000 + 1) - (1 + 1) - (1 + 1 + 1) -
			(1 + 1 + 1 + 1 + 8 + 8 + 8 + 2 + 16 + (16 + 2 + 2))
		for extra, want := range map[int]codes.Code{0: codes.OK, 1: codes.InvalidArgument} {
			_, err := ref.Set(r.ctx, object{
				"f": strings.Repeat("x", 1_000_000), "m": object{"g": strings.Repeat("y", rest+extra)},
				"v": []any{nil, true, 1, 1.5, time.Unix(1, 0), []byte("ab"), &latlng.LatLng{}, r.client.Doc("a/b")},
			})
			wantCode(t, err, want)
		}
	}},
	{"TextOrBytesAre1048487AtMost", func(t *testing.T, r *rig) {
		for n, want := range map[int]codes.Code{1048487: codes.OK, 1048488: codes.InvalidArgument} {
			for _, v := range []any{strings.Repeat("x", n), make([]byte, n)} {
				_, err := r.client.Doc("c/d").Set(r.ctx, object{"f": v})
				wantCode(t, err, want)
			}
		}
	}},
	{"MapsAndArraysNest20Deep", func(t *testing.T, r *rig) {
		for depth, want := range map[int]codes.Code{20: codes.OK, 21: codes.InvalidArgument} {
			ref := r.doc(nil)
			_, err := r.commit(nil, putFields(ref.Path, fields{"f": nested(depth, integerValue(1))}))
			wantCode(t, err, want)
			_, err = r.commit(nil, putFields(ref.Path, fields{"f": nested(depth-1, arrayValue(integerValue(1)))}))
			wantCode(t, err, want)
		}
	}},
	{"UnstorableValuesAreInvalid", func(t *testing.T, r *rig) {
		for name, v := range map[string]*value{
			"array in array": arrayValue(arrayValue()),
			"other type":     mapValue(fields{"__type__": textValue("other")}),
			"reserved name":  mapValue(fields{"__x__": integerValue(1)}),
			"empty name":     mapValue(fields{"": integerValue(1)}),
		} {
			_, err := r.commit(nil, putFields(r.name("c/bad"), fields{"f": v}))
			wantCode(t, err, codes.InvalidArgument, name)
		}
		_, err := r.doc(nil).Set(r.ctx, object{"f": client.ArrayUnion(object{"__x__": 1})})
		wantCode(t, err, codes.InvalidArgument)
	}},
	{"FieldNames", func(t *testing.T, r *rig) {
		for name, want := range map[string]codes.Code{
			"": codes.InvalidArgument, "__x__": codes.InvalidArgument, "__name__": codes.InvalidArgument,
			"__type__": codes.InvalidArgument, strings.Repeat("a", 1501): codes.InvalidArgument,
			"__a": codes.OK, "a__": codes.OK, "____": codes.OK, "a.b": codes.OK, "a/b": codes.OK, "`": codes.OK,
			"é": codes.OK, "\x00": codes.OK, strings.Repeat("a", 1500): codes.OK,
		} {
			_, err := r.commit(nil, putFields(r.name("c/d"), fields{name: integerValue(1)}))
			wantCode(t, err, want, name)
		}
	}},
	{"AFieldsDottedPathHas1500BytesAtMostAndArraysAddNothing", func(t *testing.T, r *rig) {
		for n, want := range map[int]codes.Code{1498: codes.OK, 1499: codes.InvalidArgument} {
			m := mapValue(fields{strings.Repeat("k", n): integerValue(1)})
			for _, v := range []*value{m, arrayValue(m)} {
				_, err := r.commit(nil, putFields(r.name("c/d"), fields{"f": v}))
				wantCode(t, err, want)
			}
		}
	}},
	{"TimestampsAreCutToMicroseconds", func(t *testing.T, r *rig) {
		ref := r.doc(nil)
		at := &timestamppb.Timestamp{Seconds: -5, Nanos: 1999}
		v := &value{ValueType: &firestorepb.Value_TimestampValue{TimestampValue: at}}
		r.ok(r.commit(nil, putFields(ref.Path, fields{"t": v})))
		if got := r.get(ref).Data()["t"].(time.Time); got.Unix() != -5 || got.Nanosecond() != 1000 {
			t.Errorf("stored %v, want -5 s and 1000 ns", got)
		}
	}},
}

var nameCases = []conformanceCase{
	{"DocumentIDs", func(t *testing.T, r *rig) {
		for _, name := range []string{"c/d", r.database + "/c/d", r.name("c"), "projects/p/databases//documents/c/d"} {
			_, err := r.readName(name)
			wantCode(t, err, codes.InvalidArgument, name)
		}
		long := strings.Repeat("x", 1500)
		for id, want := range map[string]codes.Code{
			"": codes.InvalidArgument, ".": codes.InvalidArgument, "..": codes.InvalidArgument,
			"__x__": codes.InvalidArgument, long + "x": codes.InvalidArgument, "b/c": codes.InvalidArgument,
			"...": codes.OK, "____": codes.OK, "__x": codes.OK, " ": codes.OK, "\x00\x01": codes.OK,
			"é": codes.OK, long: codes.OK,
		} {
			_, err := r.commit(nil, putFields(r.name("c/"+id), nil))
			wantCode(t, err, want, "write", id)
			if len(id) <= 1500 { // Google's emulator reads a longer one as missing
				_, err = r.readName(r.name("c/" + id))
				wantCode(t, err, want, "read", id)
			}
		}
	}},
}
