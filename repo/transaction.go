package repo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"cloud.google.com/go/firestore"
	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"taskguard/lease"
	"taskguard/lease/analysislock"
)

// documents is the lease.Store of a collection's records. Every decision is atomic. lease.Edit makes
// it twice by Load and Swap, an optimistic transaction: one read, and one commit on condition that the
// document has not changed. After two conflicts with other writers, Edit decides inside Exclude, a
// transaction of the server. docs/adr/0001-transaction.md gives the reasons. A decision reads only the
// fields of the codec's mask.
type documents[D any] struct {
	db         *Database
	collection *firestore.CollectionRef
	codec      codec[D]
	noun       string // names a record in errors
	log        *slog.Logger
	work       []string // fields that only a Load for lease.LeaseAndWork reads
}

var _ lease.Excluder[analysislock.Analysis] = (*documents[analysislock.Analysis])(nil)

// Load makes one read.
func (s *documents[D]) Load(ctx context.Context, id string, load lease.Want) (c lease.Cell[D], err error) {
	want := wanted{fields: s.codec.mask()}
	if load == lease.LeaseAndWork {
		want.encoded, want.small = s.work, true
	}
	asked := time.Now()
	var malformed error
	err = s.read(ctx, id, want, func(r reading) { c, malformed = s.cell(r, asked, load) })
	return c, cmp.Or(err, malformed)
}

// draft is a commit that changes a record to next.
type draft[D any] struct {
	next   D
	rev    revision       // revision of next; until the commit its update time is the record's
	fields map[string]any // fields to write; none: nothing changes
	asked  time.Time      // local start of the commit
	done   func()         // ends the encoding of fields; it may be called more than once
}

// draft waits until the commit may be encoded. The caller calls its done, also after an error.
func (s *documents[D]) draft(ctx context.Context, prev lease.Cell[D], next D) (d draft[D], err error) {
	d.done = func() {}
	read, ok := prev.Rev.(*revision)
	if !ok {
		return d, lease.ErrConflict // it does not exist, and no change creates it
	}
	d.next, d.rev = next, *read
	d.fields = s.codec.changes(prev.Doc, &d.next, &d.rev, prev.Now())
	d.done, err = s.db.encoding(ctx, d.fields)
	d.asked = time.Now()
	return d, err
}

// written returns the Cell after the commit, whose time by Firestore is at.
func (d *draft[D]) written(at time.Time) lease.Cell[D] {
	d.rev.updated = at
	return lease.Cell[D]{Doc: d.next, Exists: true, Rev: &d.rev, At: at, Asked: d.asked}
}

// Swap makes one commit of the fields that changed, on condition that the document still has the
// update time that was read.
func (s *documents[D]) Swap(ctx context.Context, id string, prev lease.Cell[D], next D) (lease.Cell[D], error) {
	d, err := s.draft(ctx, prev, next)
	defer d.done()
	if err != nil {
		return lease.Cell[D]{}, err
	}
	read := d.rev.updated
	if len(d.fields) == 0 { // for example, a renewal within the same millisecond as the last
		c, err := s.Load(ctx, id, lease.OnlyLease)
		if err == nil && (!c.Exists || !c.Rev.(*revision).updated.Equal(read)) {
			err = lease.ErrConflict
		}
		return c, err
	}

	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	at, err := s.db.update(ctx, s.collection.Doc(id), d.fields, read)
	if err != nil {
		if err = writeError("write", s.noun, id, err); errors.Is(err, lease.ErrConflict) {
			err = fmt.Errorf("%w: %w", lease.ErrUnwritten, err) // it was sent once
		}
		return lease.Cell[D]{}, err
	}
	return d.written(at), nil
}

// Exclude decides inside client.RunTransaction, whose read makes other writers wait until its commit.
func (s *documents[D]) Exclude(ctx context.Context, id string, load lease.Want,
	decide func(lease.Cell[D]) (D, error),
) (lease.Cell[D], error) {
	ctx, cancel := context.WithTimeout(ctx, transactionTimeout)
	defer cancel()
	var read lease.Cell[D]
	var next D
	var refusal error // the error of the codec or of decide, which is returned unchanged
	var commit firestore.CommitResponse
	d := draft[D]{done: func() {}}
	defer func() { d.done() }()

	try := func(_ context.Context, tx *firestore.Transaction) (err error) {
		d.done() // an earlier try may have encoded
		if read, refusal, err = s.loadIn(tx, id, load); err != nil || refusal != nil {
			return cmp.Or(err, refusal)
		}
		if next, refusal = decide(read); refusal != nil {
			return refusal
		}
		if d, err = s.draft(ctx, read, next); err != nil || len(d.fields) == 0 {
			return err
		}
		return tx.Update(s.collection.Doc(id), updates(d.fields))
	}
	err := s.db.client.RunTransaction(ctx, try, firestore.WithCommitResponseTo(&commit))
	switch {
	case refusal != nil:
		return read, refusal
	case err != nil:
		return lease.Cell[D]{}, writeError("write", s.noun, id, err)
	case len(d.fields) == 0:
		return read, nil
	}

	writes, err := commit.WriteResults()
	if err != nil || len(writes) != 1 {
		return lease.Cell[D]{}, lease.ErrConflict // written, but at an unknown time: Edit must read it
	}
	return d.written(writes[0].UpdateTime), nil
}

