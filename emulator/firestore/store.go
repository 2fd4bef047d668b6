package firestore

import (
	"sync"
	"time"

	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// store holds every database. One mutex guards it and everything below it, in short
// critical sections. A commit that waits for the locks of another transaction unlocks the
// mutex meanwhile; it has not changed anything then.
type store struct {
	mu           sync.Mutex
	clock        clock
	databases    map[string]*database
	transactions map[string]*transaction
	lastID       uint64 // the id of the last transaction
	billed       Usage
}

// database is created by its first use and never removed.
type database struct {
	docs      map[string]*document
	listeners map[*listener]struct{}
}

// document is one version of a document. It never changes: a write puts a new
// version in its place.
type document = firestorepb.Document

// change is the effect of a commit on one document; before or after is nil where
// the document did not exist.
type change struct {
	name          string
	before, after *document
}

func newStore(now func() time.Time) *store {
	return &store{
		clock:        clock{now: now},
		databases:    map[string]*database{},
		transactions: map[string]*transaction{},
	}
}

func (s *store) database(name string) *database {
	db := s.databases[name]
	if db == nil {
		db = &database{docs: map[string]*document{}, listeners: map[*listener]struct{}{}}
		s.databases[name] = db
	}
	return db
}

// install makes the changes visible and notifies the listeners.
func (db *database) install(at time.Time, changes []change) {
	for _, c := range changes {
		if c.after != nil {
			db.docs[c.name] = c.after
		} else {
			delete(db.docs, c.name)
		}
	}
	for l := range db.listeners {
		l.committed(at, changes)
	}
}

// clock is the store's own time in whole microseconds, Firestore's resolution.
// It follows now but never runs backwards, and no commit shares its time with
// an earlier commit or read. The store's mutex guards it.
type clock struct {
	now  func() time.Time
	last time.Time
}

// reading returns the time of a read. It is not before the last commit.
func (c *clock) reading() time.Time {
	if t := c.now().UTC().Truncate(time.Microsecond); t.After(c.last) {
		c.last = t
	}
	return c.last
}

// commit returns the time of a commit. It is after every earlier commit and read.
func (c *clock) commit() time.Time {
	before := c.last
	if !c.reading().After(before) {
		c.last = before.Add(time.Microsecond)
	}
	return c.last
}

// view is one state of a database, valid while the mutex is held.
type view struct {
	store *store
	db    *database
	txn   *transaction // nil: none
	newID []byte       // the id of the transaction that the request began
	at    time.Time    // the read time
}

// selector is the consistency selector of a request: a transaction, a new one, a
// time or, without any, now.
type selector interface {
	GetTransaction() []byte
	GetNewTransaction() *firestorepb.TransactionOptions
	GetReadTime() *timestamppb.Timestamp
}

// reply sends the answers that f returns for the state that the request selects. f runs
// under the mutex and must not block.
func reply[T any](s *store, dbName string, consistency selector, send func(T) error, f func(*view) []T) error {
	var answers []T
	err := s.read(dbName, func(v *view) (err error) {
		switch {
		case consistency.GetReadTime() != nil:
			return unimplemented("reading at a time")
		case consistency.GetNewTransaction() != nil:
			if v.txn, err = s.begin(dbName, consistency.GetNewTransaction()); err == nil {
				v.newID = []byte(v.txn.id)
			}
		case len(consistency.GetTransaction()) > 0:
			v.txn, err = s.use(dbName, consistency.GetTransaction())
		}
		if err == nil {
			answers = f(v)
		}
		return err
	})
	if err != nil {
		return err
	}
	return sendAll(send, answers)
}

// read runs f on the state as it is now, under the mutex: f must not block.
func (s *store) read(dbName string, f func(*view) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return f(&view{store: s, db: s.database(dbName), at: s.clock.reading()})
}

// get returns a document, or nil, and locks its name in a transaction. It is
// billed as one read either way.
func (v *view) get(name string) *document {
	v.store.billed.Reads++
	if v.txn != nil {
		v.txn.docs[name] = struct{}{}
	}
	return v.db.docs[name]
}

// run returns the results of the query. In a transaction it locks all that match.
func (v *view) run(q *query) []*document {
	docs := v.search(q)
	v.store.billed.Reads += max(1, int64(len(docs)))
	return docs
}

// count returns the number of results of the query. It is billed as one read for each 1,000
// of them, rounded up.
func (v *view) count(q *query) int64 {
	n := int64(len(v.search(q)))
	v.store.billed.Reads += max(1, (n+999)/1000)
	return n
}

func (v *view) search(q *query) []*document {
	if v.txn != nil {
		v.txn.queries = append(v.txn.queries, q)
	}
	matches := nearest{query: q}
	for _, d := range v.db.docs {
		matches.add(d)
	}
	return q.sortAndCut(matches.docs)
}

func (v *view) readTime() *timestamppb.Timestamp { return timestamppb.New(v.at) }
