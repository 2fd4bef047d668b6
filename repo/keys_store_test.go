package repo

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/firestore"

	"taskguard/internal/testing/emulatortest"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/lease/leasetest"
)

// pooled is a record of a key as the conformance suite sees it: one slot, whose lease is the suite's. A slot has
// only an owner and times, so the rest of the lease is in the text of the key.
type pooled struct {
	lease.Lease
	note string
}

// pool is the store of keys under test, with another program's access to its documents.
type pool struct {
	keyStore
	others *firestore.CollectionRef
}

// besideSlot is what the text of the key has.
type besideSlot struct {
	Rest lease.Lease
	Note string
}

func (p pool) Load(ctx context.Context, id string, want lease.Want) (lease.Cell[pooled], error) {
	c, err := p.keyStore.Load(ctx, id, want)
	return p.cell(c, err)
}

func (p pool) Swap(ctx context.Context, id string, prev lease.Cell[pooled], next pooled) (lease.Cell[pooled], error) {
	rest, slots := next.Lease, map[string]analysislock.Slotted{}
	if rest.Owner != "" {
		slot := lease.Lease{Owner: rest.Owner, Token: 1, HeartbeatAt: rest.HeartbeatAt, ExpiresAt: rest.ExpiresAt}
		slots[rest.Owner] = analysislock.Slotted{Lease: slot, Analysis: "x"}
	}
	rest.Owner, rest.HeartbeatAt, rest.ExpiresAt = "", time.Time{}, time.Time{}
	value, err := json.Marshal(besideSlot{rest, next.note})
	if err != nil {
		return lease.Cell[pooled]{}, err
	}
	key := analysislock.Key{Value: string(value), Slots: slots, Waiting: true}
	return p.cell(p.keyStore.Swap(ctx, id, prev.Rev.(lease.Cell[analysislock.Key]), key))
}

func (p pool) cell(c lease.Cell[analysislock.Key], err error) (lease.Cell[pooled], error) {
	var kept besideSlot
	if c.Doc.Value != "" {
		if err := json.Unmarshal([]byte(c.Doc.Value), &kept); err != nil {
			return lease.Cell[pooled]{}, err
		}
	}
	d := pooled{kept.Rest, kept.Note}
	for owner, slot := range c.Doc.Slots {
		d.Owner, d.HeartbeatAt, d.ExpiresAt = owner, slot.Lease.HeartbeatAt, slot.Lease.ExpiresAt
	}
	return lease.Cell[pooled]{Doc: d, Exists: c.Exists, Rev: c, At: c.At, Asked: c.Asked}, err
}

// withKeys connects a worker to b that limits the analyses of a tenant.
func withKeys(t testing.TB, b *emulatortest.Backend, limit int) *worker {
	t.Helper()
	o := Options{Policy: lease.Policy{TTL: ttl(b), MaxAttempts: 10}, Concurrency: &Concurrency{
		Fields: []string{"tenant"}, Limit: func(string) int { return limit },
	}}
	a, err := Open(t.Context(), b.Project, optionsFor(b, o), b.Client(t)...)
	fatal(t, err)
	return &worker{Analyses: a, holds: map[string]*analysislock.Hold{}}
}

func poolSuite(backend func(testing.TB) *emulatortest.Backend) leasetest.Suite[pooled] {
	s := leasetest.Suite[pooled]{
		New: func(t testing.TB) lease.Store[pooled] {
			keys := withKeys(t, backend(t), 1).Keys.Store.(keyStore)
			return pool{keys, keys.collection}
		},
		Lease:   func(p *pooled) *lease.Lease { return &p.Lease },
		Note:    func(p pooled) string { return p.note },
		SetNote: func(p *pooled, note string) { p.note = note },
	}
	collection := func(s lease.Store[pooled]) *firestore.CollectionRef { return s.(pool).others }
	byDocuments(&s, collection, map[string]any{"waiting": true})
	return s
}

func TestKeysOnEmbedded(t *testing.T) {
	s := poolSuite(emulatortest.Embedded)
	s.TTL, s.Bubble = lease.DefaultTTL, true
	leasetest.Run(t, s)
}

func TestKeysOnGoogle(t *testing.T) {
	t.Parallel()
	emulatortest.Google(t)
	s := poolSuite(emulatortest.OnGoogle)
	s.TTL = 6 * time.Second
	leasetest.Run(t, s)
}

// Twelve deliveries of one key at once: three get a slot and the lock, and the others are parked. Each end of a run
// wakes those that are next, until all is READY and the key has no document.
func TestSlotsAtOnce(t *testing.T) {
	emulatortest.EachKind(t, func(t *testing.T, b *emulatortest.Backend) {
		const limit, count = 3, 12
		a := withKeys(t, b, limit)
		for n := range count {
			b.Put(t, fmt.Sprint("x", n), map[string]any{"status": analysislock.Queued, "tenant": "a"})
		}

		due := map[string]bool{}
		for n := range count {
			due[fmt.Sprint("x", n)] = true
		}
		ready := 0
		for round := 0; ready < count && round < 3*count; round++ {
			got, next := a.acquireAll(t, due)
			if len(got) > limit || round == 0 && len(got) != limit {
				t.Fatalf("round %d: %d have a slot, want %d", round, len(got), limit)
			}
			due = next
			for _, acq := range got {
				fatal(t, acq.Hold.End(t.Context(), analysislock.Completing(acq.Hold.Now(), "done")))
				next, err := a.Leave(t.Context(), acq.Slot, time.Time{})
				fatal(t, err)
				for i := range next {
					due[next[i].ID] = true
				}
				ready++
			}
		}
		if ready != count {
			t.Errorf("%d of %d are READY: a wake-up was lost", ready, count)
		}
		left, err := a.Keys.Store.Load(t.Context(), analysislock.KeyID("a"), lease.OnlyLease)
		if err != nil || left.Exists {
			t.Errorf("left is %+v, %v", left.Doc, err)
		}
	})
}

// acquireAll makes a delivery of each analysis at once. It returns those that have the lock, and those that the
// others have woken.
func (w *worker) acquireAll(t *testing.T, ids map[string]bool) (got []analysislock.Acquisition, woken map[string]bool) {
	t.Helper()
	woken = map[string]bool{}
	var deliveries sync.WaitGroup
	for id := range ids {
		deliveries.Go(func() {
			acq, err := w.AcquireAnalysisLock(t.Context(), id, "w/"+id, 0, analysislock.AcquireOptions{})
			if acq.Reason == analysislock.AlreadyFinished { // two have woken it: its slot is for another
				acq.Next, err = w.Wake(t.Context(), acq.Key, id, true)
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			switch {
			case err == nil && acq.Reason == analysislock.AlreadyFinished:
			case err != nil || acq.Acquired == (acq.Slot == nil) || !acq.Acquired && !acq.Parked:
				t.Errorf("%s: %+v, %v; want a slot or a place in the line", id, acq, err)
			case acq.Acquired:
				got = append(got, acq)
			}
			for i := range acq.Next {
				woken[acq.Next[i].ID] = true
			}
		})
	}
	deliveries.Wait()
	return got, woken
}
