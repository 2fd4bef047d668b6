package firestore_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	client "cloud.google.com/go/firestore"
	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/genproto/googleapis/type/latlng"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"taskguard/internal/testing/must"
)

// request is the request that the client makes of a query.
func (r *rig) request(q client.Query) *firestorepb.RunQueryRequest {
	r.t.Helper()
	var request firestorepb.RunQueryRequest
	r.ok(nil, proto.Unmarshal(must.Get(q.Serialize())(r.t), &request))
	return &request
}

func (r *rig) query(request *firestorepb.RunQueryRequest) ([]*firestorepb.RunQueryResponse, error) {
	stream, err := r.raw.RunQuery(r.ctx, request)
	if err != nil {
		return nil, err
	}
	return drain(stream.Recv)
}

// found runs a query and returns the ids, joined.
func (r *rig) found(q client.Query) (string, error) {
	snaps, err := q.Documents(r.ctx).GetAll()
	var ids []string
	for _, s := range snaps {
		ids = append(ids, s.Ref.ID)
	}
	return strings.Join(ids, " "), err
}

func (r *rig) wantFound(q client.Query, want string) {
	r.t.Helper()
	got, err := r.found(q)
	if err != nil || got != want {
		r.t.Errorf("found %q (%v), want %q", got, err, want)
	}
}

// ordered has values of every kind, in Firestore's order. No two compare as equal.
func ordered(r *rig) []any {
	return []any{
		nil, false, true, math.NaN(), math.Inf(-1), int64(math.MinInt64), -1, -0.5, 0, 0.5, 1,
		float64(1 << 53), int64(math.MaxInt64), math.Inf(1), time.Unix(1, 0), time.Unix(2, 0),
		"", "a", "é", "\uffff", "😀", []byte{}, []byte{1},
		r.client.Doc("a/b"), r.client.Doc("a/b/c/d"), r.client.Doc("a/c"),
		&latlng.LatLng{Latitude: 1, Longitude: 2}, &latlng.LatLng{Latitude: 1, Longitude: 3},
		[]any{}, []any{nil}, []any{1}, []any{1, 2}, []any{"a", 1},
		object{}, object{"a": 1}, object{"a": 1, "b": 1}, object{"a": 2}, object{"b": 0},
	}
}

