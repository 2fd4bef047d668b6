package chaos

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path"
	"slices"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"taskguard/internal/testing/emulatortest"
	"taskguard/internal/testing/must"
	"taskguard/internal/testing/proof"
	"taskguard/lease/leasetest"
)

// fault is what happens to one call. The zero fault is none.
type fault struct {
	name  leasetest.Fault // in the figures
	apply application
	code  codes.Code    // of the answer; OK: the server's own
	delay time.Duration // before it is applied
	then  func()        // called between the application and the answer; nil: nothing
}

// application says how often and when a call reaches the server.
type application int

const (
	once application = iota
	never
	twice
	later // after the next reading of its document, before that reading's answer
)

// proxy forwards the calls of workers and of the operator to a server, Firestore or Cloud
// Tasks. Calls reach it also after their caller has given up, as they may on a network.
type proxy struct {
	server *grpc.Server
	conn   *grpc.ClientConn
	ctx    context.Context // ends with the proxy
	served sync.WaitGroup
	turns  chan struct{} // has an element for each call that is forwarded

	mu        sync.Mutex
	callers   map[string]int     // by the address that they call
	choose    func(*call) fault  // nil: no faults
	postponed map[string][]*call // by document
	counts    map[figure]int     // of faults, by name
	applied   []write
	tasks     []*cloudtaskspb.Task // that were created
	uncertain map[string]int       // commits of unknown outcome, by document
}

// call is one call of a worker or of the operator.
type call struct {
	caller  int
	path    string
	method  string
	md      metadata.MD
	request []byte
	doc     string             // the id of the one document that it reads or writes
	commit  *firestorepb.Write // of a Commit
	task    *cloudtaskspb.Task // of a CreateTask
	fault   leasetest.Fault
}

// operator is the number of the operator as a caller. Workers count from 1.
const operator = 0

func newCall(method string, md metadata.MD, request []byte, caller int) *call {
	c := &call{path: method, method: path.Base(method), md: md, request: request, caller: caller}
	switch c.method {
	case "Commit":
		var commit firestorepb.CommitRequest
		if proto.Unmarshal(request, &commit) == nil && len(commit.Writes) == 1 {
			c.commit = commit.Writes[0]
			c.doc = path.Base(c.commit.GetUpdate().GetName())
		}
	case "CreateTask":
		var create cloudtaskspb.CreateTaskRequest
		if proto.Unmarshal(request, &create) == nil {
			c.task = create.Task
		}
	case "BatchGetDocuments":
		var get firestorepb.BatchGetDocumentsRequest
		if proto.Unmarshal(request, &get) == nil && len(get.Documents) == 1 {
			c.doc = path.Base(get.Documents[0])
		}
	}
	return c
}

// write is a commit that was applied. Its token is that of an acquisition, or of the result of a
// finish.
type write struct {
	proof.Write
	doc        string
	at         time.Time                     // by Firestore's clock
	checkpoint *checkpoint                   // nil: unchanged or deleted
	outcome    string                        // of the last attempt, if the history changes
	fields     map[string]*firestorepb.Value // all that it sets
	stored     []string                      // the same as emulatortest.Stored describes it
}

// write returns what the commit c has changed. An operator's answer about an act is a requeue.
func (c *call) write(at time.Time) write {
	fields := c.commit.GetUpdate().GetFields()
	w := write{
		doc: c.doc, at: at, Write: proof.Commit{Write: c.commit}.Read(at),
		fields: fields, stored: emulatortest.Stored(c.commit),
	}
	w.By = fmt.Sprint("worker ", c.caller)
	switch {
	case w.Kind == proof.Finish:
		w.Token = fields["result"].GetMapValue().GetFields()["token"].GetIntegerValue()
	case w.Kind != proof.Acquire && c.caller == operator:
		w.Kind = proof.Requeue
	}
	if m := fields["checkpoint"].GetMapValue().GetFields(); m != nil {
		w.checkpoint = &checkpoint{Unit: int(m["unit"].GetIntegerValue()), Token: m["token"].GetIntegerValue()}
	}
	if all := fields["history"].GetArrayValue().GetValues(); len(all) > 0 {
		w.outcome = all[len(all)-1].GetMapValue().GetFields()["outcome"].GetStringValue()
	}
	return w
}

// history returns the writes to a document in Firestore's order. certain is false if others may
// have been applied.
func (p *proxy) history(doc string) (writes []write, certain bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.applied {
		if p.applied[i].doc == doc {
			writes = append(writes, p.applied[i])
		}
	}
	slices.SortStableFunc(writes, func(a, b write) int { return a.at.Compare(b.at) })
	return writes, p.uncertain[doc] == 0
}

// raw is a codec that does not decode messages.
type raw struct{}

func (raw) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }

