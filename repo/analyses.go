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
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"taskguard/lease"
	"taskguard/lease/analysislock"
)

// Options configures Open and OpenRooms. The zero value is the contract's default.
type Options struct {
	Database   string        // "" is (default)
	Collection string        // "" is analyses, of OpenRooms documentLocks
	Emulator   string        // host:port of an emulator; FIRESTORE_EMULATOR_HOST takes precedence
	Policy     lease.Policy  // of the locks
	MaxRunTime time.Duration // see analysislock.New; zero: not limited
	// Pessimistic makes every decision inside client.RunTransaction. Otherwise only
	// a decision that met two conflicts is made there.
	Pessimistic bool
	Log         *slog.Logger // nil: silent
	// Fields is the vocabulary of the documents. The methods of Analyses take and return
	// the statuses of analyses, whatever the words of the documents are.
	Fields Fields
	// Keep sets when a finished document may be deleted: the commit that finishes it sets
	// expireAt, a Timestamp, to Keep from then, and the commit that opens it again deletes
	// expireAt. The collection needs a TTL policy on that field. The tokens of a document begin
	// at the time of its creation, so that they are larger than those of a deleted one with its
	// id. Zero: finishing does not set expireAt, and tokens begin at 1.
	Keep time.Duration
	// KeepAll makes every commit, also those of Create, set expireAt. Keep must then be
	// longer than the lock's TTL.
	KeepAll bool
	// Noun names a document of Analyses in errors; empty: analysis.
	Noun string
}

// fill sets the defaults of Collection and Log, and checks Collection.
func (o *Options) fill(collection string) error {
	o.Collection, o.Log = cmp.Or(o.Collection, collection), cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	if err := CheckCollection(o.Collection); err != nil {
		return fmt.Errorf("repo: %w", err)
	}
	return nil
}

// Analyses gives access to the analyses of one collection and their locks. It is safe
// for concurrent use. Every method checks the id first (lease.ErrInvalidKey), has its
// own time limit, and returns lease.ErrUnavailable if Firestore cannot be reached.
type Analyses struct {
	*analysislock.Locks
	documents  *documents[analysislock.Analysis]
	unlocking  *analysislock.Locks // also accepts an unusable lockToken; see Unlock
	codec      analysisCodec
	ownsClient bool // Close closes the database
	// stopped contains the documents after which the queries of Orphaned continue.
	stopped [4]atomic.Pointer[firestore.DocumentSnapshot]
	backlog atomic.Pointer[Backlog] // the last one
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
	if err := errors.Join(o.fill("analyses"), o.Fields.Check()); err != nil {
		return nil, err
	}
	noun := cmp.Or(o.Noun, "analysis")
	codec := analysisCodec{
		lockCodec: lockCodec{policy: o.Policy, log: o.Log, name: analysisName}, noun: noun,
		fields: o.Fields.filled(), keep: o.Keep, keepAll: o.KeepAll,
	}
	docs := &documents[analysislock.Analysis]{
		db: d, collection: d.client.Collection(o.Collection), noun: noun, log: o.Log,
		codec: codec, work: codec.fields.workFields(),
	}
	a := &Analyses{documents: docs, codec: codec}

	unlocking := *docs
	codec.replaceToken = true
	unlocking.codec = codec

	var err error
	if a.Locks, err = analysislock.New(docs, o.Policy, o.MaxRunTime, a.work); err != nil {
		return nil, err
	}
	if a.unlocking, err = analysislock.New(&unlocking, o.Policy, o.MaxRunTime, a.work); err != nil {
		return nil, err
	}
	if o.Keep < 0 || o.KeepAll && o.Keep <= a.TTL() {
		return nil, fmt.Errorf("repo: Keep %v is not longer than the TTL %v", o.Keep, a.TTL())
	}
	return a, nil
}

// analysisName names an analysis in the log.
func analysisName(id string) slog.Attr { return slog.String("analysis_id", id) }

// Close closes the connection if Open has opened it. Those of a Database are closed with it.
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

// Create creates a QUEUED analysis with input, which is a value that orchestrator.Storable
// returns. Errors: ErrExists if the id is taken, perhaps by this very call if a reply was lost;
// lease.ErrRefused if Firestore cannot hold the input; lease.ErrUnavailable, after which the
// analysis may exist or not.
func (a *Analyses) Create(ctx context.Context, id string, input any) error {
	return a.CreateWith(ctx, id, input, New{})
}

// New has further fields of an analysis that is created.
type New struct {
	Params string // the field params, which Outcome reads; empty: none
	Task   string // bookedTask, the name of the task that is booked afterwards; empty: none
}

