package firestore_test

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	client "cloud.google.com/go/firestore"
	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
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
	ref := r.doc(t, data)
	must[*client.WriteResult](t)(ref.Update(r.ctx, []client.Update{{Path: "n", Value: change}}))
	return r.get(t, ref).Data()["n"]
}

var transformCases = []conformanceCase{
	{"TransformsComputeFromTheStoredValue", func(t *testing.T, r *rig) {
		for _, c := range []struct{ old, change, want any }{
			{1, client.Increment(2), int64(3)},
			{1, client.Increment(.5), 1.5},
			{1.5, client.Increment(1), 2.5},
			{"text", client.Increment(2), int64(2)},
			{nil, client.Increment(2), int64(2)},
			{int64(math.MaxInt64), client.Increment(2), int64(math.MaxInt64)},
			{int64(math.MinInt64), client.Increment(-2), int64(math.MinInt64)},
			{1, client.FieldTransformMaximum(2), int64(2)},
			{1, client.FieldTransformMaximum(1.0), int64(1)},
			{1.0, client.FieldTransformMinimum(1), 1.0},
			{"text", client.FieldTransformMinimum(7), int64(7)},
			{nil, client.FieldTransformMaximum(7), int64(7)},
			{2, client.FieldTransformMinimum(1), int64(1)},
			{[]any{1, "x"}, client.ArrayUnion(1, 1.0, 2, 2), []any{int64(1), "x", int64(2)}},
			{5, client.ArrayUnion(1), []any{int64(1)}},
			{nil, client.ArrayUnion(1), []any{int64(1)}},
			{[]any{1, "x", 1.0}, client.ArrayRemove(1), []any{"x"}},
			{nil, client.ArrayRemove(1), []any{}},
		} {
			if got := transformed(t, r, c.old, c.change); fmt.Sprintf("%T%v", got, got) != fmt.Sprintf("%T%v", c.want, c.want) {
				t.Errorf("%v %v = %T %v, want %T %v", c.old, c.change, got, got, c.want, c.want)
			}
		}
		for _, change := range []any{client.FieldTransformMaximum(1), client.FieldTransformMinimum(1)} {
			if got := transformed(t, r, math.NaN(), change); !math.IsNaN(got.(float64)) {
				t.Errorf("NaN, then %v = %v, want NaN", change, got)
			}
		}
	}},
	{"ServerTimestampIsTheCommitsInMilliseconds", func(t *testing.T, r *rig) {
		ref := r.doc(t, nil)
		result := must[*client.WriteResult](t)(ref.Set(r.ctx, object{"t": client.ServerTimestamp, "n": object{"t": client.ServerTimestamp}}))
		data := r.get(t, ref).Data()
		outer, inner := data["t"].(time.Time), data["n"].(object)["t"].(time.Time)
		if !outer.Equal(inner) || outer.After(result.UpdateTime) || !outer.Equal(outer.Truncate(time.Millisecond)) {
			t.Errorf("server timestamps %v and %v, update time %v", outer, inner, result.UpdateTime)
		}
	}},
	{"TransformsRunAfterTheFieldsAndReportResults", func(t *testing.T, r *rig) {
		ref := r.doc(t, object{"b": 1})
		w := putFields(ref.Path, fields{"a": integerValue(1)})
		w.UpdateTransforms = []*firestorepb.DocumentTransform_FieldTransform{increments("a", 5), increments("a", 1)}
		answer := must[*firestorepb.CommitResponse](t)(r.commit(nil, w))
		results := answer.WriteResults[0].TransformResults
		if len(results) != 2 || results[0].GetIntegerValue() != 6 || results[1].GetIntegerValue() != 7 {
			t.Errorf("results %v, want 6 and 7", results)
		}
		wantData(t, r.get(t, ref), object{"a": int64(7)})
	}},
	{"BadTransformsAreInvalid", func(t *testing.T, r *rig) {
		ref := r.doc(t, object{"n": 1})
		for name, list := range map[string][]*firestorepb.DocumentTransform_FieldTransform{
			"none":      {},
			"no kind":   {{FieldPath: "n"}},
			"no path":   {increments("", 1)},
			"by a text": {{FieldPath: "n", TransformType: &firestorepb.DocumentTransform_FieldTransform_Increment{Increment: textValue("x")}}},
		} {
			_, err := r.commit(nil, &firestorepb.Write{Operation: &firestorepb.Write_Transform{
				Transform: &firestorepb.DocumentTransform{Document: ref.Path, FieldTransforms: list},
			}})
			if status.Code(err) != codes.InvalidArgument {
				t.Errorf("%s: %v, want InvalidArgument", name, err)
			}
		}
	}},
}

