package firestore_test

import (
	"context"
	"fmt"
	"path"
	"slices"
	"testing"
	"testing/synctest"

	client "cloud.google.com/go/firestore"
	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"taskguard/emulator/firestore"
)

// wantMessages receives as many messages as are wanted, such as "ADD[5]",
// "change a[5]" or "NO_CHANGE[]".
func (s *stream) wantMessages(t *testing.T, want ...string) {
	t.Helper()
	var got []string
	for range want {
		m, err := s.Recv()
		if err != nil {
			t.Fatalf("%v after %q, want %q", err, got, want)
		}
		got = append(got, messageText(m))
	}
	if !slices.Equal(got, want) {
		t.Errorf("messages %q, want %q", got, want)
	}
}

func messageText(m *firestorepb.ListenResponse) string {
	switch m := m.ResponseType.(type) {
	case *firestorepb.ListenResponse_TargetChange:
		c := m.TargetChange
		if dated := c.ReadTime != nil; dated != (c.ResumeToken != nil) {
			return fmt.Sprintf("a read time %v with the token %q", c.ReadTime, c.ResumeToken)
		}
		return fmt.Sprintf("%v%v", c.TargetChangeType, c.TargetIds)
	case *firestorepb.ListenResponse_DocumentChange:
		return fmt.Sprint("change ", path.Base(m.DocumentChange.Document.Name), m.DocumentChange.TargetIds)
	case *firestorepb.ListenResponse_DocumentDelete:
		return fmt.Sprint("delete ", path.Base(m.DocumentDelete.Document), m.DocumentDelete.RemovedTargetIds)
	case *firestorepb.ListenResponse_DocumentRemove:
		return fmt.Sprint("remove ", path.Base(m.DocumentRemove.Document), m.DocumentRemove.RemovedTargetIds)
	}
	return fmt.Sprint(m)
}

// inStream runs f in a bubble with the documents a=1 and b=2 and a fresh stream.
func inStream(t *testing.T, f func(*testing.T, *rig, *stream)) {
	inBubble(t, func(t *testing.T, r *rig, _ *firestore.Server) {
		r.set(t, object{"a": 1, "b": 2})
		f(t, r, r.stream(t))
	})
}

func TestListenerIsToldOnlyWhatHasChanged(t *testing.T) {
	inStream(t, func(t *testing.T, r *rig, s *stream) {
		small := s.on(5)
		small.GetQuery().GetStructuredQuery().Where = below("n", 5)
		s.add(t, small)
		s.wantMessages(t, "ADD[5]", "RESET[5]", "change a[5]", "change b[5]", "CURRENT[5]", "NO_CHANGE[]")
		s.add(t, s.named(6, "b", "z", "b"))
		s.wantMessages(t, "ADD[6]", "RESET[6]", "change b[6]", "delete z[6]", "CURRENT[6]", "NO_CHANGE[]")
		limited := s.on(7)
		limited.GetQuery().GetStructuredQuery().Limit = wrapperspb.Int32(1)
		s.add(t, limited)
		s.wantMessages(t, "ADD[7]", "RESET[7]", "change a[7]", "CURRENT[7]", "NO_CHANGE[]")
		r.set(t, object{"b": 7})
		s.wantMessages(t, "remove b[5]", "change b[6]", "NO_CHANGE[]")
		r.set(t, object{"0": 1})
		s.wantMessages(t, "change 0[5]", "remove a[7]", "change 0[7]", "NO_CHANGE[]")
		r.set(t, object{"0": nil})
		s.wantMessages(t, "delete 0[5]", "delete 0[7]", "change a[7]", "NO_CHANGE[]")
		r.set(t, object{"b": nil})
		s.wantMessages(t, "delete b[6]", "NO_CHANGE[]")
		s.remove(t, 99) // not there
		s.remove(t, 5)
		s.wantMessages(t, "REMOVE[5]")
	})
}

func TestTargetForOnceEndsWhenItIsCurrent(t *testing.T) {
	inStream(t, func(t *testing.T, r *rig, s *stream) {
		once := s.on(5)
		once.Once = true
		s.add(t, once)
		s.wantMessages(t, "ADD[5]", "RESET[5]", "change a[5]", "change b[5]", "CURRENT[5]", "NO_CHANGE[]", "REMOVE[5]")
		r.set(t, object{"a": 3})
		s.add(t, s.named(5, "a"))
		s.wantMessages(t, "ADD[5]", "RESET[5]", "change a[5]", "CURRENT[5]", "NO_CHANGE[]")
	})
}

