package repo

import (
	"testing"

	"cloud.google.com/go/firestore"
	"google.golang.org/grpc"

	"taskguard/internal/testing/emulatortest"
	"taskguard/lease"
	"taskguard/lease/leasetest"
	"taskguard/locks/document"
)

// onRooms is the store under test, with another program's access to its documents.
type onRooms struct {
	*Rooms
	others *firestore.CollectionRef
}

// openRooms opens Rooms on b with a connection of its own.
func openRooms(t testing.TB, b *emulatortest.Backend, opts ...grpc.DialOption) onRooms {
	t.Helper()
	r, err := OpenRooms(t.Context(), b.Project, Options{}, b.Client(t, opts...)...)
	fatal(t, err)
	others, err := firestore.NewClient(t.Context(), b.Project, b.Client(t)...)
	fatal(t, err)
	return onRooms{Rooms: r, others: others.Collection("documentLocks")}
}

func (r onRooms) put(t testing.TB, room string, fields map[string]any) {
	t.Helper()
	if _, err := r.others.Doc(room).Set(t.Context(), fields); err != nil {
		t.Fatal(err)
	}
}

// fields returns the document of the room a.
func (r onRooms) fields(t testing.TB) map[string]any {
	t.Helper()
	snap, err := r.others.Doc("a").Get(t.Context())
	if snap == nil { // a missing document has one
		t.Fatal(err)
	}
	return snap.Data()
}

// byDocuments sets the functions of a suite that act as another program. A new document has
// these fields.
func byDocuments[D any](suite *leasetest.Suite[D], of func(lease.Store[D]) *firestore.CollectionRef, created map[string]any) {
	suite.Create = func(t testing.TB, s lease.Store[D], key string) {
		_, err := of(s).Doc(key).Set(t.Context(), created)
		fatal(t, err)
	}
	suite.Delete = func(t testing.TB, s lease.Store[D], key string) {
		_, err := of(s).Doc(key).Delete(t.Context())
		fatal(t, err)
	}
	suite.Touch = func(t testing.TB, s lease.Store[D], key string) {
		_, err := of(s).Doc(key).Set(t.Context(), map[string]any{"touched": firestore.Increment(1)}, firestore.MergeAll)
		fatal(t, err)
	}
	suite.Touched = func(t testing.TB, s lease.Store[D], key string) int {
		snap, err := of(s).Doc(key).Get(t.Context())
		fatal(t, err)
		n, _ := snap.Data()["touched"].(int64)
		return int(n)
	}
}

func roomSuite(backend func(testing.TB) *emulatortest.Backend) leasetest.Suite[document.Lock] {
	s := leasetest.Suite[document.Lock]{
		New:     func(t testing.TB) lease.Store[document.Lock] { return openRooms(t, backend(t)) },
		Lease:   func(l *document.Lock) *lease.Lease { return &l.Lease },
		Note:    func(l document.Lock) string { return l.Holder },
		SetNote: func(l *document.Lock, note string) { l.Holder = note },
	}
	byDocuments(&s, func(s lease.Store[document.Lock]) *firestore.CollectionRef { return s.(onRooms).others }, map[string]any{"unlocked": true})
	return s
}

func TestRoomsOnEmbedded(t *testing.T) {
	s := roomSuite(emulatortest.Embedded)
	s.TTL, s.Bubble = document.DefaultTTL, true
	leasetest.Run(t, s)
}
