package firestore

import (
	"context"
	"crypto/rand"
	"maps"
	"slices"
	"strings"

	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
)

// maxPage is the most documents or ids in one page, and their number where the
// request names none.
const maxPage = 300

// CreateDocument refuses to overwrite. Without an id it makes one up.
func (a *api) CreateDocument(ctx context.Context, r *firestorepb.CreateDocumentRequest) (*firestorepb.Document, error) {
	mask, err := parseMask(r.GetMask())
	if err != nil {
		return nil, err
	}
	id := r.GetDocumentId()
	if id == "" {
		id = rand.Text()[:20]
	}
	doc := &firestorepb.Document{
		Name:   r.GetParent() + "/" + r.GetCollectionId() + "/" + id,
		Fields: r.GetDocument().GetFields(),
	}
	return a.commitOne(ctx, doc.Name, mask, &firestorepb.Write{
		Operation:       &firestorepb.Write_Update{Update: doc},
		CurrentDocument: &firestorepb.Precondition{ConditionType: &firestorepb.Precondition_Exists{}},
	})
}

// UpdateDocument writes the fields that update_mask names, or all.
func (a *api) UpdateDocument(ctx context.Context, r *firestorepb.UpdateDocumentRequest) (*firestorepb.Document, error) {
	mask, err := parseMask(r.GetMask())
	if err != nil {
		return nil, err
	}
	return a.commitOne(ctx, r.GetDocument().GetName(), mask, &firestorepb.Write{
		Operation:       &firestorepb.Write_Update{Update: r.GetDocument()},
		UpdateMask:      r.GetUpdateMask(),
		CurrentDocument: r.GetCurrentDocument(),
	})
}

// DeleteDocument is no error where there is no document, unless the
// precondition asks for one.
func (a *api) DeleteDocument(ctx context.Context, r *firestorepb.DeleteDocumentRequest) (*emptypb.Empty, error) {
	_, err := a.commitOne(ctx, r.GetName(), nil, &firestorepb.Write{
		Operation:       &firestorepb.Write_Delete{Delete: r.GetName()},
		CurrentDocument: r.GetCurrentDocument(),
	})
	if err != nil {
		return nil, err
	}
	return &emptypb.Empty{}, nil
}

// commitOne commits one write outside any transaction and returns the document
// as the write left it, nil after a delete.
func (a *api) commitOne(ctx context.Context, name string, mask []fieldPath, pb *firestorepb.Write) (*firestorepb.Document, error) {
	p, err := parseDocument("", name)
	if err != nil {
		return nil, err
	}
	writes, err := parseWrites(p.database, []*firestorepb.Write{pb})
	if err != nil {
		return nil, err
	}
	done, err := a.store.commit(ctx, p.database, nil, writes)
	if err != nil || done.last == nil {
		return nil, err
	}
	return masked(done.last, mask), nil
}

// BatchWrite applies each write on its own and reports a status for each. It
// refuses two writes to one document.
func (a *api) BatchWrite(ctx context.Context, r *firestorepb.BatchWriteRequest) (*firestorepb.BatchWriteResponse, error) {
	if err := checkDatabase(r.GetDatabase()); err != nil {
		return nil, err
	}
	writes, err := parseWrites(r.GetDatabase(), r.GetWrites())
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	for _, w := range writes {
		name := w.path.String()
		if seen[name] {
			return nil, invalid("a batch cannot write %q twice", name)
		}
		seen[name] = true
	}
	answer := &firestorepb.BatchWriteResponse{}
	for _, w := range writes {
		result := &firestorepb.WriteResult{}
		done, err := a.store.commit(ctx, r.GetDatabase(), nil, []*write{w})
		if err == nil {
			result = done.results[0]
		}
		answer.WriteResults = append(answer.WriteResults, result)
		answer.Status = append(answer.Status, status.Convert(err).Proto())
	}
	return answer, nil
}

// ListDocuments pages through a collection in the order of the names; with
// show_missing also through names that have only documents below them. Other
// orders are not implemented.
func (a *api) ListDocuments(_ context.Context, r *firestorepb.ListDocumentsRequest) (*firestorepb.ListDocumentsResponse, error) {
	if r.GetOrderBy() != "" && r.GetOrderBy() != documentID {
		return nil, unimplemented("listing in the order of a field")
	}
	mask, err := parseMask(r.GetMask())
	if err != nil {
		return nil, err
	}
	q, err := parseQueryRequest(r.GetParent(), &firestorepb.StructuredQuery{
		From: []*firestorepb.StructuredQuery_CollectionSelector{{CollectionId: r.GetCollectionId()}},
	})
	if err != nil {
		return nil, err
	}
	var docs []*document
	c := consistency{transaction: r.GetTransaction(), at: r.GetReadTime()}
	err = a.store.read(q.parent.database, c, func(v *view) error {
		docs, _ = v.run(q)
		if r.GetShowMissing() {
			docs = append(docs, v.missing(q, docs)...)
			slices.SortFunc(docs, q.compare)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return listPage(r, docs, mask), nil
}

// listPage cuts the page that follows the request's token, which is the name of
// the last document of the page before.
func listPage(r *firestorepb.ListDocumentsRequest, docs []*document, mask []fieldPath) *firestorepb.ListDocumentsResponse {
	size := int(r.GetPageSize())
	if size <= 0 || size > maxPage {
		size = maxPage
	}
	answer := &firestorepb.ListDocumentsResponse{}
	for _, d := range docs {
		if r.GetPageToken() != "" && compareNames(d.pb.Name, r.GetPageToken()) <= 0 {
			continue
		}
		if len(answer.Documents) == size {
			answer.NextPageToken = answer.Documents[size-1].Name
			break
		}
		answer.Documents = append(answer.Documents, masked(d, mask))
	}
	return answer
}

// missing returns empty shells of the documents that do not exist, but have
// documents below them, among those the query covers. found are those that do.
func (v *view) missing(q *query, found []*document) []*document {
	known := map[string]bool{}
	for _, d := range found {
		known[d.pb.Name] = true
	}
	depth := len(q.parent.segments) + 2
	var shells []*document
	for name, d := range v.db.docs {
		if d = v.version(name, d); d == nil || len(d.path.segments) <= depth {
			continue
		}
		p := path{database: d.path.database, segments: d.path.segments[:depth]}
		if q.covers(p) && !known[p.String()] {
			known[p.String()] = true
			shells = append(shells, &document{path: p, pb: &firestorepb.Document{Name: p.String()}})
		}
	}
	return shells
}

// ListCollectionIds lists, in order and in one page, the collections directly
// below a document or the root.
func (a *api) ListCollectionIds(_ context.Context, r *firestorepb.ListCollectionIdsRequest) (*firestorepb.ListCollectionIdsResponse, error) {
	parent, err := parsePath(r.GetParent())
	if err != nil {
		return nil, err
	}
	if len(parent.segments)%2 != 0 {
		return nil, status.Errorf(codes.InvalidArgument, "the parent %q is a collection", r.GetParent())
	}
	ids := map[string]bool{}
	err = a.store.read(parent.database, consistency{at: r.GetReadTime()}, func(v *view) error {
		for name := range v.db.collections {
			if rest, below := strings.CutPrefix(name, parent.String()+"/"); below {
				id, _, _ := strings.Cut(rest, "/")
				ids[id] = true
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &firestorepb.ListCollectionIdsResponse{CollectionIds: slices.Sorted(maps.Keys(ids))}, nil
}
