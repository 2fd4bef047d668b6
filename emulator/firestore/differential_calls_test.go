package firestore_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"

	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/genproto/googleapis/type/latlng"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const (
	readDocuments    = 40 // in the collection v, which the queries read
	writtenDocuments = 6  // in the collection w
)

type (
	queryFilter        = firestorepb.StructuredQuery_Filter
	compositeOperator  = firestorepb.StructuredQuery_CompositeFilter_Operator
	collectionSelector = firestorepb.StructuredQuery_CollectionSelector
	fieldTransform     = firestorepb.DocumentTransform_FieldTransform
)

// nan has the bits that Firestore stores, other than Go's.
var nan = math.Float64frombits(0x7ff8 << 48)

// chooser makes random calls.
type chooser struct {
	*rand.Rand
	db  string
	odd float64 // the share of choices that are unusual or wrong
}

func pick[T any](c *chooser, usual, odd []T) T {
	if c.wrong() {
		return odd[c.IntN(len(odd))]
	}
	return usual[c.IntN(len(usual))]
}

func (c *chooser) wrong() bool { return c.Float64() < c.odd }

// corpus writes the documents that the queries read.
func (c *chooser) corpus() (calls []call) {
	c.odd = 0.1
	for i := range readDocuments {
		f := fields{}
		for _, name := range []string{"a", "b", "c", "n"} {
			if c.IntN(8) > 0 {
				f[name] = c.value(1)
			}
		}
		f["tags"], f["m"] = c.array(c.IntN(3), 2), mapValue(fields{"x": c.value(2)})
		calls = append(calls, c.commitCall(putFields(fmt.Sprint(c.db, "/documents/v/", i), f)))
	}
	return calls
}

func (c *chooser) call() call {
	c.odd = []float64{0, 0.03, 0.15}[c.IntN(3)]
	switch n := c.IntN(20); {
	case n < 11:
		q := c.query()
		return call{q, func(r *rig) outcome { return r.sendQuery(q) }}
	case n < 12:
		q := c.count()
		return call{q, func(r *rig) outcome { return r.sendCount(q) }}
	case n < 14:
		q := c.get()
		return call{q, func(r *rig) outcome { return r.sendGet(q) }}
	case n < 15:
		return c.otherCall()
	}
	var writes []*firestorepb.Write
	for range pick(c, []int{1, 1, 1, 2, 3}, []int{0}) {
		writes = append(writes, c.write())
	}
	return c.commitCall(writes...)
}

func (c *chooser) path() string {
	return pick(c, []string{"a", "b", "c", "tags", "m.x", "n", "__name__"}, []string{
		"", "a..b", "__x__", ".", "`a", "`o.p`", "`a`b", "a.__x__", "__name__.a", "`__name__`", "1a", "a-b", "é",
		"a b", "m", "*", "m.`x`", strings.Repeat("f", 1499), strings.Repeat("f", 1500),
	})
}

func (c *chooser) document(collection string, count int) string {
	root := c.db + "/documents/"
	in := root + collection
	return pick(c, []string{fmt.Sprint(in, "/", c.IntN(count))}, []string{
		"", collection + "/3", root, in, in + "/", in + "/3/w/1", root + "/3", in + "/__x__", root + "__x__/3",
		in + "/.", in + "/..", in + "/" + strings.Repeat("d", 1500), in + "/" + strings.Repeat("d", 1501),
		"projects/o/databases/(default)/documents/v/3", "projects//databases/(default)/documents/v/3",
	})
}

func pointValue(latitude, longitude float64) *value {
	p := &latlng.LatLng{Latitude: latitude, Longitude: longitude}
	return &value{ValueType: &firestorepb.Value_GeoPointValue{GeoPointValue: p}}
}

func referenceValue(name string) *value {
	return &value{ValueType: &firestorepb.Value_ReferenceValue{ReferenceValue: name}}
}

func (c *chooser) reference() *value {
	return referenceValue(c.document("v", readDocuments))
}

