package firestore

import (
	"maps"
	"slices"

	"cloud.google.com/go/firestore/apiv1/firestorepb"
)

// target is one query, or list of documents, that a stream listens to.
type target struct {
	id    int32
	query *query   // nil: the documents named
	names []string // each once
	// shown are the results that the client has been told of, kept only where
	// a query's limit or offset lets one document move another in or out.
	shown map[string]*document
}

func parseTarget(dbName string, pb *firestorepb.Target) (*target, error) {
	switch kind := pb.GetTargetType().(type) {
	case *firestorepb.Target_Query:
		if kind.Query.GetStructuredQuery() == nil {
			return nil, unimplemented("a target without a structured query")
		}
		q, err := parseQueryRequest(kind.Query.GetParent(), kind.Query.GetStructuredQuery())
		if err != nil {
			return nil, err
		}
		if q.parent.database != dbName {
			return nil, invalid("the parent %q is not in database %q", kind.Query.GetParent(), dbName)
		}
		return &target{query: q}, nil
	case *firestorepb.Target_Documents:
		t := &target{}
		for _, name := range kind.Documents.GetDocuments() {
			if _, err := parseDocument(dbName, name); err != nil {
				return nil, err
			}
			if !slices.Contains(t.names, name) {
				t.names = append(t.names, name)
			}
		}
		return t, nil
	}
	return nil, unimplemented("a target that is neither a query nor documents")
}

// begin tells what the target shows at first: its documents, and which of those
// named are missing. It is billed as the same reading without a listener.
func (t *target) begin(v *view) snapshot {
	var first []change
	if t.query == nil {
		for _, name := range t.names {
			first = append(first, change{name: name, after: v.get(name)})
		}
		return t.tell(v, first)
	}
	docs, _ := v.run(t.query)
	for _, d := range docs {
		first = append(first, change{name: d.pb.Name, after: d})
	}
	if t.query.limit >= 0 || t.query.offset > 0 {
		t.shown = byName(docs)
	}
	return t.tell(v, first)
}

// news tells what a commit, already in the view, changes in what the target
// shows. As Firestore bills, a document costs a read when it is sent and when a
// change of its own takes it out of the results, and nothing when it is deleted
// or makes room for another.
func (t *target) news(v *view, changes []change) snapshot {
	var seen []change
	if t.shown == nil {
		seen = t.filter(changes)
	} else if len(t.filter(changes)) > 0 {
		seen = t.compare(v)
	}
	for _, c := range seen {
		if now := v.db.docs[c.name]; now != nil && now != c.before {
			v.store.billed.Reads++
		}
	}
	return t.tell(v, seen)
}

// filter is what the changes are to the target, limits aside: a document that
// it does not show is none. Without limits what it showed before follows from
// the document as it was before.
func (t *target) filter(changes []change) []change {
	var seen []change
	for _, c := range changes {
		if !t.shows(c.name, c.before) {
			c.before = nil
		}
		if !t.shows(c.name, c.after) {
			c.after = nil
		}
		if c.before != c.after {
			seen = append(seen, c)
		}
	}
	return seen
}

func (t *target) shows(name string, d *document) bool {
	if t.query == nil {
		return slices.Contains(t.names, name)
	}
	return t.query.matches(d) && t.query.between(d)
}

// compare runs the query again: first what has left the results, by name, then
// what has come in or changed, in the query's order.
func (t *target) compare(v *view) []change {
	docs, _ := v.search(t.query)
	next := byName(docs)
	var seen []change
	for _, name := range slices.Sorted(maps.Keys(t.shown)) {
		if next[name] == nil {
			seen = append(seen, change{name: name, before: t.shown[name]})
		}
	}
	for _, d := range docs {
		if before := t.shown[d.pb.Name]; before != d {
			seen = append(seen, change{name: d.pb.Name, before: before, after: d})
		}
	}
	t.shown = next
	return seen
}

// tell is a message for each change: the document as it is now, or that it is
// not there, or that it is, but no longer among the results.
func (t *target) tell(v *view, seen []change) snapshot {
	var s snapshot
	for _, c := range seen {
		r := &firestorepb.ListenResponse{}
		switch {
		case c.after != nil:
			r.ResponseType = &firestorepb.ListenResponse_DocumentChange{DocumentChange: &firestorepb.DocumentChange{
				Document: masked(c.after, t.mask()), TargetIds: []int32{t.id},
			}}
		case v.db.docs[c.name] == nil:
			r.ResponseType = &firestorepb.ListenResponse_DocumentDelete{DocumentDelete: &firestorepb.DocumentDelete{
				Document: c.name, RemovedTargetIds: []int32{t.id}, ReadTime: v.readTime(),
			}}
		default:
			r.ResponseType = &firestorepb.ListenResponse_DocumentRemove{DocumentRemove: &firestorepb.DocumentRemove{
				Document: c.name, RemovedTargetIds: []int32{t.id}, ReadTime: v.readTime(),
			}}
		}
		s = append(s, r)
	}
	return s
}

func (t *target) mask() []fieldPath {
	if t.query == nil {
		return nil
	}
	return t.query.mask
}

func byName(docs []*document) map[string]*document {
	m := make(map[string]*document, len(docs))
	for _, d := range docs {
		m[d.pb.Name] = d
	}
	return m
}