func increments(path string, by int64) *firestorepb.DocumentTransform_FieldTransform {
	return &firestorepb.DocumentTransform_FieldTransform{
		FieldPath: path, TransformType: &firestorepb.DocumentTransform_FieldTransform_Increment{Increment: integerValue(by)},
	}
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
		// the texts and a byte each, 32.
		rest := 1<<20 - (16 + 5 + 2 + 32) - (1 + 1 + 1_000_000 + 1) - (1 + 1) - (1 + 1 + 1)
		for extra, want := range map[int]codes.Code{0: codes.OK, 1: codes.InvalidArgument} {
			_, err := ref.Set(r.ctx, object{
				"f": strings.Repeat("x", 1_000_000), "m": object{"g": strings.Repeat("y", rest+extra)},
			})
			wantCode(t, err, want)
		}
	}},
	{"TextHas1048487BytesAtMost", func(t *testing.T, r *rig) {
		for n, want := range map[int]codes.Code{1048487: codes.OK, 1048488: codes.InvalidArgument} {
			_, err := r.client.Doc("c/d").Set(r.ctx, object{"f": strings.Repeat("x", n)})
			wantCode(t, err, want)
		}
	}},
	{"MapsAndArraysNest20Deep", func(t *testing.T, r *rig) {
		for depth, want := range map[int]codes.Code{20: codes.OK, 21: codes.InvalidArgument} {
			ref := r.doc(t, nil)
			_, err := r.commit(nil, putFields(ref.Path, fields{"f": nested(depth, integerValue(1))}))
			wantCode(t, err, want)
			_, err = r.commit(nil, putFields(ref.Path, fields{"f": nested(depth-1, arrayValue(integerValue(1)))}))
			wantCode(t, err, want)
		}
	}},
	{"UnstorableValuesAreInvalid", func(t *testing.T, r *rig) {
		reference := func(name string) *value {
			return &value{ValueType: &firestorepb.Value_ReferenceValue{ReferenceValue: name}}
		}
		for name, v := range map[string]*value{
			"untyped":           {},
			"array in array":    arrayValue(arrayValue()),
			"late timestamp":    {ValueType: &firestorepb.Value_TimestampValue{TimestampValue: &timestamppb.Timestamp{Seconds: 1 << 40}}},
			"reference to junk": reference("junk"), "to a collection": reference(r.name("c")),
			"vector of texts":  mapValue(fields{"__type__": textValue("__vector__"), "value": arrayValue(textValue("x"))}),
			"vector of nought": mapValue(fields{"__type__": textValue("__vector__")}),
			"other type":       mapValue(fields{"__type__": textValue("other")}),
			"reserved name":    mapValue(fields{"__x__": integerValue(1)}), "empty name": mapValue(fields{"": integerValue(1)}),
		} {
			if _, err := r.commit(nil, putFields(r.name("c/bad"), fields{"f": v})); status.Code(err) != codes.InvalidArgument {
				t.Errorf("%s: %v, want InvalidArgument", name, err)
			}
		}
	}},
	{"FieldNames", func(t *testing.T, r *rig) {
		for name, want := range map[string]codes.Code{
			"": codes.InvalidArgument, "__x__": codes.InvalidArgument, "__name__": codes.InvalidArgument,
			"__type__": codes.InvalidArgument, strings.Repeat("a", 1501): codes.InvalidArgument,
			"__a": codes.OK, "a__": codes.OK, "____": codes.OK, "a.b": codes.OK, "a/b": codes.OK, "`": codes.OK,
			"é": codes.OK, "\x00": codes.OK, strings.Repeat("a", 1500): codes.OK,
		} {
			if _, err := r.commit(nil, putFields(r.name("c/d"), fields{name: integerValue(1)})); status.Code(err) != want {
				t.Errorf("%.20q: %v, want %v", name, err, want)
			}
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
		ref := r.doc(t, nil)
		at := &timestamppb.Timestamp{Seconds: -5, Nanos: 1999}
		v := &value{ValueType: &firestorepb.Value_TimestampValue{TimestampValue: at}}
		must[*firestorepb.CommitResponse](t)(r.commit(nil, putFields(ref.Path, fields{"t": v})))
		doc := must[*firestorepb.Document](t)(r.raw.GetDocument(r.ctx, &firestorepb.GetDocumentRequest{Name: ref.Path}))
		if got := doc.Fields["t"].GetTimestampValue(); got.Seconds != -5 || got.Nanos != 1000 {
			t.Errorf("stored %v, want -5 s and 1000 ns", got)
		}
	}},
}

