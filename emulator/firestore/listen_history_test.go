package firestore_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	client "cloud.google.com/go/firestore"
	"cloud.google.com/go/firestore/apiv1/firestorepb"

	"taskguard/emulator/firestore"
)

// effect is one commit: its time, and the values that it wrote; -1: deleted.
type effect struct {
	at     time.Time
	values map[string]int64
}

// commitAtRandom writes or deletes some of ten documents in each commit.
func commitAtRandom(r *rig, writer, commits int) []effect {
	random := rand.New(rand.NewPCG(1, uint64(writer)))
	var done []effect
	for range commits {
		values := map[string]int64{}
		for range 1 + random.IntN(3) {
			values[fmt.Sprint(random.IntN(10))] = random.Int64N(12) - 1
		}
		done = append(done, r.commitValues(values))
	}
	return done
}

func (r *rig) commitValues(values map[string]int64) effect {
	var writes []*firestorepb.Write
	for id, n := range values {
		if ref := r.client.Doc("v/" + id); n >= 0 {
			writes = append(writes, put(ref, n))
		} else {
			writes = append(writes, &firestorepb.Write{Operation: &firestorepb.Write_Delete{Delete: ref.Path}})
		}
	}
	answer, err := r.commit(nil, writes...)
	if err != nil {
		r.t.Errorf("commit: %v", err)
	}
	return effect{answer.GetCommitTime().AsTime(), values}
}

// expected returns the snapshots, as text, that a listener to the documents with
// n < limit must receive.
func expected(commits []effect, limit int64) (snapshots []string) {
	slices.SortFunc(commits, func(a, b effect) int { return a.at.Compare(b.at) })
	state, last := map[string]int64{}, ""
	for _, c := range commits {
		maps.Copy(state, c.values)
		docs := ""
		for _, id := range slices.Sorted(maps.Keys(state)) {
			if n := state[id]; 0 <= n && n < limit {
				docs += fmt.Sprintf(" %s=%d", id, n)
			}
		}
		if docs != last {
			snapshots, last = append(snapshots, fmt.Sprint(c.at.UnixMicro(), docs)), docs
		}
	}
	return snapshots
}

// received follows a listener, from the second snapshot until the document "end"
// shows.
func received(t *testing.T, it *client.QuerySnapshotIterator) (snapshots []string) {
	for {
		snap, err := it.Next()
		if err != nil {
			t.Errorf("next: %v", err)
			return snapshots
		}
		docs, err := snap.Documents.GetAll()
		if err != nil {
			t.Errorf("documents: %v", err)
		}
		slices.SortFunc(docs, func(a, b *client.DocumentSnapshot) int { return strings.Compare(a.Ref.ID, b.Ref.ID) })
		text := fmt.Sprint(snap.ReadTime.UnixMicro())
		for _, d := range docs {
			text += fmt.Sprintf(" %s=%d", d.Ref.ID, d.Data()["n"])
		}
		if snapshots = append(snapshots, text); strings.Contains(text, "end=") {
			return snapshots
		}
	}
}

func TestListenersReceiveEveryStateInOrderAndNoOther(t *testing.T) {
	const writers, commits = 8, 60
	server := firestore.NewServer(firestore.Options{})
	t.Cleanup(server.Close)
	r := newRig(t, dialServer(t, server))
	limits := []int64{5, 100}
	got := make([][]string, len(limits))
	var listeners, all sync.WaitGroup
	for i, limit := range limits {
		it := r.client.Collection("v").Where("n", "<", limit).Snapshots(r.ctx)
		if _, err := it.Next(); err != nil {
			t.Fatal(err)
		}
		listeners.Go(func() { got[i] = received(t, it) })
	}
	done := make([][]effect, writers)
	for w := range writers {
		other := rigOf(t, dialServer(t, server), strings.Split(r.database, "/")[1])
		all.Go(func() { done[w] = commitAtRandom(other, w, commits) })
	}
	all.Wait()
	history := append(slices.Concat(done...), r.commitValues(map[string]int64{"end": 0}))
	listeners.Wait()
	for i, limit := range limits {
		if want := expected(history, limit); !slices.Equal(got[i], want) {
			t.Errorf("n < %d: got %d snapshots, want these %d:\n%q\n%q", limit, len(got[i]), len(want), got[i], want)
		}
	}
}
