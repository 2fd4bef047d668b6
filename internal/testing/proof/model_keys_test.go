package proof

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/lease/iso8601"
)

// swapKey serves a write of a key's record, and checks that no more slots are held than there are. A record
// that is not kept is deleted.
func (m *model) swapKey(c *call) (lease.Cell[analysislock.Key], error) {
	stored := m.keys[c.id]
	if stored.Exists != c.key.Exists || stored.Rev != c.key.Rev {
		m.count("conflicts of keys")
		return lease.Cell[analysislock.Key]{}, fmt.Errorf("swap key: %w", lease.ErrConflict)
	}
	held := 0
	for _, s := range c.then.Slots {
		if lease.Held(s.Lease, m.now()) {
			held++
		}
	}
	if held > m.keySlots {
		m.fail("%v took slot %d of %d", c.by, held, m.keySlots)
	}
	m.judgeOrder(c, m.keySlots-held)
	m.keyRevisions++
	next := lease.Cell[analysislock.Key]{Doc: c.then, Exists: true, Rev: m.keyRevisions, At: m.now()}
	if !c.then.Kept() {
		next = lease.Cell[analysislock.Key]{At: m.now()}
	}
	m.keys[c.id] = next
	return next, nil
}

// judgeOrder checks that a delivery takes a slot only if one is left for each analysis of its key that is parked in
// front of its own. It looks for them if the record of the key says that somebody waits, and again after it has
// parked its own. It need not know those that were parked after it looked.
func (m *model) judgeOrder(c *call, left int) {
	slotted := map[string]bool{}
	taken := false
	for owner, s := range c.then.Slots {
		slotted[s.Analysis] = true
		_, before := c.key.Doc.Slots[owner]
		taken = taken || !before && !strings.HasPrefix(owner, "next attempt of ")
	}
	if !taken || !c.key.Doc.Waiting {
		return
	}

	ahead := 0
	mine := cmp.Or(m.records[c.by.analysis].doc.Place, c.id+" "+iso8601.Format(m.records[c.by.analysis].doc.CreatedAt))
	parked := m.parked(c.id, len(m.records))
	for i := range parked {
		d := &parked[i]
		known := c.by.lookedAt == 0 || m.records[d.ID].parkedAt < c.by.lookedAt
		if first := d.Place < mine && !slotted[d.ID]; first && known {
			ahead++
		}
	}
	if ahead > left {
		m.fail("%v took a slot, with %d left for %d in front of it", c.by, left, ahead)
	}
}

// judgeParked checks, when a delivery of a parked analysis is acknowledged and nothing else will deliver it, that
// somebody will wake it: the record of its key says that somebody waits, so that the end of each slot looks for it. If
// no slot is held at that moment, the end of the simulation shows that it was woken.
func (m *model) judgeParked(r *record, p *caller) {
	id, _, _ := strings.Cut(r.doc.Place, " ")
	key := m.keys[id].Doc
	if !key.Waiting {
		m.fail("%s was acknowledged, but the record of the key does not say that %s waits", p, m.show(r.doc))
	}
	for _, s := range key.Slots {
		if lease.Held(s.Lease, m.now()) {
			m.count("parked behind a slot")
			return
		}
	}
}

// parked returns the parked analyses of a key in their order, as repo.Analyses does.
func (m *model) parked(keyID string, limit int) (found []analysis) {
	for id, r := range m.records {
		if strings.HasPrefix(r.doc.Place, keyID+" ") && lease.Orphaned(r.doc.Lock, m.now()) {
			found = append(found, m.load(id).Doc)
		}
	}
	slices.SortFunc(found, func(a, b analysis) int {
		return cmp.Or(cmp.Compare(a.Place, b.Place), cmp.Compare(a.ID, b.ID))
	})
	return found[:min(len(found), limit)]
}

// keyClient is a client's lease.Store of the records of keys.
type keyClient struct{ *client }

func (c keyClient) Load(ctx context.Context, id string, _ lease.Want) (lease.Cell[analysislock.Key], error) {
	r := c.call(ctx, &call{kind: loadKey, id: id})
	return r.key, r.err
}

func (c keyClient) Swap(ctx context.Context, id string, prev lease.Cell[analysislock.Key], next analysislock.Key,
) (lease.Cell[analysislock.Key], error) {
	r := c.call(ctx, &call{kind: swapKey, id: id, key: prev, then: next})
	return r.key, r.err
}

// Parked asks the store for parked analyses.
func (c *client) Parked(ctx context.Context, keyID string, limit int) ([]analysis, error) {
	r := c.call(ctx, &call{kind: parked, id: keyID, limit: limit})
	return r.parked, r.err
}

// keyLedger is a delivery.Keys.
type keyLedger struct {
	*analysislock.Locks
	client *client
}

func (l keyLedger) Wakeable(ctx context.Context) (found []analysis, err error) {
	var firsts []analysis
	l.client.locked(func() {
		for id := range l.client.keyIDs() {
			firsts = append(firsts, l.client.parked(id, 1)...)
		}
	})
	slices.SortFunc(firsts, func(a, b analysis) int { return cmp.Compare(a.Place, b.Place) })
	for i := range firsts {
		next, err := l.Recover(ctx, &firsts[i])
		if err != nil {
			return found, err
		}
		found = append(found, next...)
	}
	return found, nil
}

// keyIDs returns the keys of all analyses.
func (m *model) keyIDs() map[string]bool {
	all := map[string]bool{}
	for _, r := range m.records {
		all[analysislock.KeyID(r.doc.Key)] = true
	}
	return all
}
