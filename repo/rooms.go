package repo

import (
	"context"
	"log/slog"
	"time"

	"cloud.google.com/go/firestore"
	"google.golang.org/api/option"

	"taskguard/lease"
	"taskguard/locks/document"
)

// Rooms gives access to the document locks of one collection, with one document for each
// room. It is safe for concurrent use. A document exists while document.Lock.Kept
// reports true. Its id is the room's: every method returns lease.ErrInvalidKey for a room
// that document.CheckRoom refuses. Each heartbeat writes an indexed time, and
// Firestore accepts about 500 such writes a second in a collection: enough for 5,000 rooms.
type Rooms struct{ documents *documents[document.Lock] }

var (
	_ lease.Store[document.Lock] = (*Rooms)(nil)
	_ document.Finder            = (*Rooms)(nil)
	_ document.Watcher           = (*Rooms)(nil)
)

// OpenRooms prepares a connection to Firestore or to an emulator, without a call. Close
// closes it. It does not use o.Policy.
func OpenRooms(ctx context.Context, project string, o Options, opts ...option.ClientOption) (*Rooms, error) {
	if err := o.fill("documentLocks"); err != nil {
		return nil, err
	}
	db, err := Connect(ctx, project, o, opts...)
	if err != nil {
		return nil, err
	}
	policy := lease.Policy{TTL: document.DefaultTTL} // of the locks of other programs; see lease.AssumedExpiry
	return &Rooms{&documents[document.Lock]{
		db: db, collection: db.client.Collection(o.Collection), noun: "room", log: o.Log,
		codec: roomCodec{lockCodec{policy: policy, log: o.Log, name: roomName}},
	}}, nil
}

// roomName names a room in the log.
func roomName(room string) slog.Attr { return slog.String("room_hash", document.Hash(room)) }

// Close closes the connection, and ends every Watch.
func (r *Rooms) Close() error { return r.documents.db.Close() }

// Ping reports whether Firestore answers, within 5 s.
func (r *Rooms) Ping(ctx context.Context) error {
	_, err := r.documents.now(ctx)
	return err
}

// Load makes one read, within 5 s.
func (r *Rooms) Load(ctx context.Context, room string, want lease.Want) (lease.Cell[document.Lock], error) {
	if err := document.CheckRoom(room); err != nil {
		return lease.Cell[document.Lock]{}, err
	}
	return r.documents.Load(ctx, room, want)
}

// Swap makes one commit, within 5 s. It creates the document if prev does not exist,
// deletes it if next is not Kept, and otherwise updates the fields that changed. The
// commit fails if the document has changed since prev was read.
func (r *Rooms) Swap(ctx context.Context, room string, prev lease.Cell[document.Lock],
	next document.Lock,
) (lease.Cell[document.Lock], error) {
	if err := document.CheckRoom(room); err != nil {
		return lease.Cell[document.Lock]{}, err
	}
	return r.documents.replace(ctx, room, prev, next, next.Kept())
}

// roomCodec is the codec of rooms. document.Locks leaves attempts, finished and
// finishedBy zero, so the documents of rooms have no such fields.
type roomCodec struct{ lockCodec }

var _ codec[document.Lock] = roomCodec{}

func (roomCodec) mask() []string { return nil }

func (c roomCodec) decode(r reading) (lock document.Lock, rev revision, err error) {
	data := r.fields
	if lock.Lease, err = c.decodeLock(r); err != nil { // with the assumed token, the room can be unlocked and swept
		c.warn(r, "lockToken")
	}
	lock.Finished, _ = data["finished"].(bool)
	lock.LockedAt, _ = parseTime(data["lockedAt"])
	lock.Holder, _ = data["holder"].(string)
	lock.Name, _ = data["holderName"].(string)
	lock.User, _ = data["userId"].(string)
	lock.Unlocked, _ = data["unlocked"].(bool)
	return lock, rev, nil
}

func (roomCodec) changes(prev document.Lock, next *document.Lock, _ *revision, _ time.Time) map[string]any {
	fields := differences(roomFields(prev), roomFields(*next))
	if len(fields) > 0 {
		fields["lockToken"] = next.Token // the document may have an unreadable token
	}
	return fields
}

// roomFields returns the fields of l, with firestore.Delete for a field that is not
// stored.
func roomFields(l document.Lock) map[string]any {
	return map[string]any{
		"lockToken":       l.Token,
		"lockOwner":       orDelete(l.Owner),
		"lockedAt":        timeValue(l.LockedAt),
		"lockHeartbeatAt": timeValue(l.HeartbeatAt),
		"lockExpiresAt":   timeValue(l.ExpiresAt),
		"holder":          orDelete(l.Holder),
		"holderName":      orDelete(l.Name),
		"userId":          orDelete(l.User),
		"unlocked":        orDelete(l.Unlocked),
		"attempts":        orDelete(l.Attempts),
		"finished":        orDelete(l.Finished),
		"finishedBy":      orDelete(l.FinishedBy),
	}
}

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
// connection receives nothing any more (see connect), Google's client reopens it. That
// takes up to a minute and is not reported. Watch skips, with a warning, a
// document whose id cannot belong to a room. It calls each in this goroutine.
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

// cell decodes a document that a query found. ok is false, after a warning, if its id cannot belong to
// a room.
func (r *Rooms) cell(
	ctx context.Context, snap *firestore.DocumentSnapshot, asked time.Time,
) (c lease.Cell[document.Lock], ok bool) {
	err := document.CheckRoom(snap.Ref.ID)
	if err == nil {
		c, err = r.documents.cell(snapshot(snap), asked, lease.OnlyLease)
	}
	if err != nil {
		r.documents.log.WarnContext(ctx, "document lock skipped", roomName(snap.Ref.ID), slog.Any("error", err))
	}
	return c, err == nil
}
