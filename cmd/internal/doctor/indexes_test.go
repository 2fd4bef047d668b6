package doctor_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/grpc"

	"taskguard/cmd/internal/doctor"
	"taskguard/internal/testing/emulatortest"
	"taskguard/lease/analysislock"
	"taskguard/repo"
	"taskguard/worker"
)

// indexes is deploy/firestore.indexes.json, in Firebase's format.
type indexes struct {
	Indexes        []index `json:"indexes"`
	FieldOverrides []struct {
		CollectionGroup string        `json:"collectionGroup"`
		FieldPath       string        `json:"fieldPath"`
		Indexes         []*indexField `json:"indexes"`
	} `json:"fieldOverrides"`
}

type index struct {
	CollectionGroup string       `json:"collectionGroup"`
	QueryScope      string       `json:"queryScope"`
	Fields          []indexField `json:"fields"`
}

type indexField struct {
	FieldPath string `json:"fieldPath"`
	Order     string `json:"order"`
}

func readIndexes(t *testing.T) (declared indexes) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader([]byte(read(t, deploy+"firestore.indexes.json"))))
	d.DisallowUnknownFields()
	if err := d.Decode(&declared); err != nil {
		t.Fatal(err)
	}
	return declared
}

// Emulators need no composite index; production refuses a query without it.
func TestEachCompositeIndexThatAQueryNeedsIsDeclared(t *testing.T) {
	declared := readIndexes(t)
	needed := map[string]bool{}
	for _, q := range queries(t, worker.Kind{}) {
		for _, want := range merged(q) {
			if len(want.Fields) < 2 {
				continue
			}
			needed[fmt.Sprint(want)] = true
			if !slices.ContainsFunc(declared.Indexes, func(i index) bool { return reflect.DeepEqual(i, want) }) {
				t.Errorf("%+v is not declared", want)
			}
		}
	}
	if asked := len(doctor.NeededIndexes(worker.Kind{Collection: "analyses"})); len(needed) != len(declared.Indexes) || len(needed) != asked {
		t.Errorf("the queries need %d indexes, %d are declared, doctor asks for %d", len(needed), len(declared.Indexes), asked)
	}
}

func TestDoctorAsksForTheIndexesOfAKindWithItsOwnVocabulary(t *testing.T) {
	k := worker.Kind{Collection: "shops/s/orders", Fields: worker.Fields{Status: "state", Queued: "PENDING", Failed: "ERROR", Error: "failure"}}
	needed := map[string]bool{}
	for _, q := range queries(t, k) {
		for _, i := range merged(q) {
			var fields []string
			for _, f := range i.Fields {
				fields = append(fields, f.FieldPath+" "+f.Order)
			}
			if len(fields) > 1 {
				needed["orders: "+strings.Join(fields, ", ")] = true
			}
		}
	}
	asked := slices.Sorted(slices.Values(doctor.NeededIndexes(k)))
	if want := slices.Sorted(maps.Keys(needed)); !slices.Equal(asked, want) {
		t.Errorf("doctor asks for %q, the queries need %q", asked, want)
	}
}

// An input with more than 40,000 index entries is refused in production. The exemption of
// a map holds for its fields too, but a composite index of one, such as error.code, serves
// queries nevertheless.
func TestLargeFieldsAreNotIndexed(t *testing.T) {
	exempt := map[string]bool{}
	for _, o := range readIndexes(t).FieldOverrides {
		if o.CollectionGroup != "analyses" || o.Indexes == nil || len(o.Indexes) > 0 {
			t.Errorf("%+v is no exemption of a field of analyses", o)
		}
		exempt[o.FieldPath] = true
	}
	for _, field := range []string{"input", "result", "error", "lastError", "progress", "checkpoint", "history", "expireAt"} {
		if !exempt[field] {
			t.Errorf("%s is indexed", field)
		}
	}
	for _, q := range queries(t, worker.Kind{}) {
		for _, i := range merged(q) {
			if root, _, _ := strings.Cut(i.Fields[0].FieldPath, "."); exempt[root] && len(i.Fields) == 1 {
				t.Errorf("%s is queried and not indexed", i.Fields[0].FieldPath)
			}
		}
	}
}

