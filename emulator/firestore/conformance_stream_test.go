package firestore_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"

	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
)

// stream is a Listen call, and what a client makes of it: each target's
// documents at the last consistent moment.
type stream struct {
	firestorepb.Firestore_ListenClient
	ctx      context.Context
	database string
	views    map[int32]map[string]int64 // by target: field n by name
	token    []byte
}

func (r *rig) stream(t testing.TB) *stream {
	t.Helper()
	ctx := metadata.AppendToOutgoingContext(r.ctx, "google-cloud-resource-prefix", r.database)
	call, err := r.raw.Listen(ctx)
	if err != nil {
		t.Fatalf("listen: %v", err)
	}
	return &stream{Firestore_ListenClient: call, ctx: ctx, database: r.database, views: map[int32]map[string]int64{}}
}

// on is a target on the collection v.
func (s *stream) on(id int32) *firestorepb.Target {
	return &firestorepb.Target{TargetId: id, TargetType: &firestorepb.Target_Query{Query: &firestorepb.Target_QueryTarget{
		Parent: s.database + "/documents",
		QueryType: &firestorepb.Target_QueryTarget_StructuredQuery{StructuredQuery: &firestorepb.StructuredQuery{
			From: []*firestorepb.StructuredQuery_CollectionSelector{{CollectionId: "v"}},
		}},
	}}}
}

// named is a target on documents of the collection v.
func (s *stream) named(id int32, ids ...string) *firestorepb.Target {
	list := &firestorepb.Target_DocumentsTarget{}
	for _, name := range ids {
		list.Documents = append(list.Documents, s.database+"/documents/v/"+name)
	}
	return &firestorepb.Target{TargetId: id, TargetType: &firestorepb.Target_Documents{Documents: list}}
}

func (s *stream) add(t testing.TB, target *firestorepb.Target) {
	t.Helper()
	s.request(t, &firestorepb.ListenRequest{TargetChange: &firestorepb.ListenRequest_AddTarget{AddTarget: target}})
}

func (s *stream) remove(t testing.TB, id int32) {
	t.Helper()
	s.request(t, &firestorepb.ListenRequest{TargetChange: &firestorepb.ListenRequest_RemoveTarget{RemoveTarget: id}})
}

func (s *stream) request(t testing.TB, r *firestorepb.ListenRequest) {
	t.Helper()
	r.Database = s.database
	if err := s.Send(r); err != nil && !errors.Is(err, io.EOF) { // EOF: Recv says why
		t.Fatalf("send: %v", err)
	}
}

// until receives until the stream is consistent and its views are as wanted,
// such as "5: a=1 b=2; 6: a=1".
func (s *stream) until(t testing.TB, want string) {
	t.Helper()
	for {
		message, err := s.Recv()
		if err != nil {
			t.Fatalf("%v, with %q, want %q", err, s, want)
		}
		change := message.GetTargetChange()
		consistent := change.GetTargetChangeType() == firestorepb.TargetChange_NO_CHANGE && len(change.GetTargetIds()) == 0
		if s.follow(t, message); (consistent || change.GetTargetChangeType() == firestorepb.TargetChange_REMOVE) && s.String() == want {
			return
		}
	}
}

func (s *stream) follow(t testing.TB, message *firestorepb.ListenResponse) {
	t.Helper()
	switch m := message.ResponseType.(type) {
	case *firestorepb.ListenResponse_TargetChange:
		s.followTarget(m.TargetChange)
	case *firestorepb.ListenResponse_DocumentChange:
		for _, id := range m.DocumentChange.TargetIds {
			s.views[id][m.DocumentChange.Document.Name] = m.DocumentChange.Document.Fields["n"].GetIntegerValue()
		}
		s.leave(m.DocumentChange.Document.Name, m.DocumentChange.RemovedTargetIds)
	case *firestorepb.ListenResponse_DocumentDelete:
		s.leave(m.DocumentDelete.Document, m.DocumentDelete.RemovedTargetIds)
	case *firestorepb.ListenResponse_DocumentRemove:
		s.leave(m.DocumentRemove.Document, m.DocumentRemove.RemovedTargetIds)
	default:
		t.Fatalf("unexpected message %v", message)
	}
}

func (s *stream) followTarget(change *firestorepb.TargetChange) {
	if change.ResumeToken != nil {
		s.token = change.ResumeToken
	}
	for _, id := range change.TargetIds {
		switch change.TargetChangeType {
		case firestorepb.TargetChange_ADD:
			if s.views[id] == nil { // a resumed target has one
				s.views[id] = map[string]int64{}
			}
		case firestorepb.TargetChange_RESET:
			clear(s.views[id])
		case firestorepb.TargetChange_REMOVE:
			delete(s.views, id)
		}
	}
}

func (s *stream) leave(name string, ids []int32) {
	for _, id := range ids {
		delete(s.views[id], name)
	}
}

func (s *stream) String() string {
	var targets []string
	for _, id := range slices.Sorted(maps.Keys(s.views)) {
		text := fmt.Sprintf("%d:", id)
		for _, name := range slices.Sorted(maps.Keys(s.views[id])) {
			text += fmt.Sprintf(" %s=%d", name[strings.LastIndex(name, "/")+1:], s.views[id][name])
		}
		targets = append(targets, text)
	}
	return strings.Join(targets, "; ")
}

