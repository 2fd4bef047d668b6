package repo

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/firestore"
	"google.golang.org/grpc"

	"taskguard/internal/testing/emulatortest"
	"taskguard/internal/testing/must"
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
func openRooms(t testing.TB, b *backend, opts ...grpc.DialOption) onRooms {
	t.Helper()
	r := must.Get(OpenRooms(t.Context(), b.Project, Options{}, b.Client(t, opts...)...))(t)
	others := must.Get(firestore.NewClient(t.Context(), b.Project, b.Client(t)...))(t)
	return onRooms{Rooms: r, others: others.Collection("documentLocks")}
}

func (r onRooms) put(t testing.TB, room string, fields doc) {
	t.Helper()
	must.OK(t, errorOf(r.others.Doc(room).Set(t.Context(), fields)))
}

// fields returns the document of the room a.
func (r onRooms) fields(t testing.TB) doc {
	t.Helper()
	snap, err := r.others.Doc("a").Get(t.Context())
	if snap == nil { // a missing document has one
		t.Fatal(err)
	}
	return snap.Data()
}

func roomSuite(backend func(testing.TB) *emulatortest.Backend) leasetest.Suite[document.Lock] {
	s := leasetest.Suite[document.Lock]{
		New:     func(t testing.TB) lease.Store[document.Lock] { return openRooms(t, backend(t)) },
		Lease:   func(l *document.Lock) *lease.Lease { return &l.Lease },
		Note:    func(l document.Lock) string { return l.Holder },
		SetNote: func(l *document.Lock, note string) { l.Holder = note },
	}
	collection := func(s lease.Store[document.Lock]) *firestore.CollectionRef { return s.(onRooms).others }
	byDocuments(&s, collection, doc{"unlocked": true})
	return s
}

func TestRoomsOnEmbedded(t *testing.T) {
	s := roomSuite(emulatortest.Embedded)
	s.TTL, s.Bubble = document.DefaultTTL, true
	leasetest.Run(t, s)
}

// anOwned returns a record owned by s/1 that was extended at the time of a reading.
func anOwned(at time.Time) document.Lock {
	at = at.Truncate(time.Millisecond)
	return document.Lock{
		Lease:    lease.Lease{Owner: "s/1", Token: 7, HeartbeatAt: at, ExpiresAt: at.Add(30 * time.Second)},
		LockedAt: at.Add(-time.Minute), Holder: "HOLDER", Profile: document.Profile{Name: "A Name", User: "u7"},
	}
}

func mustLoad(t *testing.T, r onRooms) lease.Cell[document.Lock] {
	t.Helper()
	c := must.Get(r.Load(t.Context(), "a", lease.OnlyLease))(t)
	return c
}

func mustSwap(t *testing.T, r onRooms, prev lease.Cell[document.Lock], next document.Lock) lease.Cell[document.Lock] {
	t.Helper()
	c := must.Get(r.Swap(t.Context(), "a", prev, next))(t)
	return c
}

func locksFor(t testing.TB, s lease.Store[document.Lock], ttl time.Duration) *document.Locks {
	t.Helper()
	l := must.Get(document.New(s, ttl))(t)
	return l
}

func locked(t testing.TB, l *document.Locks, room, owner string) document.State {
	t.Helper()
	s, err := l.Acquire(t.Context(), room, owner)
	if err != nil || !s.Mine {
		t.Fatalf("acquire %s as %s: %+v, %v", room, owner, s, err)
	}
	return s
}

