package proof

import (
	"fmt"
	"hash/maphash"
)

var hashSeed = maphash.MakeSeed()

// digest hashes comparable values.
func digest(what ...any) uint64 {
	var h maphash.Hash
	h.SetSeed(hashSeed)
	for _, w := range what {
		maphash.WriteComparable(&h, w)
	}
	return h.Sum64()
}

// receive adds to the hash of all that the worker's goroutines have received, in
// order: their next steps depend only on it and on the time.
func (i *instance) receive(what ...any) { i.received = digest(i.received, digest(what...)) }

// who returns the number of an owner, whose name is random.
func (x *execution) who(owner string) int {
	if p := x.owners[owner]; p != nil && owner != "" {
		return p.n
	}
	return -1
}

func (x *execution) digestDoc(d analysis) uint64 {
	l := d.Lock
	booked := 0
	if d.BookedTask != "" {
		booked = 1
	}
	if d.BookedTask == nextName(d) {
		booked = 2
	}
	return digest(booked, d.Status, x.who(l.Owner), x.who(l.FinishedBy), l.Token, l.Attempts, l.ExpiresAt.UnixNano(), l.Finished, d.LastError != nil, d.NextAttemptAt.UnixNano(),
		markOf(d.Checkpoint), outcomeOf(d), lastOf(d).Token)
}

func (x *execution) digestReply(a reply) uint64 {
	return digest(fmt.Sprint(a.err), a.already, a.found, a.cell.Exists, a.cell.Rev, x.digestDoc(a.cell.Doc))
}

// state returns a hash of everything on which the next steps depend.
func (x *execution) state() uint64 {
	r := x.rec
	d := digest(x.since(), x.left, x.digestDoc(r.doc), r.rev, r.updated.UnixNano(), r.history.Token, x.operator.received, r.mark, x.requeuing)
	for _, i := range x.instances {
		d = digest(d, i.received, i.crashed, i.stopping)
	}
	for _, p := range x.callers {
		d = digest(d, p.token, p.broken != nil, p.readBreak, p.ended, p.pending != nil, p.running())
		if p.run != nil {
			d = digest(d, p.run.work)
		}
	}
	var sum uint64 // does not depend on the order
	for _, t := range x.tasks {
		sum += digest(t.alias, t.At.UnixNano(), t.inFlight, t.done)
	}
	for _, c := range x.late {
		sum += digest(c.prev.Rev, x.digestDoc(c.next), c.by.n)
	}
	return digest(d, sum)
}
