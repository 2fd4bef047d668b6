package doctor_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"

	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/grpc"

	"taskguard/cmd/internal/doctor"
	"taskguard/internal/testing/emulatortest"
	"taskguard/internal/testing/must"
	"taskguard/lease/analysislock"
	"taskguard/repo"
	"taskguard/worker"
)

// Emulators need no composite index; production refuses a query without it.
func TestNeededIndexes(t *testing.T) {
	for _, k := range []worker.Kind{
		{Collection: "analyses"},
		{
			Collection: "shops/s/orders",
			Fields:     worker.Fields{Status: "state", Queued: "PENDING", Failed: "ERROR", Error: "failure"},
		},
	} {
		needed := map[string]bool{}
		for _, i := range merged(queries(t, k)) {
			if strings.Contains(i, ", ") {
				needed[i] = true
			}
		}
		want, asked := slices.Sorted(maps.Keys(needed)), slices.Sorted(slices.Values(doctor.NeededIndexes(k)))
		if !slices.Equal(asked, want) {
			t.Errorf("doctor asks for %q, the queries need %q", asked, want)
		}
		declared := slices.Sorted(maps.Keys(files(t).Indexes.Composite))
		if k.Collection == "analyses" && !slices.Equal(declared, want) {
			t.Errorf("%q are declared, the queries need %q", declared, want)
		}
	}
}

// The exemption of a map holds for its fields too, but a composite index of one, such as error.code,
// serves queries nevertheless.
func TestNeededIndexes_Exempted(t *testing.T) {
	exempt := files(t).Indexes.Fields
	if indexed, set := exempt["analyses/expireAt"]; indexed || !set {
		t.Error("expireAt is indexed: its values grow with time, which limits the writes")
	}
	for _, i := range merged(queries(t, worker.Kind{})) {
		_, fields, _ := strings.Cut(i, ": ")
		root, _, _ := strings.Cut(strings.Fields(fields)[0], ".")
		if _, set := exempt["analyses/"+root]; set && !strings.Contains(i, ", ") {
			t.Errorf("%s is queried and not indexed", i)
		}
	}
}

// queries returns the queries of a kind, of each method of repo that runs one.
func queries(t *testing.T, k worker.Kind) []*firestorepb.StructuredQuery {
	t.Helper()
	var sent []*firestorepb.StructuredQuery
	b := emulatortest.Embedded(t)
	record := grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn,
		method string, open grpc.Streamer, opts ...grpc.CallOption,
	) (grpc.ClientStream, error) {
		s, err := open(ctx, desc, cc, method, opts...)
		return recordedStream{s, func(q *firestorepb.StructuredQuery) { sent = append(sent, q) }}, err
	})
	options := repo.Options{Collection: k.Collection, Fields: k.Fields}
	a, err := repo.Open(t.Context(), b.Project, options, b.Client(t, record)...)
	must.OK(t, err)
	ctx := t.Context()
	run := func(results ...any) {
		t.Helper()
		if err, failed := results[len(results)-1].(error); failed {
			t.Fatal(err)
		}
	}
	run(a.Orphaned(ctx, 10))
	run(a.Find(ctx, repo.Filter{All: true}, "", 10))
	run(a.Unfinished(ctx, 10))
	run(a.Page(ctx, repo.Filter{}, "", 10))
	run(a.Page(ctx, repo.Filter{Prefix: "a"}, "", 10))
	run(a.Active(ctx, 10))
	run(a.Failures(ctx, 10))
	run(a.Count(ctx, repo.Filter{Status: analysislock.Failed, Code: "c", Cause: true}))
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

// merged returns the indexes that Firestore merges to answer queries: one for each field
// that is compared for equality, followed by those that order the results.
func merged(queries []*firestorepb.StructuredQuery) (all []string) {
	for _, q := range queries {
		var order []string
		for _, o := range q.GetOrderBy() {
			if path := o.GetField().GetFieldPath(); path != "__name__" {
				order = append(order, path+" "+o.GetDirection().String())
			}
		}
		group := q.GetFrom()[0].GetCollectionId() + ": "
		equal := equalities(q.GetWhere())
		for _, path := range equal {
			all = append(all, group+strings.Join(append([]string{path + " ASCENDING"}, order...), ", "))
		}
		if len(equal) == 0 && len(order) > 0 {
			all = append(all, group+strings.Join(order, ", "))
		}
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
