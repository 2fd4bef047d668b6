package repo

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"cloud.google.com/go/firestore"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

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
	// decode reads a document that exists: lease.ErrMalformed where no safe value
	// can be assumed. It needs only the fields of the mask.
	decode(r reading) (D, error)
	// mask names the fields that a decision needs; nil: all.
	mask() []string
	// changes returns the updates that change prev to next, at Firestore's time now; none
	// if nothing differs.
	changes(prev D, next *D, now time.Time) []firestore.Update
}

// documents is the lease.Store of a collection's records. It makes every decision in a
// transaction. lease.Edit first tries a decision twice optimistically: Load, and
// then a Swap that commits only if the document still has the update time that was
// read. After two conflicts with other writers, it decides inside Exclude.
// docs/adr/0001-transaction.md gives the reasons. A decision reads only the fields of
// the codec's mask.
type documents[D any] struct {
	db          *Database
	collection  *firestore.CollectionRef
	codec       codec[D]
	what        string // the kind of record, in errors
	log         *slog.Logger
	pessimistic bool // every decision is made inside Exclude
	// beforeCommit, if it is not nil, is called before each commit from prev to next.
	// cancel is called if the commit fails.
	beforeCommit func(ctx context.Context, prev D, next *D) (cancel func())
}

var _ lease.Excluder[analysislock.Analysis] = (*documents[analysislock.Analysis])(nil)

// Load makes one read.
func (s *documents[D]) Load(ctx context.Context, id string) (c lease.Cell[D], err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()

	asked := time.Now()
	var decoded error
	err = s.db.read(ctx, s.collection.Doc(id), s.codec.mask(), func(r reading) error {
		c, decoded = s.cell(r, asked)
		return nil
	})
	if err != nil {
		return lease.Cell[D]{}, storeError("read", s.what, id, err)
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
		c, err := s.Load(ctx, id)
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
	cancelWork := s.prepare(ctx, prev.Doc, &next)

	ctx, sentOnce := s.db.countSends(ctx)
	asked := time.Now()
	written, err := s.collection.Doc(id).Update(ctx, updates, firestore.LastUpdateTime(read))
	if err != nil {
		cancelWork()
		if err = storeError("write", s.what, id, err); errors.Is(err, lease.ErrConflict) && sentOnce() {
			err = fmt.Errorf("%w: %w", lease.ErrUnwritten, err)
		}
		return lease.Cell[D]{}, err
	}
	at := written.UpdateTime
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
		out      lease.Cell[D]
		decision error // of reading or decide, returned unchanged
		changed  bool
		response firestore.CommitResponse
	)
	cancelWork, encoded := func() {}, func() {}
	defer func() { encoded() }()

	try := func(_ context.Context, tx *firestore.Transaction) error {
		cancelWork() // of an earlier try
		encoded()

		asked := time.Now()
		r, err := s.readIn(tx, id)
		if err != nil {
			return err
		}
		if out, decision = s.cell(r, asked); decision != nil {
			return decision
		}
		var next D
		if next, decision = decide(out); decision != nil {
			return decision
		}

		updates := s.codec.changes(out.Doc, &next, out.Now())
		if changed = len(updates) > 0; !changed {
			return nil
		}
		if encoded, err = s.db.encoding(ctx, updates); err != nil {
			return err
		}
		cancelWork = s.prepare(ctx, out.Doc, &next)
		out.Doc, out.Asked = next, time.Now()
		return tx.Update(s.collection.Doc(id), updates)
	}

	err := s.db.client.RunTransaction(ctx, try, firestore.WithCommitResponseTo(&response))
	if err != nil {
		cancelWork()
	}
	switch {
	case decision != nil:
		return out, decision
	case err != nil:
		return lease.Cell[D]{}, storeError("write", s.what, id, err)
	case !changed:
		return out, nil
	}

	results, err := response.WriteResults()
	if err != nil || len(results) != 1 {
		return lease.Cell[D]{}, lease.ErrConflict // written, but at an unknown time: Edit must read it
	}
	out.Rev, out.At = results[0].UpdateTime, results[0].UpdateTime
	return out, nil
}

// readIn reads a document in a transaction. The client's Get has no mask, so readIn makes
// a query. If that finds nothing, Get returns Firestore's time.
func (s *documents[D]) readIn(tx *firestore.Transaction, id string) (reading, error) {
	doc := s.collection.Doc(id)
	if mask := s.codec.mask(); mask != nil {
		query := s.collection.Where(firestore.DocumentID, "==", doc).Select(mask...)
		found, err := tx.Documents(query).GetAll()
		if err != nil {
			return reading{}, err
		}
		if len(found) > 0 {
			return snapshot(found[0]), nil
		}
	}

	snap, err := tx.Get(doc)
	if err != nil && !absent(snap, err) {
		return reading{}, err
	}
	return snapshot(snap), nil
}

// Exclusive implements lease.Excluder.
func (s *documents[D]) Exclusive() bool { return s.pessimistic }

// prepare calls beforeCommit.
func (s *documents[D]) prepare(ctx context.Context, prev D, next *D) (cancel func()) {
	if s.beforeCommit == nil {
		return func() {}
	}
	return s.beforeCommit(ctx, prev, next)
}

// now returns Firestore's time, from one read of a document that need not exist. Its
// error is lease.ErrUnavailable.
func (s *documents[D]) now(ctx context.Context) (time.Time, error) {
	c, err := s.Load(ctx, "ready")
	if err != nil && !errors.Is(err, lease.ErrMalformed) {
		return time.Time{}, unavailable(err)
	}
	return c.At, nil
}

// cell decodes a reading that was requested at asked.
func (s *documents[D]) cell(r reading, asked time.Time) (lease.Cell[D], error) {
	c := lease.Cell[D]{Exists: r.exists, At: r.at, Asked: asked}
	if !c.Exists {
		return c, nil
	}
	var err error
	c.Rev = r.updated
	c.Doc, err = s.codec.decode(r)
	return c, err
}

// absent distinguishes a missing document, for which the library returns an error and
// a snapshot with a read time, from a missing database.
func absent(snap *firestore.DocumentSnapshot, err error) bool {
	return status.Code(err) == codes.NotFound && snap != nil && !snap.ReadTime.IsZero()
}