// wantRefusal receives the target's REMOVE and its cause.
func (s *stream) wantRefusal(t testing.TB, id int32, want codes.Code) {
	t.Helper()
	for {
		message, err := s.Recv()
		if err != nil {
			t.Fatalf("%v, want target %d refused", err, id)
		}
		s.follow(t, message)
		change := message.GetTargetChange()
		if change.GetTargetChangeType() != firestorepb.TargetChange_REMOVE {
			continue
		}
		if got := codes.Code(change.GetCause().GetCode()); got != want || !slices.Equal(change.TargetIds, []int32{id}) {
			t.Errorf("targets %v removed for %v, want %d for %v", change.TargetIds, got, id, want)
		}
		return
	}
}

// wantEnd receives until the server ends the stream.
func (s *stream) wantEnd(t testing.TB) error {
	t.Helper()
	for {
		message, err := s.Recv()
		if s.ctx.Err() != nil {
			t.Fatal("the stream does not end by itself")
		}
		if err != nil {
			return err
		}
		s.follow(t, message)
	}
}

var streamCases = []conformanceCase{
	{"StreamHasSeveralTargets", func(t *testing.T, r *rig) {
		r.set(t, object{"a": 1, "b": 2})
		s := r.stream(t)
		s.add(t, s.on(5))
		s.add(t, s.named(6, "a", "z", "a"))
		s.until(t, "5: a=1 b=2; 6: a=1")
		r.set(t, object{"a": 3, "b": nil, "z": 4})
		s.until(t, "5: a=3 z=4; 6: a=3 z=4")
		r.set(t, object{"a": nil})
		s.until(t, "5: z=4; 6: z=4")
	}},
	{"RemovedTargetIsSilentAndItsIDFree", func(t *testing.T, r *rig) {
		r.set(t, object{"a": 1})
		s := r.stream(t)
		s.remove(t, 7) // never added: no answer, no error
		s.add(t, s.on(5))
		s.until(t, "5: a=1")
		s.add(t, s.named(6, "b"))
		s.until(t, "5: a=1; 6:")
		s.remove(t, 5)
		s.until(t, "6:")
		r.set(t, object{"a": 2, "b": 2})
		s.until(t, "6: b=2")
		s.add(t, s.on(5))
		s.until(t, "5: a=2 b=2; 6: b=2")
	}},
	{"ServerNamesTargetsWithoutAnID", func(t *testing.T, r *rig) {
		r.set(t, object{"a": 1})
		s := r.stream(t)
		s.add(t, s.on(0))
		s.until(t, "1: a=1")
		s.add(t, s.named(0, "b"))
		s.until(t, "1: a=1; 2:")
		s.add(t, s.named(7, "a"))
		s.until(t, "1: a=1; 2:; 7: a=1")
	}},
	{"TargetIDThatIsTakenOrNegativeEndsTheStream", func(t *testing.T, r *rig) {
		for _, ids := range [][]int32{{5, 5}, {0, 1}, {-1}} { // 0: named 1
			s := r.stream(t)
			for _, id := range ids {
				s.add(t, s.on(id))
			}
			if err := s.wantEnd(t); errors.Is(err, io.EOF) {
				t.Errorf("targets %v end the stream without an error", ids)
			}
		}
	}},
	{"RefusedTargetLeavesTheOthers", func(t *testing.T, r *rig) {
		r.set(t, object{"a": 1})
		s := r.stream(t)
		s.add(t, s.on(5))
		s.add(t, s.named(6, "a/b"))
		s.wantRefusal(t, 6, codes.InvalidArgument)
		reserved := s.on(7)
		reserved.GetQuery().GetStructuredQuery().From[0].CollectionId = "__x__"
		s.add(t, reserved)
		s.wantRefusal(t, 7, codes.InvalidArgument)
		r.set(t, object{"a": 2})
		s.until(t, "5: a=2")
	}},
	{"ResumedTargetSeesWhatHappenedMeanwhile", func(t *testing.T, r *rig) {
		r.set(t, object{"a": 1, "b": 2, "c": 3})
		before := r.stream(t)
		before.add(t, before.on(5))
		before.until(t, "5: a=1 b=2 c=3")
		r.set(t, object{"a": nil, "b": 4, "d": 5})
		after := r.stream(t)
		after.views = maps.Clone(before.views)
		target := after.on(5)
		target.ResumeType = &firestorepb.Target_ResumeToken{ResumeToken: before.token}
		after.add(t, target)
		after.until(t, "5: b=4 c=3 d=5")
		r.set(t, object{"b": nil})
		after.until(t, "5: c=3 d=5")
	}},
	{"ClientThatClosesItsSideGetsWhatItAskedFor", func(t *testing.T, r *rig) {
		r.set(t, object{"a": 1})
		s := r.stream(t)
		s.add(t, s.on(5))
		if err := s.CloseSend(); err != nil {
			t.Fatal(err)
		}
		if err := s.wantEnd(t); !errors.Is(err, io.EOF) {
			t.Errorf("the stream ends with %v, want EOF", err)
		}
		if got, want := s.String(), "5: a=1"; got != want {
			t.Errorf("views %q, want %q", got, want)
		}
	}},
}
