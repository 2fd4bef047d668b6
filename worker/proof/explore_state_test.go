package proof

import "hash/maphash"

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

var hashSeed = maphash.MakeSeed()

func text(s string) uint64 { return maphash.String(hashSeed, s) }

func flags(all ...bool) uint64 {
	var n uint64
	for _, b := range all {
		n <<= 1
		if b {
			n |= 1
		}
	}
	return n
}

// receive adds to all that the worker's goroutines have got, in order: what they
// will do depends on it and on the time alone.
func (i *instance) receive(what ...uint64) { i.received = i.received.add(what...) }

// who is the number of an owner, whose name is random.
func (x *execution) who(owner string) uint64 {
	if p := x.owners[owner]; p != nil && owner != "" {
		return uint64(p.n) + 1
	}
	return 0
}

func (x *execution) digestDoc(d analysis) uint64 {
	l := d.Lock
	return uint64(digest(0).add(text(d.Status), x.who(l.Owner), x.who(l.FinishedBy), uint64(l.Token), uint64(l.Attempts),
		uint64(l.ExpiresAt.UnixNano()), flags(l.Finished, d.LastError != nil)))
}

func revision(c cell) uint64 { rev, _ := c.Rev.(int64); return uint64(rev) }

func (x *execution) digestReply(a reply) uint64 {
	e := uint64(0)
	if a.err != nil {
		e = text(a.err.Error())
	}
	return uint64(digest(e).add(flags(a.already, a.cell.Exists), revision(a.cell), x.digestDoc(a.cell.Doc)))
}

// state is all that decides what may happen from here on.
func (x *execution) state() digest {
	b, r := x.left, x.rec
	d := digest(uint64(x.since())).add(x.digestDoc(r.doc), uint64(r.rev), uint64(r.updated.UnixNano()), uint64(r.history.Token),
		uint64(b.deliveries), uint64(b.faults), uint64(b.crashes), uint64(b.ticks), uint64(b.unlocks), uint64(b.stops),
		uint64(b.failures), uint64(b.hasty), uint64(b.recovers), uint64(x.operator.received))
	for _, i := range x.instances {
		d = d.add(uint64(i.received), flags(i.crashed, i.stopping))
	}
	for _, p := range x.parties {
		d = d.add(uint64(p.token), flags(p.broken != nil, p.informed, p.ended, p.pending != nil, p.running()))
	}
	var sum uint64
	for _, t := range x.tasks {
		sum += uint64(digest(text(t.alias)).add(uint64(t.At.UnixNano()), uint64(t.flying), flags(t.done)))
	}
	for _, c := range x.late {
		sum += uint64(digest(revision(c.prev)).add(x.digestDoc(c.next), uint64(c.by.n)))
	}
	return d.add(sum)
}
