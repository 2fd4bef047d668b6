package firestore

import (
	"sync"
	"time"

	"cloud.google.com/go/firestore/apiv1/firestorepb"
)

// store holds every database. One mutex guards all of it and everything below
// it: the critical sections are short, and only a commit that waits for another
// transaction's locks leaves it half-way, before it has changed anything.
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
	docs        map[string]*document
	collections map[string]map[string]*document // by the collection's full name
	lastCommit  time.Time
	observers   map[observer]struct{}
}

// document is one version of a document. Neither it nor what it points to ever
// changes: a write puts a new version in its place.
type document struct {
	path path
	pb   *firestorepb.Document
}

// change is what a commit did to one document; before or after is nil where the
// document did not exist.
type change struct {
	name          string
	before, after *document
}

// observer is told of every commit that changed something, under the store's
// mutex, in commit order.
type observer interface {
	committed(at time.Time, changes []change)
}

func newStore(now func() time.Time) *store {
	return &store{
		clock:        clock{now: now},
		databases:    map[string]*database{},
		transactions: map[string]*transaction{},
	}
}

func (s *store) usage() Usage {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.billed
}

func (s *store) database(name string) *database {
	db := s.databases[name]
	if db == nil {
		db = &database{
			docs:        map[string]*document{},
			collections: map[string]map[string]*document{},
			observers:   map[observer]struct{}{},
		}
		s.databases[name] = db
	}
	return db
}

// install makes the changes visible, all at once to whoever takes the mutex.
func (db *database) install(at time.Time, changes []change) {
	if len(changes) == 0 {
		return
	}
	for _, c := range changes {
		if c.after != nil {
			db.put(c.after)
		} else if c.before != nil {
			db.remove(c.before)
		}
	}
	db.lastCommit = at
	for o := range db.observers {
		o.committed(at, changes)
	}
}

func (db *database) put(d *document) {
	parent := d.path.parent()
	if db.collections[parent] == nil {
		db.collections[parent] = map[string]*document{}
	}
	db.collections[parent][d.pb.Name] = d
	db.docs[d.pb.Name] = d
}

func (db *database) remove(d *document) {
	parent := d.path.parent()
	delete(db.docs, d.pb.Name)
	delete(db.collections[parent], d.pb.Name)
	if len(db.collections[parent]) == 0 {
		delete(db.collections, parent)
	}
}
