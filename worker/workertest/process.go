package workertest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"taskguard/internal/testing/proof"
	"taskguard/lease/analysislock"
	"taskguard/worker"
)

// process is a process of the service: what one keeps in memory, the next does not have. All that it
// does to the outside passes one of its gates, which are steps of the schedule.
type process struct {
	*schedule

	n       int
	guard   *worker.Guard
	handler http.Handler
	dead    chan struct{} // closed by a crash

	// The mutex of the schedule guards the others.
	crashed, stopping bool
	paused            time.Time                           // until then no step happens
	running           int                                 // deliveries
	request           func(context.Context) *http.Request // the last
	counts            map[string]int
	token             int64 // of its last acquisition
}

// processKey is the key of the process in the contexts of its runs and requests.
type processKey struct{}

// Errors of a step.
var (
	errDead  = status.Error(codes.Aborted, "workertest: the process is dead")
	errReply = status.Error(codes.Unavailable, "workertest: the reply is lost")
	errAlone = errors.New("workertest: an act without the context of a run: pass the ctx of Run to it")
)

// start starts a process. The caller holds the mutex.
func (s *schedule) start() *process {
	p := &process{schedule: s, n: len(s.processes) + 1, dead: make(chan struct{}), counts: map[string]int{}}
	o := s.rig.options(s.options.Worker,
		grpc.WithChainUnaryInterceptor(p.unary), grpc.WithChainStreamInterceptor(p.stream))
	var err error
	if p.guard, err = worker.Open(context.WithValue(s.t.Context(), processKey{}, p), o); err != nil {
		s.t.Fatal(err)
	}
	p.handler = s.open(p.guard)
	s.processes = append(s.processes, p)
	return p
}

// pass makes a step of the process, unless a fault prevents it. A step of a dead process never
// returns before the schedule has ended: an error would let the process release its lock.
func (p *process) pass(ctx context.Context, kind, label string, do func(context.Context) error) error {
	fault, line, err := p.arrive(kind, label)
	if err != nil {
		return err
	}

	sent := ctx
	switch fault {
	case crashBefore:
		p.crash()
		return p.bury()
	case stopped:
		p.stop()
		time.Sleep(time.Millisecond) // until the contexts have ended
	case stolen:
		p.pause()
		sent = context.WithoutCancel(ctx) // it was on its way
	}
	if kind == act { // likewise
		sent = context.WithoutCancel(ctx)
	}
	err = do(sent)
	p.note(line, err)

	switch {
	case fault == crashAfter:
		p.crash()
	case err == nil && fault == replyLost:
		err = errReply
	case err == nil && kind == act:
		err = ctx.Err()
	}
	if p.isDead() {
		return p.bury()
	}
	return err
}

// arrive waits until the process may make its next step, and returns the step's fault and its line.
// No two steps have the same time, so that the order of goroutines does not matter.
func (p *process) arrive(kind, label string) (fault string, line int, err error) {
	if err := p.wait(); err != nil {
		return "", 0, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counts[kind]++
	fault, line = p.step(fmt.Sprintf("p%d %s %d", p.n, kind, p.counts[kind]), kind, label)
	return fault, line, nil
}

// wait waits while the process is paused. It returns an error, late, if the process is dead.
func (p *process) wait() error {
	p.mu.Lock()
	p.ticks++
	tick := time.Millisecond + time.Duration(p.ticks)
	p.mu.Unlock()
	time.Sleep(tick)

	p.mu.Lock()
	left := time.Until(p.paused)
	p.mu.Unlock()
	time.Sleep(left)
	if p.isDead() {
		return p.bury()
	}
	return nil
}

// bury waits until the schedule has ended.
func (p *process) bury() error {
	<-p.buried
	return errDead
}

func (p *process) isDead() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.crashed
}

// crash ends the process as SIGKILL does.
func (p *process) crash() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.crashed {
		p.crashed = true
		close(p.dead)
	}
}

