package emulatortest

import (
	"cmp"
	"slices"
	"testing"

	"cloud.google.com/go/firestore"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Kind is a collection and the vocabulary of its documents; see repo.Fields. The zero value
// is for analyses.
type Kind struct {
	Collection string
	Vocabulary Vocabulary
}

// Vocabulary has the fields of repo.Fields. This package cannot import repo, whose tests
// import it.
type Vocabulary struct {
	Status, Queued, Processing, Finished, Failed string
	Final                                        []string
	Input, Result, Error                         string
}

// Jobs returns a kind other than analyses.
func Jobs() Kind {
	return Kind{"jobs", Vocabulary{
		Status: "state", Queued: "PENDING", Processing: "RUNNING", Finished: "DONE", Failed: "ERROR",
		Input: "payload", Result: "output", Error: "failure",
	}}
}

// Kinds returns the kinds of EachKind by name.
func Kinds() map[string]*Kind { return map[string]*Kind{"analyses": {}, "jobs": new(Jobs())} }

// analyses is the vocabulary of the zero Kind.
var analyses = Vocabulary{
	Status: "status", Queued: "QUEUED", Processing: "PROCESSING", Finished: "READY", Failed: "FAILED",
	Input: "input", Result: "result", Error: "error",
}

func (v *Vocabulary) names() []string  { return []string{v.Status, v.Input, v.Result, v.Error} }
func (v *Vocabulary) states() []string { return []string{v.Queued, v.Processing, v.Finished, v.Failed} }

// Translated returns the fields of an analysis in the vocabulary of k.
func (k Kind) Translated(t testing.TB, fields map[string]any) map[string]any {
	t.Helper()
	return k.translate(t, fields, &analyses, &k.Vocabulary)
}

// translate puts field names and the status into another vocabulary, unless k is for analyses.
func (k Kind) translate(t testing.TB, fields map[string]any, from, to *Vocabulary) map[string]any {
	t.Helper()
	if k.Collection == "" || fields == nil {
		return fields
	}
	all := make(map[string]any, len(fields))
	for name, v := range fields {
		if state, ok := v.(string); ok && name == from.Status {
			v = counterpart(t, state, from.states(), to.states())
		}
		all[counterpart(t, name, from.names(), to.names())] = v
	}
	return all
}

// counterpart returns the word of to at the index that s has in from, or else s. It fails
// the test if s is a word of to.
func counterpart(t testing.TB, s string, from, to []string) string {
	t.Helper()
	if i := slices.Index(from, s); i >= 0 {
		return to[i]
	}
	if slices.Contains(to, s) {
		t.Errorf("%q is of another vocabulary", s)
	}
	return s
}

// Put replaces the document id as another program would. The fields of Put, Merge and Fields
// are in the vocabulary of analyses, for every kind. The calls of these methods and of Delete are
// not counted.
func (b *Backend) Put(t testing.TB, id string, fields map[string]any, opts ...firestore.SetOption) {
	t.Helper()
	if _, err := b.doc(t, id).Set(t.Context(), b.Translated(t, fields), opts...); err != nil {
		t.Fatal(err)
	}
}

// Merge writes some fields of the document id as another program would.
func (b *Backend) Merge(t testing.TB, id string, fields map[string]any) {
	t.Helper()
	b.Put(t, id, fields, firestore.MergeAll)
}

// Delete removes the document id as another program would.
func (b *Backend) Delete(t testing.TB, id string) {
	t.Helper()
	if _, err := b.doc(t, id).Delete(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// Fields reads the document id as another program would; nil: it does not exist.
func (b *Backend) Fields(t testing.TB, id string) map[string]any {
	t.Helper()
	snap, err := b.doc(t, id).Get(t.Context())
	if err != nil && status.Code(err) != codes.NotFound {
		t.Fatal(err)
	}
	return b.translate(t, snap.Data(), &b.Vocabulary, &analyses)
}

func (b *Backend) doc(t testing.TB, id string) *firestore.DocumentRef {
	t.Helper()
	b.once.Do(func() {
		uncounted := &Backend{Project: b.Project, Server: b.Server, Calls: &Calls{}, host: b.host}
		client, err := firestore.NewClient(t.Context(), b.Project, uncounted.Client(t)...)
		if err != nil {
			t.Fatal(err)
		}
		b.client = client
	})
	return b.client.Collection(cmp.Or(b.Collection, "analyses")).Doc(id)
}
