package firestore

import (
	"context"
	"testing"
	"time"

	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const fuzzDatabase = "projects/p/databases/d"

func fuzzName(path string) string { return fuzzDatabase + "/documents/" + path }

func marshal(t testing.TB, m proto.Message) []byte {
	t.Helper()
	data, err := proto.Marshal(m)
	if err != nil {
		t.Fatalf("marshal: %v", err)
	}
	return data
}

func fuzzUpdate(name string, n int64) *firestorepb.Write {
	return &firestorepb.Write{Operation: &firestorepb.Write_Update{
		Update: &firestorepb.Document{Name: name, Fields: fields{"n": integerValue(n), "m": mapValue(fields{"a": arrayValue([]*value{integerValue(n)})})}},
	}}
}

// FuzzCommit puts a write of its own before whatever the bytes mean: it must be
// there if the commit succeeded and not if it failed.
func FuzzCommit(f *testing.F) {
	masked := fuzzUpdate(fuzzName("c/d"), 1)
	masked.UpdateMask = &firestorepb.DocumentMask{FieldPaths: []string{"n", "m.`a b`"}}
	transformed := fuzzUpdate(fuzzName("c/d"), 1)
	for _, v := range []*value{integerValue(1), {ValueType: &firestorepb.Value_DoubleValue{DoubleValue: 1}}} {
		transformed.UpdateTransforms = append(transformed.UpdateTransforms,
			&firestorepb.DocumentTransform_FieldTransform{FieldPath: "n", TransformType: &firestorepb.DocumentTransform_FieldTransform_Increment{Increment: v}},
			&firestorepb.DocumentTransform_FieldTransform{FieldPath: "m.a", TransformType: &firestorepb.DocumentTransform_FieldTransform_AppendMissingElements{
				AppendMissingElements: &firestorepb.ArrayValue{Values: []*value{v}},
			}})
	}
	conditional := fuzzUpdate(fuzzName("c/e"), 2)
	conditional.CurrentDocument = &firestorepb.Precondition{ConditionType: &firestorepb.Precondition_Exists{Exists: true}}
	for _, w := range []*firestorepb.Write{
		fuzzUpdate(fuzzName("c/d"), 1), masked, transformed, conditional,
		{Operation: &firestorepb.Write_Delete{Delete: fuzzName("c/d")}},
	} {
		f.Add(marshal(f, &firestorepb.CommitRequest{Database: fuzzDatabase, Writes: []*firestorepb.Write{w, masked}}))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r := &firestorepb.CommitRequest{}
		if proto.Unmarshal(data, r) != nil {
			return
		}
		a := &api{store: newStore(time.Now)}
		existing := &firestorepb.CommitRequest{Database: fuzzDatabase, Writes: []*firestorepb.Write{fuzzUpdate(fuzzName("c/d"), 9)}}
		if _, err := a.Commit(context.Background(), existing); err != nil {
			t.Fatalf("commit: %v", err)
		}
		r.Database = fuzzDatabase
		witness := fuzzName("witness/of the whole commit")
		r.Writes = append([]*firestorepb.Write{fuzzUpdate(witness, 7)}, r.Writes...)
		_, err := a.Commit(context.Background(), r)
		applied := a.store.database(fuzzDatabase).docs[witness] != nil
		if applied != (err == nil) {
			t.Fatalf("error %v, but the first write applied: %v", err, applied)
		}
		for name, d := range a.store.database(fuzzDatabase).docs {
			if _, err := parseDocument(fuzzDatabase, name); err != nil {
				t.Errorf("stored under a bad name: %v", err)
			}
			if err := checkFields(d.pb.Fields); err != nil {
				t.Errorf("stored what it refuses: %v", err)
			}
		}
	})
}

// answers collects what RunQuery sends.
type answers struct {
	grpc.ServerStream
	sent []*firestorepb.RunQueryResponse
}

func (s *answers) Send(r *firestorepb.RunQueryResponse) error {
	s.sent = append(s.sent, r)
	return nil
}

// FuzzRunQuery runs whatever the bytes mean over a few documents: no more than
// the limit come back, each once.
func FuzzRunQuery(f *testing.F) {
	field := &firestorepb.StructuredQuery_FieldReference{FieldPath: "n"}
	for op := range firestorepb.StructuredQuery_FieldFilter_Operator_name {
		for _, v := range []*value{integerValue(1), arrayValue([]*value{integerValue(1)})} {
			f.Add(marshal(f, &firestorepb.StructuredQuery{
				From: []*firestorepb.StructuredQuery_CollectionSelector{{CollectionId: "c", AllDescendants: op%2 == 0}},
				Where: &firestorepb.StructuredQuery_Filter{FilterType: &firestorepb.StructuredQuery_Filter_FieldFilter{
					FieldFilter: &firestorepb.StructuredQuery_FieldFilter{Field: field, Op: firestorepb.StructuredQuery_FieldFilter_Operator(op), Value: v},
				}},
				OrderBy: []*firestorepb.StructuredQuery_Order{{Field: field, Direction: firestorepb.StructuredQuery_DESCENDING}},
				StartAt: &firestorepb.Cursor{Values: []*value{integerValue(3)}, Before: true},
				Offset:  1, Limit: wrapperspb.Int32(2),
			}))
		}
	}
	a := &api{store: newStore(time.Now)}
	for _, name := range []string{"c/a", "c/b", "c/c", "c/a/c/d", "d/e"} {
		r := &firestorepb.CommitRequest{Database: fuzzDatabase, Writes: []*firestorepb.Write{fuzzUpdate(fuzzName(name), int64(len(name)))}}
		if _, err := a.Commit(context.Background(), r); err != nil {
			f.Fatalf("commit: %v", err)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		q := &firestorepb.StructuredQuery{}
		if proto.Unmarshal(data, q) != nil {
			return
		}
		stream := &answers{}
		err := a.RunQuery(&firestorepb.RunQueryRequest{
			Parent: fuzzDatabase + "/documents", QueryType: &firestorepb.RunQueryRequest_StructuredQuery{StructuredQuery: q},
		}, stream)
		if err != nil {
			return
		}
		seen := map[string]bool{}
		for _, answer := range stream.sent {
			if name := answer.GetDocument().GetName(); answer.Document != nil && seen[name] {
				t.Errorf("%s came twice", name)
			} else if answer.Document != nil {
				seen[name] = true
			}
		}
		if limit := q.GetLimit(); limit != nil && len(seen) > int(limit.GetValue()) {
			t.Errorf("%d documents, limit %d", len(seen), limit.GetValue())
		}
	})
}
