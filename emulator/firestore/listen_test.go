package firestore_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/grpc/codes"

	"taskguard/emulator/firestore"
	"taskguard/internal/testing/must"
)

func TestListen(t *testing.T) {
	t.Run("a slow listener delays no commit and misses none", func(t *testing.T) {
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
	})

	t.Run("one that has ended reads nothing", func(t *testing.T) {
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
	})

	t.Run("it is billed for changes and not for deletes", func(t *testing.T) {
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
			few, b := r.client.Collection("v").Where("n", "<", 9), r.client.Doc("v/b")
			step("two found", 2, func() { r.watch(few).wantNext("a=1 b=2: +a@0 +b@1") })
			step("a change", 1, func() { r.set(object{"a": 4}) })
			step("no change", 0, func() { r.set(object{"a": 4}) })
			step("a change removes one from the results", 1, func() { r.set(object{"a": 10}) })
			step("a change outside of the results", 0, func() { r.set(object{"a": 11}) })
			step("two writes of one document", 1, func() { r.ok(r.commit(nil, put(b, 3), put(b, 4))) })
			step("a delete", 0, func() { r.set(object{"b": nil}) })
		})
	})

	t.Run("it is sent the changes of its results alone", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *rig, _ *firestore.Server) {
			stream, doc := must.Get(r.raw.Listen(r.ctx))(t), r.client.Doc("v/a")
			target := queryTarget(r.request(r.client.Collection("v").Where("n", ">", 5)))
			r.ok(nil, stream.Send(addTarget(r.database, target)))
			synctest.Wait()
			for _, n := range []int{9, 0, 1, 9} { // more than a connection holds, so that the server's sending blocks
				r.ok(doc.Set(r.ctx, object{"n": n, "text": strings.Repeat("x", 500_000)}))
			}
			r.ok(doc.Delete(r.ctx))
			r.ok(nil, stream.CloseSend())
			synctest.Wait()
			var kinds string
			var token []byte
			for _, message := range must.Get(drain(stream.Recv))(t) {
				kind := fmt.Sprintf("%T ", message.ResponseType)
				kinds += strings.TrimPrefix(kind, "*firestorepb.ListenResponse_")
				token = message.GetTargetChange().GetResumeToken()
			}
			want := strings.Repeat("TargetChange ", 4) + "DocumentChange TargetChange DocumentRemove TargetChange " +
				"DocumentChange TargetChange DocumentDelete TargetChange "
			if kinds != want || len(token) == 0 {
				t.Errorf("sent %q with the token %q at the end, want %q", kinds, token, want)
			}
		})
	})

	t.Run("one target of one document is implemented", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *rig, _ *firestore.Server) {
			query := r.request(r.client.Collection("c").Query)
			query.Parent = "projects/p/databases/d/documents"
			one, two := documentsTarget(r.name("c/a")), documentsTarget(r.name("c/a"), r.name("c/b"))
			listen := func(what string, want codes.Code, requests ...*firestorepb.ListenRequest) {
				t.Helper()
				stream := must.Get(r.raw.Listen(r.ctx))(t)
				for _, request := range requests {
					r.ok(nil, stream.Send(request))
				}
				r.ok(nil, stream.CloseSend())
				_, err := drain(stream.Recv)
				wantCode(t, err, want, what)
			}
			const not, bad = codes.Unimplemented, codes.InvalidArgument
			listen("one", codes.OK, addTarget(r.database, one))
			listen("two", not, addTarget(r.database, one), addTarget(r.database, one))
			listen("none", not, &firestorepb.ListenRequest{Database: r.database})
			listen("two documents", not, addTarget(r.database, two))
			listen("once", not, addTarget(r.database, &firestorepb.Target{Once: true}))
			listen("another query", bad, addTarget(r.database, queryTarget(query)))
			listen("another document", bad, addTarget("projects/p/databases/d", one))
		})
	})
}

func addTarget(database string, target *firestorepb.Target) *firestorepb.ListenRequest {
	change := &firestorepb.ListenRequest_AddTarget{AddTarget: target}
	return &firestorepb.ListenRequest{Database: database, TargetChange: change}
}

func queryTarget(request *firestorepb.RunQueryRequest) *firestorepb.Target {
	structured := &firestorepb.Target_QueryTarget_StructuredQuery{StructuredQuery: request.GetStructuredQuery()}
	return &firestorepb.Target{TargetType: &firestorepb.Target_Query{
		Query: &firestorepb.Target_QueryTarget{Parent: request.Parent, QueryType: structured},
	}}
}

func documentsTarget(names ...string) *firestorepb.Target {
	documents := &firestorepb.Target_DocumentsTarget{Documents: names}
	return &firestorepb.Target{TargetType: &firestorepb.Target_Documents{Documents: documents}}
}
