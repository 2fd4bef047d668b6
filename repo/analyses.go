package repo

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"time"

	"cloud.google.com/go/firestore"
	"google.golang.org/api/option"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"taskguard/lease"
	"taskguard/lease/analysislock"
)

// Options of Open. The zero value is the contract's default.
type Options struct {
	Database   string // "" is (default)
	Collection string // "" is analyses
	Emulator   string // host:port of one, if FIRESTORE_EMULATOR_HOST names no other
	Policy     lease.Policy
	// Pessimistic makes every decision inside client.RunTransaction. Otherwise that is
	// done only where others keep writing to the document.
	Pessimistic bool
	Log         *slog.Logger // nil: silent
}

// Analyses are the analyses of one collection: all that others know of
// Firestore. It is safe for concurrent use. Every method checks the id first
// (lease.ErrInvalidKey), bounds its own time, and answers lease.ErrUnavailable
// where Firestore cannot be reached.
type Analyses struct {
	*analysislock.Locks
	documents *documents[analysislock.Analysis]
	replacing *analysislock.Locks // of the same documents; see Unlock
}

// Open connects to Firestore, or to an emulator, without a call yet. Close ends it.
func Open(ctx context.Context, project string, o Options, opts ...option.ClientOption) (*Analyses, error) {
	if o.Database == "" {
		o.Database = firestore.DefaultDatabaseID
	}
	if o.Collection == "" {
		o.Collection = "analyses"
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	db, err := dial(ctx, project, o.Database, o.Emulator, opts)
	if err != nil {
		return nil, fmt.Errorf("repo: open database %s of project %s: %w", o.Database, project, err)
	}
	a, err := newAnalyses(db, o)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return a, nil
}

func newAnalyses(db *database, o Options) (*Analyses, error) {
	if err := CheckCollection(o.Collection); err != nil {
		return nil, fmt.Errorf("repo: %w", err)
	}
	codec := analysisCodec{lockCodec: lockCodec{policy: o.Policy, log: o.Log, name: func(id string) slog.Attr { return slog.String("analysis_id", id) }}}
	docs := &documents[analysislock.Analysis]{
		db: db, collection: db.Collection(o.Collection), what: "analysis", log: o.Log, codec: codec, pessimistic: o.Pessimistic,
	}
	a := &Analyses{documents: docs}
	docs.beside = a.askInput
	var err error
	if a.Locks, err = analysislock.New(docs, o.Policy, a.input); err != nil {
		return nil, err
	}
	replacing := *docs
	codec.replaceToken = true
	replacing.codec = codec
	a.replacing, err = analysislock.New(&replacing, o.Policy, a.input)
	return a, err
}

// Close ends the connection.
func (a *Analyses) Close() error { return a.documents.db.Close() }

// Create makes a QUEUED analysis with input, a value as orchestrator.Storable
// returns it: ErrExists if the id is taken, lease.ErrRefused if Firestore
// cannot hold the input. After lease.ErrUnavailable it may exist all the same.
func (a *Analyses) Create(ctx context.Context, id string, input any) error {
	if err := analysislock.CheckID(id); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, editTimeout)
	defer cancel()
	read, err := a.documents.now(ctx)
	if err != nil {
		return err
	}
	now := read.Truncate(time.Millisecond)
	doc := a.documents.collection.Doc(id)
	_, err = doc.Create(ctx, map[string]any{
		"status": analysislock.Queued, "input": input, "attempts": 0, "createdAt": timeValue(now), "updatedAt": timeValue(now),
	})
	switch {
	case status.Code(err) == codes.AlreadyExists:
		// Also the answer to a creation whose reply was lost and which the client
		// sent again; that one is younger than the reading it is dated by.
		if snap, err := doc.Get(ctx); err == nil && snap.CreateTime.After(read) {
			if d, err := a.documents.codec.decode(snapshot(snap)); err == nil && d.CreatedAt.Equal(now) && reflect.DeepEqual(d.Input, input) {
				return nil
			}
		}
		return fmt.Errorf("%w: %q", ErrExists, id)
	case err != nil:
		return outOfReach(storeError("create", "analysis", id, err))
	}
	return nil
}

// Get reads one analysis, with its input and result: lease.ErrNotFound if there is
// none.
func (a *Analyses) Get(ctx context.Context, id string) (analysislock.Analysis, error) {
	return a.get(ctx, id, nil)
}

// get reads those fields of an analysis, or all.
func (a *Analyses) get(ctx context.Context, id string, fields []string) (d analysislock.Analysis, err error) {
	if err := analysislock.CheckID(id); err != nil {
		return d, err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var refused error
	err = a.documents.db.read(ctx, a.documents.collection.Doc(id), fields, func(r reading) error {
		if refused = fmt.Errorf("%w: %q", lease.ErrNotFound, id); r.exists {
			d, refused = a.documents.codec.decode(r)
		}
		return nil
	})
	if err != nil {
		return d, outOfReach(storeError("read", "analysis", id, err))
	}
	return d, refused
}

// Unlock is Ledger.Unlock, and replaces a lockToken that is no usable integer by the
// time of the document's last update in microseconds.
func (a *Analyses) Unlock(ctx context.Context, id string, seen *analysislock.Seen) (analysislock.Analysis, error) {
	return a.replacing.Unlock(ctx, id, seen)
}

// List reads up to limit analyses, by id, without inputs and results; Malformed is
// set as by Newest.
func (a *Analyses) List(ctx context.Context, limit int) ([]analysislock.Analysis, error) {
	ctx, cancel := context.WithTimeout(ctx, editTimeout)
	defer cancel()
	return a.summaries(ctx, "list analyses", briefly(a.documents.collection.OrderBy(firestore.DocumentID, firestore.Asc).Limit(limit)))
}

// Ping reports whether Firestore answers.
func (a *Analyses) Ping(ctx context.Context) error {
	_, err := a.documents.now(ctx)
	return err
}
