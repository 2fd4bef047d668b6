package lease

import "time"

// The rules are pure functions from one Lease to the next. now is always the
// store's time. No other code judges expiry.

// Acquire gives l to owner. It returns, in this order: ErrFinished; a *HeldError while
// another's lease has not expired; ErrExhausted, together with the finished Lease to
// record, if no attempt is left; else the taken Lease with a new token. An expired lease
// is stolen; a lease without an expiry counts as expired. now is the time of the reading
// that will be swapped. (SEEDS G5)
func Acquire(l Lease, now time.Time, owner string, p Policy) (Lease, error) {
	p = p.filled()
	switch {
	case l.Finished:
		return l, ErrFinished
	case Held(l, now):
		return l, heldError(l, now)
	case p.Last(l):
		l.Token++
		return finished(l, owner), ErrExhausted
	}
	l.Owner = owner
	l.Token++
	l.Attempts++
	l.HeartbeatAt, l.ExpiresAt = period(now, p)
	return l, nil
}

// Renew extends the lease of g by one TTL from now, or returns ErrLost. now may be
// an estimate: it only chooses the new expiry, which always differs from the old one,
// so that it shows whether the renewal was written. An expired lease that was not taken
// by another is revived. (SEEDS R8)
func Renew(l Lease, now time.Time, g Grant, p Policy) (Lease, error) {
	if err := loss(l, g); err != nil {
		return l, err
	}
	old := l.ExpiresAt
	l.HeartbeatAt, l.ExpiresAt = period(now, p.filled())
	if l.ExpiresAt.Equal(old) {
		l.ExpiresAt = old.Add(time.Millisecond)
	}
	return l, nil
}

// Distinct returns l with an expiry after tried, which the last renewal of the same holder tried to
// write: the expiry identifies a renewal, and a failed renewal may have been written. The clock of a
// store with several of them may step back; then the two differ without that.
func Distinct(l Lease, tried time.Time) Lease {
	if ahead := tried.Sub(l.ExpiresAt); 0 <= ahead && ahead < time.Second {
		l.ExpiresAt = tried.Add(time.Millisecond)
	}
	return l
}

// Finish makes the record terminal and frees it, if the lease is g's. Else it
// returns ErrLost.
func Finish(l Lease, g Grant) (Lease, error) {
	if err := loss(l, g); err != nil {
		return l, err
	}
	return finished(l, g.Owner), nil
}

// Adopt frees the lease of a record that another program made terminal while it was g's, as
// if g had finished it. Else it returns ErrLost. (SEEDS R11)
func Adopt(l Lease, g Grant) (Lease, error) {
	if !l.Finished || l.Owner == "" || l.Grant() != g {
		return l, &LostError{Reason: Taken}
	}
	return finished(l, g.Owner), nil
}

// Release frees the lease, if it is g's. Else it returns ErrLost. refund subtracts the attempt that
// the acquisition counted. (SEEDS G8)
func Release(l Lease, g Grant, refund bool) (Lease, error) {
	if err := loss(l, g); err != nil {
		return l, err
	}
	if refund && l.Attempts > 0 {
		l.Attempts--
	}
	return freed(l), nil
}

// Unlock frees the lease, whoever its owner is. An operator forces it. The token stays, so that
// the next one is larger.
func Unlock(l Lease) Lease { return freed(l) }

// Reopen lets a record run again from attempt one, finished or not. It returns a
// *HeldError while the record is held.
func Reopen(l Lease, now time.Time) (Lease, error) {
	if Held(l, now) {
		return l, heldError(l, now)
	}
	l = freed(l)
	l.Finished, l.Attempts = false, 0
	return l, nil
}

// RaiseToken sets the token to minimum if it is lower. It is for a restore of the store: other systems
// may have seen tokens that are higher than the restored one. It returns a *HeldError while the
// record is held.
func RaiseToken(l Lease, now time.Time, minimum int64) (Lease, error) {
	if Held(l, now) {
		return l, heldError(l, now)
	}
	l.Token = max(l.Token, minimum)
	return l, nil
}

// Cancel makes the record terminal, even if it is held. FinishedBy becomes by, which must
// not be the name of a holder. The token grows, so that it is larger than the token of a run in
// progress. Cancel returns ErrFinished if the record is finished.
func Cancel(l Lease, by string) (Lease, error) {
	if l.Finished {
		return l, ErrFinished
	}
	l.Token++
	return finished(l, by), nil
}

