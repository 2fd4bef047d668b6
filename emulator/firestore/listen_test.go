package firestore_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

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
		missing := r.stream()
		step("none found", 1, func() { missing.add(missing.onDocuments("x")); missing.until("") })
		r.set(object{"a": 1, "b": 2})
		s := r.stream()
		step("two found", 2, func() { s.add(s.onQuery()); s.until("a=1 b=2") })
		step("a change", 1, func() { r.set(object{"a": 4}) })
		step("no change", 0, func() { r.set(object{"a": 4}) })
		step("a change removes one from the results", 1, func() { r.set(object{"a": 10}) })
		step("a delete", 0, func() { r.set(object{"b": nil}) })
	})
}

func TestASecondTargetIsUnimplemented(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig, _ *firestore.Server) {
		s := r.stream()
		s.add(s.onQuery())
		s.add(s.onQuery())
		wantCode(t, s.end(), codes.Unimplemented)
	})
}
