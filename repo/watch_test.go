package repo

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"taskguard/internal/testing/emulatortest"
	"taskguard/internal/testing/must"
	"taskguard/locks/document"
)

// watched returns the snapshots of a Watch that ends with the test.
func watched(t *testing.T, r *Rooms) <-chan document.Snapshot {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	snaps, done := make(chan document.Snapshot, 1000), make(chan error)
	go func() { done <- r.Watch(ctx, func(s document.Snapshot) { snaps <- s }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err == nil {
			t.Error("Watch ended without a reason")
		}
	})
	return snaps
}

// next returns the next snapshot, and fails the test if there is none.
func next(t *testing.T, snaps <-chan document.Snapshot) document.Snapshot {
	t.Helper()
	select {
	case s := <-snaps:
		return s
	case <-time.After(time.Minute):
		t.Fatal("no snapshot within a minute")
		return document.Snapshot{}
	}
}

// shown formats a snapshot.
func shown(s document.Snapshot) string {
	words := make([]string, 0, len(s.Changes)+1)
	for i := range s.Changes {
		c := &s.Changes[i]
		words = append(words, fmt.Sprintf("%s %v %s", c.Room, c.Cell.Exists, c.Cell.Doc.Owner))
	}
	slices.Sort(words)
	return fmt.Sprint(s.All, words)
}

func TestWatch(t *testing.T) {
	emulatortest.Each(t, func(t *testing.T, b *backend) {
		r := openRooms(t, b)
		locks := locksFor(t, r, 0)
		lock := locked(t, locks, "a", "s/1").Lock
		snaps := watched(t, r.Rooms)
		first := next(t, snaps)
		same(t, "true [a true s/1]", shown(first))
		same(t, lock, first.Changes[0].Cell.Doc)
		if first.At.Before(lock.LockedAt) || first.Asked.IsZero() {
			t.Errorf("the lock of %v is shown at %v, asked at %v", lock.LockedAt, first.At, first.Asked)
		}
		same(t, true, must.Get(locks.Release(t.Context(), "a", "s/1"))(t))
		second := next(t, snaps)
		same(t, "false [a false ]", shown(second))
		if !second.At.After(first.At) || !second.Changes[0].Cell.At.Equal(second.At) {
			t.Errorf("the release is shown at %v, after %v", second.At, first.At)
		}
		locked(t, locks, "b", "s/2")
		last := second
		for shown(last) != "false [b true s/2]" || last.Changes[0].Cell.Doc.Holder == "" {
			before := last.At
			if last = next(t, snaps); !last.At.After(before) {
				t.Errorf("at %v after %v", last.At, before)
			}
		}
	})
}

func TestWatch_Malformed(t *testing.T) {
	emulatortest.Each(t, func(t *testing.T, b *backend) {
		r := openRooms(t, b)
		log, text := logTo()
		r.documents.log = log
		r.put(t, "__x", doc{})
		r.put(t, "bad\x01", doc{"lockExpiresAt": "1999-01-01T00:00:00.000Z"})
		r.put(t, "good", doc{"lockOwner": "s/1", "lockExpiresAt": "1999-01-02T00:00:00.000Z"})
		lapsed := must.Get(r.Lapsed(t.Context(), 100))(t)
		same(t, []any{1, "good"}, []any{len(lapsed), lapsed[0].Room})
		got := shown(next(t, watched(t, r.Rooms)))
		if !strings.Contains(got, "good true s/1") || strings.Contains(got, "bad") {
			t.Errorf("watched: %s", got)
		}
		same(t, 2, strings.Count(text.String(), "level=WARN"), "of the query and of the watch", text)
	})
}

// network connects to a server in memory. It can drop its connections without closing them:
// they accept writes, and nothing arrives.
type network struct {
	*bufconn.Listener
	made, dropped atomic.Int32 // numbers of connections
}

func (n *network) dial(ctx context.Context, _ string) (net.Conn, error) {
	c, err := n.DialContext(ctx)
	return &droppable{c, n, n.made.Add(1)}, err
}

type droppable struct {
	net.Conn
	network *network
	number  int32
}

func (c *droppable) dropped() bool { return c.number <= c.network.dropped.Load() }

func (c *droppable) Read(b []byte) (int, error) {
	for {
		if n, err := c.Conn.Read(b); err != nil || !c.dropped() {
			return n, err
		}
	}
}

func (c *droppable) Write(b []byte) (int, error) {
	if c.dropped() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

func TestWatch_DroppedConnection(t *testing.T) {
	inBubble(t, func(t *testing.T, b *backend) {
		n := &network{Listener: bufconn.Listen(1 << 20)}
		go func() { _ = b.Server.Serve(n) }()
		r, err := OpenRooms(t.Context(), b.Project, Options{},
			option.WithEndpoint("passthrough:///firestore"), option.WithoutAuthentication(),
			option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())),
			option.WithGRPCDialOption(grpc.WithContextDialer(n.dial)))
		must.OK(t, err)
		t.Cleanup(func() { _ = r.Close() })
		others := openRooms(t, b)
		snapshots := watched(t, r)
		next(t, snapshots)
		n.dropped.Store(n.made.Load())
		others.put(t, "x", doc{"lockOwner": "s/1"})
		next(t, snapshots)
	})
}
