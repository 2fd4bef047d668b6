package firestore

import (
	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// RunQuery answers one message per document, or a single one with the read time
// where there is none.
func (a *api) RunQuery(r *firestorepb.RunQueryRequest, stream firestorepb.Firestore_RunQueryServer) error {
	q, err := parseQueryRequest(r.GetParent(), r.GetStructuredQuery())
	if err != nil {
		return err
	}
	c := consistency{begin: r.GetNewTransaction(), at: r.GetReadTime()}
	if t, ok := r.GetConsistencySelector().(*firestorepb.RunQueryRequest_Transaction); ok {
		c.transaction = append([]byte{}, t.Transaction...)
	}
	var answers []*firestorepb.RunQueryResponse
	err = a.store.read(q.parent.database, c, func(v *view) error {
		answers = runQuery(v, q)
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

func runQuery(v *view, q *query) []*firestorepb.RunQueryResponse {
	var answers []*firestorepb.RunQueryResponse
	if v.begun != nil {
		answers = append(answers, &firestorepb.RunQueryResponse{Transaction: v.begun})
	}
	docs, skipped := v.run(q)
	for i, d := range docs {
		answer := &firestorepb.RunQueryResponse{ReadTime: v.readTime(), Document: masked(d, q.mask)}
		if i == 0 {
			answer.SkippedResults = int32(skipped)
		}
		answers = append(answers, answer)
	}
	if len(docs) == 0 {
		answers = append(answers, &firestorepb.RunQueryResponse{ReadTime: v.readTime()})
	}
	answers[len(answers)-1].ContinuationSelector = &firestorepb.RunQueryResponse_Done{Done: true}
	return answers
}

func parseQueryRequest(parent string, pb *firestorepb.StructuredQuery) (*query, error) {
	p, err := parsePath(parent)
	if err != nil {
		return nil, err
	}
	if len(p.segments) > 0 && !p.isDocument() {
		return nil, invalid("the parent %q is a collection", parent)
	}
	if pb == nil {
		return nil, invalid("the request has no structured query")
	}
	return parseQuery(p, pb)
}

// RunAggregationQuery counts; other aggregations are not implemented.
func (a *api) RunAggregationQuery(r *firestorepb.RunAggregationQueryRequest, stream firestorepb.Firestore_RunAggregationQueryServer) error {
	aq := r.GetStructuredAggregationQuery()
	q, err := parseQueryRequest(r.GetParent(), aq.GetStructuredQuery())
	if err != nil {
		return err
	}
	if err := checkAggregations(aq.GetAggregations()); err != nil {
		return err
	}
	c := consistency{begin: r.GetNewTransaction(), at: r.GetReadTime()}
	if t, ok := r.GetConsistencySelector().(*firestorepb.RunAggregationQueryRequest_Transaction); ok {
		c.transaction = append([]byte{}, t.Transaction...)
	}
	answer := &firestorepb.RunAggregationQueryResponse{}
	err = a.store.read(q.parent.database, c, func(v *view) error {
		answer.Transaction, answer.ReadTime = v.begun, timestamppb.New(v.at)
		answer.Result = count(aq.GetAggregations(), v.count(q))
		return nil
	})
	if err != nil {
		return err
	}
	return stream.Send(answer)
}

func checkAggregations(list []*firestorepb.StructuredAggregationQuery_Aggregation) error {
	if len(list) == 0 || len(list) > 5 {
		return invalid("a query takes 1 to 5 aggregations")
	}
	for _, agg := range list {
		if agg.GetCount() == nil {
			return unimplemented("an aggregation other than count")
		}
	}
	return nil
}

func count(list []*firestorepb.StructuredAggregationQuery_Aggregation, n int64) *firestorepb.AggregationResult {
	result := &firestorepb.AggregationResult{AggregateFields: fields{}}
	for _, agg := range list {
		counted := n
		if upTo := agg.GetCount().GetUpTo(); upTo != nil {
			counted = min(n, upTo.GetValue())
		}
		result.AggregateFields[agg.GetAlias()] = integerValue(counted)
	}
	return result
}
