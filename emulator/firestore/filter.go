package firestore

import (
	"bytes"
	"cmp"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

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

// classOf returns the class of a value. In Firestore's order a value of a lower class sorts
// before every value of a higher one.
func classOf(v *value) int {
	switch v.GetValueType().(type) {
	case *firestorepb.Value_BooleanValue:
		return 1
	case *firestorepb.Value_IntegerValue, *firestorepb.Value_DoubleValue:
		return 2
	case *firestorepb.Value_TimestampValue:
		return 3
	case *firestorepb.Value_StringValue:
		return 4
	case *firestorepb.Value_BytesValue:
		return 5
	case *firestorepb.Value_ReferenceValue:
		return 6
	case *firestorepb.Value_GeoPointValue:
		return 7
	case *firestorepb.Value_ArrayValue:
		return 8
	case *firestorepb.Value_MapValue:
		return 9
	}
	return 0 // null
}

// compareValues is Firestore's total order. Integers and doubles compare by
// numeric value, so that 1 and 1.0 are equal.
func compareValues(a, b *value) int {
	if c := cmp.Compare(classOf(a), classOf(b)); c != 0 {
		return c
	}

	switch a.GetValueType().(type) {
	case *firestorepb.Value_BooleanValue:
		// "false" < "true"
		return cmp.Compare(strconv.FormatBool(a.GetBooleanValue()), strconv.FormatBool(b.GetBooleanValue()))
	case *firestorepb.Value_IntegerValue, *firestorepb.Value_DoubleValue:
		return compareNumbers(a, b)
	case *firestorepb.Value_TimestampValue:
		return a.GetTimestampValue().AsTime().Compare(b.GetTimestampValue().AsTime())
	case *firestorepb.Value_StringValue:
		return strings.Compare(a.GetStringValue(), b.GetStringValue())
	case *firestorepb.Value_BytesValue:
		return bytes.Compare(a.GetBytesValue(), b.GetBytesValue())
	case *firestorepb.Value_ReferenceValue:
		return slices.Compare(strings.Split(a.GetReferenceValue(), "/"), strings.Split(b.GetReferenceValue(), "/"))
	case *firestorepb.Value_GeoPointValue:
		x, y := a.GetGeoPointValue(), b.GetGeoPointValue()
		return cmp.Or(cmp.Compare(x.GetLatitude(), y.GetLatitude()), cmp.Compare(x.GetLongitude(), y.GetLongitude()))
	case *firestorepb.Value_ArrayValue:
		return slices.CompareFunc(a.GetArrayValue().GetValues(), b.GetArrayValue().GetValues(), compareValues)
	case *firestorepb.Value_MapValue:
		return compareMaps(a.GetMapValue().GetFields(), b.GetMapValue().GetFields())
	}
	return 0
}

// compareMaps compares entry by entry in the order of the keys: first the keys,
// then their values; the map that ends first is the smaller.
func compareMaps(a, b fields) int {
	x, y := slices.Sorted(maps.Keys(a)), slices.Sorted(maps.Keys(b))
	for i := range min(len(x), len(y)) {
		if c := cmp.Or(cmp.Compare(x[i], y[i]), compareValues(a[x[i]], b[y[i]])); c != 0 {
			return c
		}
	}
	return cmp.Compare(len(x), len(y))
}

func compareNumbers(a, b *value) int {
	i, aInt := a.GetValueType().(*firestorepb.Value_IntegerValue)
	j, bInt := b.GetValueType().(*firestorepb.Value_IntegerValue)
	if aInt && bInt {
		return cmp.Compare(i.IntegerValue, j.IntegerValue)
	}
	return cmp.Compare(asDouble(a), asDouble(b)) // NaN first, -0 = 0
}

// asDouble returns a number as a double. Of an integer and a double, v is one; the other is 0.
func asDouble(v *value) float64 { return float64(v.GetIntegerValue()) + v.GetDoubleValue() }

func isNaN(v *value) bool { return math.IsNaN(v.GetDoubleValue()) }

func isNull(v *value) bool { return classOf(v) == 0 }