func (raw) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = bytes.Clone(data)
	return nil
}

func (raw) Name() string { return "proto" }

// maxForwarded limits the calls that are forwarded at once: of thousands, Google's
// emulator answers almost none.
const maxForwarded = 64

func newProxy(t testing.TB, server string) *proxy {
	t.Helper()
	conn, err := grpc.NewClient(server, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(raw{})))
	must.OK(t, err)

	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	p := &proxy{
		conn: conn, ctx: ctx, turns: make(chan struct{}, maxForwarded), callers: map[string]int{},
		postponed: map[string][]*call{}, counts: map[figure]int{}, uncertain: map[string]int{},
	}
	p.server = grpc.NewServer(grpc.ForceServerCodec(raw{}), grpc.WaitForHandlers(true),
		grpc.UnknownServiceHandler(p.handle))
	t.Cleanup(func() {
		cancel()
		p.server.Stop()
		p.served.Wait()
		_ = conn.Close()
	})
	return p
}

// listen opens an address for one caller: a worker, by number, or the operator.
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

// script makes choose choose the fault of every call from now on, in one goroutine at
// a time.
func (p *proxy) script(choose func(*call) fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.choose = choose
}

// faultOf returns the fault of c.
func (p *proxy) faultOf(c *call) (f fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.choose != nil {
		f = p.choose(c)
	}
	if f.name != "" && f.apply != later { // this one is counted when it is applied
		p.counts[f.name]++
	}
	c.fault = f.name
	return f
}

// pause lets no call and no commit's answer pass for that long: each needs the mutex.
func (p *proxy) pause(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	time.Sleep(d)
}

func (p *proxy) handle(_ any, stream grpc.ServerStream) error {
	var request []byte
	if err := stream.RecvMsg(&request); err != nil {
		return err
	}
	method, _ := grpc.MethodFromServerStream(stream)
	md, _ := metadata.FromIncomingContext(stream.Context())
	caller := operator
	if from, ok := peer.FromContext(stream.Context()); ok {
		p.mu.Lock()
		caller = p.callers[from.LocalAddr.String()]
		p.mu.Unlock()
	}

	c := newCall(method, md, request, caller)
	f := p.faultOf(c)
	select {
	case p.turns <- struct{}{}:
	case <-stream.Context().Done(): // it is lost
		return status.FromContextError(stream.Context().Err()).Err()
	}
	replies, err := p.answer(c, f)
	<-p.turns
	if f.then != nil {
		f.then()
	}
	if c.method == "BatchGetDocuments" {
		p.applyPostponed(c.doc)
	}

	if f.code != codes.OK {
		return status.Error(f.code, "injected: "+string(f.name))
	}
	for _, reply := range replies {
		if err := stream.SendMsg(&reply); err != nil {
			return err
		}
	}
	return err
}

// answer applies a call as often and as late as f says.
func (p *proxy) answer(c *call, f fault) ([][]byte, error) {
	pause(p.ctx, f.delay)
	switch f.apply {
	case never:
		return nil, nil
	case later:
		p.mu.Lock()
		defer p.mu.Unlock()
		p.postponed[c.doc] = append(p.postponed[c.doc], c)
		return nil, nil
	case twice:
		defer func() { _, _ = p.forward(c) }() // its answer is dropped
	}
	return p.forward(c)
}

func (p *proxy) applyPostponed(doc string) {
	p.mu.Lock()
	due := p.postponed[doc]
	delete(p.postponed, doc)
	p.mu.Unlock()
	for _, c := range due {
		if _, err := p.forward(c); err == nil {
			p.mu.Lock()
			p.counts[c.fault]++
			p.mu.Unlock()
		}
	}
}

// forwardLimit is longer than Firestore is ever paused.
const forwardLimit = time.Minute

// forward makes the call, and records the outcome of a commit.
func (p *proxy) forward(c *call) ([][]byte, error) {
	ctx, cancel := context.WithTimeout(metadata.NewOutgoingContext(p.ctx, c.md), forwardLimit)
	defer cancel()
	replies, err := p.exchange(ctx, c)
	if c.commit == nil && c.task == nil {
		return replies, err
	}

	p.mu.Lock()
	defer p.mu.Unlock()
	if c.task != nil {
		if err == nil {
			p.tasks = append(p.tasks, c.task)
		}
		return replies, err
	}
	switch status.Code(err) {
	case codes.OK:
		var done firestorepb.CommitResponse
		if err := proto.Unmarshal(replies[0], &done); err != nil {
			return nil, err
		}
		p.applied = append(p.applied, c.write(done.GetCommitTime().AsTime()))
	case codes.FailedPrecondition, codes.Aborted, codes.NotFound, codes.InvalidArgument: // refused
	default:
		p.uncertain[c.doc]++
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