func TestTargetThatCannotBeServedIsRefusedAndNoOther(t *testing.T) {
	inStream(t, func(t *testing.T, r *rig, s *stream) {
		s.add(t, s.on(1))
		nearest := s.on(2)
		nearest.GetQuery().GetStructuredQuery().FindNearest = &firestorepb.StructuredQuery_FindNearest{}
		foreign, foreignDoc := s.on(5), s.named(6, "a")
		foreign.GetQuery().Parent = "projects/other/databases/(default)/documents"
		foreignDoc.GetDocuments().Documents[0] = "projects/other/databases/(default)/documents/v/a"
		below := s.on(7)
		below.GetQuery().GetStructuredQuery().Limit = wrapperspb.Int32(-1)
		for _, c := range []struct {
			target *firestorepb.Target
			want   codes.Code
		}{
			{nearest, codes.Unimplemented},
			{&firestorepb.Target{TargetId: 3}, codes.Unimplemented},
			{&firestorepb.Target{TargetId: 4, TargetType: &firestorepb.Target_Query{}}, codes.Unimplemented},
			{foreign, codes.InvalidArgument},
			{foreignDoc, codes.InvalidArgument},
			{below, codes.InvalidArgument},
		} {
			s.add(t, c.target)
			s.wantRefusal(t, c.target.TargetId, c.want)
		}
		r.set(t, object{"a": 3})
		s.until(t, "1: a=3 b=2")
	})
}

func TestBadListenRequestEndsTheStream(t *testing.T) {
	target := func(s *stream) *firestorepb.ListenRequest_AddTarget {
		return &firestorepb.ListenRequest_AddTarget{AddTarget: s.on(1)}
	}
	for name, requests := range map[string]func(*stream) []*firestorepb.ListenRequest{
		"no target": func(s *stream) []*firestorepb.ListenRequest {
			return []*firestorepb.ListenRequest{{Database: s.database}}
		},
		"no database": func(s *stream) []*firestorepb.ListenRequest {
			return []*firestorepb.ListenRequest{{TargetChange: target(s)}}
		},
		"two databases": func(s *stream) []*firestorepb.ListenRequest {
			remove := &firestorepb.ListenRequest_RemoveTarget{RemoveTarget: 1}
			return []*firestorepb.ListenRequest{
				{Database: s.database, TargetChange: target(s)}, {Database: s.database + "2", TargetChange: remove},
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			inStream(t, func(t *testing.T, _ *rig, s *stream) {
				for _, request := range requests(s) {
					if err := s.Send(request); err != nil {
						t.Fatal(err)
					}
				}
				wantCode(t, s.wantEnd(t), codes.InvalidArgument)
			})
		})
	}
}

// breakage breaks a listener's stream, once, right after a RESET that follows a
// snapshot.
type breakage struct {
	grpc.ClientStream
	resets *int
}

func (b breakage) RecvMsg(m any) error {
	if err := b.ClientStream.RecvMsg(m); err != nil {
		return err
	}
	if m.(*firestorepb.ListenResponse).GetTargetChange().GetTargetChangeType() == firestorepb.TargetChange_RESET {
		if *b.resets++; *b.resets == 2 {
			return status.Error(codes.Unavailable, "broken after RESET")
		}
	}
	return nil
}

func TestListenerBrokenOffRightAfterAResetForgetsWhatIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := firestore.NewServer(firestore.Options{})
		wire := &line{dial: servePipe(t, server)}
		resets := 0
		listener := newRig(t, dialLine(t, wire, grpc.WithStreamInterceptor(
			func(ctx context.Context, d *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, o ...grpc.CallOption) (grpc.ClientStream, error) {
				s, err := open(ctx, d, cc, method, o...)
				if err != nil || path.Base(method) != "Listen" {
					return s, err
				}
				return breakage{s, &resets}, nil
			})))
		listener.set(t, object{"a": 1, "b": 2})
		w := listener.watch(t, listener.client.Collection("v").OrderBy("n", client.Asc))
		w.wantNext(t, "a=1 b=2: +a@0 +b@1")
		wire.cut(wire.dial)
		listener.set(t, object{"a": nil})
		w.wantNext(t, "b=2: -a@0")
		if resets != 3 {
			t.Errorf("%d resets, want 3: one for each time the stream was opened", resets)
		}
	})
}