// CreateWith is like Create, and also stores the fields of with. It makes one call, and with
// KeepAll a read before it.
func (a *Analyses) CreateWith(ctx context.Context, id string, input any, with New) error {
	if err := analysislock.CheckID(id); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()

	fields := a.codec.fields.Document(input)
	if with.Params != "" {
		fields["params"] = with.Params
	}
	if with.Task != "" {
		fields["bookedTask"] = with.Task
	}
	if a.codec.keepAll {
		now, err := a.documents.now(ctx)
		if err != nil {
			return err
		}
		fields["expireAt"] = now.Add(a.codec.keep)
	}

	_, err := a.documents.collection.Doc(id).Create(ctx, fields)
	switch {
	case err == nil:
		return nil
	case status.Code(err) == codes.AlreadyExists:
		return fmt.Errorf("%w: %q", ErrExists, id)
	}
	return unavailable(storeError("create", a.documents.noun, id, err))
}

// Get reads one analysis, with its input and result: lease.ErrNotFound if there is
// none.
func (a *Analyses) Get(ctx context.Context, id string) (analysislock.Analysis, error) {
	return a.get(ctx, id, nil)
}

// Summary reads one analysis with its checkpoint and acts, without its input and result:
// lease.ErrNotFound if there is none.
func (a *Analyses) Summary(ctx context.Context, id string) (analysislock.Analysis, error) {
	d, err := a.get(ctx, id, append(a.codec.mask(), "checkpoint"))
	if errors.Is(err, lease.ErrMalformed) {
		err = nil
	}
	return d, err
}

// Outcome reads one analysis with its result and the params of CreateWith, without its
// input and checkpoint. It makes one read. Errors: those of Get.
func (a *Analyses) Outcome(ctx context.Context, id string) (d analysislock.Analysis, params string, err error) {
	d, err = a.get(ctx, id, append(a.codec.fields.summary(), a.codec.fields.Result, "params"))
	s, _ := d.Stored.(stored)
	return d, s.params, err
}

// get reads those fields of an analysis, or all.
func (a *Analyses) get(ctx context.Context, id string, fields []string) (d analysislock.Analysis, err error) {
	if err := analysislock.CheckID(id); err != nil {
		return d, err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()

	refused := fmt.Errorf("%w: %q", lease.ErrNotFound, id)
	err = a.documents.db.read(ctx, a.documents.collection.Doc(id), wanted{fields: fields}, func(r reading) error {
		if r.exists {
			d, refused = a.codec.decode(r)
		}
		return nil
	})
	if err != nil {
		return d, unavailable(storeError("read", a.documents.noun, id, err))
	}
	return d, refused
}

// Unlock calls analysislock.Locks.Unlock. It also replaces a lockToken that is not a
// usable integer by the time of the document's last update in microseconds.
func (a *Analyses) Unlock(
	ctx context.Context, id string, seen *analysislock.Seen, task string,
) (analysislock.Analysis, error) {
	return a.unlocking.Unlock(ctx, id, seen, task)
}

// Resolve calls analysislock.Locks.Resolve.
func (a *Analyses) Resolve(
	ctx context.Context, id string, seen *analysislock.Seen, name string, answer analysislock.Answer, task string,
) (analysislock.Analysis, error) {
	return a.unlocking.Resolve(ctx, id, seen, name, answer, task)
}

// Delete deletes an analysis and returns it as it was before, without input and result. Errors:
// *lease.HeldError while the lock is held, analysislock.ErrUncertain if it has an act that may have
// been done, lease.ErrConflict if it has changed since it was read.
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
	if len(c.Doc.Effects.Open()) > 0 { // if it were created again, the act could be repeated
		return c.Doc, fmt.Errorf("%w: %q", analysislock.ErrUncertain, id)
	}

	_, err = a.documents.remove(ctx, id, c)
	if err != nil && !errors.Is(err, lease.ErrConflict) {
		err = unavailable(err)
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

// workFields lists the fields that an attempt gets, besides the acts.
func (f Fields) workFields() []string { return []string{f.Input, "checkpoint"} }

// work returns the input and the checkpoint as JSON. It takes them from the reading on which the
// acquisition was decided, if that has them: the commit has proved that they had not changed.
// Otherwise it reads them. It converts them after the commit has counted the attempt: an input that
// makes the worker crash cannot do so without end.
func (a *Analyses) work(ctx context.Context, c lease.Cell[analysislock.Analysis]) (w analysislock.Work, err error) {
	d := c.Doc
	if s, _ := d.Stored.(stored); s.work != nil {
		w, err = a.decodeWork(s.work)
	} else {
		w, err = a.readWork(ctx, d.ID)
	}
	w.Effects = d.Effects
	if err != nil && !errors.Is(err, lease.ErrLost) {
		return w, fmt.Errorf("%w: read the input of %q: %w", lease.ErrUnavailable, d.ID, err)
	}
	return w, err
}

func (a *Analyses) readWork(ctx context.Context, id string) (w analysislock.Work, err error) {
	ctx, cancel := context.WithTimeout(ctx, inputTimeout)
	defer cancel()
	doc, want := a.documents.collection.Doc(id), wanted{encoded: a.documents.work}
	err = a.documents.db.read(ctx, doc, want, func(r reading) (err error) {
		if !r.exists {
			return &lease.LostError{Reason: lease.Deleted}
		}
		w, err = a.decodeWork(r.encoded)
		return err
	})
	return w, err
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
