package repo

import (
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
)

// codec converts documents to records D, and the difference of two records to field
// updates. It knows the fields of the contract and no others.
type codec[D any] interface {
	// decode decodes a document that exists. It needs only the fields of the mask, and
	// returns lease.ErrMalformed if it cannot assume a safe value for one of them.
	decode(r reading) (D, error)
	// mask names the fields that a decision needs; nil: all.
	mask() []string
	// changes returns the updates that change prev to next, at Firestore's time now. If
	// nothing differs, it returns none.
	changes(prev D, next *D, now time.Time) []firestore.Update
}

// documents is the lease.Store of a collection's records. It makes every decision in a
// transaction. lease.Edit tries a decision twice by Load and Swap, which commits only if
// the document still has the update time that was read. After two conflicts with other
// writers, Edit decides inside Exclude. docs/adr/0001-transaction.md gives the reasons.
// A decision reads only the fields of the codec's mask.
type documents[D any] struct {
	db         *Database
	collection *firestore.CollectionRef
	codec      codec[D]
	noun       string // the kind of record, in errors
	log        *slog.Logger
	work       []string // the fields that a Load for lease.LeaseAndWork reads too
}

var _ lease.Excluder[analysislock.Analysis] = (*documents[analysislock.Analysis])(nil)

// Load makes one read.
func (s *documents[D]) Load(ctx context.Context, id string, load lease.Want) (c lease.Cell[D], err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()

	asked := time.Now()
	var decoded error
	want := wanted{fields: s.codec.mask()}
	if load == lease.LeaseAndWork {
		want.encoded, want.small = s.work, true
	}
	err = s.db.read(ctx, s.collection.Doc(id), want, func(r reading) error {
		c, decoded = s.cell(r, asked)
		return nil
	})
	if err != nil {
		return lease.Cell[D]{}, storeError("read", s.noun, id, err)
	}
	return c, decoded
}

// Swap makes one commit of the fields that changed, conditional on the update time that
// was read.
func (s *documents[D]) Swap(ctx context.Context, id string, prev lease.Cell[D], next D) (lease.Cell[D], error) {
	read, ok := prev.Rev.(time.Time)
	if !prev.Exists || !ok {
		return lease.Cell[D]{}, lease.ErrConflict // Swap creates no record
	}
	updates := s.codec.changes(prev.Doc, &next, prev.Now())
	if len(updates) == 0 { // for example, a renewal within the same millisecond as the last
		c, err := s.Load(ctx, id, lease.OnlyLease)
		if err == nil && (!c.Exists || !read.Equal(c.Rev.(time.Time))) {
			return c, lease.ErrConflict
		}
		return c, err
	}

	done, err := s.db.encoding(ctx, updates)
	if err != nil {
		return lease.Cell[D]{}, err
	}
	defer done()
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()

	asked := time.Now()
	at, err := s.db.update(ctx, s.collection.Doc(id), updates, read)
	if err != nil {
		if err = storeError("write", s.noun, id, err); errors.Is(err, lease.ErrConflict) {
			err = fmt.Errorf("%w: %w", lease.ErrUnwritten, err) // it was sent once
		}
		return lease.Cell[D]{}, err
	}
	return lease.Cell[D]{Doc: next, Exists: true, Rev: at, At: at, Asked: asked}, nil
}

// Exclude decides inside client.RunTransaction, whose read makes other writers
// wait until its commit.
func (s *documents[D]) Exclude(ctx context.Context, id string,
	decide func(lease.Cell[D]) (D, error),
) (lease.Cell[D], error) {
	ctx, cancel := context.WithTimeout(ctx, transactionTimeout)
	defer cancel()
	var (
		result   lease.Cell[D]
		refusal  error // of the codec or of decide, returned unchanged
		changed  bool
		response firestore.CommitResponse
	)
	encoded := func() {}
	defer func() { encoded() }()

	try := func(_ context.Context, tx *firestore.Transaction) error {
		encoded() // of an earlier try

		asked := time.Now()
		r, err := s.readIn(tx, id)
		if err != nil {
			return err
		}
		if result, refusal = s.cell(r, asked); refusal != nil {
			return refusal
		}
		var next D
		if next, refusal = decide(result); refusal != nil {
			return refusal
		}

		updates := s.codec.changes(result.Doc, &next, result.Now())
		if changed = len(updates) > 0; !changed {
			return nil
		}
		if encoded, err = s.db.encoding(ctx, updates); err != nil {
			return err
		}
		result.Doc, result.Asked = next, time.Now()
		return tx.Update(s.collection.Doc(id), updates)
	}

	err := s.db.client.RunTransaction(ctx, try, firestore.WithCommitResponseTo(&response))
	switch {
	case refusal != nil:
		return result, refusal
	case err != nil:
		return lease.Cell[D]{}, storeError("write", s.noun, id, err)
	case !changed:
		return result, nil
	}

	writes, err := response.WriteResults()
	if err != nil || len(writes) != 1 {
		return lease.Cell[D]{}, lease.ErrConflict // written, but at an unknown time: Edit must read it
	}
	result.Rev, result.At = writes[0].UpdateTime, writes[0].UpdateTime
	return result, nil
}

// readIn reads a document in a transaction. The client's Get has no mask, so readIn makes
// a query. If that finds nothing, GetAll returns Firestore's time.
func (s *documents[D]) readIn(tx *firestore.Transaction, id string) (reading, error) {
	doc := s.collection.Doc(id)
	query := s.collection.Where(firestore.DocumentID, "==", doc).Select(s.codec.mask()...)
	found, err := tx.Documents(query).GetAll()
	if err != nil {
		return reading{}, err
	}
	if len(found) > 0 {
		return snapshot(found[0]), nil
	}

	found, err = tx.GetAll([]*firestore.DocumentRef{doc}) // unlike Get, it has no error for a missing document
	if err != nil {
		return reading{}, err
	}
	return snapshot(found[0]), nil
}

// now returns Firestore's time, from one read of a document that need not exist. Its
// error is lease.ErrUnavailable.
func (s *documents[D]) now(ctx context.Context) (time.Time, error) {
	c, err := s.Load(ctx, "ready", lease.OnlyLease)
	if err != nil && !errors.Is(err, lease.ErrMalformed) {
		return time.Time{}, unavailable(err)
	}
	return c.At, nil
}

// cell decodes a reading that was requested at asked.
func (s *documents[D]) cell(r reading, asked time.Time) (c lease.Cell[D], err error) {
	c.Exists, c.At, c.Asked = r.exists, r.at, asked
	if r.exists {
		c.Rev = r.updated
		c.Doc, err = s.codec.decode(r)
	}
	return c, err
}

// update commits updates if the document still has the update time read, and returns the new
// one. Google's client would need more than twice the allocations, and would send the commit
// again by itself. The paths of updates are names of fields.
func (d *Database) update(ctx context.Context, doc *firestore.DocumentRef, updates []firestore.Update,
	read time.Time,
) (at time.Time, err error) {
	fields, paths := make(map[string]*firestorepb.Value, len(updates)), make([]string, len(updates))
	for i, u := range updates {
		paths[i] = u.Path
		if u.Value == firestore.Delete {
			continue
		}
		if fields[u.Path], err = encodeValue(u.Value); err != nil {
			return at, err
		}
	}

	answer, err := d.api.Commit(d.outgoing(ctx), &firestorepb.CommitRequest{
		Database: d.name,
		Writes: []*firestorepb.Write{{
			Operation:  &firestorepb.Write_Update{Update: &firestorepb.Document{Name: doc.Path, Fields: fields}},
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
