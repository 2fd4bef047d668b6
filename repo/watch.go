package repo

import (
	"context"
	"time"

	"cloud.google.com/go/firestore"

	"taskguard/lease"
	"taskguard/locks/document"
)

// Lapsed reads up to limit documents whose lockExpiresAt, a string, is before
// Firestore's time, the oldest first. It makes one read and one query, within 15 s, and
// needs only Firestore's automatic index of the field. It skips, with a warning, a
// document whose id no room can have.
func (r *Rooms) Lapsed(ctx context.Context, limit int) ([]document.Change, error) {
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

	var found []document.Change
	skips := skipped{log: r.documents.log, message: "document lock skipped"}
	defer skips.end(ctx)
	for snap, err := range eachDocument(ctx, "query rooms", query) {
		if err != nil {
			return found, err
		}
		if c, err := r.cell(snap, asked); err != nil {
			skips.add(ctx, roomName(snap.Ref.ID), err)
		} else {
			found = append(found, document.Change{Room: snap.Ref.ID, Cell: c})
		}
	}
	return found, nil
}

// Watch reads one stream for the whole collection. If the stream breaks, or its
// connection receives nothing any more (see connect), Google's client opens it again by
// itself. That takes up to a minute and is not reported. Watch skips, with a warning, a
// document whose id no room can have. It calls each in this goroutine.
func (r *Rooms) Watch(ctx context.Context, each func(document.Snapshot)) error {
	ctx, cancel := context.WithCancel(ctx) // ends the stream: Stop must not be called during Next
	defer cancel()

	stream := r.documents.collection.Snapshots(ctx)
	for all := true; ; all = false {
		q, err := stream.Next()
		if err != nil {
			return queryError("watch rooms", err)
		}

		s := document.Snapshot{At: q.ReadTime, Asked: time.Now(), All: all}
		skips := skipped{log: r.documents.log, message: "document lock skipped"}
		for _, change := range q.Changes {
			room := change.Doc.Ref.ID
			c := lease.Cell[document.Lock]{At: s.At, Asked: s.Asked} // deleted
			if change.Kind != firestore.DocumentRemoved {
				if c, err = r.cell(change.Doc, s.Asked); err != nil {
					skips.add(ctx, roomName(room), err)
					continue
				}
			}
			s.Changes = append(s.Changes, document.Change{Room: room, Cell: c})
		}

		skips.end(ctx)
		each(s)
	}
}

// cell decodes a document that a query found.
func (r *Rooms) cell(snap *firestore.DocumentSnapshot, asked time.Time) (lease.Cell[document.Lock], error) {
	if err := document.CheckRoom(snap.Ref.ID); err != nil {
		return lease.Cell[document.Lock]{}, err
	}
	return r.documents.cell(snapshot(snap), asked)
}
