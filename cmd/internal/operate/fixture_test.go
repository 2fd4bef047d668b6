package operate

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"taskguard/cmd/internal/cli"
	"taskguard/emulator/firestore"
	"taskguard/internal/testing/emulatortest"
	"taskguard/internal/testing/must"
	"taskguard/lease/iso8601"
	"taskguard/worker"
)

func TestMain(m *testing.M) {
	os.Args[0] = "taskguard" // as a shell starts it
	os.Exit(emulatortest.Main(m))
}

// doc is the fields of a document.
type doc = map[string]any

var silent = slog.New(slog.DiscardHandler)

// at is a time as documents store it; a negative one is past.
func at(ahead time.Duration) string { return iso8601.Format(time.Now().Add(ahead)) }

func ok(t testing.TB, err error) {
	t.Helper()
	must.OK(t, err)
}

// call returns a call of a command, and its output.
func call(name string) (c *cli.Call, out *strings.Builder) {
	out = &strings.Builder{}
	none := func(string) (string, bool) { return "", false }
	return &cli.Call{Name: name, Lookup: none, Streams: cli.Streams{Out: out, Err: out}}, out
}

// clientOf returns a Client of the analyses of b.
func clientOf(t testing.TB, b *emulatortest.Backend, opts ...grpc.DialOption) *Client {
	t.Helper()
	guard, err := worker.Open(t.Context(), worker.Options{
		Project: b.Project, Auth: worker.CheckedByProxy(), FirestoreOptions: b.Client(t, opts...),
	})
	ok(t, err)
	t.Cleanup(func() { _ = guard.Shutdown(context.Background()) })
	work := guard.MustRegister(worker.Kind{})
	return &Client{Operator: work.Operator(), guard: guard, work: work}
}

// skewed returns a Firestore whose clock is so far ahead of this machine's, and its time.
func skewed(t *testing.T, ahead time.Duration) (*emulatortest.Backend, *Client, func() time.Time) {
	t.Helper()
	now := func() time.Time { return time.Now().Add(ahead) }
	b := emulatortest.Embedded(t)
	b.Server = firestore.NewServer(firestore.Options{Now: now})
	t.Cleanup(b.Server.Close)
	return b, clientOf(t, b), now
}

// openStream opens a stream to Firestore.
type openStream = func() (grpc.ClientStream, error)

// streams makes around open each stream.
func streams(around func(open openStream) (grpc.ClientStream, error)) grpc.DialOption {
	return grpc.WithChainStreamInterceptor(func(
		ctx context.Context, d *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer,
		opts ...grpc.CallOption,
	) (grpc.ClientStream, error) {
		return around(func() (grpc.ClientStream, error) { return open(ctx, d, cc, method, opts...) })
	})
}

// refusing returns a Client of b's analyses, whose streams are refused after as many as allowed.
func refusing(t *testing.T, b *emulatortest.Backend) (cl *Client, allowed, refused *int) {
	t.Helper()
	allowed, refused = new(int), new(int)
	return clientOf(t, b, streams(func(open openStream) (grpc.ClientStream, error) {
		if *allowed--; *allowed < 0 {
			*refused++
			return nil, status.Error(codes.PermissionDenied, "as the test wants")
		}
		return open()
	})), allowed, refused
}

// billed counts the reads that Firestore bills for what it sends on a stream: one for each
// document, or for a thousand that are counted, and at least one. Then it calls ended.
type billed struct {
	grpc.ClientStream
	reads *atomic.Int64
	n     int64
	ended func()
}

func (s *billed) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if errors.Is(err, io.EOF) {
		s.reads.Add(max(s.n, 1))
		s.ended()
	}
	if err != nil {
		return err
	}
	switch r := m.(type) {
	case *firestorepb.RunQueryResponse:
		if r.GetDocument() != nil {
			s.n++
		}
	case *firestorepb.BatchGetDocumentsResponse:
		s.n++
	case *firestorepb.RunAggregationQueryResponse:
		for _, v := range r.GetResult().GetAggregateFields() {
			s.n += (v.GetIntegerValue() + 999) / 1000
		}
	}
	return nil
}

// openBilled opens b's analyses, counts the reads, and calls ended when a stream has ended.
func openBilled(t *testing.T, b *emulatortest.Backend, ended func()) (*Client, *atomic.Int64) {
	t.Helper()
	reads := new(atomic.Int64)
	return clientOf(t, b, streams(func(open openStream) (grpc.ClientStream, error) {
		s, err := open()
		return &billed{ClientStream: s, reads: reads, ended: ended}, err
	})), reads
}

// forgetful is a connection to Firestore that fails for good after a commit whose reply it loses.
type forgetful struct{ down atomic.Bool }

var errGone = status.Error(codes.Unavailable, "the network is gone")

func (f *forgetful) options() []grpc.DialOption {
	unary := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn,
		invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
	) error {
		if f.down.Load() {
			return errGone
		}
		err := invoke(ctx, method, req, reply, cc, opts...)
		if path.Base(method) == "Commit" && err == nil {
			f.down.Store(true)
			return errGone
		}
		return err
	}
	stream := streams(func(open openStream) (grpc.ClientStream, error) {
		if f.down.Load() {
			return nil, errGone
		}
		return open()
	})
	return []grpc.DialOption{grpc.WithChainUnaryInterceptor(unary), stream}
}
