package repo

import (
	"context"
	"log/slog"
	"time"

	"cloud.google.com/go/firestore"
	"google.golang.org/api/option"

	"taskguard/lease"
	"taskguard/lease/documentlock"
)

// Rooms are the document locks of one collection, a document a room. It is safe
// for concurrent use. A document exists while documentlock.Lock.Kept, and the
// room's id is its id: lease.ErrInvalidKey for one that analysislock.CheckID would refuse.
// Each heartbeat moves an indexed time, of which Firestore takes about 500 a
// second in a collection: those of 5,000 rooms.
type Rooms struct{ documents *documents[documentlock.Lock] }

var (
	_ lease.Store[documentlock.Lock] = (*Rooms)(nil)
	_ documentlock.Finder            = (*Rooms)(nil)
	_ documentlock.Watcher           = (*Rooms)(nil)
)

// OpenRooms prepares a connection to Firestore or to an emulator, without a call. Close
// closes it. It uses neither Policy nor Pessimistic of o.
func OpenRooms(ctx context.Context, project string, o Options, opts ...option.ClientOption) (*Rooms, error) {
	db, err := dial(ctx, project, &o, "documentLocks", opts)
	if err != nil {
		return nil, err
	}
	policy := lease.Policy{TTL: documentlock.DefaultTTL} // of what others wrote; see lease.Presume
	return &Rooms{&documents[documentlock.Lock]{
		db: db, collection: db.Collection(o.Collection), what: "room", log: o.Log,
		codec: roomCodec{lockCodec{policy: policy, log: o.Log, name: func(id string) slog.Attr { return slog.String("room_hash", documentlock.Hash(id)) }}},
	}}, nil
}

// Close ends the connection, and every Watch.
func (r *Rooms) Close() error { return r.documents.db.Close() }

// Ping reports whether Firestore answers, within 5 s.
func (r *Rooms) Ping(ctx context.Context) error {
	_, err := r.documents.now(ctx)
	return err
}

// Load is one read, within 5 s.
func (r *Rooms) Load(ctx context.Context, room string) (lease.Cell[documentlock.Lock], error) {
	if err := documentlock.CheckRoom(room); err != nil {
		return lease.Cell[documentlock.Lock]{}, err
	}
	return r.documents.Load(ctx, room)
}

// Swap is one commit, within 5 s: it creates the document where prev does not
// exist, deletes it where next is not Kept, and else updates the fields that
// changed. Each holds only if the document is as prev was read.
func (r *Rooms) Swap(ctx context.Context, room string, prev lease.Cell[documentlock.Lock], next documentlock.Lock) (lease.Cell[documentlock.Lock], error) {
	err := documentlock.CheckRoom(room)
	switch {
	case err != nil:
		return lease.Cell[documentlock.Lock]{}, err
	case prev.Exists && next.Kept():
		return r.documents.Swap(ctx, room, prev, next)
	case prev.Exists:
		return r.remove(ctx, room, prev)
	case next.Kept():
		return r.create(ctx, room, next)
	}
	c, err := r.documents.Load(ctx, room) // nothing is to become of nothing
	if err == nil && c.Exists {
		err = lease.ErrConflict
	}
	return c, err
}

// create makes the document. The client sends a creation again whose reply was
// lost: then it conflicts with itself.
func (r *Rooms) create(ctx context.Context, room string, next documentlock.Lock) (lease.Cell[documentlock.Lock], error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	asked := time.Now()
	written, err := r.documents.collection.Doc(room).Create(ctx, newRoom(next))
	if err != nil {
		return lease.Cell[documentlock.Lock]{}, storeError("create", r.documents.what, room, err)
	}
	return lease.Cell[documentlock.Lock]{Doc: next, Exists: true, Rev: written.UpdateTime, At: written.UpdateTime, Asked: asked}, nil
}

// remove deletes the document if it is still prev. Firestore gives such a commit
// no update time, and the client not its commit time: At is what prev's time had
// become, which is off by a round trip at most. Nobody holds a room that has no
// document at whatever time, and who creates it must read it first.
func (r *Rooms) remove(ctx context.Context, room string, prev lease.Cell[documentlock.Lock]) (lease.Cell[documentlock.Lock], error) {
	read, ok := prev.Rev.(time.Time)
	if !ok {
		return lease.Cell[documentlock.Lock]{}, lease.ErrConflict
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	gone := lease.Cell[documentlock.Lock]{At: prev.Now(), Asked: time.Now()}
	if _, err := r.documents.collection.Doc(room).Delete(ctx, firestore.LastUpdateTime(read)); err != nil {
		return lease.Cell[documentlock.Lock]{}, storeError("delete", r.documents.what, room, err)
	}
	return gone, nil
}
