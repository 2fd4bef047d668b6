package firestore_test

import (
	"context"
	"fmt"
	"path"
	"slices"
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

func TestListenerThatLeavesTooMuchUnreadStartsAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig, _ *firestore.Server) {
		const commits = 4_000 // more than the queue and the connection hold
		r.set(object{"b": 0})
		w := r.watch(r.client.Collection("v").Query)
		w.wantNext("b=0: +b@0")
		for n := range commits {
			r.ok(r.client.Doc("v/a").Set(r.ctx, object{"n": n}))
		}
		r.set(object{"b": nil})
		var read int
		for last := ""; last != fmt.Sprintf("a=%d: -b@1 ~a@0-0", commits-1) && read < commits; read++ {
			last = w.next()
		}
		if read == 0 || read >= commits {
			t.Errorf("%d snapshots for %d commits and no last view, want some, then a whole one", read, commits)
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

func TestListenerReceivesOnlyTheChanges(t *testing.T) {
	inBubble(t, func(_ *testing.T, r *rig, _ *firestore.Server) {
		r.set(object{"a": 1, "b": 2})
		s, named := r.stream(), r.stream()
		s.add(s.onQuery())
		s.wantMessages("ADD[5]", "RESET[5]", "change a[5]", "change b[5]", "CURRENT[5]", "NO_CHANGE[]")
		named.add(named.onDocuments("b", "z", "b"))
		named.wantMessages("ADD[5]", "RESET[5]", "change b[5]", "delete z[5]", "CURRENT[5]", "NO_CHANGE[]")
		r.set(object{"b": 17})
		s.wantMessages("remove b[5]", "NO_CHANGE[]")
		named.wantMessages("change b[5]", "NO_CHANGE[]")
		r.set(object{"0": 1})
		s.wantMessages("change 0[5]", "NO_CHANGE[]")
		r.set(object{"0": nil, "b": nil})
		s.wantMessages("delete 0[5]", "NO_CHANGE[]")
		named.wantMessages("delete b[5]", "NO_CHANGE[]")
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

// wantMessages receives as many messages as are wanted, such as "ADD[5]",
// "change a[5]" or "NO_CHANGE[]".
func (s *stream) wantMessages(want ...string) {
	s.t.Helper()
	var got []string
	for range want {
		m, err := s.Recv()
		if err != nil {
			s.t.Fatalf("%v after %q, want %q", err, got, want)
		}
		got = append(got, messageText(m))
	}
	if !slices.Equal(got, want) {
		s.t.Errorf("messages %q, want %q", got, want)
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
