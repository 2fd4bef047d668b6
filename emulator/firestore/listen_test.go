package firestore_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	client "cloud.google.com/go/firestore"
	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"taskguard/emulator/firestore"
)

func TestListenersConformInVirtualTime(t *testing.T) {
	for _, cases := range [][]conformanceCase{listenCases, streamCases} {
		for _, c := range cases {
			t.Run(c.name, func(t *testing.T) {
				inBubble(t, func(t *testing.T, r *rig, _ *firestore.Server) { c.run(t, r) })
			})
		}
	}
}

func TestListenersConformOverTCP(t *testing.T) {
	server, l := firestore.NewServer(firestore.Options{}), listen(t)
	var served sync.WaitGroup
	served.Go(func() {
		if err := server.Serve(l); err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	t.Cleanup(func() { server.Close(); served.Wait() })
	for _, c := range listenCases {
		t.Run(c.name, func(t *testing.T) { c.run(t, newRig(t, dialHost(t, l.Addr().String()))) })
	}
}

func TestIdleListenerLetsVirtualTimePass(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig, _ *firestore.Server) {
		r.ctx = t.Context()
		w := r.watch(t, r.client.Collection("v").Query)
		w.wantNext(t, ":")
		time.Sleep(24 * time.Hour)
		before := w.last
		r.set(t, object{"a": 1})
		w.wantNext(t, "a=1: +a@0")
		if passed := w.last.Sub(before); passed < 24*time.Hour {
			t.Errorf("the snapshots are %v apart, want 24h", passed)
		}
	})
}

func TestListenerThatDoesNotReadHoldsUpNoCommitAndMissesNone(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig, _ *firestore.Server) {
		const commits = 5_000
		w := r.watch(t, r.client.Collection("v").Query)
		w.wantNext(t, ":")
		for n := range commits {
			must[*client.WriteResult](t)(r.client.Doc("v/a").Set(r.ctx, object{"n": n}))
		}
		w.wantNext(t, "a=0: +a@0")
		for n := 1; n < commits && !t.Failed(); n++ {
			w.wantNext(t, fmt.Sprintf("a=%d: ~a@0-0", n))
		}
	})
}

func TestListenerTooFarBehindStartsAnew(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig, _ *firestore.Server) {
		const commits = 12_000 // more than the queue and the connection hold
		r.set(t, object{"b": 0})
		w := r.watch(t, r.client.Collection("v").Query)
		w.wantNext(t, "b=0: +b@0")
		for n := range commits {
			must[*client.WriteResult](t)(r.client.Doc("v/a").Set(r.ctx, object{"n": n}))
		}
		r.set(t, object{"b": nil})
		var read int
		for last := ""; last != fmt.Sprintf("a=%d: -b@1 ~a@0-0", commits-1) && read < commits; read++ {
			last = w.next(t)
		}
		if read == 0 || read >= commits {
			t.Errorf("%d snapshots for %d commits and no last view, want some, then a whole one", read, commits)
		}
	})
}

// fill writes 10 MB, more than a connection holds, in 20 commits.
func (r *rig) fill(t *testing.T) {
	t.Helper()
	for n := range 20 {
		_, err := r.client.Doc("v/large").Set(r.ctx, object{"n": n, "text": strings.Repeat("x", 500_000)})
		wantCode(t, err, codes.OK)
	}
	synctest.Wait()
}

func TestListenerThatClosesItsSideIsSentWhatItHasNotRead(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig, _ *firestore.Server) {
		s := r.stream(t)
		s.add(t, s.on(5))
		r.fill(t)
		if err := s.CloseSend(); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		r.set(t, object{"late": 1})
		if err := s.wantEnd(t); !errors.Is(err, io.EOF) {
			t.Errorf("the stream ends with %v, want EOF", err)
		}
		if got, want := s.String(), "5: large=19"; got != want {
			t.Errorf("views %q, want %q", got, want)
		}
	})
}

func TestListenerThatHasGoneIsToldNothing(t *testing.T) {
	for name, leave := range map[string]func(cancel context.CancelFunc, it *client.QuerySnapshotIterator){
		"cancelled": func(cancel context.CancelFunc, _ *client.QuerySnapshotIterator) { cancel() },
		"stopped":   func(_ context.CancelFunc, it *client.QuerySnapshotIterator) { it.Stop() },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *rig, server *firestore.Server) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				it := r.client.Collection("v").Snapshots(ctx)
				must[*client.QuerySnapshot](t)(it.Next())
				r.set(t, object{"a": 1})
				before := server.Usage().Reads
				r.set(t, object{"a": 2})
				if got := server.Usage().Reads - before; got != 1 {
					t.Errorf("%d reads for a listener that is there, want 1", got)
				}
				r.fill(t) // so that sending is blocked: it does not read
				leave(cancel, it)
				synctest.Wait()
				before = server.Usage().Reads
				r.set(t, object{"a": 3})
				if got := server.Usage().Reads - before; got != 0 {
					t.Errorf("%d reads for a listener that has gone, want 0", got)
				}
			})
		})
	}
}

func TestListenerIsBilledForWhatChangesAndNotForWhatIsDeleted(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig, server *firestore.Server) {
		step := func(name string, want int64, act func()) {
			t.Helper()
			before := server.Usage().Reads
			act()
			if got := server.Usage().Reads - before; got != want {
				t.Errorf("%s: %d reads, want %d", name, got, want)
			}
		}
		r.set(t, object{"a": 1, "b": 2, "c": 3})
		s := r.stream(t)
		step("none found", 1, func() { s.add(t, s.named(9, "x")); s.until(t, "9:") })
		limited := s.on(5)
		limited.GetQuery().GetStructuredQuery().Limit = wrapperspb.Int32(2)
		step("two found", 2, func() { s.add(t, limited); s.until(t, "5: a=1 b=2; 9:") })
		step("a change", 1, func() { r.set(t, object{"a": 4}) })
		step("one in, one out", 1, func() { r.set(t, object{"0": 0}) })
		step("one deleted, one back in", 1, func() { r.set(t, object{"0": nil}) })
		step("nothing", 0, func() { r.set(t, object{"a": 4}) })
		s.remove(t, 5)
		small := s.on(6)
		small.GetQuery().GetStructuredQuery().Where = below("n", 5)
		s.add(t, small)
		s.until(t, "6: a=4 b=2 c=3; 9:")
		step("a change takes one out", 1, func() { r.set(t, object{"a": 6}) })
	})
}

func below(field string, n int64) *firestorepb.StructuredQuery_Filter {
	return &firestorepb.StructuredQuery_Filter{FilterType: &firestorepb.StructuredQuery_Filter_FieldFilter{
		FieldFilter: &firestorepb.StructuredQuery_FieldFilter{
			Field: &firestorepb.StructuredQuery_FieldReference{FieldPath: field},
			Op:    firestorepb.StructuredQuery_FieldFilter_LESS_THAN, Value: integerValue(n),
		},
	}}
}