var nameCases = []conformanceCase{
	{"DocumentIDs", func(t *testing.T, r *rig) {
		long := strings.Repeat("x", 1500)
		for id, want := range map[string]codes.Code{
			"": codes.InvalidArgument, ".": codes.InvalidArgument, "..": codes.InvalidArgument,
			"__x__": codes.InvalidArgument, long + "x": codes.InvalidArgument, "b/c": codes.InvalidArgument,
			"...": codes.OK, "____": codes.OK, "__x": codes.OK, "__id5__": codes.OK, " ": codes.OK, "\x00\x01": codes.OK,
			"é": codes.OK, long: codes.OK,
		} {
			if _, err := r.commit(nil, putFields(r.name("c/"+id), nil)); status.Code(err) != want {
				t.Errorf("write %.20q: %v, want %v", id, err, want)
			}
			_, err := r.batchGet(&firestorepb.BatchGetDocumentsRequest{Database: r.database, Documents: []string{r.name("c/" + id)}})
			if len(id) > 1500 {
				want = codes.OK // read as missing
			}
			if status.Code(err) != want {
				t.Errorf("read %.20q: %v, want %v", id, err, want)
			}
		}
	}},
	{"OtherNamesAreInvalid", func(t *testing.T, r *rig) {
		for _, name := range []string{
			"", "junk", r.database, r.database + "/documents", r.name("c"), r.name("/d"), r.name("c/d/"), r.name("c//d/e"),
			r.name("__c__/d"), r.name("./d"), r.name(strings.Repeat("x", 1501) + "/d"), r.name(strings.Repeat("a/b/", 101) + "a/b"),
		} {
			if _, err := r.commit(nil, putFields(name, nil)); status.Code(err) != codes.InvalidArgument {
				t.Errorf("%.60q: %v, want InvalidArgument", name, err)
			}
		}
	}},
	{"DatabaseNames", func(t *testing.T, r *rig) {
		for name, want := range map[string]codes.Code{
			"": codes.InvalidArgument, "x": codes.InvalidArgument, "projects/p/databases": codes.InvalidArgument,
			"projects//databases/d": codes.InvalidArgument, "projects/p/databases/": codes.InvalidArgument,
			r.database + "/documents": codes.InvalidArgument, "projects/p/databases/other": codes.OK,
		} {
			if _, err := r.raw.BeginTransaction(r.ctx, &firestorepb.BeginTransactionRequest{Database: name}); status.Code(err) != want {
				t.Errorf("%q: %v, want %v", name, err, want)
			}
		}
	}},
}
