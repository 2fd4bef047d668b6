package lease

import "time"

// The rules. Each is a pure function from one Lease to the next; now is always
// the store's time. No expiry is judged anywhere else.

// Take gives l to owner (G5). It answers, in this order: ErrFinished; a
// *HeldError while another's lease has not expired; ErrExhausted, together
// with the finished Lease to record, when no attempt is left; else the taken
// Lease with a token that nobody has had before. An expired lease is stolen;
// one without an expiry counts as expired. now is the time of the very reading
// that will be swapped.
func Take(l Lease, now time.Time, owner string, p Policy) (Lease, error) {
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
	l.HeartbeatAt, l.ExpiresAt = term(now, p)
	return l, nil
}

// Extend renews the lease of g by one TTL from now, which may be an estimate:
// it chooses the expiry and decides nothing. An expired lease that nobody took
// is revived (R8). Anything else is ErrLost.
func Extend(l Lease, now time.Time, g Grant, p Policy) (Lease, error) {
	if err := loss(l, g); err != nil {
		return l, err
	}
	l.HeartbeatAt, l.ExpiresAt = term(now, p.filled())
	return l, nil
}

// Finish makes the record terminal and frees it, for g alone: a superseded
// holder gets ErrLost.
func Finish(l Lease, g Grant) (Lease, error) {
	if err := loss(l, g); err != nil {
		return l, err
	}
	return finished(l, g.Owner), nil
}

// Drop frees the lease if it is g's, and leaves it unchanged otherwise (G8).
// refund takes back the attempt that the acquisition counted.
func Drop(l Lease, g Grant, refund bool) Lease {
	if !l.HeldBy(g) {
		return l
	}
	if refund && l.Attempts > 0 {
		l.Attempts--
	}
	return freed(l)
}

// Break frees the lease whoever holds it: an operator's forced unlock. The
// holder, if it lives, finds its lease lost; the token stays and so still
// grows.
func Break(l Lease) Lease { return freed(l) }

// Reopen lets a record run again from attempt one, finished or not. It is
// refused with a *HeldError while somebody holds it.
func Reopen(l Lease, now time.Time) (Lease, error) {
	if Held(l, now) {
		return l, heldError(l, now)
	}
	l = freed(l)
	l.Finished, l.Attempts = false, 0
	return l, nil
}

// Abandoned reports whether the record is unfinished and nobody holds it at now,
// so that only another delivery can bring it to its end.
func Abandoned(l Lease, now time.Time) bool { return !l.Finished && !Held(l, now) }

// Held reports whether somebody holds l at now: expired means now ≥ expiry (R7).
func Held(l Lease, now time.Time) bool {
	return !l.Finished && l.Owner != "" && now.Before(l.ExpiresAt)
}

// Fresh is the lease of a record that does not exist, in a store that keeps none
// that nobody holds: free, its first token being now in microseconds. That is
// later than any token which a record deleted by now can have had, so tokens
// still only grow (D4).
func Fresh(now time.Time) Lease { return Lease{Token: now.UnixMicro() - 1} }

// MaxAhead is how far ahead of the store's time a stored time of a lease may be.
const MaxAhead = 24 * time.Hour

// Credible reports whether a holder may have written the stored time of a lease, where
// now is the store's time of the reading. No TTL comes near MaxAhead, and a lease that
// expires later would block its record until then.
func Credible(stored, now time.Time) bool { return stored.Sub(now) <= MaxAhead }

// Presume is the expiry of a lease whose stored expiry cannot be read: one TTL
// after its heartbeat or, where that cannot be read either, after the record's
// last update. So it permits no double run and does not stick for ever (G5).
func Presume(heartbeat, updated time.Time, p Policy) time.Time {
	if heartbeat.IsZero() {
		heartbeat = updated
	}
	return heartbeat.Add(p.filled().TTL)
}

// Trusted is until when, by the local monotonic clock, the holder of l may
// rely on it, where at is the store's time in the reply to an RPC that was
// started at asked. The stored expiry counts, not the one meant.
func Trusted(l Lease, at, asked time.Time, p Policy) time.Time {
	return asked.Add(l.ExpiresAt.Sub(at) - p.Margin())
}

func heldError(l Lease, now time.Time) *HeldError {
	return &HeldError{Owner: l.Owner, Token: l.Token, ExpiresAt: l.ExpiresAt, Remaining: l.ExpiresAt.Sub(now)}
}

// term is a heartbeat at now and its expiry, in whole milliseconds, as
// documents hold them.
func term(now time.Time, p Policy) (heartbeat, expires time.Time) {
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
