package firestore

import (
	"context"
	"encoding/binary"
	"time"

	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	// idleLimit is how long an unused transaction keeps its locks.
	idleLimit = 60 * time.Second
	// lockWait is how long a commit waits for other transactions' locks. It is
	// what Google's emulator waits.
	lockWait = 2 * time.Second
)

var (
	errUnknownTransaction = invalid("Invalid transaction.")
	errClosedTransaction  = invalid("Transaction is invalid or closed.")
	errLockTimeout        = status.Error(codes.Aborted, "Transaction lock timeout.")
	errDeadlock           = status.Error(codes.Aborted, "Transaction aborted: it and another wait for each other.")
)

// transaction is a read-write transaction, which holds a shared lock on
// everything it has read, or a read-only one, which holds none and reads the
// database as it was when the transaction began.
type transaction struct {
	id       string
	database string
	used     time.Time     // last use, on the local monotonic clock
	done     chan struct{} // closed when its locks are free

	docs    map[string]struct{} // locked: names, existing or not
	queries []*query            // locked: whatever matches, now or later
	pending []change            // what its commit waits to install

	past *past // read-only: what has been overwritten since
}

func (t *transaction) readOnly() bool { return t.past != nil }

// past keeps the versions that commits have replaced since a moment.
type past struct {
	at     time.Time
	before map[string]*document // nil: there was none
}

func (p *past) committed(_ time.Time, changes []change) {
	for _, c := range changes {
		if _, known := p.before[c.name]; !known {
			p.before[c.name] = c.before
		}
	}
}

// begin starts a transaction. The caller holds the mutex.
func (s *store) begin(dbName string, o *firestorepb.TransactionOptions) (*transaction, error) {
	s.expire()
	s.lastID++
	t := &transaction{
		id:       string(binary.BigEndian.AppendUint64([]byte{1}, s.lastID)),
		database: dbName,
		used:     time.Now(),
		done:     make(chan struct{}),
		docs:     map[string]struct{}{},
	}
	if ro := o.GetReadOnly(); ro != nil {
		db, at := s.database(dbName), s.clock.reading()
		if ro.GetReadTime() != nil {
			at = ro.GetReadTime().AsTime()
			if err := s.checkReadTime(db, at); err != nil {
				return nil, err
			}
		}
		t.past = &past{at: at, before: map[string]*document{}}
		db.observers[t.past] = struct{}{}
	}
	s.transactions[t.id] = t
	return t, nil
}

// checkReadTime accepts the times at which the database was as it is now, since
// no history is kept.
func (s *store) checkReadTime(db *database, at time.Time) error {
	switch {
	case at.Before(db.lastCommit):
		return status.Error(codes.FailedPrecondition, "The requested snapshot version is too old.")
	case at.After(s.clock.reading()):
		return invalid("read_time is in the future")
	case !at.Equal(at.Truncate(time.Microsecond)):
		return invalid("read_time is finer than a microsecond")
	}
	return nil
}

// use finds an open transaction and renews its time. The caller holds the mutex.
func (s *store) use(dbName string, id []byte) (*transaction, error) {
	s.expire()
	t := s.transactions[string(id)]
	if t == nil {
		return nil, s.noTransaction(id)
	}
	if t.database != dbName {
		return nil, errClosedTransaction
	}
	t.used = time.Now()
	return t, nil
}

// noTransaction tells an id that was once given out from one that never was.
func (s *store) noTransaction(id []byte) error {
	if len(id) == 9 && id[0] == 1 {
		if n := binary.BigEndian.Uint64(id[1:]); n > 0 && n <= s.lastID {
			return errClosedTransaction
		}
	}
	return errUnknownTransaction
}

// end frees what the transaction holds. The caller holds the mutex.
func (s *store) end(t *transaction) {
	if s.transactions[t.id] != t {
		return
	}
	delete(s.transactions, t.id)
	if t.readOnly() {
		delete(s.database(t.database).observers, t.past)
	}
	close(t.done)
}

// expire ends the transactions whose clients have been silent for idleLimit.
// It runs before every look at the transactions, so that no timer is needed.
func (s *store) expire() {
	for _, t := range s.transactions {
		if time.Since(t.used) >= idleLimit {
			s.end(t)
		}
	}
}

// blockers returns the transactions other than t whose locks forbid the
// changes. t is nil outside a transaction.
func (s *store) blockers(dbName string, t *transaction, changes []change) []*transaction {
	var found []*transaction
	for _, other := range s.transactions {
		if other != t && other.database == dbName && other.locks(changes) {
			found = append(found, other)
		}
	}
	return found
}

// locks tells whether a change touches anything that t has read.
func (t *transaction) locks(changes []change) bool {
	for _, c := range changes {
		if _, ok := t.docs[c.name]; ok {
			return true
		}
		for _, q := range t.queries {
			if q.matches(c.before) || q.matches(c.after) {
				return true
			}
		}
	}
	return false
}

// deadlocked tells whether one of blockers waits, directly or not, for t.
func (s *store) deadlocked(t *transaction, blockers []*transaction, seen map[*transaction]bool) bool {
	for _, b := range blockers {
		if b == t {
			return true
		}
		if seen[b] || b.pending == nil {
			continue
		}
		seen[b] = true
		if s.deadlocked(t, s.blockers(b.database, b, b.pending), seen) {
			return true
		}
	}
	return false
}

// await waits, without the mutex, until the blocker has ended or expired, the
// deadline has passed (ABORTED) or ctx has ended. The caller holds the mutex
// and has it again afterwards.
func (s *store) await(ctx context.Context, blocker *transaction, deadline time.Time) error {
	until := blocker.used.Add(idleLimit)
	if until.After(deadline) {
		until = deadline
	}
	s.mu.Unlock()
	defer s.mu.Lock()
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-blocker.done:
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	case <-timer.C:
		if until.Equal(deadline) {
			return errLockTimeout
		}
		return nil
	}
}
