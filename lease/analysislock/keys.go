package analysislock

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"taskguard/lease"
	"taskguard/lease/iso8601"
)

// Keys limits how many analyses with one Key run at a time. A run needs a slot of its Key, which is a lease
// in the record of the Key.
//
// A delivery that finds no slot parks its analysis: it writes ParkedAt, and then looks for a slot once more. A
// run that ends frees its slot, and then looks for parked analyses. Each writes before it looks, so at least
// one of them sees the other, and no wake-up is lost.
type Keys struct {
	Store lease.Store[Key]       // by KeyID
	Limit func(value string) int // the number of slots of a Key; zero or less: none runs
	// Parked returns up to limit parked analyses of a KeyID in the order of their Place. It leaves out
	// finished, held and malformed ones.
	Parked func(ctx context.Context, keyID string, limit int) ([]Analysis, error)
}

// Key is the record of one concurrency key. A store may delete a record that is not Kept.
type Key struct {
	Value string             // the key
	Slots map[string]Slotted // by owner
	// Limit is the limit of the last delivery that changed the record. Paused: it was zero or less. Zero: not known.
	Limit int
	// Waiting reports that an analysis of the Key may be parked. While it is false, the end of a run need
	// not look for one.
	Waiting bool
}

// Paused is the Limit of a Key whose analyses may not run.
const Paused = -1

// Kept reports whether the record has information.
func (k *Key) Kept() bool { return len(k.Slots) > 0 || k.Waiting }

// Taken returns the ids of the analyses that have a slot at now, and of those whose next attempt has one.
func (k *Key) Taken(now time.Time) (running, reserved []string) {
	running = []string{}
	for _, owner := range slices.Sorted(maps.Keys(k.Slots)) {
		s := k.Slots[owner]
		switch {
		case !lease.Held(s.Lease, now):
		case owner == reservedBy(s.Analysis):
			reserved = append(reserved, s.Analysis)
		default:
			running = append(running, s.Analysis)
		}
	}
	slices.Sort(running)
	return running, reserved
}

// Slotted is a slot that is taken.
type Slotted struct {
	Lease    lease.Lease // its Token is 1
	Analysis string      // the id of the analysis that runs, or whose next attempt has reserved it
}

// KeyID returns the id of the record of a key: a hash, since a key may have any characters and any length.
func KeyID(value string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(value))) }

// Slot is a slot that a delivery holds.
type Slot = lease.Hold[claim]

// claim is a Key as the owner of one slot sees it.
type claim struct {
	Key
	own      lease.Lease // free, unless the owner has a slot
	analysis string      // of that slot
}

// slotToken is the token of each slot. Its owner is new for each delivery, which is enough.
const slotToken = 1

// claims is the lease.Store of the records of keys, for one owner.
type claims struct {
	store lease.Store[Key]
	owner string
}

// Load reads a missing record as one without slots.
func (s claims) Load(ctx context.Context, id string, want lease.Want) (lease.Cell[claim], error) {
	c, err := s.store.Load(ctx, id, want)
	return s.cell(c), err
}

// Swap changes the record of the key as the store does.
func (s claims) Swap(ctx context.Context, id string, prev lease.Cell[claim], next claim,
) (lease.Cell[claim], error) {
	key := next.Key
	key.Slots = maps.Clone(key.Slots)
	delete(key.Slots, s.owner)
	if next.own.Owner != "" {
		if key.Slots == nil {
			key.Slots = map[string]Slotted{}
		}
		key.Slots[s.owner] = Slotted{next.own, next.analysis}
	}
	c, err := s.store.Swap(ctx, id, prev.Rev.(lease.Cell[Key]), key)
	return s.cell(c), err
}

func (s claims) cell(c lease.Cell[Key]) lease.Cell[claim] {
	slot, taken := c.Doc.Slots[s.owner]
	if !taken {
		slot.Lease.Token = slotToken
	}
	view := claim{c.Doc, slot.Lease, slot.Analysis}
	return lease.Cell[claim]{Doc: view, Exists: true, Rev: c, At: c.At, Asked: c.Asked}
}

// prune removes the slots that are over at now, and returns how many are free. If d is not nil, it is about to be
// acquired, so prune also removes the slots of its earlier attempts: a reserved slot, and the slot of the last
// attempt, which has ended or lost its lock. After an unlock only the history names that attempt's owner.
func (c *claim) prune(now time.Time, limit int, d *Analysis) (free int) {
	c.Slots = maps.Clone(c.Slots)
	maps.DeleteFunc(c.Slots, func(owner string, s Slotted) bool {
		earlier := d != nil && s.Analysis == d.ID &&
			(owner == reservedBy(d.ID) || owner == d.Lock.Owner || owner == d.lastOwner())
		return earlier || !lease.Held(s.Lease, now)
	})
	return limit - len(c.Slots)
}

