package chaos

import (
	"path"
	"slices"
	"testing"
	"time"

	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
)

// kind is what a commit does to an analysis.
type kind string

const (
	acquire   kind = "acquire"
	heartbeat kind = "heartbeat"
	release   kind = "release"
	finish    kind = "finish"
	other     kind = "other"
)

// operator is the caller that is no worker: those count from 1.
const (
	operator = 0
	unknown  = -1
)

// call is one call of a worker's, or of the operator's.
type call struct {
	caller       int
	path, method string
	md           metadata.MD
	request      []byte

	doc    string             // id of the one document that it reads or writes
	commit *firestorepb.Write // of a Commit
	kind   kind
	nth    int // of the calls of this method and kind on this document, from 1
	fault  string
}

func newCall(method string, md metadata.MD, request []byte) *call {
	c := &call{path: method, method: path.Base(method), md: md, request: request}
	switch c.method {
	case "Commit":
		var commit firestorepb.CommitRequest
		if proto.Unmarshal(request, &commit) == nil && len(commit.Writes) == 1 {
			c.commit, c.kind = commit.Writes[0], kindOf(commit.Writes[0])
			c.doc = path.Base(c.commit.GetUpdate().GetName())
		}
	case "BatchGetDocuments":
		var get firestorepb.BatchGetDocumentsRequest
		if proto.Unmarshal(request, &get) == nil && len(get.Documents) == 1 {
			c.doc = path.Base(get.Documents[0])
		}
	}
	return c
}

// key is what calls are counted by.
type key struct {
	method, doc string
	kind        kind
}

func (c *call) key() key { return key{c.method, c.doc, c.kind} }

// kindOf tells a commit by what it writes.
func kindOf(w *firestorepb.Write) kind {
	fields := w.GetUpdate().GetFields()
	named := func(field string) bool { return slices.Contains(w.GetUpdateMask().GetFieldPaths(), field) }
	switch status := fields["status"].GetStringValue(); {
	case status == "READY" || status == "FAILED":
		return finish
	case fields["lockToken"] != nil:
		return acquire
	case named("lockOwner") && fields["lockOwner"] == nil:
		return release
	case named("lockExpiresAt"):
		return heartbeat
	}
	return other
}

// write is a commit that was applied.
type write struct {
	doc    string
	kind   kind
	caller int
	at     time.Time // Firestore's
	owner  string    // of an acquisition; of a finish, who finished
	token  int64     // of an acquisition; of a finish, the one in the result
	// of an acquisition and a heartbeat
	read, expires time.Time
}

func (c *call) write(at time.Time) write {
	fields := c.commit.GetUpdate().GetFields()
	w := write{doc: c.doc, kind: c.kind, caller: c.caller, at: at}
	switch c.kind {
	case finish:
		w.owner = fields["finishedBy"].GetStringValue()
		w.token = fields["result"].GetMapValue().GetFields()["token"].GetIntegerValue()
	case acquire:
		w.owner, w.token = fields["lockOwner"].GetStringValue(), fields["lockToken"].GetIntegerValue()
	}
	w.read, _ = time.Parse(time.RFC3339, fields["lockHeartbeatAt"].GetStringValue())
	w.expires, _ = time.Parse(time.RFC3339, fields["lockExpiresAt"].GetStringValue())
	return w
}

// written is the history of a document, in Firestore's order.
func (p *proxy) written(doc string) []write {
	p.mu.Lock()
	defer p.mu.Unlock()
	return about(p.history, doc)
}

// doubted are the commits to a document that may have been applied, at any time
// after they were sent.
func (p *proxy) doubted(doc string) []write {
	p.mu.Lock()
	defer p.mu.Unlock()
	return about(p.doubtful, doc)
}

// about are the writes of a document, in the order of their times.
func about(writes []write, doc string) []write {
	var all []write
	for i := range writes {
		if writes[i].doc == doc {
			all = append(all, writes[i])
		}
	}
	slices.SortStableFunc(all, func(a, b write) int { return a.at.Compare(b.at) })
	return all
}

// tally counts the writes of a document by kind.
func (p *proxy) tally(doc string) map[kind]int {
	n := map[kind]int{}
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.history {
		if w := &p.history[i]; w.doc == doc {
			n[w.kind]++
		}
	}
	return n
}

// settled waits until no call about a document is under way.
func (p *proxy) settled(t testing.TB, doc string) {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		p.mu.Lock()
		n := p.underWay[doc]
		p.mu.Unlock()
		if n == 0 {
			return
		}
	}
	t.Fatalf("%s: a call does not end", doc)
}
