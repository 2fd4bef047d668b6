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
	// lockWait is how long a commit waits for the locks of other transactions, as
	// on Google's emulator.
	lockWait = 2 * time.Second
)

var (
	errClosedTransaction = invalid("Transaction is invalid or closed.")
	errLockTimeout       = status.Error(codes.Aborted, "Transaction lock timeout.")
	errContention        = status.Error(codes.Aborted, "Transaction aborted: it needs what another holds that waits.")
)

// transaction is a read-write transaction. It has a shared lock on everything that it has
// read.
type transaction struct {
	id       string
	database string
	used     time.Time     // last use, on the local monotonic clock
	done     chan struct{} // closed when its locks are free

	docs    map[string]struct{} // names of locked documents, which may not exist
	queries []*query            // all documents that match, now or later, are locked
	waiting bool                // its commit waits for the locks of another
}

// begin starts a transaction. The caller holds the mutex.
func (s *store) begin(dbName string, o *firestorepb.TransactionOptions) (*transaction, error) {
	if o.GetReadOnly() != nil {
		return nil, unimplemented("a read-only transaction")
	}
	s.lastID++
	t := &transaction{
		id:       string(binary.BigEndian.AppendUint64(nil, s.lastID)),
		database: dbName,
		used:     time.Now(),
		done:     make(chan struct{}),
		docs:     map[string]struct{}{},
	}
	s.transactions[t.id] = t
	return t, nil
}

// use finds an open transaction and renews its time. The caller holds the mutex.
func (s *store) use(dbName string, id []byte) (*transaction, error) {
	s.expire()
	t := s.transactions[string(id)]
	if t == nil || t.database != dbName {
		return nil, errClosedTransaction
	}
	t.used = time.Now()
	return t, nil
}

// end frees the transaction's locks. The caller holds the mutex.
func (s *store) end(t *transaction) {
	if s.transactions[t.id] == t {
		delete(s.transactions, t.id)
		close(t.done)
	}
}

// expire ends the transactions that have been unused for idleLimit. It is called before
// each use of them, so no timer is needed.
func (s *store) expire() {
	for _, t := range s.transactions {
		if time.Since(t.used) >= idleLimit {
			s.end(t)
		}
	}
}

// blocker returns a transaction other than t whose locks forbid the changes, or nil. t is nil
// outside a transaction.
func (s *store) blocker(dbName string, t *transaction, changes []change) (found *transaction) {
	for _, other := range s.transactions {
		if other == t || other.database != dbName || !other.locks(changes) {
			continue
		}
		found = other
		if other.waiting {
			break
		}
	}
	return found
}

// locks reports whether a write touches anything that t has read: a document, even if its write
// changes nothing, or the results of a query.
func (t *transaction) locks(changes []change) bool {
	for _, c := range changes {
		if _, ok := t.docs[c.name]; ok {
			return true
		}
		for _, q := range t.queries {
			if c.before != c.after && (q.matches(c.before) || q.matches(c.after)) {
				return true
			}
		}
	}
	return false
}

// await waits until the blocker of a commit of t has ended, or ctx has. The caller holds the
// mutex, which await unlocks while it waits. No transaction waits for another that waits, as the two
// might wait for each other.
func (s *store) await(ctx context.Context, t, blocker *transaction) error {
	if t != nil {
		if blocker.waiting {
			return errContention
		}
		t.waiting = true // until its end, which follows
	}

	s.mu.Unlock()
	defer s.mu.Lock()
	select {
	case <-blocker.done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
