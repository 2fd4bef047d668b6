package firestore

import (
	"context"
	"time"

	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// commit applies all writes at one moment, or none, and returns a result for each. In both cases
// it ends the transaction txn, if one is named. It blocks while other transactions hold locks on the documents
// that it changes, until lockWait has passed or ctx ends.
func (s *store) commit(
	ctx context.Context, dbName string, txn []byte, writes []*write,
) (at time.Time, results []*firestorepb.WriteResult, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var t *transaction
	if len(txn) > 0 {
		if t, err = s.use(dbName, txn); err != nil {
			return at, nil, err
		}
		defer s.end(t)
	}

	p, err := s.prepare(ctx, dbName, t, writes)
	if err != nil {
		return at, nil, err
	}

	p.db.install(p.at, p.changes(writes))
	for _, w := range writes { // a deleted document has no update time
		results = append(results, &firestorepb.WriteResult{UpdateTime: p.current(w.name).GetUpdateTime()})
		if !w.remove {
			s.billed.Writes++
		}
	}
	return p.at, results, nil
}

// prepare returns the effect of the writes when no lock forbids them. It computes the effect
// again each time that a lock has been freed. Locks come before preconditions.
func (s *store) prepare(ctx context.Context, dbName string, t *transaction, writes []*write) (*plan, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, lockWait, errLockTimeout)
	defer cancel()
	for {
		s.expire()
		p := &plan{db: s.database(dbName), at: s.clock.commit(), next: map[string]*document{}}
		err := p.apply(writes)
		blocker := s.blocker(dbName, t, p.changes(writes))
		if blocker == nil {
			return p, err
		}
		if err := s.await(ctx, t, blocker); err != nil {
			return nil, err
		}
		if t != nil && s.transactions[t.id] != t {
			return nil, errClosedTransaction
		}
	}
}

// plan is the effect of a commit before it is installed.
type plan struct {
	db   *database
	at   time.Time
	next map[string]*document // the new versions of the written documents; nil: deleted
}

func (p *plan) current(name string) *document {
	if d, touched := p.next[name]; touched {
		return d
	}
	return p.db.docs[name]
}

// changes returns the change of each written document, in the order of the first writes. A write
// that changes nothing has the same version before and after.
func (p *plan) changes(writes []*write) (list []change) {
	seen := map[string]bool{}
	for _, w := range writes {
		if !seen[w.name] {
			list = append(list, change{name: w.name, before: p.db.docs[w.name], after: p.current(w.name)})
		}
		seen[w.name] = true
	}
	return list
}

// apply applies each write to the result of the writes before it.
func (p *plan) apply(writes []*write) error {
	for _, w := range writes {
		current := p.current(w.name)
		if err := w.checkPrecondition(current); err != nil {
			return err
		}
		if w.remove {
			p.next[w.name] = nil
			continue
		}

		next, err := w.update(current, p.at)
		if err != nil {
			return err
		}

		// A write that results in the stored version changes nothing, and the update
		// time stays.
		if stored := p.db.docs[w.name]; sameDocument(next, stored) {
			next = stored
		}
		p.next[w.name] = next
	}
	return nil
}

// checkPrecondition compares the write's condition with the document. current is nil if the
// document does not exist.
func (w *write) checkPrecondition(current *document) error {
	switch c := w.condition.GetConditionType().(type) {
	case *firestorepb.Precondition_Exists:
		if c.Exists && current == nil {
			return status.Errorf(codes.NotFound, "no entity to update: %s", w.name)
		}
		if !c.Exists && current != nil {
			return status.Errorf(codes.AlreadyExists, "entity already exists: %s", w.name)
		}
	case *firestorepb.Precondition_UpdateTime:
		want := c.UpdateTime.AsTime()
		if current == nil || want.Before(current.UpdateTime.AsTime()) {
			return status.Errorf(codes.FailedPrecondition,
				"the stored version of %s does not match the required base version", w.name)
		}
		if want.After(current.UpdateTime.AsTime()) {
			return invalid("the required base version of %s is greater than the stored version", w.name)
		}
	}
	return nil
}