// loadIn reads a document in a transaction. The client's Get has no mask, so loadIn makes a query. If
// that finds nothing, GetAll returns Firestore's time. malformed is the codec's error.
func (s *documents[D]) loadIn(tx *firestore.Transaction, id string, load lease.Want,
) (c lease.Cell[D], malformed, err error) {
	asked, doc := time.Now(), s.collection.Doc(id)
	query := s.collection.Where(firestore.DocumentID, "==", doc).Select(s.codec.mask()...)
	found, err := tx.Documents(query).GetAll()
	if err == nil && len(found) == 0 {
		found, err = tx.GetAll([]*firestore.DocumentRef{doc}) // unlike Get, it has no error for a missing document
	}
	if err == nil {
		c, malformed = s.cell(snapshot(found[0]), asked, load)
	}
	return c, malformed, err
}

// read makes one read, and calls use with it.
func (s *documents[D]) read(ctx context.Context, id string, want wanted, use func(r reading)) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := s.db.read(ctx, s.collection.Doc(id), want, use); err != nil {
		return storeError("read", s.noun, id, err)
	}
	return nil
}

// now returns Firestore's time, from one read of a document that need not exist. Its
// error is lease.ErrUnavailable.
func (s *documents[D]) now(ctx context.Context) (at time.Time, err error) {
	err = s.read(ctx, "ready", wanted{fields: s.codec.mask()}, func(r reading) { at = r.at })
	return at, unavailable(err)
}

// cell decodes a reading that was requested at asked.
func (s *documents[D]) cell(r reading, asked time.Time, load lease.Want) (c lease.Cell[D], err error) {
	c.Exists, c.At, c.Asked = r.exists, r.at, asked
	if r.exists {
		var rev revision
		c.Doc, rev, err = s.codec.decode(r)
		rev.updated, rev.work = r.updated, r.encoded
		c.Rev = &rev
	}
	if err == nil || load == lease.EvenMalformed {
		return c, nil
	}
	return c, fmt.Errorf("repo: %s %q: %w", s.noun, r.id, err)
}

// create creates a document. If the reply is lost, the client sends the creation again, and gets
// lease.ErrConflict because of its first try.
func (s *documents[D]) create(ctx context.Context, id string, fields map[string]any) (at time.Time, err error) {
	created, err := s.collection.Doc(id).Create(ctx, fields)
	switch {
	case status.Code(err) == codes.AlreadyExists:
		return at, writeError("create", s.noun, id, err)
	case err != nil:
		return at, storeError("create", s.noun, id, err)
	}
	return created.UpdateTime, nil
}

// replace is Swap for documents that exist only while they are kept: it creates or deletes the document if
// need be.
func (s *documents[D]) replace(ctx context.Context, id string, prev lease.Cell[D], next D, kept bool,
) (lease.Cell[D], error) {
	switch {
	case prev.Exists && kept:
		return s.Swap(ctx, id, prev, next)
	case prev.Exists:
		return s.remove(ctx, id, prev)
	case !kept:
		c, err := s.Load(ctx, id, lease.OnlyLease) // no document, and none to create
		if err == nil && c.Exists {
			err = lease.ErrConflict
		}
		return c, err
	}

	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var none D
	asked := time.Now()
	at, err := s.create(ctx, id, present(s.codec.changes(none, &next, &revision{}, prev.Now())))
	if err != nil {
		return lease.Cell[D]{}, err
	}
	return lease.Cell[D]{Doc: next, Exists: true, Rev: &revision{updated: at}, At: at, Asked: asked}, nil
}

// remove deletes the document if it has not changed since prev was read. Firestore returns
// no update time for such a commit, and the client does not return the commit time. So At
// is an estimate, wrong by a round trip at most. That is harmless: a room or a key without a
// document is free at any time, and an owner reads it before creating it.
func (s *documents[D]) remove(ctx context.Context, id string, prev lease.Cell[D]) (lease.Cell[D], error) {
	read, ok := prev.Rev.(*revision)
	if !ok {
		return lease.Cell[D]{}, lease.ErrConflict
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	deleted := lease.Cell[D]{At: prev.Now(), Asked: time.Now()}
	if _, err := s.collection.Doc(id).Delete(ctx, firestore.LastUpdateTime(read.updated)); err != nil {
		return lease.Cell[D]{}, writeError("delete", s.noun, id, err)
	}
	return deleted, nil
}

// updates converts the fields of a change for Google's client.
func updates(fields map[string]any) (all []firestore.Update) {
	for path, v := range fields {
		all = append(all, firestore.Update{Path: path, Value: v})
	}
	return all
}

// update commits fields if the document still has the update time read, and returns the new one.
// Google's client would need more than twice the allocations, and would send the commit again without
// being asked.
func (d *Database) update(ctx context.Context, doc *firestore.DocumentRef, fields map[string]any, read time.Time,
) (at time.Time, err error) {
	encoded, paths := make(map[string]*firestorepb.Value, len(fields)), make([]string, 0, len(fields))
	for path, v := range fields {
		paths = append(paths, path)
		if v == any(firestore.Delete) {
			continue
		}
		if encoded[path], err = encodeValue(v); err != nil {
			return at, err
		}
	}

	answer, err := d.api.Commit(d.outgoing(ctx), &firestorepb.CommitRequest{
		Database: d.name,
		Writes: []*firestorepb.Write{{
			Operation:  &firestorepb.Write_Update{Update: &firestorepb.Document{Name: doc.Path, Fields: encoded}},
			UpdateMask: &firestorepb.DocumentMask{FieldPaths: paths},
			CurrentDocument: &firestorepb.Precondition{
				ConditionType: &firestorepb.Precondition_UpdateTime{UpdateTime: timestamppb.New(read)},
			},
		}},
	})
	if err != nil {
		return at, err
	}
	if len(answer.GetWriteResults()) != 1 {
		return at, errAnswer // written, but at an unknown time: Edit must read it
	}
	return answer.GetWriteResults()[0].GetUpdateTime().AsTime(), nil
}
