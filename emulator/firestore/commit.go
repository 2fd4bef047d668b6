package firestore

import (
	"context"
	"time"

	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// outcome is what a commit answers.
type outcome struct {
	at      time.Time
	results []*firestorepb.WriteResult
	last    *document // what the last write left, nil for nothing
}

// commit applies all writes at one moment, or none. With a transaction id it
// ends that transaction either way, but for an attempt to write in a read-only
// one. It blocks while other transactions hold
// locks on what it changes, at most lockWait, and gives up when ctx ends.
func (s *store) commit(ctx context.Context, dbName string, txn []byte, writes []*write) (outcome, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var t *transaction
	if len(txn) > 0 {
		var err error
		if t, err = s.use(dbName, txn); err != nil {
			return outcome{}, err
		}
		if t.readOnly() && len(writes) > 0 {
			return outcome{}, invalid("Cannot modify entities in a read-only transaction.")
		}
		defer s.end(t)
	}
	p, err := s.prepare(ctx, dbName, t, writes)
	if err != nil {
		return outcome{}, err
	}
	p.db.install(p.at, p.changes())
	s.bill(writes)
	done := outcome{at: p.at, results: p.report(writes)}
	if n := len(writes); n > 0 {
		done.last = p.current(writes[n-1].path.String())
	}
	return done, nil
}

// prepare works the writes out, again and again while locks stand in the way,
// until they can be installed.
func (s *store) prepare(ctx context.Context, dbName string, t *transaction, writes []*write) (*plan, error) {
	deadline := time.Now().Add(lockWait)
	for {
		s.expire()
		p := &plan{db: s.database(dbName), at: s.clock.commit(), next: map[string]*document{}}
		// Locks come before preconditions, and also before writes that would
		// change nothing; a query's lock depends on what is written.
		changes := named(writes)
		blockers := s.blockers(dbName, t, changes)
		if len(blockers) == 0 {
			if err := p.apply(writes); err != nil {
				return nil, err
			}
			changes = p.changes()
			if blockers = s.blockers(dbName, t, changes); len(blockers) == 0 {
				return p, nil
			}
		}
		if t != nil {
			t.pending = changes
			if s.deadlocked(t, blockers, map[*transaction]bool{}) {
				return nil, errDeadlock
			}
		}
		if err := s.await(ctx, blockers[0], deadline); err != nil {
			return nil, err
		}
		if t != nil && s.transactions[t.id] != t {
			return nil, errClosedTransaction
		}
	}
}

func (s *store) bill(writes []*write) {
	for _, w := range writes {
		if w.remove {
			s.billed.Deletes++
		} else {
			s.billed.Writes++
		}
	}
}

// plan is a commit worked out against the current state, not yet visible.
type plan struct {
	db      *database
	at      time.Time
	order   []string             // names touched, in order
	next    map[string]*document // their new versions; nil: deleted
	results [][]*value           // of each write's transforms
}

func (p *plan) current(name string) *document {
	if d, touched := p.next[name]; touched {
		return d
	}
	return p.db.docs[name]
}

func (p *plan) set(name string, d *document) {
	if _, touched := p.next[name]; !touched {
		p.order = append(p.order, name)
	}
	p.next[name] = d
}

// changes lists what differs from the current state; a document created and
// deleted by the same commit does not.
func (p *plan) changes() []change {
	var list []change
	for _, name := range p.order {
		c := change{name: name, before: p.db.docs[name], after: p.next[name]}
		if c.before != c.after {
			list = append(list, c)
		}
	}
	return list
}

func (p *plan) apply(writes []*write) error {
	for _, w := range writes {
		results, err := p.applyOne(w)
		if err != nil {
			return err
		}
		p.results = append(p.results, results)
	}
	return nil
}

// applyOne applies a write to what the writes before it have left. Where that
// leads back to the stored version, that version stays: a write that changes
// nothing does not move the update time.
func (p *plan) applyOne(w *write) ([]*value, error) {
	name := w.path.String()
	current := p.current(name)
	if err := w.checkPrecondition(current); err != nil {
		return nil, err
	}
	if w.remove {
		if current != nil {
			p.set(name, nil)
		}
		return nil, nil
	}
	next, results, err := w.update(current, p.at)
	if err != nil {
		return nil, err
	}
	if stored := p.db.docs[name]; next.sameAs(stored) {
		next = stored
	}
	p.set(name, next)
	return results, nil
}

// report is the answer for each write, with the update time its document has
// after all of them; none after a delete.
func (p *plan) report(writes []*write) []*firestorepb.WriteResult {
	list := make([]*firestorepb.WriteResult, len(writes))
	for i, w := range writes {
		list[i] = &firestorepb.WriteResult{TransformResults: p.results[i]}
		if d := p.current(w.path.String()); d != nil {
			list[i].UpdateTime = d.pb.UpdateTime
		}
	}
	return list
}

// checkPrecondition compares the write's condition with the document, nil where
// there is none.
func (w *write) checkPrecondition(current *document) error {
	switch c := w.condition.GetConditionType().(type) {
	case *firestorepb.Precondition_Exists:
		if c.Exists && current == nil {
			return status.Errorf(codes.NotFound, "no entity to update: %s", w.path)
		}
		if !c.Exists && current != nil {
			return status.Errorf(codes.AlreadyExists, "entity already exists: %s", w.path)
		}
	case *firestorepb.Precondition_UpdateTime:
		return w.checkVersion(current, c.UpdateTime.AsTime())
	}
	return nil
}

func (w *write) checkVersion(current *document, want time.Time) error {
	switch {
	case current == nil || want.Before(current.pb.UpdateTime.AsTime()):
		return status.Errorf(codes.FailedPrecondition,
			"the stored version of %s does not match the required base version", w.path)
	case want.After(current.pb.UpdateTime.AsTime()):
		return invalid("the required base version of %s is greater than the stored version", w.path)
	}
	return nil
}

// named are changes of which only the documents' names are known.
func named(writes []*write) []change {
	list := make([]change, len(writes))
	for i, w := range writes {
		list[i].name = w.path.String()
	}
	return list
}
