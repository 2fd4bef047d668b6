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
	"google.golang.org/protobuf/types/known/timestamppb"

	"taskguard/lease"
	"taskguard/lease/analysislock"
)

// The time limits of one call to Firestore, including the client's own retries. The
// rollback of a transaction that has reached its limit takes up to 5 s more.
const (
	callTimeout        = 5 * time.Second
	transactionTimeout = 10 * time.Second
	queryTimeout       = 15 * time.Second // also of a method that makes several calls
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
	noun       string // the kind of record, in errors
	log        *slog.Logger
	work       []string // the fields that a Load for lease.LeaseAndWork reads too
	mends      bool     // it reads malformed records, and a change replaces what is unusable
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
	err = s.read(ctx, id, want, func(r reading) { c, malformed = s.cell(r, asked) })
	return c, cmp.Or(err, malformed)
}

// change returns the fields that a commit of next changes, and the revision of next, which has the
// update time of prev until the commit.
func (s *documents[D]) change(prev lease.Cell[D], next *D) (fields map[string]any, rev revision, err error) {
	read, ok := prev.Rev.(*revision)
	if !ok {
		return nil, rev, lease.ErrConflict // it does not exist, and no change creates it
	}
	rev = *read
	fields = s.codec.changes(prev.Doc, next, &rev, prev.Now())
	return fields, rev, nil
}

// Swap makes one commit of the fields that changed, on condition that the document still has the
// update time that was read.
func (s *documents[D]) Swap(ctx context.Context, id string, prev lease.Cell[D], next D) (lease.Cell[D], error) {
	fields, rev, err := s.change(prev, &next)
	if err != nil {
		return lease.Cell[D]{}, err
	}
	if len(fields) == 0 { // for example, a renewal within the same millisecond as the last
		c, err := s.Load(ctx, id, lease.OnlyLease)
		if err == nil && (!c.Exists || !c.Rev.(*revision).updated.Equal(rev.updated)) {
			err = lease.ErrConflict
		}
		return c, err
	}

	encoded, err := s.db.encoding(ctx, fields)
	if err != nil {
		return lease.Cell[D]{}, err
	}
	defer encoded()
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()

	asked := time.Now()
	rev.updated, err = s.db.update(ctx, s.collection.Doc(id), fields, rev.updated)
	if err != nil {
		if err = storeError("write", s.noun, id, err); errors.Is(err, lease.ErrConflict) {
			err = fmt.Errorf("%w: %w", lease.ErrUnwritten, err) // it was sent once
		}
		return lease.Cell[D]{}, err
	}
	return lease.Cell[D]{Doc: next, Exists: true, Rev: &rev, At: rev.updated, Asked: asked}, nil
}

// Exclude decides inside client.RunTransaction, whose read makes other writers wait until its commit.
func (s *documents[D]) Exclude(ctx context.Context, id string,
	decide func(lease.Cell[D]) (D, error),
) (lease.Cell[D], error) {
	ctx, cancel := context.WithTimeout(ctx, transactionTimeout)
	defer cancel()
	var d decision[D] // of the last try
	var commit firestore.CommitResponse
	encoded := func() {}
	defer func() { encoded() }()

	try := func(_ context.Context, tx *firestore.Transaction) (err error) {
		encoded() // by an earlier try
		if d, err = s.decideIn(tx, id, decide); err != nil || len(d.fields) == 0 {
			return err
		}
		if encoded, err = s.db.encoding(ctx, d.fields); err != nil {
			return err
		}
		d.asked = time.Now()
		return tx.Update(s.collection.Doc(id), updates(d.fields))
	}
	err := s.db.client.RunTransaction(ctx, try, firestore.WithCommitResponseTo(&commit))
	switch {
	case d.refusal != nil:
		return d.read, d.refusal
	case err != nil:
		return lease.Cell[D]{}, storeError("write", s.noun, id, err)
	case len(d.fields) == 0:
		return d.read, nil
	}

	writes, err := commit.WriteResults()
	if err != nil || len(writes) != 1 {
		return lease.Cell[D]{}, lease.ErrConflict // written, but at an unknown time: Edit must read it
	}
	at := writes[0].UpdateTime
	d.rev.updated = at
	return lease.Cell[D]{Doc: d.next, Exists: true, Rev: &d.rev, At: at, Asked: d.asked}, nil
}

// decision is what a try of a transaction has decided.
type decision[D any] struct {
	read    lease.Cell[D]
	refusal error // of the codec or of decide, which Exclude returns unchanged
	next    D
	rev     revision // of next
	fields  map[string]any
	asked   time.Time // the local start of the commit
}

// decideIn reads a document in a transaction, and decides.
func (s *documents[D]) decideIn(tx *firestore.Transaction, id string, decide func(lease.Cell[D]) (D, error),
) (d decision[D], err error) {
	asked := time.Now()
	r, err := s.readIn(tx, id)
	if err != nil {
		return d, err
	}
	if d.read, d.refusal = s.cell(r, asked); d.refusal == nil {
		d.next, d.refusal = decide(d.read)
	}
	if d.refusal != nil {
		return d, d.refusal
	}
	d.fields, d.rev, err = s.change(d.read, &d.next)
	return d, err
}

// readIn reads a document in a transaction. The client's Get has no mask, so readIn makes
// a query. If that finds nothing, GetAll returns Firestore's time.
func (s *documents[D]) readIn(tx *firestore.Transaction, id string) (reading, error) {
	doc := s.collection.Doc(id)
	query := s.collection.Where(firestore.DocumentID, "==", doc).Select(s.codec.mask()...)
	found, err := tx.Documents(query).GetAll()
	if err == nil && len(found) == 0 {
		found, err = tx.GetAll([]*firestore.DocumentRef{doc}) // unlike Get, it has no error for a missing document
	}
	if err != nil {
		return reading{}, err
	}
	return snapshot(found[0]), nil
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
func (s *documents[D]) cell(r reading, asked time.Time) (c lease.Cell[D], err error) {
	c.Exists, c.At, c.Asked = r.exists, r.at, asked
	if r.exists {
		var rev revision
		c.Doc, rev, err = s.codec.decode(r)
		rev.updated, rev.work = r.updated, r.encoded
		c.Rev = &rev
	}
	if err == nil || s.mends {
		return c, nil
	}
	return c, fmt.Errorf("repo: %s %q: %w", s.noun, r.id, err)
}

// create creates a document. If the reply is lost, the client sends the creation again, and gets
// lease.ErrConflict because of its first try.
func (s *documents[D]) create(ctx context.Context, id string, fields map[string]any) (at time.Time, err error) {
	created, err := s.collection.Doc(id).Create(ctx, fields)
	if err != nil {
		return at, storeError("create", s.noun, id, err)
	}
	return created.UpdateTime, nil
}

// remove deletes the document if it has not changed since prev was read. Firestore returns
// no update time for such a commit, and the client does not return the commit time. So At
// is an estimate, wrong by a round trip at most. That is harmless: a room without a
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
		return lease.Cell[D]{}, storeError("delete", s.noun, id, err)
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
