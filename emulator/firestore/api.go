package firestore

import (
	"context"
	"errors"
	"sync"

	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// api answers Firestore's calls from the store. What it does not implement
// answers UNIMPLEMENTED.
type api struct {
	firestorepb.UnimplementedFirestoreServer
	store     *store
	receivers sync.WaitGroup // of the requests of listeners
}

func unimplemented(what string) error {
	return status.Errorf(codes.Unimplemented, "%s is not implemented", what)
}

// GetDocument answers NOT_FOUND for a missing document.
func (a *api) GetDocument(_ context.Context, r *firestorepb.GetDocumentRequest) (*firestorepb.Document, error) {
	p, err := parseDocument("", r.GetName())
	if err != nil {
		return nil, err
	}
	mask, err := parseMask(r.GetMask())
	if err != nil {
		return nil, err
	}
	var doc *document
	c := consistency{transaction: r.GetTransaction(), at: r.GetReadTime()}
	err = a.store.read(p.database, c, func(v *view) error {
		doc = v.get(r.GetName())
		return nil
	})
	if err != nil {
		return nil, err
	}
	if doc == nil {
		return nil, status.Errorf(codes.NotFound, "%q not found", r.GetName())
	}
	return masked(doc, mask), nil
}

// BatchGetDocuments answers in the order of the request, each name once.
func (a *api) BatchGetDocuments(r *firestorepb.BatchGetDocumentsRequest, stream firestorepb.Firestore_BatchGetDocumentsServer) error {
	mask, err := parseMask(r.GetMask())
	if err != nil {
		return err
	}
	if err := checkDatabase(r.GetDatabase()); err != nil {
		return err
	}
	for _, name := range r.GetDocuments() {
		if _, err := parseDocument(r.GetDatabase(), name); err != nil {
			return err
		}
	}
	var answers []*firestorepb.BatchGetDocumentsResponse
	c := consistency{begin: r.GetNewTransaction(), at: r.GetReadTime()}
	if t, ok := r.GetConsistencySelector().(*firestorepb.BatchGetDocumentsRequest_Transaction); ok {
		c.transaction = append([]byte{}, t.Transaction...)
	}
	err = a.store.read(r.GetDatabase(), c, func(v *view) error {
		answers = batchGet(v, r.GetDocuments(), mask)
		return nil
	})
	if err != nil {
		return err
	}
	for _, answer := range answers {
		if err := stream.Send(answer); err != nil {
			return err
		}
	}
	return nil
}

func batchGet(v *view, names []string, mask []fieldPath) []*firestorepb.BatchGetDocumentsResponse {
	var answers []*firestorepb.BatchGetDocumentsResponse
	if v.begun != nil {
		answers = append(answers, &firestorepb.BatchGetDocumentsResponse{Transaction: v.begun})
	}
	seen := map[string]bool{}
	for _, name := range names {
		if seen[name] {
			continue
		}
		seen[name] = true
		answer := &firestorepb.BatchGetDocumentsResponse{ReadTime: v.readTime()}
		if doc := v.get(name); doc != nil {
			answer.Result = &firestorepb.BatchGetDocumentsResponse_Found{Found: masked(doc, mask)}
		} else {
			answer.Result = &firestorepb.BatchGetDocumentsResponse_Missing{Missing: name}
		}
		answers = append(answers, answer)
	}
	return answers
}

// BeginTransaction starts a transaction; one that retries another is like any.
func (a *api) BeginTransaction(_ context.Context, r *firestorepb.BeginTransactionRequest) (*firestorepb.BeginTransactionResponse, error) {
	if err := checkDatabase(r.GetDatabase()); err != nil {
		return nil, err
	}
	a.store.mu.Lock()
	defer a.store.mu.Unlock()
	t, err := a.store.begin(r.GetDatabase(), r.GetOptions())
	if err != nil {
		return nil, err
	}
	return &firestorepb.BeginTransactionResponse{Transaction: []byte(t.id)}, nil
}

// Rollback frees the transaction's locks. One that has already ended is no error.
func (a *api) Rollback(_ context.Context, r *firestorepb.RollbackRequest) (*emptypb.Empty, error) {
	if err := checkDatabase(r.GetDatabase()); err != nil {
		return nil, err
	}
	a.store.mu.Lock()
	defer a.store.mu.Unlock()
	t, err := a.store.use(r.GetDatabase(), r.GetTransaction())
	if t != nil {
		a.store.end(t)
	} else if errors.Is(err, errUnknownTransaction) {
		return nil, err
	}
	return &emptypb.Empty{}, nil
}

// Commit applies all writes or none.
func (a *api) Commit(ctx context.Context, r *firestorepb.CommitRequest) (*firestorepb.CommitResponse, error) {
	writes, err := a.parseCommit(r)
	if err != nil {
		return nil, err
	}
	done, err := a.store.commit(ctx, r.GetDatabase(), r.GetTransaction(), writes)
	if err != nil {
		return nil, err
	}
	return &firestorepb.CommitResponse{CommitTime: timestamppb.New(done.at), WriteResults: done.results}, nil
}

func (a *api) parseCommit(r *firestorepb.CommitRequest) ([]*write, error) {
	if n := proto.Size(r); n > maxRequestBytes {
		return nil, invalid("the request has %d bytes, the limit is %d", n, maxRequestBytes)
	}
	if err := checkDatabase(r.GetDatabase()); err != nil {
		return nil, err
	}
	return parseWrites(r.GetDatabase(), r.GetWrites())
}

// masked is the document with only the fields that the mask names.
func masked(d *document, mask []fieldPath) *firestorepb.Document {
	if mask == nil {
		return d.pb
	}
	return &firestorepb.Document{
		Name:       d.pb.Name,
		Fields:     project(d.pb.Fields, mask),
		CreateTime: d.pb.CreateTime,
		UpdateTime: d.pb.UpdateTime,
	}
}
