package firestore

import (
	"context"
	"time"

	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"taskguard/emulator/internal/wire"
)

const (
	// maxRequestBytes is Firestore's limit on one API request.
	maxRequestBytes = 10 << 20
	// maxMessageBytes lets a request somewhat over the limit reach the handler,
	// which refuses it as Firestore does (INVALID_ARGUMENT); the transport would
	// answer otherwise.
	maxMessageBytes = 4 * maxRequestBytes
)

// Options configures a Server. The zero value is ready to use.
type Options struct {
	// Now is the clock that dates commits and reads; nil means time.Now. The
	// store's own time never runs backwards even if Now does. Timeouts of
	// transactions are measured by real elapsed time, not by Now.
	Now func() time.Time
}

// Usage counts operations as Firestore bills them.
type Usage struct {
	// Reads is one for each document looked up or returned by a query; a missing
	// document, or a query without results, costs one as well. A listener costs
	// its first results, then one for each document that has changed, but none
	// for a deleted one.
	Reads int64
	// Writes is one for each committed write that is not a delete.
	Writes int64
}

// Server is an in-memory Firestore. All its methods may be called concurrently.
type Server struct {
	*wire.Server // Serve, Dial and Close
	store        *store
}

// NewServer returns an empty server. It needs Close. The data are gone with the Server.
func NewServer(o Options) *Server {
	if o.Now == nil {
		o.Now = time.Now
	}
	s := &Server{store: newStore(o.Now)}
	s.Server = wire.NewServer(maxMessageBytes, func(r grpc.ServiceRegistrar) {
		firestorepb.RegisterFirestoreServer(r, &api{store: s.store})
	})
	return s
}

// Usage returns the billed operations so far.
func (s *Server) Usage() Usage {
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	return s.store.billed
}

// api implements Firestore's methods on the store. Its other methods answer UNIMPLEMENTED.
type api struct {
	firestorepb.UnimplementedFirestoreServer
	store *store
}

// BatchGetDocuments answers in the order of the request, each name once.
func (a *api) BatchGetDocuments(
	r *firestorepb.BatchGetDocumentsRequest, stream firestorepb.Firestore_BatchGetDocumentsServer,
) error {
	mask, err := parseMask(r.GetMask())
	if err != nil {
		return err
	}
	if err := checkDatabase(r.GetDatabase()); err != nil {
		return err
	}
	for _, name := range r.GetDocuments() {
		if err := checkDocument(r.GetDatabase(), name); err != nil {
			return err
		}
	}

	return reply(a.store, r.GetDatabase(), r, stream.Send, func(v *view) []*firestorepb.BatchGetDocumentsResponse {
		return batchGet(v, r.GetDocuments(), mask)
	})
}

// sendAll streams the answers, without the mutex.
func sendAll[T any](send func(T) error, answers []T) error {
	for _, answer := range answers {
		if err := send(answer); err != nil {
			return err
		}
	}
	return nil
}

func batchGet(v *view, names []string, mask []fieldPath) (answers []*firestorepb.BatchGetDocumentsResponse) {
	seen := map[string]bool{}
	for _, name := range names {
		if seen[name] {
			continue
		}
		seen[name] = true

		answer := &firestorepb.BatchGetDocumentsResponse{ReadTime: v.readTime()}
		if len(answers) == 0 {
			answer.Transaction = v.newID
		}
		if doc := v.get(name); doc != nil {
			answer.Result = &firestorepb.BatchGetDocumentsResponse_Found{Found: masked(doc, mask)}
		} else {
			answer.Result = &firestorepb.BatchGetDocumentsResponse_Missing{Missing: name}
		}
		answers = append(answers, answer)
	}
	return answers
}

