package chaos

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// fault is what happens to one call. The zero fault is none.
type fault struct {
	name   string // under which it is counted
	apply  application
	code   codes.Code      // the answer; OK: the true one
	before <-chan struct{} // the call waits for it before it is applied
	reply  <-chan struct{} // and its answer for this
	delay  time.Duration   // before it is applied
}

// application says how often and when a call reaches Firestore.
type application int

const (
	once application = iota
	never
	twice
	later // after the next reading of its document, before that reading's answer
)

// proxy forwards the calls that a worker makes: of one request each. Commits
// reach Firestore also when their caller gives up, as they may on a network.
type proxy struct {
	server *grpc.Server
	conn   *grpc.ClientConn
	ctx    context.Context // ends with the proxy
	served sync.WaitGroup

	mu        sync.Mutex
	callers   map[string]int    // by the address that they call: who they are
	judge     func(*call) fault // nil: no faults
	seen      map[key]int
	underWay  map[string]int     // calls, by document
	postponed map[string][]*call // by document
	injected  map[string]int
	history   []write
	doubtful  []write // commits of which it is not known whether they were applied; at is when they were sent
}

// raw passes messages on as they are.
type raw struct{}

func (raw) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }

func (raw) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = bytes.Clone(data)
	return nil
}

func (raw) Name() string { return "proto" }

// maxMessage is more than any call of Firestore's holds.
const maxMessage = 32 << 20

func newProxy(t testing.TB, firestore string) *proxy {
	t.Helper()
	conn, err := grpc.NewClient(firestore, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(
		grpc.ForceCodec(raw{}), grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	p := &proxy{
		conn: conn, ctx: ctx, callers: map[string]int{},
		seen: map[key]int{}, underWay: map[string]int{}, postponed: map[string][]*call{}, injected: map[string]int{},
	}
	p.server = grpc.NewServer(grpc.ForceServerCodec(raw{}), grpc.UnknownServiceHandler(p.handle), grpc.WaitForHandlers(true),
		grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxMessage))
	t.Cleanup(func() {
		cancel()
		p.server.Stop()
		p.served.Wait()
		_ = conn.Close()
	})
	return p
}

// listen opens an address that is for one caller alone: a worker, by number, or
// the operator.
func (p *proxy) listen(caller int) (host string, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	host = l.Addr().String()
	p.mu.Lock()
	p.callers[host] = caller
	p.mu.Unlock()
	p.served.Go(func() { _ = p.server.Serve(l) })
	return host, nil
}

func (p *proxy) caller(ctx context.Context) int {
	from, ok := peer.FromContext(ctx)
	if !ok {
		return unknown
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.callers[from.LocalAddr.String()]
}

// script makes judge the judge of every call from now on; it is called by one
// goroutine at a time.
func (p *proxy) script(judge func(*call) fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.judge = judge
}

// count is how often the fault of that name was injected.
func (p *proxy) count(name string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.injected[name]
}

func (p *proxy) add(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.injected[name]++
}

func (p *proxy) judgement(c *call) (f fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.underWay[c.doc]++
	p.seen[c.key()]++
	c.nth = p.seen[c.key()]
	if p.judge != nil {
		f = p.judge(c)
	}
	if f.name != "" && f.apply != later { // which counts when it has been applied
		p.injected[f.name]++
	}
	return f
}

func (p *proxy) ended(c *call) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.underWay[c.doc]--
}

func (p *proxy) handle(_ any, stream grpc.ServerStream) error {
	var request []byte
	if err := stream.RecvMsg(&request); err != nil {
		return err
	}
	method, _ := grpc.MethodFromServerStream(stream)
	md, _ := metadata.FromIncomingContext(stream.Context())
	c := newCall(method, md, request)
	c.caller = p.caller(stream.Context())
	f := p.judgement(c)
	c.fault = f.name
	defer p.ended(c)
	replies, err := p.answer(c, f)
	if c.method == "BatchGetDocuments" {
		p.applyPostponed(c.doc)
	}
	wait(p.ctx, f.reply)
	if f.code != codes.OK {
		return status.Error(f.code, "injected: "+f.name)
	}
	for _, reply := range replies {
		if err := stream.SendMsg(&reply); err != nil {
			return err
		}
	}
	return err
}

// answer is Firestore's.
func (p *proxy) answer(c *call, f fault) ([][]byte, error) {
	if f.delay > 0 {
		wait(p.ctx, time.After(f.delay))
	}
	wait(p.ctx, f.before)
	switch f.apply {
	case never:
		return nil, nil
	case later:
		p.mu.Lock()
		defer p.mu.Unlock()
		p.postponed[c.doc] = append(p.postponed[c.doc], c)
		return nil, nil
	case twice:
		defer func() { _, _ = p.forward(c) }() // the network's copy: nobody waits for its answer
	}
	return p.forward(c)
}

// wait ends with ctx, at the latest; nil is nothing to wait for.
func wait[T any](ctx context.Context, c <-chan T) {
	if c == nil {
		return
	}
	select {
	case <-c:
	case <-ctx.Done():
	}
}

func (p *proxy) applyPostponed(doc string) {
	p.mu.Lock()
	due := p.postponed[doc]
	delete(p.postponed, doc)
	p.mu.Unlock()
	for _, c := range due {
		if _, err := p.forward(c); err == nil {
			p.add(c.fault)
		}
	}
}

// forwardLimit is longer than Firestore is ever paused.
const forwardLimit = time.Minute

// forward makes the call, and notes what a commit came to.
func (p *proxy) forward(c *call) ([][]byte, error) {
	ctx, cancel := context.WithTimeout(metadata.NewOutgoingContext(p.ctx, c.md), forwardLimit)
	defer cancel()
	sent := time.Now()
	replies, err := p.exchange(ctx, c)
	if c.commit == nil {
		return replies, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch status.Code(err) {
	case codes.OK:
		var done firestorepb.CommitResponse
		if err := proto.Unmarshal(replies[0], &done); err != nil {
			return nil, err
		}
		p.history = append(p.history, c.write(done.GetCommitTime().AsTime()))
	case codes.FailedPrecondition, codes.Aborted, codes.NotFound, codes.InvalidArgument: // refused
	default:
		if p.ctx.Err() == nil {
			p.doubtful = append(p.doubtful, c.write(sent))
		}
	}
	return replies, err
}

func (p *proxy) exchange(ctx context.Context, c *call) (replies [][]byte, err error) {
	stream, err := p.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, c.path)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(stream.SendMsg(&c.request), stream.CloseSend()); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	for {
		var reply []byte
		err := stream.RecvMsg(&reply)
		if errors.Is(err, io.EOF) {
			return replies, nil
		}
		if err != nil {
			return nil, err
		}
		replies = append(replies, reply)
	}
}
