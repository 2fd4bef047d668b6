package repo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"cloud.google.com/go/firestore"
	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/api/option"

	"taskguard/lease"
	"taskguard/lease/analysislock"
)

// Analyses gives access to the analyses of one collection and their locks. It is safe
// for concurrent use. Every method checks the id first (lease.ErrInvalidKey), has its
// own time limit, and returns lease.ErrUnavailable if Firestore cannot be reached.
type Analyses struct {
	*analysislock.Locks
	documents  *documents[analysislock.Analysis]
	codec      analysisCodec
	ownsClient bool // Close closes the database
	// stopped has the documents after which Orphaned's queries continue.
	stopped [4]atomic.Pointer[firestore.DocumentSnapshot]
	backlog atomic.Pointer[Backlog]          // result of the last call of Backlog
	keysTo  [keyWalks]atomic.Pointer[string] // the places after which Wakeable's walks continue
}

// Open connects to a database for one collection; see Connect. Close closes the connection.
func Open(ctx context.Context, project string, o Options, opts ...option.ClientOption) (*Analyses, error) {
	db, err := Connect(ctx, project, o, opts...)
	if err != nil {
		return nil, err
	}
	a, err := db.Analyses(o)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	a.ownsClient = true
	return a, nil
}

// Analyses gives access to the documents of o.Collection, without a call. It ignores
// o.Database and o.Emulator. The Analyses of one Database share its connection.
func (d *Database) Analyses(o Options) (*Analyses, error) {
	if err := errors.Join(o.fill("analyses"), o.Fields.Check(), o.Concurrency.Check()); err != nil {
		return nil, err
	}
	codec := analysisCodec{
		lockCodec: lockCodec{policy: o.Policy, log: o.Log, name: analysisName},
		fields:    o.Fields.filled(), keep: o.Keep, keepAll: o.KeepAll, keys: o.Concurrency,
	}
	docs := &documents[analysislock.Analysis]{
		db: d, collection: d.client.Collection(o.Collection), noun: cmp.Or(o.Noun, "analysis"), log: o.Log,
		codec: codec, work: []string{codec.fields.Input, "checkpoint"},
	}
	a := &Analyses{documents: docs, codec: codec}

	var err error
	if a.Locks, err = analysislock.New(docs, o.Policy, o.MaxRunTime, a.work); err != nil {
		return nil, err
	}
	a.limitKeys(d, o)
	if o.Keep < 0 || o.KeepAll && o.Keep <= a.TTL() {
		return nil, fmt.Errorf("repo: Keep %v is not longer than the TTL %v", o.Keep, a.TTL())
	}
	return a, nil
}

// analysisName names an analysis in the log.
func analysisName(id string) slog.Attr { return slog.String("analysis_id", id) }

// Close closes the connection if Open has opened it. A Database closes its own connection.
func (a *Analyses) Close() error {
	if !a.ownsClient {
		return nil
	}
	return a.documents.db.Close()
}

// Fields returns the vocabulary of the documents, without empty ones.
func (a *Analyses) Fields() Fields { return a.codec.fields }

// Path returns the path of the collection, with its project and its database.
func (a *Analyses) Path() string { return a.documents.collection.Path }

// CreateOptions has optional fields of a new analysis.
type CreateOptions struct {
	Params string // the field params, which Outcome returns
	Task   string // the field bookedTask, the name of the task that you book afterwards
}

// Create creates a QUEUED analysis with input, which is a value that orchestrator.Storable
// returns. It makes one call, and with KeepAll a read before it. Errors: ErrExists if the id is taken,
// perhaps by this very call if a reply was lost; lease.ErrRefused if Firestore cannot hold the input;
// lease.ErrUnavailable, after which the analysis may exist or not.
func (a *Analyses) Create(ctx context.Context, id string, input any, o CreateOptions) error {
	if err := analysislock.CheckID(id); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()

	fields := a.codec.fields.Document(input)
	if o.Params != "" {
		fields["params"] = o.Params
	}
	if o.Task != "" {
		fields["bookedTask"] = o.Task
	}
	if a.codec.keepAll {
		now, err := a.documents.now(ctx)
		if err != nil {
			return err
		}
		fields["expireAt"] = now.Add(a.codec.keep)
	}

	_, err := a.documents.create(ctx, id, fields)
	if errors.Is(err, lease.ErrConflict) {
		return fmt.Errorf("%w: %q", ErrExists, id)
	}
	return unavailable(err)
}

// Get reads one analysis, with its input and result: lease.ErrNotFound if there is
// none.
func (a *Analyses) Get(ctx context.Context, id string) (analysislock.Analysis, error) {
	d, _, err := a.get(ctx, id, nil)
	return d, err
}

// Summary reads one analysis with its checkpoint and acts, without its input and result:
// lease.ErrNotFound if there is none.
func (a *Analyses) Summary(ctx context.Context, id string) (analysislock.Analysis, error) {
	d, _, err := a.get(ctx, id, append(a.codec.mask(), "checkpoint"))
	if errors.Is(err, lease.ErrMalformed) {
		err = nil
	}
	return d, err
}

