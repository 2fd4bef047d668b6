package workertest

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"path"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"taskguard/internal/testing/proof"
	"taskguard/worker"
)

// process is a process of the service. The next one has nothing of its memory. All that it does to the
// outside is a step, which it waits for.
type process struct {
	*schedule

	n       int
	guard   *worker.Guard
	handler http.Handler
	life    context.Context //nolint:containedctx // it ends with the process
	kill    context.CancelFunc

	// The mutex of the schedule guards these.
	stopping bool
	paused   time.Time // until then no step happens
	running  int       // requests
	request  func(context.Context) *http.Request
	ticks    time.Duration
	counts   map[string]int // of steps, by kind
	token    int64          // of its last acquisition
}

// processKey is the key of the process in the contexts of its runs and requests.
type processKey struct{}

// Errors of a step.
var (
	errDead  = status.Error(codes.Aborted, "workertest: the process is dead")
	errReply = status.Error(codes.Unavailable, "workertest: the reply is lost")
	// errGateway is the answer 504 of Client, and an error for Do.
	errGateway = status.Error(codes.DeadlineExceeded, "workertest: a gateway answers for the receiver")
)

// start starts a process. The caller holds the mutex.
func (s *schedule) start() *process {
	p := &process{schedule: s, n: len(s.processes) + 1, counts: map[string]int{}}
	p.life, p.kill = context.WithCancel(context.WithoutCancel(s.t.Context()))
	o := s.rig.Options(s.options.Worker,
		grpc.WithChainUnaryInterceptor(p.unary), grpc.WithChainStreamInterceptor(p.stream))
	var err error
	if p.guard, err = worker.Open(context.WithValue(s.t.Context(), processKey{}, p), o); err != nil {
		s.t.Fatal(err)
	}
	p.running = 1
	s.processes = append(s.processes, p)

	s.mu.Unlock() // a service that starts may use the guard, or Acts
	defer s.mu.Lock()
	p.handler = s.open(p.guard)
	return p
}

// pass makes a step of the process, unless a fault prevents it.
func (p *process) pass(ctx context.Context, kind, label string, do func(context.Context) error) error {
	step, err := p.arrive(kind, label)
	if err != nil {
		return err
	}

	sent, fault := ctx, step.fault
	switch fault {
	case crashBefore:
		p.kill()
		return p.awaitEnd()
	case stopped:
		p.stop()
	case lateDuring, lateAfter:
		p.pause(fault)
	}
	if fault == lateDuring || fault == lateAfter || kind == act { // it was on its way
		sent = context.WithoutCancel(ctx)
	}
	err = do(sent)
	p.mu.Lock()
	step.failed = status.Code(err)
	p.mu.Unlock()

	switch {
	case fault == crashAfter:
		p.kill()
	case err == nil && fault == replyLost:
		err = errReply
	case err == nil && fault == gateway:
		err = errGateway
	case err == nil && kind == act:
		err = ctx.Err()
	}
	if p.life.Err() != nil {
		return p.awaitEnd()
	}
	return err
}

// arrive waits for the next step, and returns it.
func (p *process) arrive(kind, label string) (*step, error) {
	if err := p.wait(); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counts[kind]++
	next := &step{
		kind: kind, key: fmt.Sprintf("p%d %s %d", p.n, kind, p.counts[kind]), label: label, at: time.Since(p.begun),
	}
	next.fault = p.faultOf(next)
	p.steps = append(p.steps, next)
	return next, nil
}

// wait waits while the process is paused, and if it is dead. No two steps have the same time, so that
// the order of goroutines does not matter.
func (p *process) wait() error {
	p.mu.Lock()
	p.ticks++
	until := time.Now().Add(time.Millisecond + time.Duration(p.n)*time.Microsecond + p.ticks)
	p.mu.Unlock()
	time.Sleep(time.Until(until))

	p.mu.Lock()
	until = p.paused
	p.mu.Unlock()
	time.Sleep(time.Until(until))
	if p.life.Err() != nil {
		return p.awaitEnd()
	}
	return nil
}

// awaitEnd waits for the end of the schedule. With an error before it, a dead process would release its
// lock.
func (p *process) awaitEnd() error {
	<-p.over
	return errDead
}

// stop ends the process as Cloud Run does: SIGTERM, and SIGKILL 10 s later.
func (p *process) stop() {
	p.mu.Lock()
	p.stopping = true
	p.mu.Unlock()
	time.AfterFunc(stopTime+time.Second, p.kill)
	p.going.Go(func() { _ = shutdown(p.guard) }) // its runs may be paused
	time.Sleep(time.Millisecond)                 // until their contexts have ended
}

// pause delivers the request to another process once the lock has expired. It stops this one until the
// other has acquired the lock, or longer.
func (p *process) pause(fault string) {
	ttl := p.options.Worker.Lock.TTL
	last := func(paused time.Time) (token int64) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.paused = paused
		return p.schedule.token
	}
	end := time.Now().Add(2 * ttl)
	before := last(end)
	p.redeliver(ttl + time.Second)
	if fault == lateAfter {
		time.Sleep(2 * ttl)
		return
	}

	time.Sleep(ttl + time.Second)
	for limit := time.Now().Add(time.Second); time.Now().Before(limit) && last(end) == before; {
		time.Sleep(100 * time.Microsecond)
	}
	last(time.Time{})
}

// unary intercepts the calls to Firestore and Cloud Tasks. A booking and a commit are steps.
func (p *process) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn,
	invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
) error {
	call := func(ctx context.Context) error { return invoke(ctx, method, req, reply, cc, opts...) }
	if _, booking := req.(*cloudtaskspb.CreateTaskRequest); booking {
		return p.pass(ctx, book, "", call)
	}
	// The worker's commits have one write; a transaction that changes nothing commits none. Other calls read.
	commit, ok := req.(*firestorepb.CommitRequest)
	if !ok || len(commit.Writes) != 1 {
		if err := p.wait(); err != nil {
			return err
		}
		return call(ctx)
	}

	c := proof.Commit{Write: commit.Writes[0], Fields: p.fields}
	if p.ofKey(c) {
		return p.pass(ctx, key, "", call)
	}
	return p.pass(ctx, c.Step(), "", func(ctx context.Context) error {
		err := call(ctx)
		if done, ok := reply.(*firestorepb.CommitResponse); ok && err == nil {
			p.applied(c, done.GetCommitTime().AsTime())
		}
		return err
	})
}

// stream intercepts the reads of Firestore, which are no steps.
func (p *process) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string,
	open grpc.Streamer, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	if err := p.wait(); err != nil {
		return nil, err
	}
	return open(ctx, desc, cc, method, opts...)
}

// ofKey reports whether the commit changes the document of a concurrency key, which has no lock.
func (p *process) ofKey(c proof.Commit) bool {
	collection := path.Dir(cmp.Or(c.GetUpdate().GetName(), c.GetDelete()))
	return p.keys != "" && path.Base(collection) == p.keys
}

// applied records a commit that Firestore has applied at that time.
func (p *process) applied(c proof.Commit, at time.Time) {
	write, name := c.Read(at), c.GetUpdate().GetName()
	write.By = fmt.Sprint("p", p.n)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.document = cmp.Or(p.document, name)
	if name != p.document || write.Kind == proof.Create {
		return
	}

	p.writes = append(p.writes, write)
	if write.Kind == proof.Acquire {
		p.token, p.schedule.token = write.Token, write.Token
	}
	if word := c.Finished(); word != "" {
		p.end = ending{status: word}
		p.end.code, p.end.message = c.Failure()
	}
	if c.Names("effects") {
		p.uncertain = c.Open()
	}
}
