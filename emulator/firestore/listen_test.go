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
		step("a delete", 0, func() { r.set(object{"b": nil}) })
	})
}

func TestOneTargetOfOneDocumentIsImplemented(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig, _ *firestore.Server) {
		for _, c := range []struct {
			targets, documents int
			want               codes.Code
		}{{1, 1, codes.OK}, {2, 1, codes.Unimplemented}, {1, 2, codes.Unimplemented}} {
			stream := must(r.raw.Listen(r.ctx))(t)
			names := []string{r.name("c/a"), r.name("c/b")}[:c.documents]
			for range c.targets {
				target := &firestorepb.Target{TargetType: &firestorepb.Target_Documents{Documents: &firestorepb.Target_DocumentsTarget{Documents: names}}}
				r.ok(nil, stream.Send(&firestorepb.ListenRequest{Database: r.database, TargetChange: &firestorepb.ListenRequest_AddTarget{AddTarget: target}}))
			}
			r.ok(nil, stream.CloseSend())
			_, err := drain(stream.Recv)
			wantCode(t, err, c.want)
		}
	})
}
