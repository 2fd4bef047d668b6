package firestore

import (
	"encoding/binary"
	"errors"
	"io"
	"slices"
	"sync"
	"time"

	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Listen sends the client one snapshot for each commit that concerns its target, until the
// client closes its side or disconnects.
func (a *api) Listen(stream firestorepb.Firestore_ListenServer) error {
	l := &listener{store: a.store, wake: make(chan struct{}, 1)}
	var sending sync.WaitGroup
	sending.Go(func() { l.send(stream.Send) })
	err := l.receive(stream.Recv)
	l.close()
	sending.Wait()
	return err
}

// snapshot holds the messages that lead a listener from one consistent state to
// the next.
type snapshot []*firestorepb.ListenResponse

// listener is one stream with one target. The store's mutex guards its fields except wake.
// It is not held while a message is sent or received.
type listener struct {
	store  *store
	db     *database // nil before the first request
	target target
	unsent []snapshot
	wake   chan struct{} // filled after a push; closed by close
}

// target is the query or the document that a stream listens to.
type target struct {
	id    int32
	query *query // nil: the document
	name  string
}

// receive handles the client's requests until the client closes its side.
func (l *listener) receive(recv func() (*firestorepb.ListenRequest, error)) error {
	for {
		r, err := recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}

		if err := checkDatabase(r.GetDatabase()); err != nil {
			return err
		}
		if r.GetAddTarget() == nil {
			return unimplemented("a request that adds no target")
		}
		t, err := parseTarget(r.GetDatabase(), r.GetAddTarget())
		if err != nil {
			return err
		}
		if err := l.store.read(r.GetDatabase(), func(v *view) error { return l.add(v, t) }); err != nil {
			return err
		}
	}
}

func parseTarget(dbName string, pb *firestorepb.Target) (target, error) {
	t := target{id: pb.GetTargetId()}
	if pb.GetOnce() {
		return t, unimplemented("once in a listener")
	}
	if q := pb.GetQuery(); q != nil {
		database, parsed, err := parseQuery(q.GetParent(), q.GetStructuredQuery())
		switch {
		case err != nil:
			return t, err
		case database != dbName:
			return t, invalid("the parent %q is not in database %q", q.GetParent(), dbName)
		case parsed.limit >= 0 || parsed.offset > 0:
			return t, unimplemented("a limit or an offset in a listener")
		}
		t.query = parsed
		return t, nil
	}

	names := pb.GetDocuments().GetDocuments()
	if len(names) != 1 {
		return t, unimplemented("a target of several documents")
	}
	t.name = names[0]
	return t, checkDocument(dbName, t.name)
}

// add answers the target with its first snapshot. A target that resumes gets a whole snapshot
// too.
func (l *listener) add(v *view, t target) error {
	if l.db != nil {
		return unimplemented("a second target on a stream")
	}
	l.db, l.target = v.db, t
	l.db.listeners[l] = struct{}{}

	// RESET is sent even if the target does not resume: a client whose connection broke
	// between a RESET and the next snapshot has dropped its token, but not its documents.
	added := targetChange(firestorepb.TargetChange_ADD, t.id)
	answer := snapshot{added, dated(firestorepb.TargetChange_RESET, v.at, t.id)}
	answer = append(answer, t.messages(v.db, v.at, t.first(v))...)
	l.push(append(answer, dated(firestorepb.TargetChange_CURRENT, v.at, t.id), consistent(v.at)))
	return nil
}

// first returns the first results as changes. It is billed as the same read
// without a listener.
func (t *target) first(v *view) (changes []change) {
	if t.query == nil {
		return []change{{name: t.name, after: v.get(t.name)}}
	}
	for _, d := range v.run(t.query) {
		changes = append(changes, change{name: d.Name, after: d})
	}
	return changes
}

// committed queues the snapshot of a commit that changes the results. As in Firestore, a
// read is billed for each changed document that is or was among the results, unless it was
// deleted.
func (l *listener) committed(at time.Time, changes []change) {
	var seen []change
	for _, c := range changes {
		if !l.target.shows(c.name, c.before) {
			c.before = nil
		}
		if !l.target.shows(c.name, c.after) {
			c.after = nil
		}
		if c.before == c.after {
			continue
		}

		seen = append(seen, c)
		if l.db.docs[c.name] != nil {
			l.store.billed.Reads++
		}
	}
	if len(seen) > 0 {
		l.push(append(l.target.messages(l.db, at, seen), consistent(at)))
	}
}

// shows reports whether a version of the named document is among the results.
func (t *target) shows(name string, d *document) bool {
	if t.query == nil {
		return t.name == name
	}
	return t.query.matches(d)
}

// messages returns a message for each change: a document's new version, or that the
// document does not exist, or that it exists but is no longer among the results.
func (t *target) messages(db *database, at time.Time, changes []change) (s snapshot) {
	ids, readTime := []int32{t.id}, timestamppb.New(at)
	for _, c := range changes {
		r := &firestorepb.ListenResponse{}
		switch {
		case c.after != nil:
			doc := c.after
			if t.query != nil {
				doc = masked(doc, t.query.mask)
			}
			r.ResponseType = &firestorepb.ListenResponse_DocumentChange{
				DocumentChange: &firestorepb.DocumentChange{Document: doc, TargetIds: ids},
			}

		case db.docs[c.name] == nil:
			r.ResponseType = &firestorepb.ListenResponse_DocumentDelete{DocumentDelete: &firestorepb.DocumentDelete{
				Document: c.name, RemovedTargetIds: ids, ReadTime: readTime,
			}}

		default:
			r.ResponseType = &firestorepb.ListenResponse_DocumentRemove{DocumentRemove: &firestorepb.DocumentRemove{
				Document: c.name, RemovedTargetIds: ids, ReadTime: readTime,
			}}
		}
		s = append(s, r)
	}
	return s
}

// push queues a snapshot.
func (l *listener) push(s snapshot) {
	l.unsent = append(l.unsent, s)
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// send sends the snapshots until close, and the rest of the queue. It blocks while the client
// does not read.
func (l *listener) send(send func(*firestorepb.ListenResponse) error) {
	for range l.wake {
		l.store.mu.Lock()
		messages := slices.Concat(l.unsent...)
		l.unsent = nil
		l.store.mu.Unlock()
		if sendAll(send, messages) != nil {
			return // the client has gone; receive returns the reason
		}
	}
}

// close ends the listening, so that no further commit is queued.
func (l *listener) close() {
	l.store.mu.Lock()
	defer l.store.mu.Unlock()
	if l.db != nil {
		delete(l.db.listeners, l)
	}
	close(l.wake)
}

func targetChange(kind firestorepb.TargetChange_TargetChangeType, ids ...int32) *firestorepb.ListenResponse {
	return &firestorepb.ListenResponse{ResponseType: &firestorepb.ListenResponse_TargetChange{
		TargetChange: &firestorepb.TargetChange{TargetChangeType: kind, TargetIds: ids},
	}}
}

// dated returns a target change with a time and a resume token.
func dated(kind firestorepb.TargetChange_TargetChangeType, at time.Time, ids ...int32) *firestorepb.ListenResponse {
	r := targetChange(kind, ids...)
	r.GetTargetChange().ReadTime = timestamppb.New(at)
	r.GetTargetChange().ResumeToken = binary.BigEndian.AppendUint64(nil, uint64(at.UnixMicro()))
	return r
}

// consistent returns the message that completes a snapshot of the state at a time.
func consistent(at time.Time) *firestorepb.ListenResponse {
	return dated(firestorepb.TargetChange_NO_CHANGE, at)
}
