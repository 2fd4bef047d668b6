package repo

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/firestore"

	"taskguard/internal/testing/emulatortest"
	"taskguard/internal/testing/must"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/lease/leasetest"
)

type store = documents[analysislock.Analysis]

// suite returns the conformance suite of the stores that open opens.
func suite(open func(t testing.TB) *store) leasetest.Suite[analysislock.Analysis] {
	s := leasetest.Suite[analysislock.Analysis]{
		New:   func(t testing.TB) lease.Store[analysislock.Analysis] { return open(t) },
		Lease: func(a *analysislock.Analysis) *lease.Lease { return &a.Lock },
		Note: func(a analysislock.Analysis) string {
			if a.LastError == nil {
				return ""
			}
			return a.LastError.Message
		},
		SetNote: func(a *analysislock.Analysis, note string) { a.LastError = &analysislock.Error{Message: note} },
		Close:   func(a *analysislock.Analysis) { a.Status = analysislock.Ready },
	}
	collection := func(s lease.Store[analysislock.Analysis]) *firestore.CollectionRef { return s.(*store).collection }
	byDocuments(&s, collection, doc{"touched": 0})
	return s
}

// It also costs no more than TestOnARealProject says.
func TestStoreOnEmbedded(t *testing.T) {
	var made []*backend
	s := suite(func(t testing.TB) *store {
		b := emulatortest.Embedded(t)
		made = append(made, b)
		return open(t, b).documents
	})
	s.TTL, s.Bubble = lease.DefaultTTL, true
	leasetest.Run(t, s)

	var reads, writes int64
	for _, b := range made {
		u := b.Server.Usage()
		reads, writes = reads+u.Reads, writes+u.Writes // deletes are writes here
	}
	if reads == 0 || reads > mostReads-tableReads {
		t.Errorf("billed %d reads, want at most %d", reads, mostReads-tableReads)
	}
	if writes == 0 || writes > mostWrites {
		t.Errorf("billed %d writes, want at most %d", writes, mostWrites)
	}
}

func TestStoreOnGoogle(t *testing.T) {
	t.Parallel()
	emulatortest.Google(t)
	s := suite(func(t testing.TB) *store { return open(t, emulatortest.OnGoogle(t)).documents })
	s.TTL = 6 * time.Second
	leasetest.Run(t, s)
}

// byDocuments sets the functions of a suite that act as another program. A new document has
// these fields.
func byDocuments[D any](suite *leasetest.Suite[D], of func(lease.Store[D]) *firestore.CollectionRef, created doc) {
	suite.Create = func(t testing.TB, s lease.Store[D], key string) {
		must.OK(t, errorOf(of(s).Doc(key).Set(t.Context(), created)))
	}
	suite.Delete = func(t testing.TB, s lease.Store[D], key string) {
		must.OK(t, errorOf(of(s).Doc(key).Delete(t.Context())))
	}
	suite.Touch = func(t testing.TB, s lease.Store[D], key string) {
		more := doc{"touched": firestore.Increment(1)}
		must.OK(t, errorOf(of(s).Doc(key).Set(t.Context(), more, firestore.MergeAll)))
	}
	suite.Touched = func(t testing.TB, s lease.Store[D], key string) int {
		snap := must.Get(of(s).Doc(key).Get(t.Context()))(t)
		n, _ := snap.Data()["touched"].(int64)
		return int(n)
	}
}

// The time of a reply is Firestore's when it read or wrote, and Asked is before the call: whoever counts from it
// trusts a lock for no longer than it is held.
func TestDocuments_Times(t *testing.T) {
	type cell = lease.Cell[analysislock.Analysis]
	decide := func(c cell) (analysislock.Analysis, error) { c.Doc.Lock.Token++; return c.Doc, nil }
	keep := func(c cell) (analysislock.Analysis, error) { return c.Doc, nil }
	for name, tc := range map[string]struct {
		slow string // the call that takes delay
		do   func(ctx context.Context, s *store, read cell) (cell, error)
	}{
		"load": {read, func(ctx context.Context, s *store, _ cell) (cell, error) {
			return s.Load(ctx, "x", lease.LeaseAndWork)
		}},
		"swap": {commit, func(ctx context.Context, s *store, read cell) (cell, error) {
			next, _ := decide(read)
			return s.Swap(ctx, "x", read, next)
		}},
		"exclude": {exclusiveCommit, func(ctx context.Context, s *store, _ cell) (cell, error) {
			return s.Exclude(ctx, "x", lease.OnlyLease, decide)
		}},
		"exclude, its read": {exclusiveRead, func(ctx context.Context, s *store, _ cell) (cell, error) {
			return s.Exclude(ctx, "x", lease.OnlyLease, keep)
		}},
	} {
		for way, f := range map[string]fault{"request": slowRequest, "reply": slowReply} {
			t.Run(name+", a slow "+way, func(t *testing.T) {
				inBubble(t, func(t *testing.T, b *backend) {
					a, l := openFaulty(t, b)
					b.Put(t, "x", doc{"status": "QUEUED"})
					was := must.Get(a.documents.Load(t.Context(), "x", lease.OnlyLease))(t)
					l.inject(faults{tc.slow: {f}})
					began := time.Now()
					c := must.Get(tc.do(t.Context(), a.documents, was))(t)
					l.wantAllInjected(t)
					if asked := c.Asked.Sub(began); asked != 0 {
						t.Errorf("asked %v after the beginning of the call", asked)
					}
					late := c.At.Sub(began)
					if slow := late > delay/2; slow != (way == "request") {
						t.Errorf("its time is %v after the beginning", late)
					}
				})
			})
		}
	}
}

// A commit has Firestore's time, and writes a checkpoint once.
func TestDocuments_Draft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		codec := silent(Fields{})
		codec.keep = time.Hour
		s := documents[analysislock.Analysis]{codec: codec, db: &Database{}}
		at := time.Now().Add(100 * time.Hour)
		running := analysislock.Analysis{Status: "PROCESSING", Checkpoint: &analysislock.Checkpoint{Value: 7}}
		read := lease.Cell[analysislock.Analysis]{Doc: running, Exists: true, Rev: &revision{}, At: at}
		read.Asked = time.Now()
		next := running
		next.Status = "READY"
		d := must.Get(s.draft(t.Context(), read, next))(t)
		same(t, []any{timeString(at), at.Add(time.Hour)}, []any{d.fields["updatedAt"], d.fields["expireAt"]})
		if _, again := d.fields["checkpoint"]; again {
			t.Error("the checkpoint is written again")
		}
	})
}
