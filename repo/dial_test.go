package repo

import (
	"context"
	"net"
	"os"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/firestore"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"taskguard/emulator/emulatortest"
	"taskguard/lease/analysislock"
	"taskguard/lease/documentlock"
)

// A network that forgets a connection says nothing: what is written to it is taken,
// and nothing comes.
func TestAWatchOutlivesAConnectionThatHasFallenSilent(t *testing.T) {
	if testing.Short() {
		t.Skip("takes 45 s")
	}
	if os.Getenv("FIRESTORE_EMULATOR_HOST") != "" {
		t.Skip("FIRESTORE_EMULATOR_HOST is set, with which Google's client makes a connection of its own")
	}
	t.Parallel()
	watches := map[string]func(ctx context.Context, project string, each func(), opts ...option.ClientOption) error{
		"documentLocks": func(ctx context.Context, project string, each func(), opts ...option.ClientOption) error {
			r, err := OpenRooms(ctx, project, RoomOptions{}, opts...)
			if err != nil {
				return err
			}
			defer func() { _ = r.Close() }()
			return r.Watch(ctx, func(documentlock.Snapshot) { each() })
		},
	}
	for collection, watch := range watches {
		t.Run(collection, func(t *testing.T) {
			t.Parallel()
			b := emulatortest.Embedded(t)
			others, err := firestore.NewClient(t.Context(), b.Project, b.Client(t)...)
			if err != nil {
				t.Fatal(err)
			}
			network := forgetful(t, b)
			told, ended := make(chan struct{}, 10), make(chan error, 1)
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				ended <- watch(ctx, b.Project, func() { told <- struct{}{} },
					option.WithEndpoint(network.address), option.WithoutAuthentication(),
					option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())))
			}()
			defer func() { cancel(); <-ended }()
			select {
			case <-told:
			case <-time.After(10 * time.Second):
				t.Fatal("told nothing at first")
			}
			network.forgotten.Store(network.made.Load())
			if _, err := others.Collection(collection).Doc("x").Set(ctx, map[string]any{"status": analysislock.Queued, "updatedAt": "2000-01-01T00:00:00.000Z"}); err != nil {
				t.Fatal(err)
			}
			select {
			case <-told:
			case <-time.After(time.Minute):
				t.Error("told nothing for a minute")
			}
		})
	}
}

// network is a way to b on which connections can fall silent.
type network struct {
	address         string
	made, forgotten atomic.Int32 // connections; the first of them
}

func forgetful(t *testing.T, b *emulatortest.Backend) *network {
	t.Helper()
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	front, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = front.Close() })
	go func() { _ = b.Server.Serve(server) }()
	n := &network{address: front.Addr().String()}
	pump := func(number int32, to, from net.Conn) {
		defer func() { _ = to.Close() }()
		buf := make([]byte, 32<<10)
		for {
			read, err := from.Read(buf)
			if err != nil {
				return
			}
			if number > n.forgotten.Load() {
				_, _ = to.Write(buf[:read])
			}
		}
	}
	go func() {
		for {
			c, err := front.Accept()
			if err != nil {
				return
			}
			s, err := net.Dial("tcp", server.Addr().String())
			if err != nil {
				return
			}
			number := n.made.Add(1)
			go pump(number, s, c)
			go pump(number, c, s)
		}
	}()
	return n
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