func doubleValue(x float64) *value {
	return &value{ValueType: &firestorepb.Value_DoubleValue{DoubleValue: x}}
}

func vectorValue(dimensions ...*value) *value {
	return mapValue(fields{"__type__": textValue("__vector__"), "value": arrayValue(dimensions...)})
}

func (c *chooser) value(depth int) *value {
	switch pick(c, []int{0, 1, 1, 1, 2, 3, 3, 4, 5, 6, 6, 7}, []int{2, 8, 9, 10, 11, 12, 13, 14}) {
	case 0:
		return &value{ValueType: &firestorepb.Value_NullValue{}}
	case 1:
		return integerValue(int64(c.IntN(5)))
	case 2:
		odd := []float64{nan, math.Inf(1), math.Copysign(0, -1), 1e300}
		return doubleValue(pick(c, []float64{0, 0.5, 1, 2}, odd))
	case 3:
		odd := []string{"", strings.Repeat("x", 1499), strings.Repeat("x", 1500)}
		return textValue(pick(c, []string{"a", "b", "c", "é"}, odd))
	case 4:
		return &value{ValueType: &firestorepb.Value_BooleanValue{BooleanValue: c.IntN(2) == 0}}
	case 5:
		t := pick(c, []*timestamppb.Timestamp{{Seconds: 1}, {Seconds: 2}}, []*timestamppb.Timestamp{
			{Seconds: 1, Nanos: 1500}, {Seconds: 1 << 40}, {Nanos: -1}, {Nanos: 1e9},
			{Seconds: -62135596800}, {Seconds: -62135596801},
		})
		return &value{ValueType: &firestorepb.Value_TimestampValue{TimestampValue: t}}
	case 6:
		return c.array(pick(c, []int{1, 2, 3}, []int{0, 11, 31})/(depth+1), depth+1)
	case 7:
		return mapValue(fields{"x": c.value(depth + 1)})
	case 8:
		return c.reference()
	case 9:
		b := make([]byte, pick(c, []int{1}, []int{0, 1500, 1501}))
		return &value{ValueType: &firestorepb.Value_BytesValue{BytesValue: b}}
	case 10:
		latitude := pick(c, []float64{1, -90}, []float64{90.5, nan})
		return pointValue(latitude, pick(c, []float64{180}, []float64{-181}))
	case 11:
		return pick(c, []*value{vectorValue(doubleValue(1)), vectorValue(doubleValue(0), doubleValue(2))}, []*value{
			vectorValue(), vectorValue(integerValue(1)), vectorValue(doubleValue(nan)),
			mapValue(fields{"__type__": textValue("x")}),
		})
	case 12:
		return mapValue(fields{pick(c, []string{"k", "a.b"}, []string{"", "__x__", "__type__"}): c.value(depth + 1)})
	case 13:
		return nested(pick(c, []int{3}, []int{19, 20, 21})-min(depth, 1), integerValue(1))
	}
	unstored := &value{ValueType: &firestorepb.Value_FieldReferenceValue{FieldReferenceValue: "a"}}
	return pick(c, []*value{{}}, []*value{unstored})
}

func (c *chooser) array(n, depth int) *value {
	elements := make([]*value, n)
	for i := range elements {
		elements[i] = c.value(depth)
	}
	return arrayValue(elements...)
}

func (c *chooser) field() *firestorepb.StructuredQuery_FieldReference {
	return &firestorepb.StructuredQuery_FieldReference{FieldPath: c.path()}
}

func compositeFilter(op compositeOperator, parts []*queryFilter) *queryFilter {
	return &queryFilter{FilterType: &firestorepb.StructuredQuery_Filter_CompositeFilter{
		CompositeFilter: &firestorepb.StructuredQuery_CompositeFilter{Op: op, Filters: parts},
	}}
}

