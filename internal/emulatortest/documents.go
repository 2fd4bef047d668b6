package emulatortest

import (
	"testing"

	"cloud.google.com/go/firestore"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Put writes the analysis id as another program would, replacing it. Calls
// through Put, Merge, Fields and Delete are not counted.
func (b *Backend) Put(t testing.TB, id string, fields map[string]any) {
	t.Helper()
	if _, err := b.doc(t, id).Set(t.Context(), fields); err != nil {
		t.Fatal(err)
	}
}

// Merge writes some fields of the analysis id as another program would.
func (b *Backend) Merge(t testing.TB, id string, fields map[string]any) {
	t.Helper()
	if _, err := b.doc(t, id).Set(t.Context(), fields, firestore.MergeAll); err != nil {
		t.Fatal(err)
	}
}

// Delete removes the analysis id as another program would.
func (b *Backend) Delete(t testing.TB, id string) {
	t.Helper()
	if _, err := b.doc(t, id).Delete(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// Fields reads the analysis id as another program would; nil if it is missing.
func (b *Backend) Fields(t testing.TB, id string) map[string]any {
	t.Helper()
	snap, err := b.doc(t, id).Get(t.Context())
	if err != nil && status.Code(err) != codes.NotFound {
		t.Fatal(err)
	}
	return snap.Data()
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
	return b.client.Collection("analyses").Doc(id)
}
