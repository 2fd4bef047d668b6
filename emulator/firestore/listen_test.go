package firestore_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"taskguard/emulator/firestore"
)

func TestSlowListenerDelaysNoCommitAndMissesNone(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig, _ *firestore.Server) {
		const commits = 500
		w := r.watch(r.client.Collection("v").Query)
		w.wantNext(":")
		for n := range commits {
			r.ok(r.client.Doc("v/a").Set(r.ctx, object{"n": n}))
		}
		w.wantNext("a=0: +a@0")
		for n := 1; n < commits && !t.Failed(); n++ {
			w.wantNext(fmt.Sprintf("a=%d: ~a@0-0", n))
		}
	})
}

func TestListenerThatHasEndedReadsNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig, server *firestore.Server) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		_, err := r.client.Collection("v").Snapshots(ctx).Next()
		wantCode(t, err, codes.OK)
		for n := range 20 { // 10 MB, more than a connection holds, so that the server's sending blocks
			r.ok(r.client.Doc("v/large").Set(r.ctx, object{"n": n, "text": strings.Repeat("x", 500_000)}))
		}
		synctest.Wait()
		cancel()
		synctest.Wait()
		before := server.Usage().Reads
		r.set(object{"a": 3})
		if got := server.Usage().Reads - before; got != 0 {
			t.Errorf("%d reads for a listener that has ended, want 0", got)
		}
	})
}

func TestListenerIsBilledForChangesAndNotForDeletes(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig, server *firestore.Server) {
		step := func(name string, want int64, act func()) {
			t.Helper()
			before := server.Usage().Reads
			act()
			if got := server.Usage().Reads - before; got != want {
				t.Errorf("%s: %d reads, want %d", name, got, want)
			}
		}
		step("none found", 1, func() { _, _ = r.client.Doc("v/x").Snapshots(r.ctx).Next() })
		r.set(object{"a": 1, "b": 2})
		step("two found", 2, func() { r.watch(r.client.Collection("v").Where("n", "<", 9)).wantNext("a=1 b=2: +a@0 +b@1") })
		step("a change", 1, func() { r.set(object{"a": 4}) })
		step("no change", 0, func() { r.set(object{"a": 4}) })
		step("a change removes one from the results", 1, func() { r.set(object{"a": 10}) })
		step("a change outside of the results", 0, func() { r.set(object{"a": 11}) })
		step("two writes of one document", 1, func() { r.ok(r.commit(nil, put(r.client.Doc("v/b"), 3), put(r.client.Doc("v/b"), 4))) })
		step("a delete", 0, func() { r.set(object{"b": nil}) })
	})
}

func TestListenerIsSentTheChangesOfItsResultsAlone(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig, _ *firestore.Server) {
		stream, doc := must(r.raw.Listen(r.ctx))(t), r.client.Doc("v/a")
		r.ok(nil, stream.Send(addTarget(r.database, queryTarget(r.request(r.client.Collection("v").Where("n", ">", 5))))))
		synctest.Wait()
		for _, n := range []int{9, 0, 1, 9} { // more than a connection holds, so that the server's sending blocks
			r.ok(doc.Set(r.ctx, object{"n": n, "text": strings.Repeat("x", 500_000)}))
		}
		r.ok(doc.Delete(r.ctx))
		r.ok(nil, stream.CloseSend())
		synctest.Wait()
		var kinds string
		var token []byte
		for _, message := range must(drain(stream.Recv))(t) {
			kinds += strings.TrimPrefix(fmt.Sprintf("%T", message.ResponseType), "*firestorepb.ListenResponse_") + " "
			token = message.GetTargetChange().GetResumeToken()
		}
		want := strings.Repeat("TargetChange ", 4) + "DocumentChange TargetChange DocumentRemove TargetChange " +
			"DocumentChange TargetChange DocumentDelete TargetChange "
		if kinds != want || len(token) == 0 {
			t.Errorf("sent %q with the token %q at the end, want %q", kinds, token, want)
		}
	})
}

func addTarget(database string, target *firestorepb.Target) *firestorepb.ListenRequest {
	return &firestorepb.ListenRequest{Database: database, TargetChange: &firestorepb.ListenRequest_AddTarget{AddTarget: target}}
}

func queryTarget(request *firestorepb.RunQueryRequest) *firestorepb.Target {
	structured := &firestorepb.Target_QueryTarget_StructuredQuery{StructuredQuery: request.GetStructuredQuery()}
	return &firestorepb.Target{TargetType: &firestorepb.Target_Query{
		Query: &firestorepb.Target_QueryTarget{Parent: request.Parent, QueryType: structured},
	}}
}

func documentsTarget(names ...string) *firestorepb.Target {
	return &firestorepb.Target{TargetType: &firestorepb.Target_Documents{Documents: &firestorepb.Target_DocumentsTarget{Documents: names}}}
}

func TestOneTargetOfOneDocumentIsImplemented(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig, _ *firestore.Server) {
		query := r.request(r.client.Collection("c").Query)
		query.Parent = "projects/p/databases/d/documents"
		malformed := "project/p/databases/d"
		one := addTarget(r.database, documentsTarget(r.name("c/a")))
		for name, c := range map[string]struct {
			want     codes.Code
			requests []*firestorepb.ListenRequest
		}{
			"one":                   {codes.OK, []*firestorepb.ListenRequest{one}},
			"two":                   {codes.Unimplemented, []*firestorepb.ListenRequest{one, one}},
			"none":                  {codes.Unimplemented, []*firestorepb.ListenRequest{{Database: r.database}}},
			"two documents":         {codes.Unimplemented, []*firestorepb.ListenRequest{addTarget(r.database, documentsTarget(r.name("c/a"), r.name("c/b")))}},
			"once":                  {codes.Unimplemented, []*firestorepb.ListenRequest{addTarget(r.database, &firestorepb.Target{Once: true})}},
			"another query":         {codes.InvalidArgument, []*firestorepb.ListenRequest{addTarget(r.database, queryTarget(query))}},
			"another document":      {codes.InvalidArgument, []*firestorepb.ListenRequest{addTarget("projects/p/databases/d", one.GetAddTarget())}},
			"no name of a database": {codes.InvalidArgument, []*firestorepb.ListenRequest{addTarget(malformed, documentsTarget(malformed+"/documents/c/d"))}},
		} {
			stream := must(r.raw.Listen(r.ctx))(t)
			for _, request := range c.requests {
				r.ok(nil, stream.Send(request))
			}
			r.ok(nil, stream.CloseSend())
			if _, err := drain(stream.Recv); status.Code(err) != c.want {
				t.Errorf("%s: %v, want %v", name, err, c.want)
			}
		}
	})
}