func fieldFilter(path string, op int32, v *value) *queryFilter {
	filter := &firestorepb.StructuredQuery_FieldFilter{
		Field: &firestorepb.StructuredQuery_FieldReference{FieldPath: path},
		Op:    firestorepb.StructuredQuery_FieldFilter_Operator(op), Value: v,
	}
	return &queryFilter{
		FilterType: &firestorepb.StructuredQuery_Filter_FieldFilter{FieldFilter: filter},
	}
}

func (c *chooser) filter(depth int) *queryFilter {
	n := c.IntN(10)
	switch {
	case n < 3 && depth < 3:
		var parts []*queryFilter
		for range pick(c, []int{2, 3}, []int{0, 1, 6, 31}) {
			parts = append(parts, c.filter(depth+1))
		}
		op := pick(c, []int{1, 2}, []int{0, 1, 2, 3})
		return compositeFilter(compositeOperator(op), parts)
	case n < 4:
		op := pick(c, []int{2, 3, 4, 5}, []int{0, 2, 3, 4, 5, 6})
		return &queryFilter{FilterType: &firestorepb.StructuredQuery_Filter_UnaryFilter{
			UnaryFilter: &firestorepb.StructuredQuery_UnaryFilter{
				Op:          firestorepb.StructuredQuery_UnaryFilter_Operator(op),
				OperandType: &firestorepb.StructuredQuery_UnaryFilter_Field{Field: c.field()},
			},
		}}
	case n < 5 && c.wrong():
		return &queryFilter{}
	}
	op := pick(c, []int32{1, 2, 3, 4, 5, 5, 5, 5, 5, 6, 7, 8, 8, 9, 10}, []int32{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11})
	path := c.path()
	return fieldFilter(path, op, c.operand(path, op >= 8))
}

func (c *chooser) operand(path string, list bool) *value {
	one := func() *value {
		if path == "__name__" && !c.wrong() {
			return c.reference()
		}
		return c.value(0)
	}
	if !list || c.wrong() {
		return one()
	}
	var elements []*value
	for range pick(c, []int{1, 2, 3, 6}, []int{0, 10, 11, 30, 31}) {
		elements = append(elements, one())
	}
	return arrayValue(elements...)
}

func (c *chooser) cursor(order []*firestorepb.StructuredQuery_Order) *firestorepb.Cursor {
	if c.IntN(4) > 0 {
		return nil
	}
	cursor := &firestorepb.Cursor{Before: c.IntN(2) == 0}
	for i := range pick(c, []int{min(1, len(order)), len(order)}, []int{0, 1, 2, 3}) {
		path := ""
		if i < len(order) {
			path = order[i].Field.FieldPath
		}
		cursor.Values = append(cursor.Values, c.operand(path, false))
	}
	return cursor
}

func (c *chooser) from() []*collectionSelector {
	one := func(id string) *collectionSelector {
		return &collectionSelector{CollectionId: id}
	}
	all := one("v")
	all.AllDescendants = true
	return pick(c, [][]*collectionSelector{{one("v")}}, [][]*collectionSelector{
		{one("v")}, {one("v")}, {one("v")},
		nil, {one("")}, {all}, {one("__x__")}, {one("a/b")}, {one(".")}, {one("v"), one("w")},
	})
}

func (c *chooser) structured() *firestorepb.StructuredQuery {
	q := &firestorepb.StructuredQuery{From: c.from()}
	if c.IntN(6) > 0 {
		q.Where = c.filter(0)
	}
	for range c.IntN(3) {
		if q.Where != nil {
			parts := []*queryFilter{q.Where, c.filter(1)}
			q.Where = compositeFilter(firestorepb.StructuredQuery_CompositeFilter_AND, parts)
		}
	}
	for range max(0, c.IntN(6)-3) {
		direction := firestorepb.StructuredQuery_Direction(pick(c, []int{0, 1, 2}, []int{3}))
		q.OrderBy = append(q.OrderBy, &firestorepb.StructuredQuery_Order{Field: c.field(), Direction: direction})
	}
	q.StartAt, q.EndAt = c.cursor(q.OrderBy), c.cursor(q.OrderBy)
	if c.IntN(3) == 0 {
		q.Limit = wrapperspb.Int32(pick(c, []int32{2, 5}, []int32{-1, 0, math.MaxInt32}))
	}
	q.Offset = pick(c, []int32{0, 0, 0, 1, 3}, []int32{-1, math.MaxInt32})
	if c.IntN(6) == 0 {
		q.Select = &firestorepb.StructuredQuery_Projection{}
		for range c.IntN(3) {
			q.Select.Fields = append(q.Select.Fields, c.field())
		}
	}
	return q
}

