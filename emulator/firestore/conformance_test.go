package firestore_test

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	client "cloud.google.com/go/firestore"
	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"taskguard/emulator/firestore"
	"taskguard/internal/testing/emulatortest"
	"taskguard/internal/testing/must"
)

type (
	object = map[string]any
	value  = firestorepb.Value
	fields = map[string]*firestorepb.Value
)

// rig is a server under test with Google's client and, for requests that the client
// does not make, the generated one. Each rig has its own project.
type rig struct {
	t        testing.TB
	ctx      context.Context
	client   *client.Client
	raw      firestorepb.FirestoreClient
	database string
}

func (r *rig) name(path string) string { return r.database + "/documents/" + path }

type conformanceCase struct {
	name string
	run  func(*testing.T, *rig)
}

// conformance are the cases that must pass on both servers.
func conformance() []conformanceCase {
	return slices.Concat(
		readCases, writeCases, noOpCases, transformCases, limitCases,
		transactionCases, lockCases, queryCases, listenCases,
	)
}

func TestMain(m *testing.M) { os.Exit(emulatortest.Main(m)) }

func TestEmbeddedServerConforms(t *testing.T) {
	for _, c := range conformance() {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *rig, _ *firestore.Server) { c.run(t, r) })
		})
	}
}

// A case that fails on Google's emulator expects the wrong thing.
func TestGooglesEmulatorConforms(t *testing.T) {
	host := emulatortest.Google(t)
	for _, c := range conformance() {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.run(t, newRig(t, dialHost(t, host)))
		})
	}
}

// inBubble runs f in a synctest bubble with a server of its own.
func inBubble(t *testing.T, f func(*testing.T, *rig, *firestore.Server)) {
	synctest.Test(t, func(t *testing.T) {
		server := firestore.NewServer(firestore.Options{})
		t.Cleanup(server.Close)
		f(t, newRig(t, dialServer(t, server)), server)
	})
}

func newRig(t testing.TB, conn *grpc.ClientConn) *rig {
	t.Helper()
	return rigOf(t, conn, "p"+strings.ToLower(rand.Text()[:12]))
}

func rigOf(t testing.TB, conn *grpc.ClientConn, project string) *rig {
	t.Helper()
	ctx := t.Context()
	c := must.Get(client.NewClient(ctx, project, option.WithGRPCConn(conn)))(t)
	t.Cleanup(func() { _ = c.Close() })
	return &rig{
		t: t, ctx: ctx, client: c, raw: firestorepb.NewFirestoreClient(conn),
		database: "projects/" + project + "/databases/(default)",
	}
}

func dialServer(t testing.TB, s *firestore.Server) *grpc.ClientConn {
	t.Helper()
	conn := must.Get(s.Dial())(t)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// owner is the administrator's token of Google's emulator. Without it the
// emulator evaluates security rules, which take locks.
type owner struct{}

func (owner) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer owner"}, nil
}

func (owner) RequireTransportSecurity() bool { return false }

func dialHost(t testing.TB, host string) *grpc.ClientConn {
	t.Helper()
	insecurely := grpc.WithTransportCredentials(insecure.NewCredentials())
	conn := must.Get(grpc.NewClient(host, insecurely, grpc.WithPerRPCCredentials(owner{})))(t)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// ok fails the test on an error.
func (r *rig) ok(_ any, err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatalf("unexpected error: %v", err)
	}
}

// doc creates a document with these fields; nil creates none.
func (r *rig) doc(data map[string]any) *client.DocumentRef {
	r.t.Helper()
	ref := r.client.Collection("c").NewDoc()
	if data != nil {
		if _, err := ref.Create(r.ctx, data); err != nil {
			r.t.Fatalf("create: %v", err)
		}
	}
	return ref
}

func (r *rig) get(ref *client.DocumentRef) *client.DocumentSnapshot {
	r.t.Helper()
	snap, err := ref.Get(r.ctx)
	if err != nil && status.Code(err) != codes.NotFound {
		r.t.Fatalf("get: %v", err)
	}
	return snap
}

