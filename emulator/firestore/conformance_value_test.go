package firestore_test

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	client "cloud.google.com/go/firestore"
	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/type/latlng"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	"taskguard/internal/testing/must"
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
	{"StoredValuesHaveLimits", func(t *testing.T, r *rig) {
		long := func(n int) *value { return mapValue(fields{strings.Repeat("k", n): integerValue(1)}) }
		more := vectorValue(doubleValue(1))
		more.GetMapValue().Fields["more"] = doubleValue(1)
		for name, values := range map[string][2]*value{ // one that is stored, and one that is not
			"depth of maps":   {nested(20, integerValue(1)), nested(21, integerValue(1))},
			"depth of arrays": {nested(19, arrayValue(integerValue(1))), nested(20, arrayValue(integerValue(1)))},
			"path":            {long(1498), long(1499)},
			"path in arrays":  {arrayValue(long(1498)), arrayValue(long(1499))},
			"name":            {mapValue(fields{"____": integerValue(1)}), mapValue(fields{"": integerValue(1)})},
			"type":            {integerValue(1), {}},
			"place":           {pointValue(90, 180), pointValue(90.1, 0)},
			"nowhere":         {pointValue(-90, -180), pointValue(math.NaN(), 0)},
			"reference":       {referenceValue("projects/o/databases/d/documents/c/d"), referenceValue("c/d")},
			"array in array":  {arrayValue(), arrayValue(arrayValue())},
			"vector":          {vectorValue(doubleValue(1)), vectorValue()},
			"whole vector":    {vectorValue(doubleValue(1)), vectorValue(integerValue(1))},
			"only a vector":   {vectorValue(doubleValue(1)), more},
			"dimensions": {
				vectorValue(slices.Repeat([]*value{doubleValue(1)}, 2048)...),
				vectorValue(slices.Repeat([]*value{doubleValue(1)}, 2049)...),
			},
		} {
			for i, want := range []codes.Code{codes.OK, codes.InvalidArgument} {
				_, err := r.commit(nil, putFields(r.name("c/d"), fields{"f": values[i]}))
				wantCode(t, err, want, name)
			}
		}
	}},
	{"TransformsThatMakeNoSenseAreInvalid", func(t *testing.T, r *rig) {
		untyped := arrayValue(&value{}).GetArrayValue()
		increment := &firestorepb.DocumentTransform_FieldTransform_Increment{Increment: integerValue(1)}
		var unknown firestorepb.DocumentTransform_FieldTransform_SetToServerValue
		remove := &firestorepb.DocumentTransform_FieldTransform_RemoveAllFromArray{RemoveAllFromArray: untyped}
		union := &firestorepb.DocumentTransform_FieldTransform_AppendMissingElements{AppendMissingElements: untyped}
		for name, transforms := range map[string][]*fieldTransform{
			"an unknown server value": {{FieldPath: "n", TransformType: &unknown}},
			"a removal of nothing":    {{FieldPath: "n", TransformType: remove}},
			"an append of nothing":    {{FieldPath: "n", TransformType: union}},
			"a field and one that is inside": {
				{FieldPath: "m.x", TransformType: increment}, {FieldPath: "m", TransformType: increment},
			},
		} {
			w := putFields(r.name("c/d"), nil)
			w.UpdateTransforms = transforms
			_, err := r.commit(nil, w)
			wantCode(t, err, codes.InvalidArgument, name)
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
