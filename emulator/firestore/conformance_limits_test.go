package firestore_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	client "cloud.google.com/go/firestore"
	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/genproto/googleapis/type/latlng"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// TestDifferential has found what is here, and looks for more.

// listed is a filter by an operator that takes a list, of n values.
func listed(q client.Query, path, op string, n int) client.Query {
	list := make([]int, n)
	for i := range list {
		list[i] = i
	}
	return q.Where(path, op, list)
}

// each adds n filters, of one field or, with a verb in the path, of different ones.
func each(q client.Query, path, op string, n int) client.Query {
	for i := range n {
		field := path
		if strings.Contains(path, "%") {
			field = fmt.Sprintf(path, i)
		}
		q = q.Where(field, op, i)
	}
	return q
}

func is(path, op string, v any) client.EntityFilter {
	return client.PropertyFilter{Path: path, Operator: op, Value: v}
}

// anyOf is an or of n filters n == i, and of others.
func anyOf(q client.Query, n int, others ...client.EntityFilter) client.Query {
	for i := range n {
		others = append(others, is("n", "==", i))
	}
	return q.WhereEntity(client.OrFilter{Filters: others})
}

// limit is a query at a limit, and one beyond it.
type limit struct {
	name       string
	at, beyond client.Query
}

func filterLimits(q client.Query) []limit {
	contained, excluded := is("a", "array-contains", 1), is("n", "not-in", []int{1})
	notIn, twice := q.WhereEntity(excluded), q.Where("n", "in", []int{0, 1, 0, 1, 0, 1})
	const containsAny = "array-contains-any"
	return []limit{
		{"in", listed(q, "n", "in", 30), listed(q, "n", "in", 31)},
		{"in nothing", listed(q, "n", "in", 1), listed(q, "n", "in", 0)},
		{"not-in", listed(q, "n", "not-in", 10), listed(q, "n", "not-in", 11)},
		{"not-in nothing", listed(q, "n", "not-in", 1), listed(q, "n", "not-in", 0)},
		{containsAny, listed(q, "n", containsAny, 30), listed(q, "n", containsAny, 31)},
		{"any of none", listed(q, "n", containsAny, 1), listed(q, "n", containsAny, 0)},
		{"or", anyOf(q, 30), anyOf(q, 31)},
		{"in in or", anyOf(listed(q, "m", "in", 5), 6), anyOf(listed(q, "m", "in", 6), 6)},
		{"equal in in", listed(twice, "m", "in", 15), listed(twice, "m", "in", 16)},
		{"not-in and any", notIn.WhereEntity(contained), listed(notIn, "a", containsAny, 1)},
		{"array-contains", anyOf(q, 0, contained, contained), each(q, "a", "array-contains", 2)},
		{"contains and any", listed(q, "a", containsAny, 2), listed(q.WhereEntity(contained), "b", containsAny, 2)},
		{"!=", each(q, "n", "!=", 1), each(q, "n", "!=", 2)},
		{"not null", q.Where("n", "!=", nil), q.Where("n", "!=", nil).Where("m", "!=", math.NaN())},
		{"not-in and or", notIn.Where("m", "<", 1), anyOf(q, 1, excluded)},
		{"not-in and in", listed(q, "n", "in", 1), listed(notIn, "m", "in", 1)},
		{"not-in and !=", notIn, notIn.Where("m", "!=", 1)},
		{"inequalities", each(q, "f%d", ">", 10), each(q, "f%d", ">", 11)},
		{"filters", each(q, "n", ">", 100), each(q, "n", ">", 101)},
		{"size", q.Where("n", "==", strings.Repeat("x", 1499)), q.Where("n", "==", strings.Repeat("x", 1500))},
	}
}

