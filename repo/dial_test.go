package repo

import (
	"context"
	"net"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"taskguard/emulator/emulatortest"
	"taskguard/lease/documentlock"
)

// network is an in-memory way to a server, which can forget its connections: what is
// written to them is accepted, and nothing arrives.
type network struct {
	*bufconn.Listener
	made, forgotten atomic.Int32 // connections; the first of them
}

func (n *network) dial(ctx context.Context, _ string) (net.Conn, error) {
	c, err := n.DialContext(ctx)
	return &forgettable{c, n, n.made.Add(1)}, err
}

type forgettable struct {
	net.Conn
	network *network
	number  int32
}

func (c *forgettable) forgotten() bool { return c.number <= c.network.forgotten.Load() }

func (c *forgettable) Read(b []byte) (int, error) {
	for {
		if n, err := c.Conn.Read(b); err != nil || !c.forgotten() {
			return n, err
		}
	}
}

func (c *forgettable) Write(b []byte) (int, error) {
	if c.forgotten() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

func TestAWatchOutlivesAConnectionThatHasFallenSilent(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		n := &network{Listener: bufconn.Listen(1 << 20)}
		go func() { _ = b.Server.Serve(n) }()
		r, err := OpenRooms(t.Context(), b.Project, RoomOptions{}, option.WithEndpoint("passthrough:///firestore"), option.WithoutAuthentication(),
			option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())), option.WithGRPCDialOption(grpc.WithContextDialer(n.dial)))
		if err != nil {
			t.Fatal(err)
		}
		others := openRooms(t, b)
		snapshots, ended := make(chan documentlock.Snapshot, 10), make(chan error, 1)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { ended <- r.Watch(ctx, func(s documentlock.Snapshot) { snapshots <- s }) }()
		defer func() {
			cancel()
			<-ended
			_ = r.Close()
		}()
		<-snapshots
		n.forgotten.Store(n.made.Load())
		others.put(t, "x", map[string]any{"lockOwner": "s/1"})
		select {
		case <-snapshots:
		case <-time.After(time.Minute):
			t.Error("no snapshot for a minute")
		}
	})
}

// Such a map counts 3 bytes towards a document's 1 MiB, and takes 13 on the wire.
func TestADocumentOfMoreThan4MiBOnTheWireIsReadFromAnEmulator(t *testing.T) {
	if info, ok := debug.ReadBuildInfo(); ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		t.Skip("under the race detector the emulator takes longer than a call may")
	}
	b := emulatortest.Embedded(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- b.Server.Serve(l) }()
	defer func() {
		b.Server.Close()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	t.Setenv("FIRESTORE_EMULATOR_HOST", l.Addr().String())
	a, err := Open(t.Context(), b.Project, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = a.Close() }()
	maps := make([]any, 340_000)
	for i := range maps {
		maps[i] = map[string]any{"a": nil}
	}
	if err := a.Create(t.Context(), "x", maps); err != nil {
		t.Fatal(err)
	}
	d, err := a.Get(t.Context(), "x")
	if got, _ := d.Input.([]any); err != nil || len(got) != len(maps) {
		t.Errorf("%d of %d maps, %v", len(got), len(maps), err)
	}
}