// Orphaned reports whether the record is unfinished and not held at now, so that
// only another delivery can finish it.
func Orphaned(l Lease, now time.Time) bool { return !l.Finished && !Held(l, now) }

// Held reports whether l is held at now: expired means now ≥ expiry. (SEEDS R7)
func Held(l Lease, now time.Time) bool {
	return !l.Finished && l.Owner != "" && now.Before(l.ExpiresAt)
}

// Fresh returns the free lease of a missing record, for stores that delete free
// records. Its first token is now in microseconds, which is larger than any token of
// a record deleted before now, so that tokens only grow. (SEEDS D4)
func Fresh(now time.Time) Lease { return Lease{Token: now.UnixMicro() - 1} }

// MaxAhead is the furthest that a stored time of a lease may be ahead of the
// store's time.
const MaxAhead = 24 * time.Hour

// Credible reports whether a stored time of a lease is not more than MaxAhead after
// now, the store's time of the reading. No TTL is that long, and a lease that expires
// later would block its record until then.
func Credible(stored, now time.Time) bool { return stored.Sub(now) <= MaxAhead }

// maxEarly is how much earlier than the stored time an acquisition may be: the clock of
// the queue that delivers it may be ahead of the store's.
const maxEarly = 2 * time.Second

// Due reports whether an acquisition may be made at now. next is the time that the record
// stores for it; if that is not Credible, the acquisition is due.
func Due(next, now time.Time) bool { return Late(next, now, -maxEarly) }

// Late reports whether now is delay after next, or later. next is a time that the record
// stores; if that is not Credible, it is late.
func Late(next, now time.Time, delay time.Duration) bool {
	return !now.Before(next.Add(delay)) || !Credible(next, now)
}

// AssumedExpiry returns the expiry of a lease whose stored expiry cannot be read: one TTL
// after its heartbeat or, if that cannot be read either, after the record's last
// update. So the record is neither run twice nor blocked for ever. (SEEDS G5)
func AssumedExpiry(heartbeat, updated time.Time, p Policy) time.Time {
	if heartbeat.IsZero() {
		heartbeat = updated
	}
	return heartbeat.Add(p.filled().TTL)
}

// Outwaited returns l as expired at now, and true, if its record was seen unchanged for one TTL, by
// the reader's monotonic clock: its holder has sent no heartbeat in that time, even if the clock
// that dated it was an hour ahead. It serves stores whose writers have clocks of their own.
func Outwaited(l Lease, now time.Time, unchanged time.Duration) (Lease, bool) {
	ttl := l.ExpiresAt.Sub(l.HeartbeatAt)
	if !Held(l, now) || ttl < 0 || unchanged < ttl {
		return l, false
	}
	l.HeartbeatAt, l.ExpiresAt = now.Add(-ttl), now
	return l, true
}

// Trusted returns the time of the local monotonic clock until which the holder of l can
// trust it. at is the store's time in the reply to an RPC that started at asked; l has
// the expiry that is stored.
func Trusted(l Lease, at, asked time.Time, p Policy) time.Time {
	return asked.Add(l.ExpiresAt.Sub(at) - p.Margin())
}

func heldError(l Lease, now time.Time) *HeldError {
	return &HeldError{Owner: l.Owner, Token: l.Token, ExpiresAt: l.ExpiresAt, Remaining: l.ExpiresAt.Sub(now)}
}

// period returns a heartbeat at now and its expiry, in whole milliseconds, as
// documents store them.
func period(now time.Time, p Policy) (heartbeat, expires time.Time) {
	now = now.Truncate(time.Millisecond)
	return now, now.Add(p.TTL)
}

func loss(l Lease, g Grant) error {
	switch {
	case l.Finished:
		return &LostError{Reason: Finished}
	case !l.HeldBy(g):
		return &LostError{Reason: Taken}
	}
	return nil
}

func freed(l Lease) Lease {
	l.Owner, l.HeartbeatAt, l.ExpiresAt = "", time.Time{}, time.Time{}
	return l
}

func finished(l Lease, owner string) Lease {
	l = freed(l)
	l.Finished, l.FinishedBy = true, owner
	return l
}
