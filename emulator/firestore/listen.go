package firestore

import (
	"cmp"
	"encoding/binary"
	"errors"
	"io"
	"slices"
	"time"

	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// maxBehind is how many snapshots a listener may leave unread, beyond what the
// connection buffers, before its stream ends.
const maxBehind = 10_000

// errBehind ends the stream of a listener that reads too slowly. UNAVAILABLE
// makes Google's client come back after about a second and start from a whole
// snapshot: ABORTED it would not retry, RESOURCE_EXHAUSTED only after a minute.
var errBehind = status.Errorf(codes.Unavailable, "the listener is more than %d snapshots behind", maxBehind)

// Listen tells the client of every commit that concerns its targets, each in a
// snapshot of its own, until the client closes its side, goes away or falls too
// far behind.
func (a *api) Listen(stream firestorepb.Firestore_ListenServer) error {
	l := &listener{store: a.store, wake: make(chan struct{}, 1)}
	defer l.close()
	received := make(chan error, 1)
	// Recv ends only after this method has returned, so it is for the server's
	// Close to wait for it.
	a.receivers.Go(func() { received <- l.receive(stream.Recv) })
	for {
		select {
		case err := <-received:
			flushed := l.flush(stream.Send) // the answers to the requests before
			return cmp.Or(err, flushed)
		case <-l.wake:
			if err := l.flush(stream.Send); err != nil {
				return err
			}
		}
	}
}

// snapshot is what leads a listener from one consistent state to the next.
type snapshot []*firestorepb.ListenResponse

// listener is one stream. Everything but wake is guarded by the store's mutex,
// which is never held while a message is sent or awaited.
type listener struct {
	store   *store
	db      *database // nil before the first request
	name    string    // of db
	targets []*target // in the order in which they were added
	unsent  []snapshot
	behind  bool
	closed  bool
	wake    chan struct{} // filled when there is something to flush
}

// receive follows the client's requests; nil once it has closed its side. No
// commit is queued after it, also where the client does not read.
func (l *listener) receive(recv func() (*firestorepb.ListenRequest, error)) error {
	defer l.close()
	for {
		r, err := recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := l.handle(r); err != nil {
			return err
		}
	}
}

func (l *listener) handle(r *firestorepb.ListenRequest) error {
	if err := checkDatabase(r.GetDatabase()); err != nil {
		return err
	}
	switch change := r.GetTargetChange().(type) {
	case *firestorepb.ListenRequest_AddTarget:
		t, refusal := parseTarget(r.GetDatabase(), change.AddTarget)
		return l.use(r.GetDatabase(), func(v *view) error { return l.add(v, change.AddTarget, t, refusal) })
	case *firestorepb.ListenRequest_RemoveTarget:
		return l.use(r.GetDatabase(), func(*view) error { l.remove(change.RemoveTarget); return nil })
	}
	return invalid("the request neither adds nor removes a target")
}

// use runs f on the database as it is now, and sees to it that the listener
// hears of every later commit. A stream keeps to one database.
func (l *listener) use(dbName string, f func(*view) error) error {
	return l.store.read(dbName, consistency{}, func(v *view) error {
		switch {
		case l.closed:
			return nil
		case l.db == nil:
			l.db, l.name = v.db, dbName
			l.db.observers[l] = struct{}{}
		case l.name != dbName:
			return invalid("a stream listens to one database: %q, not also %q", l.name, dbName)
		}
		return f(v)
	})
}

// add answers a new target with its first snapshot, or, where it is refused,
// with the reason: the stream and its other targets live on. No history is
// kept: a target that resumes begins like any other, and so there are never
// existence filters.
func (l *listener) add(v *view, pb *firestorepb.Target, t *target, refusal error) error {
	id, err := l.assign(pb.GetTargetId())
	if err != nil {
		return err
	}
	answer := snapshot{targetChange(firestorepb.TargetChange_ADD, id)}
	if refusal != nil {
		l.push(append(answer, removal(id, refusal)))
		return nil
	}
	t.id = id
	// Also for a target that resumes nothing: a client whose connection broke
	// between a RESET and the snapshot after it has forgotten its token, but
	// not its documents.
	answer = append(answer, dated(firestorepb.TargetChange_RESET, v.at, id))
	answer = append(answer, t.begin(v)...)
	answer = append(answer, dated(firestorepb.TargetChange_CURRENT, v.at, id), consistent(v.at))
	if pb.GetOnce() {
		answer = append(answer, removal(id, nil))
	} else {
		l.targets = append(l.targets, t)
	}
	l.push(answer)
	return nil
}

// assign is the id that a target goes by: the client's, or the lowest free one
// for 0.
func (l *listener) assign(id int32) (int32, error) {
	switch {
	case id < 0:
		return 0, invalid("the target id %d is negative", id)
	case id == 0:
		for id = 1; l.has(id); {
			id++
		}
	case l.has(id):
		return 0, invalid("the target id %d is taken", id)
	}
	return id, nil
}

func (l *listener) has(id int32) bool {
	return slices.ContainsFunc(l.targets, func(t *target) bool { return t.id == id })
}

// remove is silent about a target that is not there.
func (l *listener) remove(id int32) {
	if l.has(id) {
		l.targets = slices.DeleteFunc(l.targets, func(t *target) bool { return t.id == id })
		l.push(snapshot{removal(id, nil)})
	}
}

// committed queues the snapshot that the commit leads to, if it concerns any
// target.
func (l *listener) committed(at time.Time, changes []change) {
	v := &view{store: l.store, db: l.db, at: at}
	var news snapshot
	for _, t := range l.targets {
		news = append(news, t.news(v, changes)...)
	}
	if len(news) > 0 {
		l.push(append(news, consistent(at)))
	}
}

// push queues, and gives the stream up where the queue is full.
func (l *listener) push(s snapshot) {
	if len(l.unsent) == maxBehind {
		l.behind, l.unsent = true, nil
		l.stop()
	} else {
		l.unsent = append(l.unsent, s)
	}
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// flush sends until nothing is left. It blocks while the client does not read.
func (l *listener) flush(send func(*firestorepb.ListenResponse) error) error {
	for {
		next, err := l.pop()
		if next == nil || err != nil {
			return err
		}
		for _, message := range next {
			if err := send(message); err != nil {
				return err
			}
		}
	}
}

// pop is the next snapshot to send, nil if there is none.
func (l *listener) pop() (snapshot, error) {
	l.store.mu.Lock()
	defer l.store.mu.Unlock()
	if l.behind {
		return nil, errBehind
	}
	if len(l.unsent) == 0 {
		return nil, nil
	}
	next := l.unsent[0]
	l.unsent[0] = nil
	l.unsent = l.unsent[1:]
	return next, nil
}

func (l *listener) close() {
	l.store.mu.Lock()
	defer l.store.mu.Unlock()
	l.stop()
}

// stop ends the listening, not the stream. The caller holds the mutex.
func (l *listener) stop() {
	l.closed = true
	if l.db != nil {
		delete(l.db.observers, l)
	}
}

func targetChange(kind firestorepb.TargetChange_TargetChangeType, ids ...int32) *firestorepb.ListenResponse {
	return &firestorepb.ListenResponse{ResponseType: &firestorepb.ListenResponse_TargetChange{
		TargetChange: &firestorepb.TargetChange{TargetChangeType: kind, TargetIds: ids},
	}}
}

// dated is a change with a time and the token to resume from it.
func dated(kind firestorepb.TargetChange_TargetChangeType, at time.Time, ids ...int32) *firestorepb.ListenResponse {
	r := targetChange(kind, ids...)
	r.GetTargetChange().ReadTime = timestamppb.New(at)
	r.GetTargetChange().ResumeToken = binary.BigEndian.AppendUint64(nil, uint64(at.UnixMicro()))
	return r
}

// consistent says that all the stream's targets are as of at.
func consistent(at time.Time) *firestorepb.ListenResponse {
	return dated(firestorepb.TargetChange_NO_CHANGE, at)
}

// removal says that a target has ended, and why, unless it was asked for.
func removal(id int32, cause error) *firestorepb.ListenResponse {
	r := targetChange(firestorepb.TargetChange_REMOVE, id)
	if cause != nil {
		r.GetTargetChange().Cause = status.Convert(cause).Proto()
	}
	return r
}
