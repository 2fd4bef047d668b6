package repo

import (
	"context"
	"log/slog"
	"time"

	"cloud.google.com/go/firestore"

	"taskguard/lease"
	"taskguard/locks/document"
)

// Lapsed reads up to limit documents whose lockExpiresAt, a string, is before
// Firestore's time, the oldest first. It makes one read and one query, each within 15 s, and
// needs only Firestore's automatic index of the field. It skips, with a warning, a
// document whose id no room can have.
func (r *Rooms) Lapsed(ctx context.Context, limit int) ([]document.Change, error) {
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
	for snap, err := range eachDocument(ctx, "query rooms", query) {
		if err != nil {
			return found, err
		}
		if c, ok := r.cell(ctx, snap, asked); ok {
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
		for _, change := range q.Changes {
			c, ok := lease.Cell[document.Lock]{At: s.At, Asked: s.Asked}, true // deleted
			if change.Kind != firestore.DocumentRemoved {
				c, ok = r.cell(ctx, change.Doc, s.Asked)
			}
			if ok {
				s.Changes = append(s.Changes, document.Change{Room: change.Doc.Ref.ID, Cell: c})
			}
		}
		each(s)
	}
}

// cell decodes a document that a query found. ok is false, after a warning, if its id is that of no
// room.
func (r *Rooms) cell(
	ctx context.Context, snap *firestore.DocumentSnapshot, asked time.Time,
) (c lease.Cell[document.Lock], ok bool) {
	err := document.CheckRoom(snap.Ref.ID)
	if err == nil {
		c, err = r.documents.cell(snapshot(snap), asked)
	}
	if err != nil {
		r.documents.log.LogAttrs(ctx, slog.LevelWarn, "document lock skipped", roomName(snap.Ref.ID), slog.Any("error", err))
	}
	return c, err == nil
}