func (c *chooser) parent() string {
	root := c.db + "/documents"
	odd := []string{root + "/p/x", root + "/v", root + "/", c.db, "", root + "/__x__/a"}
	return pick(c, []string{root}, append(odd, root, root, root, root))
}

func (c *chooser) query() *firestorepb.RunQueryRequest {
	return &firestorepb.RunQueryRequest{
		Parent: c.parent(), QueryType: &firestorepb.RunQueryRequest_StructuredQuery{StructuredQuery: c.structured()},
	}
}

func (c *chooser) count() *firestorepb.RunAggregationQueryRequest {
	q := &firestorepb.StructuredAggregationQuery{
		QueryType: &firestorepb.StructuredAggregationQuery_StructuredQuery{StructuredQuery: c.structured()},
	}
	for range pick(c, []int{1}, []int{0, 1, 6}) {
		q.Aggregations = append(q.Aggregations, &firestorepb.StructuredAggregationQuery_Aggregation{
			Alias: pick(c, []string{"n0"}, []string{"", "__x__", "a.b", "1"}),
			Operator: &firestorepb.StructuredAggregationQuery_Aggregation_Count_{
				Count: &firestorepb.StructuredAggregationQuery_Aggregation_Count{},
			},
		})
	}
	return &firestorepb.RunAggregationQueryRequest{
		Parent:    c.parent(),
		QueryType: &firestorepb.RunAggregationQueryRequest_StructuredAggregationQuery{StructuredAggregationQuery: q},
	}
}

func (c *chooser) mask() *firestorepb.DocumentMask {
	if c.IntN(2) == 0 {
		return nil
	}
	mask := &firestorepb.DocumentMask{}
	for range c.IntN(4) {
		mask.FieldPaths = append(mask.FieldPaths, c.path())
	}
	return mask
}

func (c *chooser) database() string {
	return pick(c, []string{c.db}, []string{c.db, c.db, "", c.db + "/", "projects/p"})
}

func (c *chooser) get() *firestorepb.BatchGetDocumentsRequest {
	request := &firestorepb.BatchGetDocumentsRequest{Database: c.database(), Mask: c.mask()}
	for range c.IntN(4) {
		request.Documents = append(request.Documents, c.document("v", readDocuments+1))
	}
	if c.wrong() {
		request.ConsistencySelector = &firestorepb.BatchGetDocumentsRequest_Transaction{Transaction: []byte("none")}
	}
	return request
}

func (c *chooser) write() *firestorepb.Write {
	w := &firestorepb.Write{}
	name := c.document("w", writtenDocuments)
	switch {
	case c.wrong():
		return w
	case c.IntN(6) == 0:
		w.Operation = &firestorepb.Write_Delete{Delete: name}
		if c.wrong() {
			w.UpdateMask = c.mask()
		}
	default:
		doc := &firestorepb.Document{Name: name, Fields: fields{}}
		for range c.IntN(4) {
			doc.Fields[pick(c, []string{"a", "b", "m", "n"}, []string{
				"", "__x__", "__name__", "a.b", "é", "`", strings.Repeat("k", 1500), strings.Repeat("k", 1501),
			})] = c.value(0)
		}
		if c.wrong() {
			doc.Fields["big"] = textValue(strings.Repeat("x", pick(c, []int{1048487, 1048488}, []int{1048400})))
		}
		w.Operation, w.UpdateMask = &firestorepb.Write_Update{Update: doc}, c.mask()
	}
	for range max(0, c.IntN(5)-2) {
		w.UpdateTransforms = append(w.UpdateTransforms, c.transform())
	}
	w.CurrentDocument = pick(c, []*firestorepb.Precondition{
		nil, nil,
		{ConditionType: &firestorepb.Precondition_Exists{Exists: true}},
		{ConditionType: &firestorepb.Precondition_UpdateTime{UpdateTime: &timestamppb.Timestamp{Seconds: 1}}},
	}, []*firestorepb.Precondition{{}, {ConditionType: &firestorepb.Precondition_Exists{}}})
	return proto.CloneOf(w)
}

