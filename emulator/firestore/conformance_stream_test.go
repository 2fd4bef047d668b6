package firestore_test

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"

	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
)

// stream is a Listen call with the target 5, and the client's view of it: the
// documents at the last consistent moment.
type stream struct {
	firestorepb.Firestore_ListenClient
	t        testing.TB
	database string
	view     map[string]int64 // field n by name
}

func (r *rig) stream() *stream {
	r.t.Helper()
	ctx := metadata.AppendToOutgoingContext(r.ctx, "google-cloud-resource-prefix", r.database)
	call := must(r.raw.Listen(ctx))(r.t)
	return &stream{Firestore_ListenClient: call, t: r.t, database: r.database, view: map[string]int64{}}
}

// onQuery is a target on the documents of the collection v with n < 9.
func (s *stream) onQuery() *firestorepb.Target {
	return &firestorepb.Target{TargetId: 5, TargetType: &firestorepb.Target_Query{Query: &firestorepb.Target_QueryTarget{
		Parent: s.database + "/documents",
		QueryType: &firestorepb.Target_QueryTarget_StructuredQuery{StructuredQuery: &firestorepb.StructuredQuery{
			From: []*firestorepb.StructuredQuery_CollectionSelector{{CollectionId: "v"}},
			Where: &firestorepb.StructuredQuery_Filter{FilterType: &firestorepb.StructuredQuery_Filter_FieldFilter{
				FieldFilter: &firestorepb.StructuredQuery_FieldFilter{
					Field: &firestorepb.StructuredQuery_FieldReference{FieldPath: "n"},
					Op:    firestorepb.StructuredQuery_FieldFilter_LESS_THAN, Value: integerValue(9),
				},
			}},
		}},
	}}}
}

// onDocuments is a target on documents of the collection v.
func (s *stream) onDocuments(ids ...string) *firestorepb.Target {
	list := &firestorepb.Target_DocumentsTarget{}
	for _, name := range ids {
		list.Documents = append(list.Documents, s.database+"/documents/v/"+name)
	}
	return &firestorepb.Target{TargetId: 5, TargetType: &firestorepb.Target_Documents{Documents: list}}
}

func (s *stream) add(target *firestorepb.Target) {
	s.t.Helper()
	s.request(&firestorepb.ListenRequest{TargetChange: &firestorepb.ListenRequest_AddTarget{AddTarget: target}})
}

func (s *stream) request(r *firestorepb.ListenRequest) {
	s.t.Helper()
	r.Database = s.database
	if err := s.Send(r); err != nil && !errors.Is(err, io.EOF) { // EOF: Recv returns the reason
		s.t.Fatalf("send: %v", err)
	}
}

// until receives until the stream is consistent and its view is as wanted, such
// as "a=1 b=2".
func (s *stream) until(want string) {
	s.t.Helper()
	for {
		message, err := s.Recv()
		if err != nil {
			s.t.Fatalf("%v, with %q, want %q", err, s, want)
		}
		s.follow(message)
		change := message.GetTargetChange()
		consistent := change.GetTargetChangeType() == firestorepb.TargetChange_NO_CHANGE && len(change.GetTargetIds()) == 0
		if change != nil && consistent && s.String() == want {
			return
		}
	}
}

func (s *stream) follow(message *firestorepb.ListenResponse) {
	switch m := message.ResponseType.(type) {
	case *firestorepb.ListenResponse_TargetChange:
		if m.TargetChange.TargetChangeType == firestorepb.TargetChange_RESET {
			clear(s.view)
		}
	case *firestorepb.ListenResponse_DocumentChange:
		if d := m.DocumentChange; len(d.TargetIds) > 0 {
			s.view[d.Document.Name] = d.Document.Fields["n"].GetIntegerValue()
		} else {
			delete(s.view, d.Document.Name)
		}
	case *firestorepb.ListenResponse_DocumentDelete:
		delete(s.view, m.DocumentDelete.Document)
	case *firestorepb.ListenResponse_DocumentRemove:
		delete(s.view, m.DocumentRemove.Document)
	}
}

func (s *stream) String() string {
	var docs []string
	for _, name := range slices.Sorted(maps.Keys(s.view)) {
		docs = append(docs, fmt.Sprintf("%s=%d", path.Base(name), s.view[name]))
	}
	return strings.Join(docs, " ")
}

// wantRefusal receives the target's REMOVE and its cause.
func (s *stream) wantRefusal(want codes.Code) {
	s.t.Helper()
	for {
		message := must(s.Recv())(s.t)
		change := message.GetTargetChange()
		if change.GetTargetChangeType() != firestorepb.TargetChange_REMOVE {
			continue
		}
		if got := codes.Code(change.GetCause().GetCode()); got != want {
			s.t.Errorf("target removed for %v, want %v", got, want)
		}
		return
	}
}

// end receives until the server ends the stream.
func (s *stream) end() error {
	for {
		message, err := s.Recv()
		if err != nil {
			return err
		}
		s.follow(message)
	}
}

var streamCases = []conformanceCase{
	{"StreamShowsTheDocumentsNamed", func(_ *testing.T, r *rig) {
		r.set(object{"a": 1, "b": 2})
		s := r.stream()
		s.add(s.onDocuments("a", "z", "a"))
		s.until("a=1")
		r.set(object{"a": 3, "b": nil, "z": 4})
		s.until("a=3 z=4")
		r.set(object{"a": nil})
		s.until("z=4")
	}},
	{"RefusedTargetIsRemovedWithTheReason", func(_ *testing.T, r *rig) {
		s := r.stream()
		s.add(s.onDocuments("a/b"))
		s.wantRefusal(codes.InvalidArgument)
		reserved := s.onQuery()
		reserved.GetQuery().GetStructuredQuery().From[0].CollectionId = "__x__"
		s.add(reserved)
		s.wantRefusal(codes.InvalidArgument)
	}},
	{"ClientThatClosesItsSideReceivesTheAnswersToItsRequests", func(t *testing.T, r *rig) {
		r.set(object{"a": 1})
		s := r.stream()
		s.add(s.onQuery())
		if err := s.CloseSend(); err != nil {
			t.Fatal(err)
		}
		if err := s.end(); !errors.Is(err, io.EOF) {
			t.Errorf("the stream ends with %v, want EOF", err)
		}
		if got, want := s.String(), "a=1"; got != want {
			t.Errorf("view %q, want %q", got, want)
		}
	}},
}
