package repo

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"taskguard/internal/testing/must"
	"taskguard/lease"
	"taskguard/lease/analysislock"
)

// fakeFirestore is a Firestore whose only document has 5 MiB on the wire, as a document of
// 1 MiB can have. It answers the next commits with these codes.
type fakeFirestore struct {
	firestorepb.UnimplementedFirestoreServer
	codes  []codes.Code
	sent   metadata.MD // headers of the last commit
	parent string      // of the last query
}

// serve returns the address of f.
func (f *fakeFirestore) serve(t *testing.T) string {
	t.Helper()
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	s := grpc.NewServer()
	firestorepb.RegisterFirestoreServer(s, f)
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	return l.Addr().String()
}

func (f *fakeFirestore) RunQuery(r *firestorepb.RunQueryRequest, s firestorepb.Firestore_RunQueryServer) error {
	now := timestamppb.Now()
	f.parent = r.GetParent()
	return s.Send(&firestorepb.RunQueryResponse{ReadTime: now, Document: &firestorepb.Document{
		Name: r.GetParent() + "/analyses/x", CreateTime: now, UpdateTime: now,
		Fields: map[string]*value{"theirs": stringValue(strings.Repeat("x", 5<<20))},
	}})
}

func (f *fakeFirestore) Commit(ctx context.Context, _ *firestorepb.CommitRequest) (*firestorepb.CommitResponse, error) {
	f.sent, _ = metadata.FromIncomingContext(ctx)
	next := f.codes[0]
	f.codes = f.codes[1:]
	return nil, status.Error(next, "")
}

func TestEmulator_LargeDocument(t *testing.T) {
	fake := &fakeFirestore{}
	a := must.Get(Open(t.Context(), "p", Options{Emulator: fake.serve(t), Database: "other"}))(t)
	defer func() { _ = a.Close() }()
	same(t, 1, len(must.Get(a.Find(t.Context(), Filter{}, "", 1))(t)))
	same(t, "projects/p/databases/other/documents", fake.parent)
}

// Google's client then opens a connection of its own.
func TestClose_EmulatorOfTheEnvironment(t *testing.T) {
	t.Setenv("FIRESTORE_EMULATOR_HOST", "127.0.0.1:1")
	a := must.Get(Open(t.Context(), "p", Options{Emulator: "127.0.0.1:2"}))(t)
	same(t, "passthrough:///127.0.0.1:1", a.documents.db.conn.Target())
	if err := a.Close(); err != nil || a.documents.db.conn.GetState() != connectivity.Shutdown {
		t.Errorf("%v, %v", err, a.documents.db.conn.GetState())
	}
}

// A commit is sent once on each connection. Else a lost reply would be taken for a conflict with another operator.
func TestCommit_SentOnce(t *testing.T) {
	fake := &fakeFirestore{}
	host := fake.serve(t)
	google := []option.ClientOption{
		option.WithEndpoint(host), option.WithoutAuthentication(),
		option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())),
	}
	for name, tc := range map[string]struct {
		o     Options
		opts  []option.ClientOption
		owner []string
		name  string // of the database
		param string // the same, in a parameter
	}{
		"an emulator's": {
			o: Options{Emulator: host, Database: "other"}, owner: []string{"Bearer owner"},
			name: "other", param: "other",
		},
		"Google's": {opts: google, name: "(default)", param: "%28default%29"},
	} {
		a := must.Get(Open(t.Context(), "p", tc.o, tc.opts...))(t)
		for code, unwritten := range map[codes.Code]bool{
			codes.FailedPrecondition: true, codes.Unavailable: false, codes.ResourceExhausted: false,
		} {
			fake.codes = []codes.Code{code, code}
			read := lease.Cell[analysislock.Analysis]{Exists: true, Rev: &revision{updated: time.Now()}}
			_, err := a.documents.Swap(t.Context(), "x", read, analysislock.Analysis{Status: "s"})
			if errors.Is(err, lease.ErrUnwritten) != unwritten || len(fake.codes) != 1 {
				t.Errorf("%s, %v: %v, sent %d times", name, code, err, 2-len(fake.codes))
			}
			same(t, []string{"projects/p/databases/" + tc.name}, fake.sent["google-cloud-resource-prefix"])
			same(t, []string{"database_id=" + tc.param + "&project_id=p"}, fake.sent["x-goog-request-params"])
			same(t, tc.owner, fake.sent["authorization"])
		}
		check(t, a.Close())
	}
}