// BeginTransaction starts a transaction. It ignores that a transaction retries another.
func (a *api) BeginTransaction(
	_ context.Context, r *firestorepb.BeginTransactionRequest,
) (*firestorepb.BeginTransactionResponse, error) {
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

// Rollback frees the transaction's locks. It is no error if the transaction has already ended.
func (a *api) Rollback(_ context.Context, r *firestorepb.RollbackRequest) (*emptypb.Empty, error) {
	if err := checkDatabase(r.GetDatabase()); err != nil {
		return nil, err
	}
	a.store.mu.Lock()
	defer a.store.mu.Unlock()
	if t, err := a.store.use(r.GetDatabase(), r.GetTransaction()); err == nil {
		a.store.end(t)
	}
	return &emptypb.Empty{}, nil
}

// Commit applies all writes or none.
func (a *api) Commit(ctx context.Context, r *firestorepb.CommitRequest) (*firestorepb.CommitResponse, error) {
	if n := proto.Size(r); n > maxRequestBytes {
		return nil, invalid("the request has %d bytes, the limit is %d", n, maxRequestBytes)
	}
	if err := checkDatabase(r.GetDatabase()); err != nil {
		return nil, err
	}

	writes, err := parseWrites(r.GetDatabase(), r.GetWrites())
	if err != nil {
		return nil, err
	}
	at, results, err := a.store.commit(ctx, r.GetDatabase(), r.GetTransaction(), writes)
	if err != nil {
		return nil, err
	}
	return &firestorepb.CommitResponse{CommitTime: timestamppb.New(at), WriteResults: results}, nil
}

// RunQuery answers one message for each document. Without documents it answers one with
// the read time.
func (a *api) RunQuery(r *firestorepb.RunQueryRequest, stream firestorepb.Firestore_RunQueryServer) error {
	if r.GetExplainOptions() != nil {
		return unimplemented("explain_options")
	}
	database, q, err := parseQuery(r.GetParent(), r.GetStructuredQuery())
	if err != nil {
		return err
	}
	return reply(a.store, database, r, stream.Send, func(v *view) []*firestorepb.RunQueryResponse {
		return runQuery(v, q)
	})
}

func runQuery(v *view, q *query) []*firestorepb.RunQueryResponse {
	var answers []*firestorepb.RunQueryResponse
	for _, d := range v.run(q) {
		answers = append(answers, &firestorepb.RunQueryResponse{ReadTime: v.readTime(), Document: masked(d, q.mask)})
	}
	if len(answers) == 0 {
		answers = append(answers, &firestorepb.RunQueryResponse{ReadTime: v.readTime()})
	}
	answers[0].Transaction = v.newID
	answers[len(answers)-1].ContinuationSelector = &firestorepb.RunQueryResponse_Done{Done: true}
	return answers
}

// RunAggregationQuery counts; other aggregations are not implemented.
func (a *api) RunAggregationQuery(
	r *firestorepb.RunAggregationQueryRequest, stream firestorepb.Firestore_RunAggregationQueryServer,
) error {
	if r.GetExplainOptions() != nil {
		return unimplemented("explain_options")
	}
	aq := r.GetStructuredAggregationQuery()
	database, q, err := parseQuery(r.GetParent(), aq.GetStructuredQuery())
	if err != nil {
		return err
	}
	for _, agg := range aq.GetAggregations() {
		if agg.GetCount() == nil || agg.GetCount().GetUpTo() != nil {
			return unimplemented("an aggregation other than a whole count")
		}
	}

	return reply(a.store, database, r, stream.Send, func(v *view) []*firestorepb.RunAggregationQueryResponse {
		n, counts := v.count(q), fields{}
		for _, agg := range aq.GetAggregations() {
			counts[agg.GetAlias()] = integerValue(n)
		}
		result := &firestorepb.AggregationResult{AggregateFields: counts}
		return []*firestorepb.RunAggregationQueryResponse{{
			Transaction: v.newID, ReadTime: v.readTime(), Result: result,
		}}
	})
}

// masked returns the document with only the fields that the mask names.
func masked(d *document, mask []fieldPath) *document {
	if mask == nil {
		return d
	}

	part := fields{}
	for _, fp := range mask {
		if v := lookup(d.Fields, fp); v != nil {
			part = withField(part, fp, v)
		}
	}
	return &document{Name: d.Name, Fields: part, CreateTime: d.CreateTime, UpdateTime: d.UpdateTime}
}