// stop ends the process as SIGTERM and, 10 s later, SIGKILL do.
func (p *process) stop() {
	p.mu.Lock()
	p.stopping = true
	p.mu.Unlock()
	p.going.Go(func() {
		killed := time.NewTimer(stopTime + time.Second)
		p.shutdown()
		<-killed.C
		p.crash()
	})
}

// shutdown shuts the guard down. Its runs may be blocked, so the error says nothing.
func (p *process) shutdown() {
	ctx, cancel := context.WithTimeout(context.Background(), stopTime)
	defer cancel()
	_ = p.guard.Shutdown(ctx)
}

// pause lets the process make no step until its lock has expired, and delivers its work to another
// process meanwhile. A timer of the process goes on.
func (p *process) pause() {
	ttl := p.options.Worker.Lock.TTL
	p.mu.Lock()
	p.paused = time.Now().Add(2 * ttl)
	p.mu.Unlock()
	p.again(ttl + time.Second)
	time.Sleep(2 * ttl)
}

// serve handles a request, and answers 500 after a panic.
func (p *process) serve(r *http.Request) (answer *http.Response) {
	w := httptest.NewRecorder()
	defer func() {
		if recover() != nil {
			w.Code = http.StatusInternalServerError
		}
		answer = w.Result()
	}()
	p.handler.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), processKey{}, p)))
	return nil
}

// unary is the gate of the calls to both servers.
func (p *process) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn,
	invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
) error {
	call := func(ctx context.Context) error { return invoke(ctx, method, req, reply, cc, opts...) }
	switch r := req.(type) {
	case *cloudtaskspb.CreateTaskRequest:
		return p.pass(ctx, "book", "", call)
	case *firestorepb.CommitRequest:
		if len(r.Writes) == 1 {
			return p.commit(ctx, r.Writes[0], reply.(*firestorepb.CommitResponse), call)
		}
	}
	if err := p.wait(); err != nil {
		return err
	}
	return call(ctx)
}

// stream is the gate of reads.
func (p *process) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string,
	open grpc.Streamer, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	if err := p.wait(); err != nil {
		return nil, err
	}
	return open(ctx, desc, cc, method, opts...)
}

// commit is the gate of a commit, which is judged if it is applied.
func (p *process) commit(ctx context.Context, sent *firestorepb.Write, reply *firestorepb.CommitResponse,
	call func(context.Context) error,
) error {
	c := proof.Commit{Write: sent}
	write := p.read(c, time.Time{})
	kind := string(write.Kind)
	switch {
	case c.Names("effects") && c.GetUpdate().GetFields()["openEffects"] != nil:
		kind = "marker"
	case c.Names("effects") && write.Kind == proof.Heartbeat:
		kind = "outcome"
	case c.Names("checkpoint") && write.Kind == proof.Heartbeat:
		kind = "checkpoint"
	}

	return p.pass(ctx, kind, "", func(ctx context.Context) error {
		err := call(ctx)
		if err == nil {
			p.applied(c, reply.GetCommitTime().AsTime())
		}
		return err
	})
}

// read returns what a commit of the process changes.
func (p *process) read(c proof.Commit, at time.Time) proof.Write {
	f := p.fields
	write := c.Read(at, cmp.Or(f.Status, "status"),
		cmp.Or(f.Finished, analysislock.Ready), cmp.Or(f.Failed, analysislock.Failed))
	write.By = fmt.Sprint("p", p.n)
	return write
}

// applied records a commit that Firestore has applied at that time.
func (p *process) applied(c proof.Commit, at time.Time) {
	write := p.read(c, at)
	p.mu.Lock()
	defer p.mu.Unlock()
	name := c.GetUpdate().GetName()
	if p.document == "" && (write.Kind == proof.Create || write.Kind == proof.Acquire) {
		p.document = name
	}
	if name != p.document {
		return // of another record
	}
	if write.Kind == proof.Acquire {
		p.token = write.Token
	}
	if c.Names("openEffects") {
		p.uncertain = c.GetUpdate().GetFields()["openEffects"] != nil
	}
	if write.Kind != proof.Create {
		p.writes = append(p.writes, applied{write, at})
	}
}