func TestRooms(t *testing.T) {
	conflicts := func(t *testing.T, r onRooms, prev lease.Cell[document.Lock], next document.Lock) {
		t.Helper()
		wantErr(t, lease.ErrConflict, errorOf(r.Swap(t.Context(), "a", prev, next)))
	}
	for name, run := range map[string]func(t *testing.T, r onRooms){
		"the first swap creates the document": func(t *testing.T, r onRooms) {
			missing := mustLoad(t, r)
			next := anOwned(missing.At)
			c := mustSwap(t, r, missing, next)
			same(t, []any{next, true, true}, []any{c.Doc, c.Exists, c.At.After(missing.At)})
			same(t, doc{
				"lockOwner": "s/1", "lockToken": int64(7), "holder": "HOLDER", "holderName": "A Name", "userId": "u7",
				"lockedAt": timeValue(next.LockedAt), "lockHeartbeatAt": timeValue(next.HeartbeatAt),
				"lockExpiresAt": timeValue(next.ExpiresAt),
			}, r.fields(t))
			conflicts(t, r, missing, next)
			conflicts(t, r, missing, document.Lock{})
		},
		"what is not kept is deleted": func(t *testing.T, r onRooms) {
			missing := mustLoad(t, r)
			same(t, false, mustSwap(t, r, missing, document.Lock{}).Exists)
			c := mustSwap(t, r, missing, anOwned(missing.At))
			gone := mustSwap(t, r, c, document.Lock{})
			if gone.At.Before(c.At) || gone.Asked.Before(c.Asked) {
				t.Errorf("%+v, after %+v", gone, c)
			}
			same(t, []any{false, doc(nil)}, []any{gone.Exists, r.fields(t)})
			again := mustLoad(t, r)
			mustSwap(t, r, again, anOwned(again.At))
			conflicts(t, r, c, document.Lock{})
			same(t, true, mustLoad(t, r).Exists)
		},
		"an operator's unlock is kept until feeds have seen it": func(t *testing.T, r onRooms) {
			l := locksFor(t, r, 0)
			token := locked(t, l, "a", "s/1").Lock.Token
			same(t, true, must.Get(l.Unlock(t.Context(), "a"))(t))
			same(t, 0, must.Get(l.Sweep(t.Context(), r))(t))
			got := r.fields(t)
			same(t, doc{"unlocked": true, "lockToken": token, "lockExpiresAt": got["lockExpiresAt"]}, got)
			if _, ok := got["lockExpiresAt"].(string); !ok {
				t.Errorf("lockExpiresAt = %v", got["lockExpiresAt"])
			}
		},
		"the oldest have lapsed, and none that lives": func(t *testing.T, r onRooms) {
			for room, year := range map[string]string{"old": "1999", "older": "1998", "oldest": "1997"} {
				r.put(t, room, doc{"lockOwner": "s/1", "lockToken": 3, "lockExpiresAt": year + "-01-01T00:00:00.000Z"})
			}
			before := locked(t, locksFor(t, r, 0), "alive", "s/1")
			for limit, want := range map[int]string{2: "oldest older", 100: "oldest older old"} {
				found := must.Get(r.Lapsed(t.Context(), limit))(t)
				rooms := make([]string, len(found))
				for i, f := range found {
					rooms[i] = f.Room
				}
				same(t, want, strings.Join(rooms, " "))
				if c := found[0].Cell; c.At.Before(before.Lock.LockedAt) || c.Doc.Token != 3 {
					t.Errorf("%+v", c)
				}
			}
		},
		"a room whose token is no integer is held, and can be unlocked": func(t *testing.T, r onRooms) {
			locks := locksFor(t, r, 0)
			r.put(t, "a", doc{"lockToken": "one", "lockOwner": "s/1", "lockExpiresAt": "9999-01-01T00:00:00.000Z"})
			if _, err := locks.Acquire(t.Context(), "a", "s/2"); !errors.As(err, new(*document.HeldError)) {
				t.Errorf("acquire: %v; want it held", err)
			}
			must.OK(t, errorOf(locks.Renew(t.Context(), "a", "s/1")))
			if token, _ := r.fields(t)["lockToken"].(int64); token == 0 {
				t.Errorf("after a heartbeat the token is %v", r.fields(t)["lockToken"])
			}
			must.OK(t, errorOf(locks.Unlock(t.Context(), "a")))
			locked(t, locks, "a", "s/2")
		},
		"a warning names the room by its hash": func(t *testing.T, r onRooms) {
			log, text := logTo()
			codec := r.documents.codec.(roomCodec)
			codec.log = log
			r.documents.codec = codec
			r.put(t, "secret", doc{"lockToken": "seven"})
			must.OK(t, errorOf(r.Load(t.Context(), "secret", lease.OnlyLease)))
			got := text.String()
			if !strings.Contains(got, "room_hash="+document.Hash("secret")) || strings.Contains(got, "secret") {
				t.Errorf("%s", got)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			emulatortest.Each(t, func(t *testing.T, b *backend) { run(t, openRooms(t, b)) })
		})
	}
}

// D4: an extension and a sweep at the time of the expiry, with the real client. A lock that
// was extended exists afterwards, and one that was swept does not.
func TestRooms_Sweep(t *testing.T) {
	was := map[string]int{}
	inBubble(t, func(t *testing.T, b *backend) {
		// Each request is delayed by some milliseconds, which depend only on the time.
		delayed := eachCall(func() {
			time.Sleep(time.Duration(time.Now().UnixNano()/1e5%7919%97) * 200 * time.Microsecond)
		})
		r := openRooms(t, b, delayed)
		l, sweeper := locksFor(t, r, time.Second), locksFor(t, r, time.Second)
		for i := range 400 {
			first := locked(t, l, "a", "s/1")
			var (
				extended error
				after    document.State
				swept    int
				both     sync.WaitGroup
			)
			about := time.Until(first.Lock.ExpiresAt) - 30*time.Millisecond
			both.Go(func() {
				time.Sleep(about + time.Duration(i%50)*time.Millisecond)
				after, extended = l.Renew(t.Context(), "a", "s/1")
			})
			both.Go(func() {
				time.Sleep(about + time.Duration(i*37%101)*time.Millisecond)
				var err error
				swept, err = sweeper.Sweep(t.Context(), r)
				check(t, err)
			})
			both.Wait()
			c := mustLoad(t, r)
			switch {
			case extended == nil && c.Doc != after.Lock, swept == 1 && c.Exists:
				t.Fatalf("%d: extended %+v, %v; swept %d; then %+v", i, after, extended, swept, c)
			case extended != nil && !errors.Is(extended, document.ErrNotLocked):
				t.Fatalf("%d: %v", i, extended)
			}
			was[fmt.Sprintf("extended %v, swept %d", extended == nil, swept)]++
			time.Sleep(2 * time.Second) // until it has expired
		}
	})
	if was["extended true, swept 0"] < 40 || was["extended false, swept 1"] < 40 {
		t.Errorf("was %v; want both orders often", was)
	}
}