// queries returns the queries of a kind, of each method of repo that runs one.
func queries(t *testing.T, k worker.Kind) []*firestorepb.StructuredQuery {
	t.Helper()
	var sent []*firestorepb.StructuredQuery
	b := emulatortest.Embedded(t)
	a, err := repo.Open(t.Context(), b.Project, repo.Options{Collection: k.Collection, Fields: k.Fields}, b.Client(t, grpc.WithChainStreamInterceptor(
		func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			s, err := open(ctx, desc, cc, method, opts...)
			return recordedStream{s, func(q *firestorepb.StructuredQuery) { sent = append(sent, q) }}, err
		}))...)
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	run := func(results ...any) {
		t.Helper()
		if err := results[len(results)-1]; err != nil {
			t.Fatal(err)
		}
	}
	run(a.Orphaned(ctx, 10))
	run(a.List(ctx, "", 10))
	run(a.Unfinished(ctx, 10))
	run(a.Page(ctx, repo.Filter{}, "", 10))
	run(a.Page(ctx, repo.Filter{Prefix: "a"}, "", 10))
	run(a.Active(ctx, 10))
	run(a.Failures(ctx, 10))
	run(a.Count(ctx, repo.Filter{Status: analysislock.Failed, Code: "c", ErrorOnly: true}))
	run(a.List(ctx, analysislock.Failed, 10))
	run(a.UnknownStatus(ctx, 10))
	run(a.Count(ctx, repo.Filter{Status: analysislock.Failed}))
	run(a.Find(ctx, repo.Filter{Status: analysislock.Failed, Code: "c"}, "", 10))
	run(a.OldestUnfinished(ctx))
	if len(sent) < 10 {
		t.Fatalf("%d queries were sent", len(sent))
	}
	return sent
}

// recordedStream records the queries that a stream sends.
type recordedStream struct {
	grpc.ClientStream
	record func(*firestorepb.StructuredQuery)
}

func (s recordedStream) SendMsg(m any) error {
	switch r := m.(type) {
	case *firestorepb.RunQueryRequest:
		s.record(r.GetStructuredQuery())
	case *firestorepb.RunAggregationQueryRequest:
		s.record(r.GetStructuredAggregationQuery().GetStructuredQuery())
	}
	return s.ClientStream.SendMsg(m)
}

// merged returns the indexes that Firestore merges to answer a query: one for each field
// that is compared for equality, followed by those that order the results.
func merged(q *firestorepb.StructuredQuery) (all []index) {
	var order []indexField
	for _, o := range q.GetOrderBy() {
		if path := o.GetField().GetFieldPath(); path != "__name__" {
			order = append(order, indexField{FieldPath: path, Order: o.GetDirection().String()})
		}
	}
	add := func(fields []indexField) {
		all = append(all, index{CollectionGroup: q.GetFrom()[0].GetCollectionId(), QueryScope: "COLLECTION", Fields: fields})
	}
	equal := equalities(q.GetWhere())
	for _, path := range equal {
		add(append([]indexField{{FieldPath: path, Order: "ASCENDING"}}, order...))
	}
	if len(equal) == 0 && len(order) > 0 {
		add(order)
	}
	return all
}

func equalities(f *firestorepb.StructuredQuery_Filter) (paths []string) {
	for _, part := range f.GetCompositeFilter().GetFilters() {
		paths = append(paths, equalities(part)...)
	}
	switch f.GetFieldFilter().GetOp() {
	case firestorepb.StructuredQuery_FieldFilter_EQUAL, firestorepb.StructuredQuery_FieldFilter_IN:
		paths = append(paths, f.GetFieldFilter().GetField().GetFieldPath())
	}
	return paths
}