var queryCases = []conformanceCase{
	{"ValuesOfAllTypesHaveOneOrder", func(_ *testing.T, r *rig) {
		values := ordered(r)
		var want []string
		for i, v := range values {
			want = append(want, fmt.Sprintf("%02d", 99-i)) // the names are in the opposite order
			r.ok(r.client.Doc("v/"+want[i]).Create(r.ctx, object{"x": v, "m": object{"x": v}}))
		}
		r.ok(r.client.Doc("v/without").Create(r.ctx, object{"y": 1}))
		v := r.client.Collection("v")
		r.wantFound(v.OrderBy("x", client.Asc), strings.Join(want, " "))
		r.wantFound(v.OrderBy("m.x", client.Asc), strings.Join(want, " "))
		slices.Reverse(want)
		r.wantFound(v.OrderBy("x", client.Desc), strings.Join(want, " "))
	}},
	{"AStartSkipsWhatIsBeforeItAndAnEndWhatIsAfter", func(t *testing.T, r *rig) {
		for i, x := range []any{1, 1, "a", 1, "b"} {
			r.ok(r.client.Doc(fmt.Sprintf("v/%d", i)).Create(r.ctx, object{"x": x}))
		}
		v := r.client.Collection("v").OrderBy("x", client.Asc)
		r.wantFound(v.StartAt(1), "0 1 3 2 4")
		r.wantFound(v.StartAfter(1), "2 4")
		second := must.Get(r.client.Doc("v/1").Get(r.ctx))(t)
		r.wantFound(v.StartAfter(second), "3 2 4")
		r.wantFound(v.StartAfter(second).Limit(1), "3")
		r.wantFound(r.client.Collection("v").OrderBy("x", client.Desc).StartAfter(second), "0")
		r.wantFound(v.EndAt(1), "0 1 3")
		r.wantFound(v.EndBefore("b"), "0 1 3 2")
		r.wantFound(v.StartAt(second).EndBefore("b").Offset(1).Limit(1), "3")
		r.wantFound(v.Offset(9), "")
		r.wantFound(v.Limit(0), "")
	}},
	{"RangesStayWithinAType", func(_ *testing.T, r *rig) {
		for i, v := range []any{nil, true, math.NaN(), 1, 1.5, 2, "a", "b"} {
			r.ok(r.client.Doc(fmt.Sprintf("v/%d", i)).Create(r.ctx, object{"x": v}))
		}
		v := r.client.Collection("v")
		r.wantFound(v.Where("x", "<", 2), "3 4")
		r.wantFound(v.Where("x", ">=", 1.5), "4 5")
		r.wantFound(v.Where("x", "<=", 1.0), "3")
		r.wantFound(v.Where("x", "==", 1.0), "3")
		r.wantFound(v.Where("x", ">", "a"), "7")
		r.wantFound(v.Where("x", "in", []any{2, "b", nil}), "5 7")
		r.wantFound(v.Where("x", "not-in", []any{2, "b"}), "1 2 3 4 6")
		r.wantFound(v.Where("x", "not-in", []any{2, nil}), "")
		r.wantFound(v.Where("none", "==", 1), "")
		r.wantFound(v.Where("x", "!=", 1), "1 2 4 5 6 7")
		r.wantFound(v.Where("x", "==", nil), "0")
		r.wantFound(v.Where("x", "!=", nil), "1 2 3 4 5 6 7")
		r.wantFound(v.Where("x", "==", math.NaN()), "2")
		r.wantFound(v.Where("x", "!=", math.NaN()), "1 3 4 5 6 7")
	}},
	{"RecoveryQueryFindsTheOldestUpdatesFirst", func(_ *testing.T, r *rig) {
		for i, d := range []object{
			{"status": "PROCESSING", "at": "2024-03-01"}, {"status": "QUEUED", "at": "2024-01-01"},
			{"status": "READY", "at": "2024-01-01"}, {"status": "PROCESSING"},
			{"status": "PROCESSING", "at": "2024-02-01"}, {"status": "QUEUED", "at": "2030-01-01"},
			{"status": "QUEUED", "at": time.Unix(0, 0)},
		} {
			r.ok(r.client.Doc(fmt.Sprintf("v/%d", i)).Create(r.ctx, d))
		}
		unfinished := r.client.Collection("v").Where("status", "in", []string{"QUEUED", "PROCESSING"})
		q := unfinished.Where("at", "<", "2025").OrderBy("at", client.Asc)
		r.wantFound(q, "1 4 0")
		r.wantFound(q.Limit(2), "1 4")
	}},
	{"QueriesSeeOneCollection", func(_ *testing.T, r *rig) {
		for _, name := range []string{"e/1", "e/2", "p/x/e/3", "p/x/e/4/e/5", "p/y/f/6"} {
			r.ok(r.client.Doc(name).Create(r.ctx, object{"n": 1}))
		}
		r.wantFound(r.client.Collection("e").Query, "1 2")
		r.wantFound(r.client.Collection("p/x/e").Query, "3")
		r.wantFound(r.client.Collection("none").Query, "")
	}},
	{"SelectLimitsTheFields", func(t *testing.T, r *rig) {
		r.ok(r.client.Doc("v/1").Create(r.ctx, object{"a": 1, "b": object{"c": 2, "d": 3}}))
		for _, c := range []struct {
			paths []string
			want  object
		}{
			{[]string{"a"}, object{"a": int64(1)}},
			{[]string{"b.d", "zz"}, object{"b": object{"d": int64(3)}}},
			{nil, object{}},
		} {
			snaps := must.Get(r.client.Collection("v").Select(c.paths...).Documents(r.ctx).GetAll())(t)
			wantData(t, snaps[0], c.want)
		}
	}},
	{"CountCounts", func(t *testing.T, r *rig) {
		for i := range 5 {
			r.doc(object{"n": i})
		}
		q := r.client.Collection("c").Where("n", ">", 1)
		result := must.Get(q.NewAggregationQuery().WithCount("all").Get(r.ctx))(t)
		if got := result["all"].(*value).GetIntegerValue(); got != 3 {
			t.Errorf("count %d, want 3", got)
		}
	}},
	{"FiltersCombine", func(_ *testing.T, r *rig) {
		for i, d := range []object{
			{"a": 1, "b": "x", "c": []any{1, 2, nil}}, {"a": 2, "b": "x"},
			{"a": 1, "b": "y", "c": []int{3}}, {"a": 3, "b": "z"},
		} {
			r.ok(r.client.Doc(fmt.Sprintf("v/%d", i)).Create(r.ctx, d))
		}
		is := func(p, op string, v any) client.EntityFilter {
			return client.PropertyFilter{Path: p, Operator: op, Value: v}
		}
		or := func(f ...client.EntityFilter) client.EntityFilter { return client.OrFilter{Filters: f} }
		and := func(f ...client.EntityFilter) client.EntityFilter { return client.AndFilter{Filters: f} }
		v := r.client.Collection("v")
		r.wantFound(v.Where("a", "==", 1).Where("b", "==", "x"), "0")
		r.wantFound(v.Where("c", "array-contains", 2), "0")
		r.wantFound(v.Where("c", "array-contains-any", []int{2, 3}), "0 2")
		r.wantFound(v.Where(client.DocumentID, ">", v.Doc("1")), "2 3")
		r.wantFound(v.WhereEntity(or(is("a", "==", 2), is("b", "==", "y"))), "1 2")
		r.wantFound(v.WhereEntity(or(and(is("a", "==", 1), is("b", "==", "x")), is("a", "==", 3))), "0 3")
		r.wantFound(v.WhereEntity(and(is("a", ">", 1), or(is("b", "==", "x"), is("b", "==", "z")))), "1 3")
		r.wantFound(v.Where("a", ">", 0).Where("b", ">", "w").OrderBy("b", client.Desc), "3 2 1 0")
		r.wantFound(v.Where("b", ">", "w").Where("a", ">", 0), "0 2 1 3")
		r.wantFound(v.OrderBy("b", client.Desc).OrderBy("a", client.Asc), "3 2 0 1")
		null := r.request(v.Query)
		null.GetStructuredQuery().Where = fieldFilter("c", 7, &value{ValueType: &firestorepb.Value_NullValue{}})
		if found := must.Get(r.query(null))(r.t); found[0].Document != nil {
			r.t.Errorf("an array that contains null is found: %v", found)
		}
	}},
	{"QueriesThatAreRefused", func(t *testing.T, r *rig) {
		v := r.client.Collection("v")
		_, err := r.found(v.OrderBy(client.DocumentID, client.Desc))
		wantCode(t, err, codes.FailedPrecondition)
		inCollection := r.request(v.Query)
		inCollection.Parent = r.name("c")
		_, err = r.query(inCollection)
		wantCode(t, err, codes.InvalidArgument)
		// An inequality that nothing matches needs no order, and so an equality of the name may be beside it.
		name := fieldFilter("__name__", 5, referenceValue(r.name("v/1")))
		nothing := r.request(v.Query)
		nothing.GetStructuredQuery().Where = compositeFilter(firestorepb.StructuredQuery_CompositeFilter_AND,
			[]*queryFilter{fieldFilter("x", 1, doubleValue(math.NaN())), name})
		r.ok(r.query(nothing))
	}},
	{"QueriesHaveLimits", func(t *testing.T, r *rig) {
		v := r.client.Collection("v").Query
		inequalities := func(field func(i int) string, n int) client.Query {
			q := v
			for i := range n {
				q = q.Where(field(i), ">", i)
			}
			return q
		}
		or := func(n int) client.EntityFilter {
			var parts []client.EntityFilter
			for i := range n {
				parts = append(parts, client.PropertyFilter{Path: "n", Operator: "==", Value: i})
			}
			return client.OrFilter{Filters: parts}
		}
		different := func(i int) string { return fmt.Sprint("f", i) }
		same := func(int) string { return "n" }
		numbers := []int{30: 0} // 31 values
		for i := range numbers {
			numbers[i] = i
		}
		for name, q := range map[string][2]client.Query{
			"in":           {v.Where("n", "in", numbers[:30]), v.Where("n", "in", numbers)},
			"disjunctions": {v.WhereEntity(or(30)), v.WhereEntity(or(31))},
			"not-in":       {v.Where("n", "not-in", numbers[:10]), v.Where("n", "not-in", numbers[:11])},
			"inequalities": {inequalities(different, 10), inequalities(different, 11)},
			"filters":      {inequalities(same, 100), inequalities(same, 101)},
		} {
			_, atLimit := r.found(q[0])
			wantCode(t, atLimit, codes.OK, name)
			_, beyond := r.found(q[1])
			wantCode(t, beyond, codes.InvalidArgument, name)
		}
	}},
}