func orderLimits(q client.Query, name *client.DocumentRef) []limit {
	by := func(q client.Query, paths ...string) client.Query {
		for _, path := range paths {
			q = q.OrderBy(path, client.Asc)
		}
		return q
	}
	const id = client.DocumentID
	inequality := q.Where("n", ">", 1)
	named := q.Where(id, "==", name)
	return []limit{
		{"filters and orders", by(each(q, "n", ">", 99), "n"), by(each(q, "n", ">", 100), "n")},
		{"order", by(q, "n", "m"), by(q, "n", "n")},
		{"order by the name", by(q, "n", id), by(q, id, "n")},
		{"order by another", by(inequality, "n", "m"), by(inequality, id)},
		{"the name and a field", named.Where("n", "==", 1), named.Where("n", ">", 1)},
		{"the name as an array", q.Where(id, "in", []any{name}), q.Where(id, "array-contains", name)},
		{"the name of nothing", q.Where(id, ">", name), q.Where(id, "!=", nil)},
	}
}

// typed are values by what they are.
type typed map[string]*value

func timeValue(seconds int64, nanos int32) *value {
	t := &timestamppb.Timestamp{Seconds: seconds, Nanos: nanos}
	return &value{ValueType: &firestorepb.Value_TimestampValue{TimestampValue: t}}
}

func pointValue(latitude, longitude float64) *value {
	p := &latlng.LatLng{Latitude: latitude, Longitude: longitude}
	return &value{ValueType: &firestorepb.Value_GeoPointValue{GeoPointValue: p}}
}

func referenceValue(name string) *value {
	return &value{ValueType: &firestorepb.Value_ReferenceValue{ReferenceValue: name}}
}

func dimensions(n int) (list []*value) {
	for range n {
		list = append(list, doubleValue(1))
	}
	return list
}

func goodValues() typed {
	return typed{
		"first time": timeValue(-62135596800, 0), "last time": timeValue(253402300799, 999999999),
		"north pole": pointValue(90, 180), "south pole": pointValue(-90, -180),
		"reference": referenceValue("projects/other/databases/d/documents/c/d"),
		"vector":    vectorValue(dimensions(187)...),
	}
}

func badValues(r *rig) typed {
	more := vectorValue(doubleValue(1))
	more.GetMapValue().Fields["more"] = doubleValue(1)
	return typed{
		"no type": {}, "field": {ValueType: &firestorepb.Value_FieldReferenceValue{FieldReferenceValue: "a"}},
		"early": timeValue(-62135596801, 0), "late": timeValue(253402300800, 0), "negative": timeValue(0, -1),
		"a second of nanoseconds": timeValue(0, 1e9),
		"north of the pole":       pointValue(90.1, 0),
		"east":                    pointValue(0, 180.1), "nowhere": pointValue(0, math.NaN()),
		"relative name": referenceValue("c/d"), "collection": referenceValue(r.name("c")),
		"no name":      referenceValue(""),
		"no dimension": vectorValue(), "2049 dimensions": vectorValue(dimensions(2049)...),
		"whole dimension": vectorValue(integerValue(1)), "more than a vector": more,
	}
}

func fieldFilter(path string, op int32, v *value) *queryFilter {
	filter := &firestorepb.StructuredQuery_FieldFilter{
		Field: &firestorepb.StructuredQuery_FieldReference{FieldPath: path},
		Op:    firestorepb.StructuredQuery_FieldFilter_Operator(op), Value: v,
	}
	return &queryFilter{
		FilterType: &firestorepb.StructuredQuery_Filter_FieldFilter{FieldFilter: filter},
	}
}

// where runs a query of the collection v with a filter that the client does not make.
func (r *rig) where(filter *queryFilter) (found string, err error) {
	request := r.request(r.client.Collection("v").Query)
	request.GetStructuredQuery().Where = filter
	answers, err := r.query(request)
	for _, a := range answers {
		found += a.GetDocument().GetName()[max(0, len(a.GetDocument().GetName())-1):]
	}
	return found, err
}

