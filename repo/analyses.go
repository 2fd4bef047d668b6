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
)

// Options of Open. The zero value is the contract's default.
type Options struct {
	Database   string // "" is (default)
	Collection string // "" is analyses
	Policy     lease.Policy
	// Pessimistic makes each decision inside client.RunTransaction, whose reading
	// locks the document, from the first try on. Without it a decision is a reading
	// and a commit that holds only if nothing has changed, and others that keep
	// writing bring it into such a transaction on the third try.
	Pessimistic bool
	Log         *slog.Logger // nil: silent
}

// Analyses are the analyses of one collection: all that others know of
// Firestore. It is safe for concurrent use. Every method checks the id first
// (lease.ErrInvalidKey), bounds its own time, and answers lease.ErrUnavailable
// where Firestore cannot be reached.
type Analyses struct {
	*Ledger
	documents *documents[Analysis]
}

// Open connects to Firestore, or to the emulator that FIRESTORE_EMULATOR_HOST
// names, without a call yet. Close ends it.
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
	client, err := dial(ctx, project, o.Database, opts)
	if err != nil {
		return nil, fmt.Errorf("repo: open database %s of project %s: %w", o.Database, project, err)
	}
	a, err := newAnalyses(client, o)
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	return a, nil
}

func newAnalyses(client *firestore.Client, o Options) (*Analyses, error) {
	if err := CheckCollection(o.Collection); err != nil {
		return nil, fmt.Errorf("repo: %w", err)
	}
	docs := &documents[Analysis]{
		client: client, collection: client.Collection(o.Collection), what: "analysis", log: o.Log,
		codec: analysisCodec{lockCodec{policy: o.Policy, log: o.Log, name: func(id string) slog.Attr { return slog.String("analysis_id", id) }}},
	}
	ledger, err := NewLedger(docs, o.Policy)
	if err != nil {
		return nil, err
	}
	return &Analyses{Ledger: ledger, documents: docs}, nil
}

// Close ends the connection.
func (a *Analyses) Close() error { return a.documents.client.Close() }

// Create makes a QUEUED analysis with input, a value as orchestrator.Storable
// returns it: ErrExists if the id is taken, lease.ErrRefused if Firestore
// cannot hold the input. After lease.ErrUnavailable it may exist all the same.
func (a *Analyses) Create(ctx context.Context, id string, input any) error {
	if err := CheckID(id); err != nil {
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
		"status": Queued, "input": input, "attempts": 0, "createdAt": timeValue(now), "updatedAt": timeValue(now),
	})
	switch {
	case status.Code(err) == codes.AlreadyExists:
		// Also the answer to a creation whose reply was lost and which the client
		// sent again; that one is younger than the reading it is dated by.
		if snap, err := doc.Get(ctx); err == nil && snap.CreateTime.After(read) {
			if d, err := a.documents.codec.decode(snap); err == nil && d.CreatedAt.Equal(now) && reflect.DeepEqual(d.Input, input) {
				return nil
			}
		}
		return fmt.Errorf("%w: %q", ErrExists, id)
	case err != nil:
		return outOfReach(storeError("create", "analysis", id, err))
	}
	return nil
}

// List reads up to limit analyses, by id, without inputs and results; Malformed is
// set as by WatchRecent.
func (a *Analyses) List(ctx context.Context, limit int) ([]Analysis, error) {
	ctx, cancel := context.WithTimeout(ctx, editTimeout)
	defer cancel()
	return a.glimpses(ctx, "list analyses", briefly(a.documents.collection.OrderBy(firestore.DocumentID, firestore.Asc).Limit(limit)))
}

// Ping reports whether Firestore answers.
func (a *Analyses) Ping(ctx context.Context) error {
	_, err := a.documents.now(ctx)
	return err
}
