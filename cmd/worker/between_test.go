package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"path"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
)

// between is a proxy between a worker and a Firestore, for calls of one request each. Set
// before and after before the first call.
type between struct {
	host   string
	before func(*call) // is called before a call is passed on; nil: nothing
	after  func(*call) // is called before a call's answers are passed on; nil: nothing

	unavailable atomic.Bool // no further call is passed on or answered

	conn *grpc.ClientConn
	ctx  context.Context //nolint:containedctx // ends with the test
}

// call is one of a worker's.
type call struct {
	method  string
	request []byte
}

// reads reports whether the answer to c carries the field of documents.
func (c *call) reads(field string) bool {
	var r firestorepb.BatchGetDocumentsRequest
	if c.method != "BatchGetDocuments" || proto.Unmarshal(c.request, &r) != nil {
		return false
	}
	return r.GetMask() == nil || slices.Contains(r.GetMask().GetFieldPaths(), field)
}

// unread passes messages on as they are.
type unread struct{}

func (unread) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }

func (unread) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = bytes.Clone(data)
	return nil
}

func (unread) Name() string { return "proto" }

func newBetween(t testing.TB, firestore string) *between {
	t.Helper()
	const most = 32 << 20 // more than any message holds
	conn, err := grpc.NewClient(firestore, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(unread{}), grpc.MaxCallRecvMsgSize(most), grpc.MaxCallSendMsgSize(most)))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	l := listen(t, "127.0.0.1:0")
	b := &between{host: l.Addr().String(), conn: conn, ctx: ctx}
	server := grpc.NewServer(grpc.ForceServerCodec(unread{}), grpc.UnknownServiceHandler(b.handle), grpc.WaitForHandlers(true),
		grpc.MaxRecvMsgSize(most), grpc.MaxSendMsgSize(most))
	var served sync.WaitGroup
	served.Go(func() { _ = server.Serve(l) })
	t.Cleanup(func() {
		cancel()
		server.Stop()
		served.Wait()
		_ = conn.Close()
	})
	return b
}

// wait returns at the end of the test.
func (b *between) wait() { <-b.ctx.Done() }

func (b *between) handle(_ any, down grpc.ServerStream) error {
	c := &call{}
	if err := down.RecvMsg(&c.request); err != nil {
		return err
	}
	method, _ := grpc.MethodFromServerStream(down)
	c.method = path.Base(method)
	if b.before != nil {
		b.before(c)
	}
	if b.unavailable.Load() {
		b.wait()
		return b.ctx.Err()
	}
	// It is carried out also when the worker has gone.
	md, _ := metadata.FromIncomingContext(down.Context())
	up, err := b.conn.NewStream(metadata.NewOutgoingContext(b.ctx, md), &grpc.StreamDesc{ServerStreams: true}, method)
	if err != nil {
		return err
	}
	if err := errors.Join(up.SendMsg(&c.request), up.CloseSend()); err != nil {
		return err
	}
	for first := true; ; first = false {
		var reply []byte
		switch err := up.RecvMsg(&reply); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		if first && b.after != nil {
			b.after(c)
		}
		if err := down.SendMsg(&reply); err != nil {
			return err
		}
	}
}
