package firestore_test

import (
	"cmp"
	"fmt"
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

// effect is a commit: when, and the values it left; nil: deleted.
type effect struct {
	at     time.Time
	values map[string]*int64
}

// version is a stored document.
type version struct {
	id string
	n  int64
	at time.Time
}

// sight is one snapshot: its time, and the documents with their versions.
type sight struct {
	at   time.Time
	docs string
}

func sightOf(at time.Time, docs []version) sight {
	var b strings.Builder
	for _, d := range docs {
		fmt.Fprintf(&b, "%s=%d@%d ", d.id, d.n, d.at.UnixMicro())
	}
	return sight{at, b.String()}
}

// replay is what a listener has to see of the commits: one sight for each that
// changes what show selects.
func replay(commits []effect, show func([]version) []version) []sight {
	slices.SortFunc(commits, func(a, b effect) int { return a.at.Compare(b.at) })
	state := map[string]version{}
	var sights []sight
	last := ""
	for _, c := range commits {
		for id, n := range c.values {
			if before, exists := state[id]; n == nil {
				delete(state, id)
			} else if !exists || before.n != *n {
				state[id] = version{id, *n, c.at}
			}
		}
		var all []version
		for _, d := range state {
			all = append(all, d)
		}
		slices.SortFunc(all, func(a, b version) int { return cmp.Or(cmp.Compare(a.n, b.n), strings.Compare(a.id, b.id)) })
		if s := sightOf(c.at, show(all)); s.docs != last {
			sights, last = append(sights, s), s.docs
		}
	}
	return sights
}

// writeAtRandom commits to some of ten documents at a time.
func writeAtRandom(t *testing.T, r *rig, writer, commits int) []effect {
	random := rand.New(rand.NewPCG(1, uint64(writer)))
	var done []effect
	for range commits {
		values := map[string]*int64{}
		for range 1 + random.IntN(3) {
			id := fmt.Sprint(random.IntN(10))
			if values[id] = nil; random.IntN(4) > 0 {
				values[id] = new(random.Int64N(10))
			}
		}
		done = append(done, write(t, r, values))
	}
	return done
}

func write(t *testing.T, r *rig, values map[string]*int64) effect {
	var writes []*firestorepb.Write
	for id, n := range values {
		if ref := r.client.Doc("v/" + id); n != nil {
			writes = append(writes, put(ref, *n))
		} else {
			writes = append(writes, &firestorepb.Write{Operation: &firestorepb.Write_Delete{Delete: ref.Path}})
		}
	}
	answer, err := r.commit(nil, writes...)
	if err != nil {
		t.Errorf("commit: %v", err)
	}
	return effect{answer.GetCommitTime().AsTime(), values}
}

// sights follows a listener until the document "end" shows, from the second
// snapshot on.
func sights(t *testing.T, it *client.QuerySnapshotIterator) []sight {
	var seen []sight
	for {
		snap, err := it.Next()
		if err != nil {
			t.Errorf("next: %v", err)
			return seen
		}
		docs, err := snap.Documents.GetAll()
		if err != nil {
			t.Errorf("documents: %v", err)
		}
		var versions []version
		ended := false
		for _, d := range docs {
			versions = append(versions, version{d.Ref.ID, d.Data()["n"].(int64), d.UpdateTime})
			ended = ended || d.Ref.ID == "end"
		}
		if seen = append(seen, sightOf(snap.ReadTime, versions)); ended {
			return seen
		}
	}
}

// The listeners must see each commit that concerns them, at its time, in order,
// and nothing else: no state that never was, and none left out.
func TestListenersSeeEveryStateThatWasAndNoOther(t *testing.T) {
	const writers, commits = 8, 150
	server := firestore.NewServer(firestore.Options{})
	t.Cleanup(server.Close)
	r := newRig(t, dialServer(t, server))
	byN := r.client.Collection("v").OrderBy("n", client.Asc)
	kinds := []struct {
		query client.Query
		show  func([]version) []version
	}{
		{byN, func(all []version) []version { return all }},
		{byN.Where("n", "<", 5), func(all []version) []version {
			return slices.DeleteFunc(all, func(d version) bool { return d.n >= 5 })
		}},
		{byN.Limit(3), func(all []version) []version { return all[:min(3, len(all))] }},
		{byN.Offset(1).Limit(2), func(all []version) []version {
			return all[min(1, len(all)):min(3, len(all))]
		}},
	}
	seen := make([][]sight, len(kinds))
	var listeners sync.WaitGroup
	for i, k := range kinds {
		it := k.query.Snapshots(r.ctx)
		if _, err := it.Next(); err != nil {
			t.Fatal(err)
		}
		listeners.Go(func() { seen[i] = sights(t, it) })
	}
	done := make([][]effect, writers)
	var all sync.WaitGroup
	for w := range writers {
		other := rigOf(t, dialServer(t, server), strings.Split(r.database, "/")[1])
		all.Go(func() { done[w] = writeAtRandom(t, other, w, commits) })
	}
	all.Wait()
	// "end" is second, within every limit, and is told of last.
	last := write(t, r, map[string]*int64{"first": new(int64(-2)), "end": new(int64(-1))})
	listeners.Wait()
	history := append(slices.Concat(done...), last)
	for i, k := range kinds {
		want := replay(history, k.show)
		if len(seen[i]) != len(want) {
			t.Errorf("listener %d: %d snapshots, want %d", i, len(seen[i]), len(want))
		}
		for j := range min(len(seen[i]), len(want)) {
			if got := seen[i][j]; !got.at.Equal(want[j].at) || got.docs != want[j].docs {
				t.Errorf("listener %d, snapshot %d: %v, want %v", i, j, got, want[j])
				break
			}
		}
	}
}