// lastOwner returns the owner of the last attempt; empty: there was none.
func (d *Analysis) lastOwner() string {
	if len(d.History) == 0 {
		return ""
	}
	return d.History[len(d.History)-1].Owner
}

// reservedBy is the owner of the slot that is reserved for the next attempt of an analysis. An id may be
// longer than the name of a field.
func reservedBy(id string) string { return "next attempt of " + KeyID(id) }

// slotPolicy is the Policy of a slot beside a lock with the policy p. A slot lives one heartbeat longer than
// a lock that was renewed last: after a crash it must not be free before the lock.
func slotPolicy(p lease.Policy) lease.Policy {
	return lease.Policy{TTL: min(p.TTL+p.Heartbeat, 12*time.Hour), Heartbeat: p.Heartbeat}
}

// park records that the analysis, which is free and due, waits for a slot of its Key. Each time is later
// than the last, so that the name of its next task is new.
func (d *Analysis) park(now time.Time) {
	place, last := d.place(now), d.ParkedAt
	d.crash(now)
	d.Lock = lease.Unlock(d.Lock)
	d.unbook()
	d.queue()
	d.Place, d.ParkedAt = place, now.Truncate(time.Millisecond)
	if !d.ParkedAt.After(last) {
		d.ParkedAt = last.Add(time.Millisecond)
	}
}

// place returns where the analysis stands among the parked ones of its Key: those created first come first.
// It keeps the Place that it has.
func (d *Analysis) place(now time.Time) string {
	line := KeyID(d.Key) + " "
	switch {
	case strings.HasPrefix(d.Place, line):
		return d.Place
	case d.CreatedAt.IsZero():
		return line + iso8601.Format(now)
	}
	return line + iso8601.Format(d.CreatedAt)
}

// Why a slot cannot be taken: all slots are taken, or the free ones are for analyses that wait before this one
// (errKeyBusy). Or the call must first read how many wait (errAsk).
var (
	errKeyBusy = errors.New("analysislock: no slot of the key is free")
	errAsk     = errors.New("analysislock: others may be parked")
)

// entry takes a slot of an analysis's key for one delivery.
type entry struct {
	locks   *Locks
	id      string
	owner   string
	policy  lease.Policy
	acquire func(d *Analysis, now time.Time) error // the rule of the acquisition that follows

	doc    Analysis              // as last read
	from   *lease.Cell[Analysis] // the reading on which the acquisition is decided; nil: it reads again
	slot   *Slot
	parked bool       // the analysis is
	next   []Analysis // who comes before it, and has a free slot
}

// enter takes a slot if the analysis can be acquired and has a Key. It returns nil if the acquisition may
// follow, which is also the case if that will be a skip, and errKeyBusy if there is no slot.
func (e *entry) enter(ctx context.Context, want lease.Want) error {
	err := e.takeSlot(ctx, want)
	if e.from != nil && time.Since(e.from.Asked) > e.policy.Heartbeat {
		e.from = nil // the lock's time would count from an old reading
	}
	return err
}

func (e *entry) takeSlot(ctx context.Context, want lease.Want) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	c, err := lease.Edit(ctx, e.locks.store, e.id, lease.Write[Analysis]{
		Want: want, Decide: func(c lease.Cell[Analysis]) (Analysis, error) { return c.Doc, e.decide(c) },
	})
	e.doc, e.from = c.Doc, &c
	if err != errLimited { //nolint:errorlint // Edit returns it unchanged
		return e.unless(err)
	}

	if err = e.look(ctx, &c.Doc); !errors.Is(err, errKeyBusy) {
		return err
	}
	at := c
	if c, err = e.park(ctx, at); errors.Is(err, lease.ErrRefused) { // FAILED is final: a second refusal confirms it
		c, err = e.park(ctx, at)
	}
	switch e.doc, e.from = c.Doc, &c; {
	case errors.Is(err, lease.ErrRefused):
		return e.locks.failFull(ctx, &c.Doc)
	case err != nil:
		return e.unless(err)
	}
	err = e.look(ctx, &c.Doc)
	e.parked = errors.Is(err, errKeyBusy)
	return err
}

// errLimited and errUnlimited say whether an acquisition needs a slot.
var (
	errLimited   = errors.New("analysislock: the acquisition needs a slot")
	errUnlimited = errors.New("analysislock: the acquisition needs no slot")
)

