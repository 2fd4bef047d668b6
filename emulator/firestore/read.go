package firestore

import (
	"time"

	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// consistency is how a request says which state it reads: in a transaction, in
// a new one, at a time, or, by default, now.
type consistency struct {
	transaction []byte
	begin       *firestorepb.TransactionOptions
	at          *timestamppb.Timestamp
}

// view is one state of a database, valid while the mutex is held.
type view struct {
	store *store
	db    *database
	txn   *transaction // nil outside
	begun []byte       // the id of the transaction that the request began
	at    time.Time    // the read time
}

// read runs f on the state that c asks for, under the mutex: f must not block.
func (s *store) read(dbName string, c consistency, f func(*view) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := &view{store: s, db: s.database(dbName)}
	var err error
	switch {
	case c.begin != nil:
		if v.txn, err = s.begin(dbName, c.begin); err == nil {
			v.begun = []byte(v.txn.id)
		}
	case c.transaction != nil:
		v.txn, err = s.use(dbName, c.transaction)
	case c.at != nil:
		v.at = c.at.AsTime()
		err = s.checkReadTime(v.db, v.at)
	}
	if err != nil {
		return err
	}
	switch {
	case v.txn != nil && v.txn.readOnly():
		v.at = v.txn.past.at
	case v.at.IsZero():
		v.at = s.clock.reading()
	}
	return f(v)
}

// get returns a document, or nil, and locks its name in a read-write
// transaction. It is billed as one read either way.
func (v *view) get(name string) *document {
	v.store.billed.Reads++
	if v.txn == nil {
		return v.db.docs[name]
	}
	if v.txn.readOnly() {
		return v.version(name, v.db.docs[name])
	}
	v.txn.docs[name] = struct{}{}
	return v.db.docs[name]
}

// version is the document as the view sees it.
func (v *view) version(name string, current *document) *document {
	if v.txn != nil && v.txn.readOnly() {
		if before, overwritten := v.txn.past.before[name]; overwritten {
			return before
		}
	}
	return current
}

// run returns the documents that match the query, ordered and cut as it says,
// and locks whatever matches in a read-write transaction.
func (v *view) run(q *query) (docs []*document, skipped int) {
	docs, skipped = v.search(q)
	v.store.billed.Reads += max(1, int64(len(docs)+skipped))
	return docs, skipped
}

// count is the number of documents that run would return. It is billed as one
// read for each 1,000 begun.
func (v *view) count(q *query) int64 {
	docs, skipped := v.search(q)
	v.store.billed.Reads += max(1, int64(len(docs)+skipped+999)/1000)
	return int64(len(docs))
}

func (v *view) search(q *query) (docs []*document, skipped int) {
	if v.txn != nil && !v.txn.readOnly() {
		v.txn.queries = append(v.txn.queries, q)
	}
	for name, d := range v.candidates(q) {
		if d = v.version(name, d); q.matches(d) {
			docs = append(docs, d)
		}
	}
	if v.txn != nil && v.txn.readOnly() {
		for name, d := range v.txn.past.before { // deleted since
			if v.db.docs[name] == nil && q.matches(d) {
				docs = append(docs, d)
			}
		}
	}
	return q.window(docs)
}

// candidates are the current documents among which the matches are.
func (v *view) candidates(q *query) map[string]*document {
	if q.descendants || q.collection == "" {
		return v.db.docs
	}
	return v.db.collections[q.parent.String()+"/"+q.collection]
}

func (v *view) readTime() *timestamppb.Timestamp { return timestamppb.New(v.at) }
