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

func (r onRooms) fields(t testing.TB, room string) map[string]any {
	t.Helper()
	snap, err := r.others.Doc(room).Get(t.Context())
	if err != nil && !absent(snap, err) {
		t.Fatal(err)
	}
	return snap.Data()
}

func roomSuite(backend func(testing.TB) *emulatortest.Backend) leasetest.Suite[document.Lock] {
	doc := func(s lease.Store[document.Lock], key string) *firestore.DocumentRef {
		return s.(onRooms).others.Doc(key)
	}
	return leasetest.Suite[document.Lock]{
		New: func(t testing.TB) lease.Store[document.Lock] { return openRooms(t, backend(t)) },
		Create: func(t testing.TB, s lease.Store[document.Lock], key string) {
			s.(onRooms).put(t, key, map[string]any{"unlocked": true, "touched": 0})
		},
		Delete: func(t testing.TB, s lease.Store[document.Lock], key string) {
			if _, err := doc(s, key).Delete(t.Context()); err != nil {
				t.Fatal(err)
			}
		},
		Touch: func(t testing.TB, s lease.Store[document.Lock], key string) {
			if _, err := doc(s, key).Set(t.Context(), map[string]any{"touched": firestore.Increment(1)}, firestore.MergeAll); err != nil {
				t.Fatal(err)
			}
		},
		Touched: func(t testing.TB, s lease.Store[document.Lock], key string) int {
			n, _ := s.(onRooms).fields(t, key)["touched"].(int64)
			return int(n)
		},
		Of:      func(l *document.Lock) *lease.Lease { return &l.Lease },
		Note:    func(l document.Lock) string { return l.Holder },
		SetNote: func(l *document.Lock, note string) { l.Holder = note },
	}
}

func TestRoomsOnEmbedded(t *testing.T) {
	s := roomSuite(emulatortest.Embedded)
	s.TTL, s.Bubble = document.DefaultTTL, true
	leasetest.Run(t, s)
}
