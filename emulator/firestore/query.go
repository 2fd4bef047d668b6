package firestore

import (
	"slices"
	"strings"

	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// query is a checked firestorepb.StructuredQuery.
type query struct {
	collection string // its full name
	where      predicate
	order      []ordering
	start, end *firestorepb.Cursor // nil: none
	offset     int
	limit      int // -1: none
	mask       []fieldPath
}

// ordering is one term of the sort order.
type ordering struct {
	path fieldPath
	sign int // -1: descending
}

// parseQuery checks a query of a collection in parent, which is a document or the root of
// a database. It also returns the name of the database.
func parseQuery(parent string, pb *firestorepb.StructuredQuery) (database string, q *query, err error) {
	database, ids, err := splitName(parent)
	if err != nil {
		return "", nil, err
	}
	if len(ids)%2 != 0 {
		return "", nil, invalid("the parent %q is a collection", parent)
	}
	q, err = parseStructured(database, parent, pb)
	return database, q, err
}

func parseStructured(database, parent string, pb *firestorepb.StructuredQuery) (*query, error) {
	collections := pb.GetFrom()
	if len(collections) != 1 || collections[0].GetCollectionId() == "" || collections[0].GetAllDescendants() {
		return nil, unimplemented("a query of anything but one collection")
	}
	if pb.GetFindNearest() != nil {
		return nil, unimplemented("find_nearest")
	}
	if err := checkID(collections[0].GetCollectionId()); err != nil {
		return nil, err
	}

	q := &query{
		collection: parent + "/" + collections[0].GetCollectionId(),
		start:      pb.GetStartAt(), end: pb.GetEndAt(), offset: int(pb.GetOffset()), limit: -1,
	}
	if pb.GetLimit() != nil {
		if q.limit = int(pb.GetLimit().GetValue()); q.limit < 0 {
			return nil, invalid("limit is negative")
		}
	}
	if q.offset < 0 {
		return nil, invalid("offset is negative")
	}

	f := &filters{database: database}
	where, err := f.parse(pb.GetWhere())
	if err != nil {
		return nil, err
	}
	if err := f.check(where, len(pb.GetOrderBy())); err != nil {
		return nil, err
	}
	q.where = where.matches
	if err := q.parseOrder(pb.GetOrderBy(), f.ranges); err != nil {
		return nil, err
	}
	for _, cursor := range []*firestorepb.Cursor{q.start, q.end} {
		if err := q.checkCursor(database, cursor, len(pb.GetOrderBy())); err != nil {
			return nil, err
		}
	}
	if q.order[0].path.isKey() && q.order[0].sign < 0 && !f.others {
		return nil, status.Error(codes.FailedPrecondition, "the names of documents cannot be read in descending order")
	}

	if pb.GetSelect() != nil {
		mask := &firestorepb.DocumentMask{}
		for _, field := range pb.GetSelect().GetFields() {
			mask.FieldPaths = append(mask.FieldPaths, field.GetFieldPath())
		}
		q.mask, err = parseMask(mask)
	}
	return q, err
}

// parseOrder reads the order of the request. As Firestore does, it adds the fields of range
// filters and then the name, both in the direction of the last term.
func (q *query) parseOrder(list []*firestorepb.StructuredQuery_Order, ranges []fieldPath) error {
	has := func(fp fieldPath) bool {
		return slices.ContainsFunc(q.order, func(o ordering) bool { return slices.Equal(o.path, fp) })
	}
	sign := 1
	for _, pb := range list {
		fp, err := parseFieldPath(pb.GetField().GetFieldPath())
		if err != nil {
			return err
		}
		if has(fp) || pb.GetDirection() > firestorepb.StructuredQuery_DESCENDING {
			return invalid("the order has %q twice, or its direction is unknown", pb.GetField().GetFieldPath())
		}
		sign = 1
		if pb.GetDirection() == firestorepb.StructuredQuery_DESCENDING {
			sign = -1
		}
		q.order = append(q.order, ordering{fp, sign})
	}

	ranges = slices.DeleteFunc(ranges, fieldPath.isKey) // the name follows the others
	for _, fp := range append(ranges, fieldPath{documentID}) {
		if !has(fp) {
			q.order = append(q.order, ordering{fp, sign})
		}
	}
	if !q.order[len(q.order)-1].path.isKey() {
		return invalid("the order has fields, or needs those of inequalities, after %s", documentID)
	}
	return nil
}

// checkCursor refuses a cursor whose values do not fit the first terms of the order.
func (q *query) checkCursor(database string, cursor *firestorepb.Cursor, terms int) error {
	if len(cursor.GetValues()) > terms {
		return invalid("a cursor has more values than the order")
	}
	for i, v := range cursor.GetValues() {
		if err := checkOperand(database, q.order[i].path, v); err != nil {
			return err
		}
	}
	return nil
}

// matches reports whether d is a result of the query without its offset and limit. d may be nil.
func (q *query) matches(d *document) bool {
	if d == nil || d.Name[:strings.LastIndexByte(d.Name, '/')] != q.collection {
		return false
	}
	for _, o := range q.order {
		if valueAt(d, o.path) == nil {
			return false
		}
	}
	fromStart, fromEnd := q.compare(d, q.start), q.compare(d, q.end)
	return q.where(d) &&
		(q.start == nil || fromStart > 0 || fromStart == 0 && q.start.GetBefore()) &&
		(q.end == nil || fromEnd < 0 || fromEnd == 0 && !q.end.GetBefore())
}

// compare returns a negative number if d is before the cursor, 0 if it is at it, else a positive one.
func (q *query) compare(d *document, cursor *firestorepb.Cursor) int {
	for i, v := range cursor.GetValues() {
		if c := compareValues(valueAt(d, q.order[i].path), v); c != 0 {
			return c * q.order[i].sign
		}
	}
	return 0
}

// valueAt returns the document's value at fp, or nil. The value of __name__ is a reference.
func valueAt(d *document, fp fieldPath) *value {
	if fp.isKey() {
		return &value{ValueType: &firestorepb.Value_ReferenceValue{ReferenceValue: d.Name}}
	}
	return lookup(d.Fields, fp)
}

// sortAndCut sorts the matches and applies offset and limit.
func (q *query) sortAndCut(docs []*document) []*document {
	slices.SortFunc(docs, q.compareDocs)
	docs = docs[min(q.offset, len(docs)):]
	if q.limit >= 0 {
		docs = docs[:min(q.limit, len(docs))]
	}
	return docs
}

// compareDocs compares two documents in the order of the query.
func (q *query) compareDocs(a, b *document) int {
	for _, o := range q.order {
		if c := compareValues(valueAt(a, o.path), valueAt(b, o.path)); c != 0 {
			return c * o.sign
		}
	}
	return 0
}

// nearest collects the documents that match a query. If the query has a limit, it keeps only documents that may be
// within it: with 100,000 documents, sorting all of them for each page took most of a test's time.
type nearest struct {
	*query
	docs []*document
	last *document // what comes after it is beyond the limit; nil: not known yet
}

// add takes a document, if it matches. nil does not.
func (n *nearest) add(d *document) {
	if !n.matches(d) || n.last != nil && n.compareDocs(d, n.last) > 0 {
		return
	}
	n.docs = append(n.docs, d)
	if kept := n.offset + n.limit; n.limit > 0 && len(n.docs) >= 2*kept+100 {
		slices.SortFunc(n.docs, n.compareDocs)
		n.docs, n.last = n.docs[:kept], n.docs[kept-1]
	}
}
