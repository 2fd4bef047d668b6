package repo

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/firestore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

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
	c, err := r.Load(t.Context(), "a", lease.OnlyLease)
	fatal(t, err)
	return c
}

func mustSwap(t *testing.T, r onRooms, prev lease.Cell[document.Lock], next document.Lock) lease.Cell[document.Lock] {
	t.Helper()
	c, err := r.Swap(t.Context(), "a", prev, next)
	fatal(t, err)
	return c
}

func TestRooms(t *testing.T) {
	cases := map[string]func(t *testing.T, r onRooms){
		"TheFirstSwapCreatesTheDocument": func(t *testing.T, r onRooms) {
			missing := mustLoad(t, r)
			next := anOwned(missing.At)
			c := mustSwap(t, r, missing, next)
			if c.Doc != next || !c.Exists || !c.At.After(missing.At) || c.Asked.IsZero() {
				t.Errorf("%+v, want %+v after %v", c, next, missing.At)
			}
			want := map[string]any{
				"lockOwner": "s/1", "lockToken": int64(7), "holder": "HOLDER", "holderName": "A Name", "userId": "u7", "lockedAt": timeValue(next.LockedAt),
				"lockHeartbeatAt": timeValue(next.HeartbeatAt), "lockExpiresAt": timeValue(next.ExpiresAt),
			}
			same(t, want, r.fields(t))
		},
		"OfTwoWhoCreateAtOnceOneDoes": func(t *testing.T, r onRooms) {
			missing := mustLoad(t, r)
			var errs [8]error
			var all sync.WaitGroup
			for i := range errs {
				all.Go(func() { _, errs[i] = r.Swap(t.Context(), "a", missing, anOwned(missing.At)) })
			}
			all.Wait()
			won := 0
			for _, err := range errs {
				if err == nil {
					won++
				} else if !errors.Is(err, lease.ErrConflict) {
					t.Errorf("err = %v, want ErrConflict", err)
				}
			}
			if won != 1 {
				t.Errorf("%d created it", won)
			}
		},
		"WhatIsNotKeptIsDeleted": func(t *testing.T, r onRooms) {
			missing := mustLoad(t, r)
			c := mustSwap(t, r, missing, anOwned(missing.At))
			gone := mustSwap(t, r, c, document.Lock{})
			if gone.Exists || gone.At.Before(c.At) || gone.Asked.Before(c.Asked) || r.fields(t) != nil {
				t.Errorf("%+v; document %v", gone, r.fields(t))
			}
			again := mustLoad(t, r)
			mustSwap(t, r, again, anOwned(again.At))
			if _, err := r.Swap(t.Context(), "a", c, document.Lock{}); !errors.Is(err, lease.ErrConflict) || !mustLoad(t, r).Exists {
				t.Errorf("deleted as it was before: %v, want ErrConflict", err)
			}
		},
		"NothingBecomesOfNothing": func(t *testing.T, r onRooms) {
			missing := mustLoad(t, r)
			if c := mustSwap(t, r, missing, document.Lock{}); c.Exists {
				t.Errorf("%+v", c)
			}
			mustSwap(t, r, missing, anOwned(missing.At))
			if _, err := r.Swap(t.Context(), "a", missing, document.Lock{}); !errors.Is(err, lease.ErrConflict) {
				t.Errorf("err = %v, want ErrConflict", err)
			}
		},
		"AnOperatorsUnlockIsKept": func(t *testing.T, r onRooms) {
			l := locksFor(t, r, 0)
			token := locked(t, l, "a", "s/1").Lock.Token
			if broken, err := l.Unlock(t.Context(), "a"); err != nil || !broken {
				t.Fatal(broken, err)
			}
			got := r.fields(t)
			if at, ok := got["lockExpiresAt"].(string); !ok || len(at) != len("2006-01-02T15:04:05.000Z") {
				t.Errorf("lockExpiresAt = %v", got["lockExpiresAt"])
			}
			delete(got, "lockExpiresAt")
			same(t, map[string]any{"unlocked": true, "lockToken": token}, got)
			if swept, err := l.Sweep(t.Context(), r); err != nil || swept != 0 || r.fields(t) == nil {
				t.Errorf("swept %d, %v, before feeds can have seen whose doing it was", swept, err)
			}
		},
		"LapsedAreTheOldestAndNoneThatLives": func(t *testing.T, r onRooms) {
			r.put(t, "old", map[string]any{"lockOwner": "s/1", "lockExpiresAt": "1999-01-01T00:00:00.000Z"})
			r.put(t, "older", map[string]any{"lockOwner": "s/1", "lockExpiresAt": "1998-01-01T00:00:00.000Z"})
			r.put(t, "oldest", map[string]any{"lockOwner": "s/1", "lockToken": 3, "lockExpiresAt": "1997-01-01T00:00:00.000Z"})
			before := locked(t, locksFor(t, r, 0), "alive", "s/1")
			for limit, want := range map[int]string{2: "[oldest older]", 100: "[oldest older old]"} {
				found, err := r.Lapsed(t.Context(), limit)
				rooms := []string{}
				for _, f := range found {
					rooms = append(rooms, f.Room)
				}
				if err != nil || fmt.Sprint(rooms) != want || found[0].Cell.At.Before(before.Lock.LockedAt) || found[0].Cell.Doc.Token != 3 {
					t.Errorf("%d: %+v, %v; want %s", limit, found, err, want)
				}
			}
		},
	}
	for name, run := range cases {
		t.Run(name, func(t *testing.T) {
			emulatortest.Each(t, func(t *testing.T, b *emulatortest.Backend) { run(t, openRooms(t, b)) })
		})
	}
}