var refusalCases = []conformanceCase{
	{"QueriesHaveLimits", func(t *testing.T, r *rig) {
		v := r.client.Collection("v")
		for _, l := range append(filterLimits(v.Query), orderLimits(v.Query, v.Doc("1"))...) {
			_, atLimit := r.found(l.at)
			_, beyond := r.found(l.beyond)
			if atLimit != nil || status.Code(beyond) != codes.InvalidArgument {
				t.Errorf("%s: %v at the limit, and %v beyond it", l.name, atLimit, beyond)
			}
		}
		for _, q := range []client.Query{v.Query, v.Where(client.DocumentID, ">", v.Doc("1"))} {
			_, err := r.found(q.OrderBy(client.DocumentID, client.Desc))
			wantCode(t, err, codes.FailedPrecondition)
		}
		r.wantFound(v.Where("a", "==", 1).OrderBy(client.DocumentID, client.Desc), "")
	}},
	{"MalformedFiltersAreInvalid", func(t *testing.T, r *rig) {
		or := func(op int32, parts ...*queryFilter) *queryFilter {
			return compositeFilter(compositeOperator(op), parts)
		}
		for name, filter := range map[string]*queryFilter{
			"operator": fieldFilter("a", 0, integerValue(1)), "in a number": fieldFilter("a", 8, integerValue(1)),
			"or of nothing": or(2), "neither": or(0, fieldFilter("a", 5, integerValue(1))), "nothing": {},
			"path":                         fieldFilter("a-b", 5, integerValue(1)),
			"text after a quote":           fieldFilter("`a`b", 5, integerValue(1)),
			"the name of another database": fieldFilter("__name__", 5, goodValues()["reference"]),
		} {
			_, err := r.where(filter)
			wantCode(t, err, codes.InvalidArgument, name)
		}
		r.ok(r.where(or(1)))

		v := r.client.Collection("v")
		backwards, path := r.request(v.OrderBy("n", client.Asc)), r.request(v.Query)
		backwards.GetStructuredQuery().OrderBy[0].Direction = 3
		path.GetStructuredQuery().From[0].CollectionId = "a/b"
		for _, request := range []*firestorepb.RunQueryRequest{backwards, path} {
			_, err := r.query(request)
			wantCode(t, err, codes.InvalidArgument)
		}
	}},
	{"CursorsHaveValuesOfTheOrder", func(t *testing.T, r *rig) {
		v := r.client.Collection("v")
		for name, c := range map[string]struct {
			q     client.Query
			value *value
		}{
			"of no order":  {v.Where("n", ">", 1), integerValue(1)},
			"not a name":   {v.OrderBy(client.DocumentID, client.Asc), textValue("1")},
			"of no type":   {v.OrderBy("n", client.Asc), &value{}},
			"out of range": {v.OrderBy("n", client.Asc), pointValue(91, 0)},
		} {
			request := r.request(c.q)
			request.GetStructuredQuery().EndAt = &firestorepb.Cursor{Values: []*value{c.value}}
			_, err := r.query(request)
			wantCode(t, err, codes.InvalidArgument, name)
		}
	}},
	{"ValuesAreCheckedWhereverTheyAre", func(t *testing.T, r *rig) {
		check := func(values typed, want codes.Code) {
			for name, v := range values {
				_, written := r.commit(nil, putFields(r.name("c/d"), fields{"f": mapValue(fields{"x": v})}))
				_, searched := r.where(fieldFilter("f", 5, v))
				if status.Code(written) != want || status.Code(searched) != want {
					t.Errorf("%s: written %v, searched %v, want %v", name, written, searched, want)
				}
			}
		}
		check(goodValues(), codes.OK)
		check(badValues(r), codes.InvalidArgument)
		for _, v := range []*value{arrayValue(vectorValue(dimensions(1)...)), vectorValue(doubleValue(math.NaN()))} {
			_, err := r.commit(nil, putFields(r.name("c/d"), fields{"f": v}))
			wantCode(t, err, codes.InvalidArgument)
		}
		r.ok(r.where(fieldFilter("f", 5, arrayValue(arrayValue(vectorValue(dimensions(1)...))))))
		_, err := r.where(fieldFilter("f", 5, vectorValue(dimensions(188)...)))
		wantCode(t, err, codes.InvalidArgument)
		r.ok(r.where(fieldFilter("f", 5, nested(30, mapValue(fields{"": integerValue(1)})))))
	}},
	{"NothingEqualsNullOrNaN", func(t *testing.T, r *rig) {
		nan, null := doubleValue(math.NaN()), &value{ValueType: &firestorepb.Value_NullValue{}}
		for id, v := range map[string]*value{"0": null, "1": nan, "2": arrayValue(null, nan), "3": integerValue(1)} {
			r.ok(r.commit(nil, putFields(r.name("v/"+id), fields{"x": v})))
		}
		for _, c := range []struct {
			op   int32
			v    *value
			want string
		}{
			{5, null, ""}, {5, nan, ""}, {6, null, ""}, {6, nan, "132"}, {7, null, ""}, {7, nan, ""},
			{9, arrayValue(null, nan), ""}, {10, arrayValue(nan), "132"}, {5, arrayValue(null, nan), "2"},
		} {
			if got, err := r.where(fieldFilter("x", c.op, c.v)); err != nil || got != c.want {
				t.Errorf("operator %d with %v: found %q, %v, want %q", c.op, c.v, got, err, c.want)
			}
		}
		for _, v := range []*value{null, nan} { // which no order needs
			named := fieldFilter("__name__", 5, referenceValue(r.name("v/1")))
			and := []*queryFilter{fieldFilter("x", 1, v), named}
			r.ok(r.where(compositeFilter(firestorepb.StructuredQuery_CompositeFilter_AND, and)))
		}
	}},
	{"VectorsAreWholesAndTheShorterComesFirst", func(_ *testing.T, r *rig) {
		v := r.client.Collection("v")
		for id, x := range map[string]any{
			"0": []int{9}, "1": client.Vector64{2}, "2": client.Vector64{1, 1}, "3": client.Vector64{1, 2},
			"4": object{},
		} {
			r.ok(v.Doc(id).Set(r.ctx, object{"x": x}))
		}
		r.wantFound(v.OrderBy("x", client.Asc), "0 1 2 3 4")
		r.wantFound(v.Where("x", ">", client.Vector64{1, 1}), "3")
		r.wantFound(v.OrderBy("x.value", client.Asc), "")
	}},
	{"TheNameIsTheLastOrder", func(_ *testing.T, r *rig) {
		v := r.client.Collection("v")
		for id, n := range map[string]int{"1": 3, "2": 2, "3": 1} {
			r.ok(v.Doc(id).Set(r.ctx, object{"n": n}))
		}
		r.wantFound(v.Where(client.DocumentID, ">", v.Doc("1")).Where("n", ">", 0), "3 2")
	}},
	{"WritesThatMakeNoSenseAreInvalid", func(t *testing.T, r *rig) {
		field := func(path string) *fieldTransform {
			return &fieldTransform{FieldPath: path,
				TransformType: &firestorepb.DocumentTransform_FieldTransform_Increment{Increment: integerValue(1)}}
		}
		text, unknown, removed := field("n"), field("n"), field("n")
		removed.TransformType = &firestorepb.DocumentTransform_FieldTransform_RemoveAllFromArray{
			RemoveAllFromArray: arrayValue(&value{}).GetArrayValue(),
		}
		text.TransformType = &firestorepb.DocumentTransform_FieldTransform_Increment{Increment: textValue("1")}
		unknown.TransformType = &firestorepb.DocumentTransform_FieldTransform_SetToServerValue{}
		remove := &firestorepb.Write{Operation: &firestorepb.Write_Delete{Delete: r.name("c/d")}}
		masked := proto.CloneOf(remove)
		masked.UpdateMask = &firestorepb.DocumentMask{}
		with := func(w *firestorepb.Write, transforms ...*fieldTransform) *firestorepb.Write {
			w = proto.CloneOf(w)
			w.UpdateTransforms = transforms
			return w
		}
		put := putFields(r.name("c/d"), nil)
		for name, w := range map[string]*firestorepb.Write{
			"a delete with a mask":           masked,
			"a delete with a transform":      with(remove, field("n")),
			"a sum of text":                  with(put, text),
			"an unknown server value":        with(put, unknown),
			"a removal of nothing":           with(put, removed),
			"a field and one that is inside": with(put, field("m.x"), field("m")),
		} {
			_, err := r.commit(nil, w)
			wantCode(t, err, codes.InvalidArgument, name)
		}
		r.ok(r.commit(nil, with(put, field("n"), field("n"))))
	}},
}
