package firestore

import (
	"sync"
	"time"

	"cloud.google.com/go/firestore/apiv1/firestorepb"
)

// store holds every database. One mutex guards it and everything below it, in short
// critical sections. A commit that waits for the locks of another transaction unlocks the
// mutex meanwhile; it has not changed anything then.
type store struct {
	mu           sync.Mutex
	clock        clock
	databases    map[string]*database
	transactions map[string]*transaction
	lastID       uint64 // of a transaction
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
