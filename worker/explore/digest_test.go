package explore

import (
	"hash/maphash"
	"time"

	"taskguard/lease/analysislock"
	"taskguard/worker/taskqueue"
)

// digest is a running hash.
type digest uint64

func (d digest) add(what ...uint64) digest {
	z := uint64(d)
	for _, v := range what {
		z = (z ^ v) + 0x9e3779b97f4a7c15
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		z ^= z >> 31
	}
	return digest(z)
}

var seed = maphash.MakeSeed()

func text(s string) uint64 { return maphash.String(seed, s) }

func truth(all ...bool) uint64 {
	var n uint64
	for _, b := range all {
		n <<= 1
		if b {
			n |= 1
		}
	}
	return n
}

// who is the number of an owner, whose name is random.
func (w *world) who(owner string) uint64 {
	for i, p := range w.parties {
		if owner != "" && p.owner == owner {
			return uint64(i) + 1
		}
	}
	return 0
}

func (w *world) digestDoc(d analysislock.Analysis) uint64 {
	l := d.Lock
	return uint64(digest(0).add(text(d.Status), w.who(l.Owner), w.who(l.FinishedBy), uint64(l.Token), uint64(l.Attempts),
		uint64(l.ExpiresAt.UnixNano()), truth(l.Finished, d.LastError != nil)))
}

func (w *world) digestAnswer(a answer) uint64 {
	e := uint64(0)
	if a.err != nil {
		e = text(a.err.Error())
	}
	rev, _ := a.cell.Rev.(int64)
	return uint64(digest(e).add(truth(a.already, a.cell.Exists), uint64(rev), w.digestDoc(a.cell.Doc)))
}

// key is the digest of a task's name, or of whose run it replaces: such a name
// is made of an owner's, which is random.
func (w *world) key(t *task) uint64 {
	if t.key == 0 {
		t.key = text(t.name)
		for _, p := range w.parties {
			if p.owner != "" && t.name == taskqueue.Name("replace", analysis, p.owner) {
				t.key = uint64(p.id) + 1
			}
		}
	}
	return t.key
}

// state is all that decides what may happen from here on. What a host's
// goroutines will do is decided by what they have been told, in which order and
// when, which is the host's chain, and by the time.
func (w *world) state() digest {
	b := w.left
	d := digest(uint64(time.Since(w.start))).add(w.digestDoc(w.doc), uint64(w.rev), uint64(w.updated.UnixNano()), uint64(w.maxToken),
		uint64(b.deliveries), uint64(b.faults), uint64(b.crashes), uint64(b.ticks), uint64(b.unlocks), uint64(b.stops),
		uint64(b.failures), uint64(b.hasty), uint64(b.recovers), uint64(w.op.chain))
	for _, h := range w.hosts {
		d = d.add(uint64(h.chain), truth(h.crashed, h.stopping))
	}
	for _, p := range w.parties {
		d = d.add(uint64(p.token), truth(p.broken, p.told, p.ended, p.pending != nil, p.body.runs()))
	}
	var sum uint64
	for _, t := range w.queue.tasks {
		sum += uint64(digest(w.key(t)).add(uint64(t.at.UnixNano()), uint64(t.flying), truth(t.gone)))
	}
	for _, c := range w.late {
		rev, _ := c.prev.Rev.(int64)
		sum += uint64(digest(uint64(rev)).add(w.digestDoc(c.next), uint64(c.by.id)))
	}
	return d.add(sum)
}