// decide judges the acquisition that would follow.
func (e *entry) decide(c lease.Cell[Analysis]) error {
	d := c.Doc
	if c.Exists && d.Key != "" && e.acquire(&d, c.At) == nil {
		return errLimited
	}
	return errUnlimited
}

// withSlot is the rule acquire for the analysis whose slot has been taken, if any.
func (e *entry) withSlot(d *Analysis, now time.Time) error {
	err := e.acquire(d, now)
	if err == nil && d.Key != "" && (e.slot == nil || d.Key != e.doc.Key) {
		return errLimited
	}
	return err
}

// unless returns err, or nil if the acquisition needs no slot.
func (e *entry) unless(err error) error {
	if errors.Is(err, errUnlimited) {
		return nil
	}
	return err
}

// park writes that the analysis is parked.
func (e *entry) park(ctx context.Context, from lease.Cell[Analysis]) (lease.Cell[Analysis], error) {
	var parked Analysis
	return lease.Edit(ctx, e.locks.store, e.id, lease.Write[Analysis]{
		From: &from,
		Decide: func(c lease.Cell[Analysis]) (Analysis, error) {
			parked = c.Doc
			if err := e.decide(c); !errors.Is(err, errLimited) {
				return c.Doc, err
			}
			parked.park(c.At)
			return parked, nil
		},
		Landed: func(c lease.Cell[Analysis]) bool { return c.Exists && c.Doc.ParkedAt.Equal(parked.ParkedAt) },
	})
}

// look takes a slot, unless none is free, or as many parked analyses as slots are free come before d. If d is
// parked, the record of the key then says so. errKeyBusy: it has taken none.
func (e *entry) look(ctx context.Context, d *Analysis) error {
	k, id, limit := e.locks.Keys, KeyID(d.Key), max(Paused, e.locks.Keys.Limit(d.Key))
	if limit == 0 {
		limit = Paused
	}
	store, policy := claims{k.Store, e.owner}, slotPolicy(e.policy)
	free, asked := 0, 0 // slots; next is of that many parked analyses
	take := func(c lease.Cell[claim]) (claim, error) {
		next := c.Doc
		free = next.prune(c.At, limit, d)
		switch {
		case free > asked && next.Waiting:
			return c.Doc, errAsk
		case free > len(e.next):
			next.Value, next.Limit, next.analysis = d.Key, limit, d.ID
			next.own, _ = lease.Acquire(lease.Lease{}, c.At, e.owner, policy) // the first token is slotToken
			return next, nil
		case !d.ParkedAt.IsZero() && (!next.Waiting || (next.Limit == Paused) != (limit == Paused)):
			next.Value, next.Limit, next.Waiting = d.Key, limit, true
			return next, nil
		}
		return c.Doc, errKeyBusy
	}

	e.next = nil
	write := lease.Write[claim]{Decide: take, Landed: func(c lease.Cell[claim]) bool { return c.Doc.own.Owner != "" }}
	c, err := lease.Edit(ctx, store, id, write)
	for errors.Is(err, errAsk) {
		asked = free
		if e.next, err = e.ahead(ctx, id, asked, d); err == nil {
			write.From = &c
			c, err = lease.Edit(ctx, store, id, write)
		}
	}
	switch {
	case errors.Is(err, errKeyBusy):
		e.next = e.next[:max(0, min(free, len(e.next)))]
		return err
	case err != nil:
		return unsure(err)
	case c.Doc.own.Owner == "":
		return errKeyBusy
	}

	slots, err := lease.NewRecords(store, func(c *claim) *lease.Lease { return &c.own }, policy)
	if err != nil {
		return err
	}
	e.slot = slots.Hold(id, c)
	return nil
}

// unsure is an error of the record of a key: that is not the fault of the analysis.
func unsure(err error) error {
	return fmt.Errorf("%w: the slots of a key: %v", lease.ErrUnavailable, err) //nolint:errorlint // hides ErrRefused
}

// ahead reads the first limit parked analyses, and returns the ones that come before d.
func (e *entry) ahead(ctx context.Context, keyID string, limit int, d *Analysis) ([]Analysis, error) {
	parked, err := e.locks.Keys.Parked(ctx, keyID, limit)
	mine := d.place(d.ReadAt)
	return slices.DeleteFunc(parked, func(other Analysis) bool {
		return other.ID == d.ID || other.Place > mine || other.Place == mine && other.ID > d.ID
	}), err
}