// Outcome reads one analysis with its result and its CreateOptions.Params, without its input and
// checkpoint. It makes one read. It returns the errors of Get.
func (a *Analyses) Outcome(ctx context.Context, id string) (d analysislock.Analysis, params string, err error) {
	return a.get(ctx, id, append(a.codec.summary(), a.codec.fields.Result, "params"))
}

// get reads one analysis, and its params. A nil list of fields reads every field.
func (a *Analyses) get(ctx context.Context, id string, fields []string) (
	d analysislock.Analysis, params string, err error,
) {
	if err := analysislock.CheckID(id); err != nil {
		return d, "", err
	}
	decodeErr := fmt.Errorf("%w: %q", lease.ErrNotFound, id) // until the document is found
	err = a.documents.read(ctx, id, wanted{fields: fields}, func(r reading) {
		if r.exists {
			var c lease.Cell[analysislock.Analysis]
			c, decodeErr = a.documents.cell(r, time.Time{}, lease.OnlyLease)
			if d = c.Doc; fields != nil {
				d.Input = nil // it would be a part: the fields of the key
			}
			params, _ = r.fields["params"].(string)
		}
	})
	return d, params, cmp.Or(unavailable(err), decodeErr)
}

// Delete deletes an analysis and returns it as it was before, without input and result. Errors:
// *lease.HeldError while the lock is held, analysislock.ErrUncertain if it has an act that may have
// been done, lease.ErrConflict if it has changed since it was read, lease.ErrMayBeWritten if it may be
// deleted.
// If an analysis is created again with this id, its tokens begin anew, unless Options.Keep is set.
func (a *Analyses) Delete(ctx context.Context, id string) (before analysislock.Analysis, err error) {
	if err := analysislock.CheckID(id); err != nil {
		return before, err
	}
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()

	c, err := lease.Read(ctx, a.documents, id)
	if err != nil {
		return c.Doc, err
	}
	if !c.Exists {
		return c.Doc, fmt.Errorf("%w: %q", lease.ErrNotFound, id)
	}
	if _, err := lease.Reopen(c.Doc.Lock, c.At); err != nil { // it is held
		return c.Doc, err
	}
	if len(c.Doc.Acts.Open()) > 0 { // a new analysis with this id could repeat the act
		return c.Doc, fmt.Errorf("%w: %q", analysislock.ErrUncertain, id)
	}

	_, err = a.documents.remove(ctx, id, c)
	switch {
	case err == nil || errors.Is(err, lease.ErrRefused):
		return c.Doc, err
	case !errors.Is(err, lease.ErrConflict):
		return c.Doc, fmt.Errorf("%w: %w", lease.ErrMayBeWritten, err)
	}

	// If a reply is lost, the client sends the deletion again, and gets a conflict because of its first try.
	left, readErr := lease.Read(ctx, a.documents, id)
	switch {
	case readErr != nil:
		return c.Doc, fmt.Errorf("%w: %w", lease.ErrMayBeWritten, readErr)
	case !left.Exists:
		return c.Doc, nil
	}
	return c.Doc, err
}

// Ping reports whether Firestore answers.
func (a *Analyses) Ping(ctx context.Context) error {
	_, err := a.documents.now(ctx)
	return err
}

// inputTimeout bounds the reading of an input.
const inputTimeout = 15 * time.Second

// work returns the input and the checkpoint as JSON. It takes them from the reading on which the
// acquisition was decided, if that has them: the commit has proved that they had not changed.
// Otherwise it reads them. It converts them after the commit has counted the attempt, so an input that
// crashes the worker runs out of attempts.
func (a *Analyses) work(ctx context.Context, c lease.Cell[analysislock.Analysis]) (w analysislock.Work, err error) {
	id := c.Doc.ID
	if rev, _ := c.Rev.(*revision); rev != nil && rev.work != nil {
		w, err = a.decodeWork(rev.work)
	} else {
		w, err = a.readWork(ctx, id)
	}
	w.Acts = c.Doc.Acts
	if err != nil && !errors.Is(err, lease.ErrLost) {
		return w, fmt.Errorf("%w: read the input of %q: %w", lease.ErrUnavailable, id, err)
	}
	return w, err
}

func (a *Analyses) readWork(ctx context.Context, id string) (w analysislock.Work, err error) {
	ctx, cancel := context.WithTimeout(ctx, inputTimeout)
	defer cancel()
	var refused error
	doc, want := a.documents.collection.Doc(id), wanted{encoded: a.documents.work}
	err = a.documents.db.read(ctx, doc, want, func(r reading) {
		refused = &lease.LostError{Reason: lease.Deleted}
		if r.exists {
			w, refused = a.decodeWork(r.encoded)
		}
	})
	return w, cmp.Or(err, refused)
}

// decodeWork converts the encoded fields of an attempt to JSON.
func (a *Analyses) decodeWork(encoded map[string]*firestorepb.Value) (w analysislock.Work, err error) {
	if w.Input, err = Plain(decodeValue(encoded[a.codec.fields.Input])); err != nil {
		return w, err
	}
	if checkpoint := decodeValue(encoded["checkpoint"]); checkpoint != nil {
		w.Checkpoint, err = Plain(checkpoint)
	}
	return w, err
}
