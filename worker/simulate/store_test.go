package simulate

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"taskguard/lease"
	"taskguard/lease/analysislock"
)

// store is the one store of a world, with a clock of its own.
type store struct {
	w       *world
	records map[string]*record
}

type record struct {
	doc      analysislock.Analysis
	rev      int64
	created  time.Duration
	updated  time.Time
	openings int
	finishes []int64         // tokens, one an opening
	finished map[string]bool // owners
	broken   []broken
	held     []hold // by a living worker; the last may be open
}

// hold is how long a living worker had the lock.
type hold struct {
	span
	on *instance
}

// broken is a lock that an operator has broken: by token, with the end of its
// trust.
type broken struct {
	token int64
	span
}

func (s *store) now() time.Time { return time.Now().Add(s.w.p.storeSkew).Round(0) }

func (s *store) create(id string) {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	s.records[id] = &record{
		doc: analysislock.Analysis{ID: id, Status: analysislock.Queued, Input: id}, created: s.w.now(), updated: s.now(), openings: 1, finished: map[string]bool{},
	}
	s.w.tell("%s created", id)
}

// touch is a write of others to a field of theirs.
func (s *store) touch(id string) {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	if r := s.records[id]; r != nil {
		r.rev++
		s.w.figures[string(foreignWrite)]++
	}
}

// load and swap are what the store does when a call has reached it.
func (s *store) load(key string) (lease.Cell[analysislock.Analysis], error) {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	r := s.records[key]
	if r == nil {
		return lease.Cell[analysislock.Analysis]{At: s.now()}, nil
	}
	return lease.Cell[analysislock.Analysis]{Doc: r.doc, Exists: true, Rev: r.rev, At: s.now()}, nil
}

func (s *store) swap(key string, prev lease.Cell[analysislock.Analysis], next analysislock.Analysis, by *tag) (lease.Cell[analysislock.Analysis], error) {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	r := s.records[key]
	if r == nil || r.rev != prev.Rev {
		if r != nil && by.token != 0 && (r.doc.Lock.Owner != by.owner || r.doc.Lock.Token != by.token) {
			s.w.figures["superseded writes refused"]++
		}
		return lease.Cell[analysislock.Analysis]{}, fmt.Errorf("swap %s: %w", key, lease.ErrConflict)
	}
	s.judge(key, r, next, by)
	r.doc, r.updated = next, s.now()
	r.rev++
	return lease.Cell[analysislock.Analysis]{Doc: next, Exists: true, Rev: r.rev, At: s.now()}, nil
}

// orphaned is the query of recovery, with a judgement of its own.
func (s *store) orphaned(ttl time.Duration, each func(id string, token int64, at time.Time)) {
	s.w.mu.Lock()
	now := s.now()
	type row struct {
		id      string
		token   int64
		updated time.Time
	}
	var rows []row
	for id, r := range s.records {
		open := r.doc.Status == analysislock.Queued || r.doc.Status == analysislock.Processing
		free := r.doc.Lock.Owner == "" || !r.doc.Lock.ExpiresAt.After(now)
		if open && free && now.Sub(r.updated) > ttl {
			rows = append(rows, row{id, r.doc.Lock.Token, r.updated})
		}
	}
	s.w.mu.Unlock()
	slices.SortFunc(rows, func(a, b row) int { return a.updated.Compare(b.updated) })
	for _, r := range rows {
		each(r.id, r.token, now)
	}
}

// unfinished names what is neither READY nor FAILED. The mutex is held or not
// needed.
func (s *store) unfinished() string {
	var names []string
	for id, r := range s.records {
		if r.doc.Status != analysislock.Ready && r.doc.Status != analysislock.Failed {
			names = append(names, id)
		}
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// tag is who calls the store: one delivery, or one act of an operator.
type tag struct {
	by    string // whose calls these are, for the dice
	from  *instance
	id    string
	owner string
	act   string // of an operator: unlock, requeue
	token int64  // once acquired
	calls int
	at    time.Time // the store's, in its last reply
	meant []int64   // expiries that an acquisition has tried to write
	ended bool      // has begun to finish or release
	told  bool      // an operator, what came of the act
}