func (r *rig) begin() []byte {
	r.t.Helper()
	answer := must.Get(r.raw.BeginTransaction(r.ctx, &firestorepb.BeginTransactionRequest{Database: r.database}))(r.t)
	return answer.Transaction
}

func (r *rig) rollback(txn []byte) error {
	_, err := r.raw.Rollback(r.ctx, &firestorepb.RollbackRequest{Database: r.database, Transaction: txn})
	return err
}

func (r *rig) commit(txn []byte, writes ...*firestorepb.Write) (*firestorepb.CommitResponse, error) {
	return r.raw.Commit(r.ctx, &firestorepb.CommitRequest{Database: r.database, Transaction: txn, Writes: writes})
}

// read reads documents in a transaction, or outside where txn is nil.
func (r *rig) read(txn []byte, refs ...*client.DocumentRef) ([]*firestorepb.BatchGetDocumentsResponse, error) {
	request := &firestorepb.BatchGetDocumentsRequest{Database: r.database}
	for _, ref := range refs {
		request.Documents = append(request.Documents, ref.Path)
	}
	if txn != nil {
		request.ConsistencySelector = &firestorepb.BatchGetDocumentsRequest_Transaction{Transaction: txn}
	}
	return r.batchGet(request)
}

func (r *rig) batchGet(
	request *firestorepb.BatchGetDocumentsRequest,
) ([]*firestorepb.BatchGetDocumentsResponse, error) {
	stream, err := r.raw.BatchGetDocuments(r.ctx, request)
	if err != nil {
		return nil, err
	}
	return drain(stream.Recv)
}

// readName reads the document of a name, or only fields of it.
func (r *rig) readName(name string, paths ...string) ([]*firestorepb.BatchGetDocumentsResponse, error) {
	request := &firestorepb.BatchGetDocumentsRequest{Database: r.database, Documents: []string{name}}
	if len(paths) > 0 {
		request.Mask = &firestorepb.DocumentMask{FieldPaths: paths}
	}
	return r.batchGet(request)
}

func drain[T any](recv func() (T, error)) ([]T, error) {
	var all []T
	for {
		one, err := recv()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return all, err
		}
		all = append(all, one)
	}
}

// put is a write of one whole document with the single field n.
func put(ref *client.DocumentRef, n int64) *firestorepb.Write {
	return putFields(ref.Path, fields{"n": integerValue(n)})
}

func putFields(name string, f fields) *firestorepb.Write {
	return &firestorepb.Write{Operation: &firestorepb.Write_Update{
		Update: &firestorepb.Document{Name: name, Fields: f},
	}}
}

// atOnce commits what the client's own Update, Set and so on make of the writes.
func (r *rig) atOnce(writes func(*client.Transaction) error) error {
	return r.client.RunTransaction(r.ctx, func(_ context.Context, tx *client.Transaction) error { return writes(tx) })
}

func integerValue(n int64) *value {
	return &value{ValueType: &firestorepb.Value_IntegerValue{IntegerValue: n}}
}

func textValue(s string) *value {
	return &value{ValueType: &firestorepb.Value_StringValue{StringValue: s}}
}

func arrayValue(elements ...*value) *value {
	return &value{ValueType: &firestorepb.Value_ArrayValue{ArrayValue: &firestorepb.ArrayValue{Values: elements}}}
}

func mapValue(f fields) *value {
	return &value{ValueType: &firestorepb.Value_MapValue{MapValue: &firestorepb.MapValue{Fields: f}}}
}

// wantCode checks the code of an error of what.
func wantCode(t *testing.T, err error, want codes.Code, what ...any) {
	t.Helper()
	if got := status.Code(err); got != want {
		t.Errorf("%.100v code %v, want %v (%v)", what, got, want, err)
	}
}
