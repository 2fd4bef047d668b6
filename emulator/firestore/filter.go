package firestore

import (
	"slices"

	"cloud.google.com/go/firestore/apiv1/firestorepb"
)

// predicate reports whether a document matches a filter.
type predicate func(*document) bool

// filters collects the fields of inequalities, each once. They order the results.
type filters struct {
	ranges []fieldPath
}

// parse returns the predicate of a filter; nil: no filter.
func (f *filters) parse(pb *firestorepb.StructuredQuery_Filter) (predicate, error) {
	switch {
	case pb == nil:
		return nil, nil
	case pb.GetCompositeFilter() != nil:
		return f.composite(pb.GetCompositeFilter())
	case pb.GetFieldFilter() != nil:
		return f.field(pb.GetFieldFilter())
	}
	return nil, unimplemented("a filter for null or NaN")
}

func (f *filters) composite(pb *firestorepb.StructuredQuery_CompositeFilter) (predicate, error) {
	var parts []predicate
	for _, part := range pb.GetFilters() {
		p, err := f.parse(part)
		if err != nil {
			return nil, err
		}
		parts = append(parts, p)
	}

	if pb.GetOp() == firestorepb.StructuredQuery_CompositeFilter_OR {
		return func(d *document) bool {
			return slices.ContainsFunc(parts, func(p predicate) bool { return p(d) })
		}, nil
	}
	return func(d *document) bool {
		return !slices.ContainsFunc(parts, func(p predicate) bool { return !p(d) })
	}, nil
}

// field makes a predicate of one field's filter. A document without the field
// does not match.
func (f *filters) field(pb *firestorepb.StructuredQuery_FieldFilter) (predicate, error) {
	fp, err := parseFieldPath(pb.GetField().GetFieldPath())
	if err != nil {
		return nil, err
	}

	test, ordered, err := fieldTest(pb.GetOp(), pb.GetValue())
	if err != nil {
		return nil, err
	}
	if ordered && !slices.ContainsFunc(f.ranges, func(r fieldPath) bool { return slices.Equal(r, fp) }) {
		f.ranges = append(f.ranges, fp)
	}

	return func(d *document) bool {
		v := valueAt(d, fp)
		return v != nil && test(v)
	}, nil
}

// fieldTest returns the test of a field's value, and whether the filter orders the results
// by the field.
func fieldTest(
	op firestorepb.StructuredQuery_FieldFilter_Operator, want *value,
) (test func(*value) bool, ordered bool, err error) {
	list := want.GetArrayValue().GetValues()
	switch op {
	case firestorepb.StructuredQuery_FieldFilter_EQUAL:
		return func(v *value) bool { return compareValues(v, want) == 0 }, false, nil

	case firestorepb.StructuredQuery_FieldFilter_IN:
		return func(v *value) bool { return containsValue(list, v) && !isNull(v) && !isNaN(v) }, false, nil

	case firestorepb.StructuredQuery_FieldFilter_NOT_IN:
		noneMatch := slices.ContainsFunc(list, isNull) // nothing is unequal to null
		return func(v *value) bool {
			// NaN is unequal to NaN.
			return !noneMatch && !isNull(v) && (isNaN(v) || !containsValue(list, v))
		}, true, nil
	}

	holds, isRange := ranges[op]
	if !isRange {
		return nil, false, unimplemented("the operator of a filter")
	}
	return inRange(want, holds), true, nil
}

// ranges maps an operator to the test of a comparison's result.
var ranges = map[firestorepb.StructuredQuery_FieldFilter_Operator]func(c int) bool{
	firestorepb.StructuredQuery_FieldFilter_LESS_THAN:             func(c int) bool { return c < 0 },
	firestorepb.StructuredQuery_FieldFilter_LESS_THAN_OR_EQUAL:    func(c int) bool { return c <= 0 },
	firestorepb.StructuredQuery_FieldFilter_GREATER_THAN:          func(c int) bool { return c > 0 },
	firestorepb.StructuredQuery_FieldFilter_GREATER_THAN_OR_EQUAL: func(c int) bool { return c >= 0 },
}

// inRange compares within one class of values: 5 > "a" matches nothing. Null
// and NaN are in no range.
func inRange(want *value, holds func(c int) bool) func(*value) bool {
	return func(v *value) bool {
		if classOf(v) != classOf(want) || isNull(v) || isNaN(v) || isNaN(want) {
			return false
		}
		return holds(compareValues(v, want))
	}
}