// D4: an extension and a sweep at the time of the expiry, with the real client. A lock that
// was extended exists afterwards, and one that was swept does not.
func TestASweepNeverDeletesALockThatWasJustExtended(t *testing.T) {
	const room = "a"
	was := map[string]int{}
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		r := openRooms(t, b, delayed())
		l, sweeper := locksFor(t, r, time.Second), locksFor(t, r, time.Second)
		for i := range 400 {
			first := locked(t, l, room, "s/1")
			var (
				extended error
				after    document.State
				swept    int
				both     sync.WaitGroup
			)
			about := time.Until(first.Lock.ExpiresAt) - 30*time.Millisecond
			both.Go(func() {
				time.Sleep(about + time.Duration(i%50)*time.Millisecond)
				after, extended = l.Renew(t.Context(), room, "s/1")
			})
			both.Go(func() {
				time.Sleep(about + time.Duration(i*37%101)*time.Millisecond)
				var err error
				if swept, err = sweeper.Sweep(t.Context(), r); err != nil {
					t.Error(err)
				}
			})
			both.Wait()
			c := mustLoad(t, r)
			switch {
			case extended == nil && c.Doc != after.Lock, extended != nil && !errors.Is(extended, document.ErrNotLocked), swept == 1 && c.Exists:
				t.Fatalf("%d: extended %+v, %v; swept %d; then %+v", i, after, extended, swept, c)
			}
			was[fmt.Sprintf("extended %v, swept %d", extended == nil, swept)]++
			time.Sleep(2 * time.Second) // until it has expired
		}
	})
	if was["extended true, swept 0"] < 40 || was["extended false, swept 1"] < 40 {
		t.Errorf("was %v; want both orders often", was)
	}
}

// delayed delays each request and answer by some milliseconds, which depend only on the time.
func delayed() grpc.DialOption {
	trip := func() { time.Sleep(time.Duration(time.Now().UnixNano()/1e5%7919%97) * 100 * time.Microsecond) }
	return grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		trip()
		defer trip()
		return invoke(ctx, method, req, reply, cc, opts...)
	})
}

// The first commit returns any code, and was made or not. The operation has the same result
// each time.
func TestARoomsCommitOfUnknownOutcomeIsAppliedOnce(t *testing.T) {
	for verb, op := range map[string]struct {
		held bool
		do   func(ctx context.Context, l *document.Locks) (bool, error)
		want bool // held after it
	}{
		"acquire": {false, func(ctx context.Context, l *document.Locks) (bool, error) {
			s, err := l.Acquire(ctx, "a", "s/1")
			return s.Mine, err
		}, true},
		"extend": {true, func(ctx context.Context, l *document.Locks) (bool, error) {
			s, err := l.Renew(ctx, "a", "s/1")
			return s.Mine, err
		}, true},
		"release": {true, func(ctx context.Context, l *document.Locks) (bool, error) { return l.Release(ctx, "a", "s/1") }, false},
		"break":   {true, func(ctx context.Context, l *document.Locks) (bool, error) { return l.Unlock(ctx, "a") }, false},
	} {
		for _, code := range doubtful {
			for how, f := range map[string]fault{"carried out": lost(code), "dropped": dropped(code)} {
				if how == "dropped" && code == codes.InvalidArgument {
					continue // a refusal
				}
				t.Run(fmt.Sprintf("%s/%v/%s", verb, code, how), func(t *testing.T) {
					inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
						bad := &faultyConn{}
						r := openRooms(t, b, bad.options()...)
						l := locksFor(t, r, 0)
						if op.held {
							locked(t, l, "a", "s/1")
							time.Sleep(10 * time.Second)
						}
						bad.inject(map[string][]fault{commit: {f}})
						done, err := op.do(t.Context(), l)
						bad.wantAllInjected(t)
						c := mustLoad(t, r)
						if err != nil || !done || (c.Doc.Owner == "s/1") != op.want || op.want && c.Doc.Holder == "" {
							t.Errorf("%v, %v; then %+v", done, err, c.Doc)
						}
					})
				})
			}
		}
	}
}
