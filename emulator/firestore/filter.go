package firestore

import (
	"math"
	"slices"

	"cloud.google.com/go/firestore/apiv1/firestorepb"
)

// predicate reports whether a document matches a filter.
type predicate func(*document) bool

// filters collects the fields of inequalities, which order the results.
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
	case pb.GetUnaryFilter() != nil:
		unary := pb.GetUnaryFilter()
		asField := unaries[unary.GetOp()]
		return f.field(unary.GetField(), asField.op, asField.want)
	}
	field := pb.GetFieldFilter()
	return f.field(field.GetField(), field.GetOp(), field.GetValue())
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
func (f *filters) field(
	field *firestorepb.StructuredQuery_FieldReference, op operator, want *value,
) (predicate, error) {
	fp, err := parseFieldPath(field.GetFieldPath())
	if err != nil {
		return nil, err
	}
	test := tests[op]
	if test == nil {
		return nil, unimplemented("the operator " + op.String())
	}
	if !unordered[op] {
		f.ranges = append(f.ranges, fp)
	}

	return func(d *document) bool {
		v := valueAt(d, fp)
		return v != nil && test(v, want)
	}, nil
}

type operator = firestorepb.StructuredQuery_FieldFilter_Operator

// tests has a test for each operator, of a field's value and the filter's.
var tests = map[operator]func(v, want *value) bool{
	firestorepb.StructuredQuery_FieldFilter_EQUAL: func(v, want *value) bool { return compareValues(v, want) == 0 },
	firestorepb.StructuredQuery_FieldFilter_NOT_EQUAL: func(v, want *value) bool {
		return !isNull(v) && compareValues(v, want) != 0
	},
	firestorepb.StructuredQuery_FieldFilter_LESS_THAN:             inRange(func(c int) bool { return c < 0 }),
	firestorepb.StructuredQuery_FieldFilter_LESS_THAN_OR_EQUAL:    inRange(func(c int) bool { return c <= 0 }),
	firestorepb.StructuredQuery_FieldFilter_GREATER_THAN:          inRange(func(c int) bool { return c > 0 }),
	firestorepb.StructuredQuery_FieldFilter_GREATER_THAN_OR_EQUAL: inRange(func(c int) bool { return c >= 0 }),
	firestorepb.StructuredQuery_FieldFilter_IN: func(v, want *value) bool {
		return contains(want, v) && !isNull(v) && !isNaN(v)
	},
	firestorepb.StructuredQuery_FieldFilter_NOT_IN: func(v, want *value) bool {
		// Nothing is unequal to null, and NaN is unequal to NaN.
		return !slices.ContainsFunc(want.GetArrayValue().GetValues(), isNull) &&
			!isNull(v) && (isNaN(v) || !contains(want, v))
	},
	firestorepb.StructuredQuery_FieldFilter_ARRAY_CONTAINS: contains,
	firestorepb.StructuredQuery_FieldFilter_ARRAY_CONTAINS_ANY: func(v, want *value) bool {
		return slices.ContainsFunc(want.GetArrayValue().GetValues(), func(e *value) bool { return contains(v, e) })
	},
}

// unordered are the operators that do not order the results by their field.
var unordered = map[operator]bool{
	firestorepb.StructuredQuery_FieldFilter_EQUAL: true, firestorepb.StructuredQuery_FieldFilter_IN: true,
	firestorepb.StructuredQuery_FieldFilter_ARRAY_CONTAINS:     true,
	firestorepb.StructuredQuery_FieldFilter_ARRAY_CONTAINS_ANY: true,
}

var (
	null = &value{ValueType: &firestorepb.Value_NullValue{}}
	nan  = &value{ValueType: &firestorepb.Value_DoubleValue{DoubleValue: math.NaN()}}
)

// unaries has the equivalent of each unary operator.
var unaries = map[firestorepb.StructuredQuery_UnaryFilter_Operator]struct {
	op   operator
	want *value
}{
	firestorepb.StructuredQuery_UnaryFilter_IS_NULL:     {firestorepb.StructuredQuery_FieldFilter_EQUAL, null},
	firestorepb.StructuredQuery_UnaryFilter_IS_NAN:      {firestorepb.StructuredQuery_FieldFilter_EQUAL, nan},
	firestorepb.StructuredQuery_UnaryFilter_IS_NOT_NULL: {firestorepb.StructuredQuery_FieldFilter_NOT_EQUAL, null},
	firestorepb.StructuredQuery_UnaryFilter_IS_NOT_NAN:  {firestorepb.StructuredQuery_FieldFilter_NOT_EQUAL, nan},
}

// inRange compares within one class of values: 5 > "a" matches nothing. Null
// and NaN are in no range.
func inRange(holds func(c int) bool) func(v, want *value) bool {
	return func(v, want *value) bool {
		if classOf(v) != classOf(want) || isNull(v) || isNaN(v) || isNaN(want) {
			return false
		}
		return holds(compareValues(v, want))
	}
}

// contains reports whether v is an element of an array.
func contains(array, v *value) bool {
	elements := array.GetArrayValue().GetValues()
	return slices.ContainsFunc(elements, func(e *value) bool { return compareValues(e, v) == 0 })
}
