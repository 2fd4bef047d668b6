package firestore

import (
	"slices"

	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// query is a checked firestorepb.StructuredQuery.
type query struct {
	parent      path   // a document or the root
	collection  string // empty: every collection
	descendants bool   // collections at any depth below parent
	where       predicate
	order       []ordering
	start, end  *cursor
	offset      int
	limit       int // -1: none
	mask        []fieldPath
}

// ordering is one term of the sort order.
type ordering struct {
	path fieldPath
	sign int // -1: descending
}

// cursor is a position between documents, given by values of the leading terms
// of the order.
type cursor struct {
	values []*value
	before bool // just before the documents with these values, not after
}

// parseQuery checks a query below parent.
func parseQuery(parent path, pb *firestorepb.StructuredQuery) (*query, error) {
	q := &query{parent: parent, limit: -1, offset: int(pb.GetOffset())}
	if q.offset < 0 {
		return nil, invalid("offset is negative")
	}
	if pb.GetLimit() != nil {
		if q.limit = int(pb.GetLimit().GetValue()); q.limit < 0 {
			return nil, invalid("limit is negative")
		}
	}
	if pb.GetFindNearest() != nil {
		return nil, unimplemented("find_nearest")
	}
	if err := q.parseFrom(pb.GetFrom()); err != nil {
		return nil, err
	}
	var f filters
	var err error
	if q.where, err = f.parse(pb.GetWhere(), 0); err != nil {
		return nil, err
	}
	if err = f.check(); err != nil {
		return nil, err
	}
	if err = q.parseOrder(pb.GetOrderBy(), f.ranges); err != nil {
		return nil, err
	}
	if q.start, err = q.parseCursor(pb.GetStartAt(), len(pb.GetOrderBy())); err != nil {
		return nil, err
	}
	if q.end, err = q.parseCursor(pb.GetEndAt(), len(pb.GetOrderBy())); err != nil {
		return nil, err
	}
	if pb.GetSelect() != nil {
		q.mask, err = parseReferences(pb.GetSelect().GetFields())
	}
	return q, err
}

func (q *query) parseFrom(from []*firestorepb.StructuredQuery_CollectionSelector) error {
	if len(from) > 1 {
		return invalid("a query has more than one collection selector")
	}
	if len(from) == 1 {
		q.collection, q.descendants = from[0].GetCollectionId(), from[0].GetAllDescendants()
	}
	if q.collection == "" {
		return nil
	}
	return checkID(q.collection)
}

// parseOrder adds what Firestore adds to the order asked for: the fields of
// range filters, then the name, both in the direction of the last term.
func (q *query) parseOrder(list []*firestorepb.StructuredQuery_Order, ranges []fieldPath) error {
	sign := 1
	for _, pb := range list {
		fp, err := parseReference(pb.GetField())
		if err != nil {
			return err
		}
		if q.ordersBy(fp) || q.ordersBy(fieldPath{documentID}) {
			return invalid("the order has a term after %s, or one twice", documentID)
		}
		if sign, err = parseDirection(pb.GetDirection()); err != nil {
			return err
		}
		q.order = append(q.order, ordering{fp, sign})
	}
	if q.where == nil && len(q.order) == 1 && q.order[0].path.isDocumentID() && sign < 0 {
		return status.Error(codes.FailedPrecondition, "Firestore does not support descending key scans")
	}
	slices.SortFunc(ranges, slices.Compare[fieldPath])
	for _, fp := range append(ranges, fieldPath{documentID}) {
		if !q.ordersBy(fp) && !q.ordersBy(fieldPath{documentID}) {
			q.order = append(q.order, ordering{fp, sign})
		}
	}
	return nil
}

func parseDirection(d firestorepb.StructuredQuery_Direction) (sign int, err error) {
	switch d {
	case firestorepb.StructuredQuery_DIRECTION_UNSPECIFIED, firestorepb.StructuredQuery_ASCENDING:
		return 1, nil
	case firestorepb.StructuredQuery_DESCENDING:
		return -1, nil
	}
	return 0, invalid("unknown direction %d", d)
}

func (q *query) ordersBy(fp fieldPath) bool {
	return slices.ContainsFunc(q.order, func(o ordering) bool { return slices.Equal(o.path, fp) })
}

// parseCursor reads a cursor, which gives values for terms that the query asks
// for, not for those added to them.
func (q *query) parseCursor(pb *firestorepb.Cursor, terms int) (*cursor, error) {
	if pb == nil {
		return nil, nil
	}
	if len(pb.GetValues()) > terms {
		return nil, invalid("a cursor has more values than the order has terms")
	}
	for i, v := range pb.GetValues() {
		if q.order[i].path.isDocumentID() && classOf(v) != classReference {
			return nil, invalid("a cursor's %s is not a reference", documentID)
		}
	}
	return &cursor{values: pb.GetValues(), before: pb.GetBefore()}, nil
}

// matches tells whether d belongs to the query's results, cursors and limits
// aside. nil does not.
func (q *query) matches(d *document) bool {
	if d == nil || !q.covers(d.path) {
		return false
	}
	for _, o := range q.order {
		if valueAt(d, o.path) == nil {
			return false
		}
	}
	return q.where == nil || q.where(d)
}

func (q *query) covers(p path) bool {
	depth := len(q.parent.segments)
	if p.database != q.parent.database || len(p.segments) < depth+2 {
		return false
	}
	if !slices.Equal(p.segments[:depth], q.parent.segments) {
		return false
	}
	return (q.descendants || len(p.segments) == depth+2) &&
		(q.collection == "" || p.collection() == q.collection)
}

// valueAt is the document's value at fp, its name as a reference for __name__,
// or nil.
func valueAt(d *document, fp fieldPath) *value {
	if fp.isDocumentID() {
		return &value{ValueType: &firestorepb.Value_ReferenceValue{ReferenceValue: d.pb.Name}}
	}
	return lookup(d.pb.Fields, fp)
}

// window sorts the matches and cuts them by cursors, offset and limit.
func (q *query) window(docs []*document) (kept []*document, skipped int) {
	slices.SortFunc(docs, q.compare)
	docs = slices.DeleteFunc(docs, func(d *document) bool { return !q.between(d) })
	skipped = min(q.offset, len(docs))
	docs = docs[skipped:]
	if q.limit >= 0 && len(docs) > q.limit {
		docs = docs[:q.limit]
	}
	return docs, skipped
}

func (q *query) compare(a, b *document) int {
	for _, o := range q.order {
		if c := compareValues(valueAt(a, o.path), valueAt(b, o.path)); c != 0 {
			return c * o.sign
		}
	}
	return 0
}

// between tells whether d is within the cursors.
func (q *query) between(d *document) bool {
	if q.start != nil {
		if c := q.position(d, q.start); c < 0 || c == 0 && !q.start.before {
			return false
		}
	}
	if q.end != nil {
		if c := q.position(d, q.end); c > 0 || c == 0 && q.end.before {
			return false
		}
	}
	return true
}

// position compares d with the cursor's values.
func (q *query) position(d *document, c *cursor) int {
	for i, v := range c.values {
		if r := compareValues(valueAt(d, q.order[i].path), v); r != 0 {
			return r * q.order[i].sign
		}
	}
	return 0
}

func parseReference(pb *firestorepb.StructuredQuery_FieldReference) (fieldPath, error) {
	return parseFieldPath(pb.GetFieldPath())
}

func parseReferences(list []*firestorepb.StructuredQuery_FieldReference) ([]fieldPath, error) {
	paths := make([]fieldPath, 0, len(list))
	for _, pb := range list {
		fp, err := parseReference(pb)
		if err != nil {
			return nil, err
		}
		paths = append(paths, fp)
	}
	return paths, nil
}
