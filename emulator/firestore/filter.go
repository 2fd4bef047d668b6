package firestore

import (
	"slices"

	"cloud.google.com/go/firestore/apiv1/firestorepb"
)

// maxFilterDepth bounds how deep composite filters nest.
const maxFilterDepth = 50

// predicate is a filter made ready to run.
type predicate func(*document) bool

// filters collects, while a filter is parsed, what its parts must agree on.
type filters struct {
	ranges []fieldPath // fields of inequalities, each once: they order the results
	arrays int         // array-contains and -any, in the fullest disjunction
	lists  int         // in and array-contains-any
	notIns int
	nots   int // != of any kind, and not-in
	ors    int
}

// parse turns a filter into a predicate; nil for none.
func (f *filters) parse(pb *firestorepb.StructuredQuery_Filter, depth int) (predicate, error) {
	if pb == nil {
		return nil, nil
	}
	if depth > maxFilterDepth {
		return nil, invalid("filters nest deeper than %d", maxFilterDepth)
	}
	switch t := pb.GetFilterType().(type) {
	case *firestorepb.StructuredQuery_Filter_CompositeFilter:
		return f.composite(t.CompositeFilter, depth)
	case *firestorepb.StructuredQuery_Filter_FieldFilter:
		return f.field(t.FieldFilter)
	case *firestorepb.StructuredQuery_Filter_UnaryFilter:
		return f.unary(t.UnaryFilter)
	}
	return nil, invalid("a filter has no type")
}

func (f *filters) composite(pb *firestorepb.StructuredQuery_CompositeFilter, depth int) (predicate, error) {
	var parts []predicate
	arrays := 0
	for _, part := range pb.GetFilters() {
		f.arrays = 0
		p, err := f.parse(part, depth+1)
		if err != nil {
			return nil, err
		}
		if p == nil {
			return nil, invalid("a composite filter has an empty part")
		}
		parts = append(parts, p)
		if pb.GetOp() == firestorepb.StructuredQuery_CompositeFilter_OR {
			arrays = max(arrays, f.arrays)
		} else {
			arrays += f.arrays
		}
	}
	f.arrays = arrays
	switch pb.GetOp() {
	case firestorepb.StructuredQuery_CompositeFilter_AND:
		return func(d *document) bool {
			return !slices.ContainsFunc(parts, func(p predicate) bool { return !p(d) })
		}, nil
	case firestorepb.StructuredQuery_CompositeFilter_OR:
		f.ors++
		return func(d *document) bool {
			return slices.ContainsFunc(parts, func(p predicate) bool { return p(d) })
		}, nil
	}
	return nil, invalid("a composite filter has no operator")
}

// onField makes a predicate of a test on the value at fp; a document without
// the field does not match.
func onField(fp fieldPath, test func(*value) bool) predicate {
	return func(d *document) bool {
		v := valueAt(d, fp)
		return v != nil && test(v)
	}
}

func (f *filters) ordersBy(fp fieldPath) {
	if !slices.ContainsFunc(f.ranges, func(r fieldPath) bool { return slices.Equal(r, fp) }) {
		f.ranges = append(f.ranges, fp)
	}
}

func (f *filters) unary(pb *firestorepb.StructuredQuery_UnaryFilter) (predicate, error) {
	fp, err := parseReference(pb.GetField())
	if err != nil {
		return nil, err
	}
	if fp.isDocumentID() {
		return nil, invalid("%s is never null or NaN", documentID)
	}
	switch pb.GetOp() {
	case firestorepb.StructuredQuery_UnaryFilter_IS_NULL:
		return onField(fp, isNull), nil
	case firestorepb.StructuredQuery_UnaryFilter_IS_NAN:
		return onField(fp, isNaN), nil
	case firestorepb.StructuredQuery_UnaryFilter_IS_NOT_NULL:
		f.nots++
		f.ordersBy(fp)
		return onField(fp, func(v *value) bool { return !isNull(v) }), nil
	case firestorepb.StructuredQuery_UnaryFilter_IS_NOT_NAN:
		f.nots++
		f.ordersBy(fp)
		return onField(fp, func(v *value) bool { return !isNull(v) && !isNaN(v) }), nil
	}
	return nil, invalid("a unary filter has no operator")
}

func (f *filters) field(pb *firestorepb.StructuredQuery_FieldFilter) (predicate, error) {
	fp, err := parseReference(pb.GetField())
	if err != nil {
		return nil, err
	}
	op, want := pb.GetOp(), pb.GetValue()
	if want.GetValueType() == nil {
		return nil, invalid("a filter has no value")
	}
	if err := checkNameOperand(fp, op, want); err != nil {
		return nil, err
	}
	test, err := f.test(fp, op, want)
	if err != nil {
		return nil, err
	}
	return onField(fp, test), nil
}

// check refuses combinations that Firestore does not answer.
func (f *filters) check() error {
	switch {
	case f.nots > 1:
		return invalid("only one of !=, not-in, is-not-null and is-not-nan is allowed in a query")
	case f.notIns > 0 && f.ors+f.lists > 0:
		return invalid("not-in cannot be combined with in, array-contains-any or or")
	case f.arrays > 1:
		return invalid("only one array-contains or array-contains-any is allowed in a disjunction")
	}
	return nil
}
