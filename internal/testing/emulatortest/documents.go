package emulatortest

import (
	"cmp"
	"testing"

	"cloud.google.com/go/firestore"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Kind is a collection and the vocabulary of its documents; see repo.Fields. The zero value
// is that of analyses.
type Kind struct {
	Collection string
	Vocabulary Vocabulary
}

// Vocabulary has the fields of repo.Fields, which the tests of repo cannot import from here.
type Vocabulary struct{ Status, Queued, Processing, Finished, Failed, Input, Result, Error string }

// Jobs is another kind than analyses.
func Jobs() Kind {
	return Kind{"jobs", Vocabulary{
		Status: "state", Queued: "PENDING", Processing: "RUNNING", Finished: "DONE", Failed: "ERROR",
		Input: "payload", Result: "output", Error: "failure",
	}}
}

// Kinds returns the kinds of EachKind by name.
func Kinds() map[string]*Kind { return map[string]*Kind{"analyses": {}, "jobs": new(Jobs())} }

// names and words list the vocabulary after that of analyses.
func (v *Vocabulary) names() [][2]string {
	return [][2]string{{"status", v.Status}, {"input", v.Input}, {"result", v.Result}, {"error", v.Error}}
}

func (v *Vocabulary) words() [][2]string {
	return [][2]string{{"QUEUED", v.Queued}, {"PROCESSING", v.Processing}, {"READY", v.Finished}, {"FAILED", v.Failed}}
}

// Translated returns fields with their names and words in the vocabulary of k.
func (k Kind) Translated(t testing.TB, fields map[string]any) map[string]any {
	t.Helper()
	return k.translated(t, fields, 0)
}

// translated returns fields with the names and words at one place of each pair replaced by
// those at the other.
func (k Kind) translated(t testing.TB, fields map[string]any, from int) map[string]any {
	t.Helper()
	if k == (Kind{}) || fields == nil {
		return fields
	}

	all := make(map[string]any, len(fields))
	for name, v := range fields {
		other := counterpart(t, name, k.Vocabulary.names(), from)
		if word, ok := v.(string); ok && (name == "status" || other == "status") {
			v = counterpart(t, word, k.Vocabulary.words(), from)
		}
		all[other] = v
	}
	return all
}

// counterpart returns what a pair has beside s. It fails the test if s is at the other
// place already.
func counterpart(t testing.TB, s string, pairs [][2]string, from int) string {
	t.Helper()
	for _, p := range pairs {
		switch s {
		case p[from]:
			return p[1-from]
		case p[1-from]:
			t.Errorf("%q is of another vocabulary", s)
		}
	}
	return s
}

// Put writes the document id as another program would, replacing it. Put, Merge and Fields
// take and return the vocabulary of analyses, and translate it. Their calls, and those of
// Delete, are not counted.
func (b *Backend) Put(t testing.TB, id string, fields map[string]any) {
	t.Helper()
	if _, err := b.doc(t, id).Set(t.Context(), b.Translated(t, fields)); err != nil {
		t.Fatal(err)
	}
}

// Merge writes some fields of the document id as another program would.
func (b *Backend) Merge(t testing.TB, id string, fields map[string]any) {
	t.Helper()
	if _, err := b.doc(t, id).Set(t.Context(), b.Translated(t, fields), firestore.MergeAll); err != nil {
		t.Fatal(err)
	}
}

// Delete removes the document id as another program would.
func (b *Backend) Delete(t testing.TB, id string) {
	t.Helper()
	if _, err := b.doc(t, id).Delete(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// Fields reads the document id as another program would; nil if it is missing.
func (b *Backend) Fields(t testing.TB, id string) map[string]any {
	t.Helper()
	snap, err := b.doc(t, id).Get(t.Context())
	if err != nil && status.Code(err) != codes.NotFound {
		t.Fatal(err)
	}
	return b.translated(t, snap.Data(), 1)
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
