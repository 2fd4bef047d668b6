package repo

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"cloud.google.com/go/firestore"
	"google.golang.org/api/iterator"

	"taskguard/lease"
	"taskguard/lease/documentlock"
)

// queryTimeout bounds a query of the rooms.
const queryTimeout = 15 * time.Second

// Lapsed reads up to limit documents whose lockExpiresAt, a string, lies before
// Firestore's time, the oldest first. One read and one query, within 15 s;
// Firestore's automatic index of the field serves it. One whose id no room can
// have is skipped with a warning.
func (r *Rooms) Lapsed(ctx context.Context, limit int) ([]documentlock.Change, error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	now, err := r.documents.now(ctx)
	if err != nil {
		return nil, err
	}
	asked := time.Now()
	query := r.documents.collection.
		Where("lockExpiresAt", "<", timeValue(now)).
		OrderBy("lockExpiresAt", firestore.Asc).
		Limit(limit)
	var found []documentlock.Change
	skipped := skips{log: r.documents.log, by: "sweep"}
	_, err = r.query(ctx, query, func(snap *firestore.DocumentSnapshot) {
		if c, err := r.cell(snap, asked); err != nil {
			skipped.add(ctx, snap.Ref.ID, err)
		} else {
			found = append(found, documentlock.Change{Room: snap.Ref.ID, Cell: c})
		}
	})
	skipped.end(ctx)
	return found, err
}

// Current is one read and one query, within 15 s. A document whose id no
// room can have counts as none.
func (r *Rooms) Current(ctx context.Context) (documentlock.Snapshot, error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	s := documentlock.Snapshot{All: true, Asked: time.Now()}
	now, err := r.documents.now(ctx)
	if err != nil {
		return s, err
	}
	s.At, err = r.query(ctx, r.documents.collection.Query, func(snap *firestore.DocumentSnapshot) {
		if c, err := r.cell(snap, s.Asked); err == nil {
			s.Changes = append(s.Changes, documentlock.Change{Room: snap.Ref.ID, Cell: c})
		}
	})
	if s.At.IsZero() {
		s.At = now // the reply without a document has no time either
	}
	return s, err
}

// query calls each for the documents of q, and answers Firestore's time of the
// reading, zero where there are none.
func (r *Rooms) query(ctx context.Context, q firestore.Query, each func(*firestore.DocumentSnapshot)) (at time.Time, err error) {
	docs := q.Documents(ctx)
	defer docs.Stop()
	for {
		snap, err := docs.Next()
		switch {
		case errors.Is(err, iterator.Done):
			return at, nil
		case err != nil:
			return at, queryError("query rooms", err)
		}
		at = snap.ReadTime
		each(snap)
	}
}

// Watch is one stream for the whole collection, which Google's client opens
// again by itself where it breaks or its connection falls silent (see dial); that is
// not told, and takes up to a minute. A document whose id no room can have is
// skipped, which is said in the log. each is called in this goroutine.
func (r *Rooms) Watch(ctx context.Context, each func(documentlock.Snapshot)) error {
	ctx, cancel := context.WithCancel(ctx) // ends the stream: its Stop is not safe beside Next
	defer cancel()
	stream := r.documents.collection.Snapshots(ctx)
	for all := true; ; all = false {
		q, err := stream.Next()
		if err != nil {
			return queryError("watch rooms", err)
		}
		s := documentlock.Snapshot{At: q.ReadTime, Asked: time.Now(), All: all}
		skipped := skips{log: r.documents.log, by: "watch"}
		for _, change := range q.Changes {
			room := change.Doc.Ref.ID
			gone := lease.Cell[documentlock.Lock]{At: s.At, Asked: s.Asked}
			if change.Kind == firestore.DocumentRemoved {
				s.Changes = append(s.Changes, documentlock.Change{Room: room, Cell: gone})
				continue
			}
			c, err := r.cell(change.Doc, s.Asked)
			if err != nil {
				skipped.add(ctx, room, err)
				c = gone
			}
			s.Changes = append(s.Changes, documentlock.Change{Room: room, Cell: c})
		}
		skipped.end(ctx)
		each(s)
	}
}

// cell decodes a document that a query found.
func (r *Rooms) cell(snap *firestore.DocumentSnapshot, asked time.Time) (lease.Cell[documentlock.Lock], error) {
	if err := documentlock.CheckRoom(snap.Ref.ID); err != nil {
		return lease.Cell[documentlock.Lock]{}, err
	}
	return r.documents.cell(snapshot(snap), asked)
}

// skips says of a call which documents it had to skip, the first few by name.
type skips struct {
	log *slog.Logger
	by  string
	n   int
}

func (s *skips) add(ctx context.Context, room string, err error) {
	if s.n++; s.n <= maxWarnings {
		s.log.WarnContext(ctx, "document lock skipped", "by", s.by, "room_hash", documentlock.Hash(room), "error", err)
	}
}

func (s *skips) end(ctx context.Context) {
	if s.n > maxWarnings {
		s.log.WarnContext(ctx, "more document locks are skipped", "by", s.by, "rooms", s.n)
	}
}
