package repo

import (
	"context"
	"io"
	"testing"
	"time"

	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"taskguard/lease"
	"taskguard/lease/analysislock"
)

// page is a Firestore of one document, without checks, for the real client. It is not safe
// for concurrent use.
type page struct {
	fields  map[string]*value
	at      time.Time // of the next reading or writing
	written time.Time
}

func (p *page) documents(t testing.TB) *documents[analysislock.Analysis] {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///page", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithChainUnaryInterceptor(func(_ context.Context, _ string, req, reply any, _ *grpc.ClientConn, _ grpc.UnaryInvoker, _ ...grpc.CallOption) error {
			p.commit(req.(*firestorepb.CommitRequest), reply.(*firestorepb.CommitResponse))
			return nil
		}),
		grpc.WithChainStreamInterceptor(func(ctx context.Context, _ *grpc.StreamDesc, _ *grpc.ClientConn, _ string, _ grpc.Streamer, _ ...grpc.CallOption) (grpc.ClientStream, error) {
			return &pageRead{ctx: ctx, page: p}, nil
		}))
	fatal(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	a, err := Open(context.Background(), "p", Options{Policy: lease.Policy{MaxAttempts: 10}}, option.WithGRPCConn(conn))
	fatal(t, err)
	return a.documents
}

func (p *page) commit(req *firestorepb.CommitRequest, reply *firestorepb.CommitResponse) {
	for _, w := range req.GetWrites() {
		for _, path := range w.GetUpdateMask().GetFieldPaths() {
			p.written = p.at
			delete(p.fields, path)
			if v, ok := w.GetUpdate().GetFields()[path]; ok {
				p.fields[path] = v
			}
		}
		reply.WriteResults = append(reply.WriteResults, &firestorepb.WriteResult{UpdateTime: timestamppb.New(p.at)})
	}
	reply.CommitTime = timestamppb.New(p.at)
}

// pageRead is a call that reads the page.
type pageRead struct {
	grpc.ClientStream
	ctx  context.Context //nolint:containedctx // the call's own
	page *page
	name string
}

func (r *pageRead) Context() context.Context { return r.ctx }
func (r *pageRead) CloseSend() error         { return nil }

func (r *pageRead) SendMsg(m any) error {
	r.name = m.(*firestorepb.BatchGetDocumentsRequest).GetDocuments()[0]
	return nil
}

func (r *pageRead) RecvMsg(m any) error {
	if r.name == "" {
		return io.EOF
	}
	written := timestamppb.New(r.page.written)
	answer := &firestorepb.BatchGetDocumentsResponse{
		Result: &firestorepb.BatchGetDocumentsResponse_Found{
			Found: &firestorepb.Document{Name: r.name, Fields: r.page.fields, CreateTime: written, UpdateTime: written},
		},
		ReadTime: timestamppb.New(r.page.at),
	}
	r.name = ""
	if f, ok := m.(*frame); ok {
		var err error
		*f, err = proto.Marshal(answer)
		return err
	}
	proto.Merge(m.(proto.Message), answer)
	return nil
}