// skip returns the Acquisition of a delivery that must not acquire the lock, because of err.
func (e *entry) skip(err error) (Acquisition, error) {
	unknown := errors.Is(err, lease.ErrUnavailable) && !e.doc.ParkedAt.IsZero()
	if !errors.Is(err, errKeyBusy) && !unknown {
		return skip(&e.doc, e.owner, err)
	}
	return Acquisition{Reason: KeyBusy, Status: e.doc.Status, Key: e.doc.Key, Parked: e.parked, Next: e.next}, nil
}

// Leave frees a slot, and returns the parked analyses for which slots are free: a delivery must be booked
// for each. If next is not zero, the slot is reserved for the next attempt of its analysis, until one TTL after
// that time. Leave tries for 2 s, or until the deadline of ctx if that is later.
func (l *Locks) Leave(ctx context.Context, s *Slot, next time.Time) ([]Analysis, error) {
	free := lease.Releasing(false, func(c *claim) {
		if owner := reservedBy(c.analysis); !next.IsZero() {
			reserved := lease.Lease{Owner: owner, Token: slotToken, ExpiresAt: next.Add(l.TTL())}
			c.Slots = maps.Clone(c.Slots)
			c.Slots[owner] = Slotted{reserved, c.analysis}
		}
	})
	if err := s.End(ctx, free); err != nil && !errors.Is(err, lease.ErrLost) {
		return nil, err
	}
	return l.next(ctx, s.Cell(), false)
}

// Wake returns the parked analyses of a key for which slots are free, as Leave does. Call it if the analysis id
// did not use the slot for which its delivery was booked. If the analysis is finished, Wake frees its reserved slot.
func (l *Locks) Wake(ctx context.Context, key, id string, finished bool) ([]Analysis, error) {
	c, err := claims{store: l.Keys.Store}.Load(ctx, KeyID(key), lease.OnlyLease)
	if err == nil && finished {
		c, err = l.drop(ctx, c, id)
	}
	if err != nil {
		return nil, err
	}
	return l.next(ctx, c, false)
}

// drop frees what is reserved for these analyses in the record c, if that has not changed.
func (l *Locks) drop(ctx context.Context, c lease.Cell[claim], ids ...string) (lease.Cell[claim], error) {
	next := c.Doc
	next.Slots = maps.Clone(next.Slots)
	for _, id := range ids {
		delete(next.Slots, reservedBy(id))
	}
	if len(next.Slots) == len(c.Doc.Slots) {
		return c, nil
	}
	return claims{store: l.Keys.Store}.Swap(ctx, KeyID(next.Value), c, next)
}

// Recover returns the parked analyses of d's key for which slots are free, also if the record of the key does
// not say that somebody waits. A slot that is reserved for an analysis that is finished or deleted is free.
func (l *Locks) Recover(ctx context.Context, d *Analysis) ([]Analysis, error) {
	if id, _, _ := strings.Cut(d.Place, " "); id != KeyID(d.Key) { // its key has changed: that line is given up
		return l.Keys.Parked(ctx, id, maxMoved)
	}
	c, err := claims{store: l.Keys.Store}.Load(ctx, KeyID(d.Key), lease.OnlyLease)
	if err != nil {
		return nil, err
	}
	c.Doc.Value = d.Key
	_, reserved := c.Doc.Taken(c.At)
	reserved = slices.DeleteFunc(reserved, func(id string) bool {
		holder, err := lease.Read(ctx, l.store, id)
		return err != nil || holder.Exists && !holder.Doc.Lock.Finished
	})
	if c, err = l.drop(ctx, c, reserved...); err != nil {
		return nil, err
	}
	return l.next(ctx, c, true)
}

// maxMoved bounds how many parked analyses Recover returns of a line whose key has changed.
const maxMoved = 100

// next returns the parked analyses for which slots are free in c, if somebody waits. If there is none, the
// record of the key need not say any more that somebody waits, unless it has changed since.
func (l *Locks) next(ctx context.Context, c lease.Cell[claim], waits bool) ([]Analysis, error) {
	seen := c.Doc
	if !seen.Waiting && !waits {
		return nil, nil
	}
	free := seen.prune(c.At, l.Keys.Limit(seen.Value), nil)
	if free <= 0 {
		return nil, nil
	}

	id := KeyID(seen.Value)
	parked, err := l.Keys.Parked(ctx, id, free)
	if err == nil && len(parked) == 0 && seen.Waiting {
		seen.Waiting = false
		_, _ = claims{store: l.Keys.Store}.Swap(ctx, id, c, seen) // or the next end does
	}
	return parked, err
}