func (c *chooser) transform() *fieldTransform {
	t := &fieldTransform{FieldPath: c.path()}
	array := c.array(c.IntN(3), 1).GetArrayValue()
	switch pick(c, []int{0, 1, 1, 2, 3}, []int{0, 4, 5, 6}) {
	case 0:
		t.TransformType = &firestorepb.DocumentTransform_FieldTransform_SetToServerValue{
			SetToServerValue: firestorepb.DocumentTransform_FieldTransform_ServerValue(pick(c, []int{1}, []int{0, 2})),
		}
	case 1:
		by := pick(c, []*value{integerValue(1), doubleValue(0.5)}, []*value{c.value(0), integerValue(math.MaxInt64)})
		t.TransformType = &firestorepb.DocumentTransform_FieldTransform_Increment{Increment: by}
	case 2:
		t.TransformType = &firestorepb.DocumentTransform_FieldTransform_AppendMissingElements{
			AppendMissingElements: array,
		}
	case 3:
		t.TransformType = &firestorepb.DocumentTransform_FieldTransform_RemoveAllFromArray{RemoveAllFromArray: array}
	case 4:
		t.TransformType = &firestorepb.DocumentTransform_FieldTransform_Maximum{Maximum: integerValue(1)}
	case 5:
		t.TransformType = &firestorepb.DocumentTransform_FieldTransform_Minimum{Minimum: c.value(0)}
	}
	return t
}

func (c *chooser) commitCall(writes ...*firestorepb.Write) call {
	request := &firestorepb.CommitRequest{Database: c.database(), Writes: writes}
	if c.wrong() {
		request.Transaction = [][]byte{nil, nil, nil, []byte("none")}[c.IntN(4)]
	}
	shift := make([]int64, len(writes))
	for i := range shift {
		shift[i] = pick(c, []int64{0}, []int64{-1, 3600})
	}
	return call{request, func(r *rig) outcome { return r.sendCommit(request, shift) }}
}

// otherCall is a call of a method that fewer programs use.
func (c *chooser) otherCall() call {
	switch c.IntN(4) {
	case 0:
		transaction := []byte(pick(c, []string{"none"}, []string{""}))
		q := &firestorepb.RollbackRequest{Database: c.database(), Transaction: transaction}
		return call{q, func(r *rig) outcome { _, err := r.raw.Rollback(r.ctx, q); return outcome{"", err} }}
	case 1:
		q := &firestorepb.BeginTransactionRequest{Database: c.database()}
		return call{q, func(r *rig) outcome {
			begun, err := r.raw.BeginTransaction(r.ctx, q)
			if err == nil {
				err = r.rollback(begun.Transaction)
			}
			return outcome{"", err}
		}}
	case 2:
		q := &firestorepb.ListDocumentsRequest{Parent: c.parent(), CollectionId: "v", PageSize: int32(c.IntN(5))}
		return call{q, func(r *rig) outcome { _, err := r.raw.ListDocuments(r.ctx, q); return outcome{"", err} }}
	}
	q := &firestorepb.ListCollectionIdsRequest{Parent: c.parent()}
	return call{q, func(r *rig) outcome { _, err := r.raw.ListCollectionIds(r.ctx, q); return outcome{"", err} }}
}
