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

// condition is a checked filter, with what counts for the limits of its query.
type condition struct {
	matches predicate
	filters int // of one field and one value
	terms   int // of its disjunctive normal form
	arrays  int // the most array-contains in a term
}

// filters collects what the limits of a query and its order need of its filters.
type filters struct {
	database  string
	ranges    []fieldPath // the fields of inequalities, which order the results
	negatives int         // !=, not-in, is not null and is not NaN
	notIn     bool
	or        bool // or, in and array-contains-any
	key       bool // an equality of the document's name
	others    bool // a filter of a field, not of the name
}

// parse returns the condition of a filter. No filter matches every document.
func (f *filters) parse(pb *firestorepb.StructuredQuery_Filter) (condition, error) {
	switch {
	case pb == nil:
		return condition{matches: func(*document) bool { return true }}, nil
	case pb.GetCompositeFilter() != nil:
		return f.composite(pb.GetCompositeFilter())
	case pb.GetUnaryFilter() != nil:
		unary := unaries[pb.GetUnaryFilter().GetOp()]
		return f.field(pb.GetUnaryFilter().GetField(), unary.op, arrayOf(nil), unary.test)
	}
	field := pb.GetFieldFilter()
	return f.field(field.GetField(), field.GetOp(), field.GetValue(), tests[field.GetOp()])
}

func (f *filters) composite(pb *firestorepb.StructuredQuery_CompositeFilter) (condition, error) {
	or := pb.GetOp() == firestorepb.StructuredQuery_CompositeFilter_OR
	if !or && pb.GetOp() != firestorepb.StructuredQuery_CompositeFilter_AND || or && len(pb.GetFilters()) == 0 {
		return condition{}, invalid("a composite filter is an or without filters, or neither an and nor an or")
	}

	f.or = f.or || or
	var parts []predicate
	whole := condition{terms: 1}
	if or {
		whole.terms = 0
	}
	for _, part := range pb.GetFilters() {
		c, err := f.parse(part)
		if err != nil {
			return condition{}, err
		}
		parts = append(parts, c.matches)
		whole.filters += c.filters
		if or {
			whole.terms, whole.arrays = whole.terms+c.terms, max(whole.arrays, c.arrays)
		} else {
			whole.terms, whole.arrays = min(whole.terms*c.terms, math.MaxInt32), whole.arrays+c.arrays
		}
	}

	// A part that matches decides an or, and a part that does not match decides an and.
	whole.matches = func(d *document) bool {
		return slices.ContainsFunc(parts, func(p predicate) bool { return p(d) == or }) == or
	}
	return whole, nil
}

// field makes a condition of one field's filter. A document without the field
// does not match.
func (f *filters) field(
	field *firestorepb.StructuredQuery_FieldReference, op operator, want *value, test func(v, want *value) bool,
) (condition, error) {
	fp, err := parseFieldPath(field.GetFieldPath())
	if err != nil {
		return condition{}, err
	}
	if test == nil {
		return condition{}, invalid("a filter has the unknown operator %v", op)
	}
	operands, err := f.operands(fp, op, want)
	if err != nil {
		return condition{}, err
	}

	c := condition{filters: len(operands), terms: 1}
	switch op {
	case firestorepb.StructuredQuery_FieldFilter_ARRAY_CONTAINS:
		c.arrays = 1
	case firestorepb.StructuredQuery_FieldFilter_ARRAY_CONTAINS_ANY:
		c.arrays, c.terms, f.or = 1, len(operands), true
	case firestorepb.StructuredQuery_FieldFilter_IN:
		c.terms, f.or = len(operands), true
	case firestorepb.StructuredQuery_FieldFilter_NOT_IN:
		f.negatives, f.notIn = f.negatives+1, true
	case firestorepb.StructuredQuery_FieldFilter_NOT_EQUAL:
		f.negatives++
	}
	if !unordered[op] && slices.ContainsFunc(operands, func(v *value) bool { return canMatch(op, v) }) {
		f.ranges = append(f.ranges, fp)
	}
	f.key = f.key || fp.isKey() && unordered[op]
	f.others = f.others || !fp.isKey()

	c.matches = func(d *document) bool {
		v := valueAt(d, fp)
		return v != nil && test(v, want)
	}
	return c, nil
}

type operator = firestorepb.StructuredQuery_FieldFilter_Operator

// tests has a test for each operator, of a field's value and the filter's.
var tests = map[operator]func(v, want *value) bool{
	firestorepb.StructuredQuery_FieldFilter_EQUAL:                 equals,
	firestorepb.StructuredQuery_FieldFilter_NOT_EQUAL:             differs,
	firestorepb.StructuredQuery_FieldFilter_LESS_THAN:             inRange(func(c int) bool { return c < 0 }),
	firestorepb.StructuredQuery_FieldFilter_LESS_THAN_OR_EQUAL:    inRange(func(c int) bool { return c <= 0 }),
	firestorepb.StructuredQuery_FieldFilter_GREATER_THAN:          inRange(func(c int) bool { return c > 0 }),
	firestorepb.StructuredQuery_FieldFilter_GREATER_THAN_OR_EQUAL: inRange(func(c int) bool { return c >= 0 }),
	firestorepb.StructuredQuery_FieldFilter_IN: func(v, want *value) bool {
		return slices.ContainsFunc(elements(want), func(e *value) bool { return equals(v, e) })
	},
	firestorepb.StructuredQuery_FieldFilter_NOT_IN: func(v, want *value) bool {
		return !slices.ContainsFunc(elements(want), func(e *value) bool { return !differs(v, e) })
	},
	firestorepb.StructuredQuery_FieldFilter_ARRAY_CONTAINS: hasElement,
	firestorepb.StructuredQuery_FieldFilter_ARRAY_CONTAINS_ANY: func(v, want *value) bool {
		return slices.ContainsFunc(elements(want), func(e *value) bool { return hasElement(v, e) })
	},
}

// equals compares as filters do: nothing equals null or NaN, for which there are unary filters.
func equals(v, want *value) bool {
	return !isNull(want) && !isNaN(want) && compareValues(v, want) == 0
}

// differs compares as filters do: null differs from nothing, and nothing from null.
func differs(v, want *value) bool { return !isNull(v) && !isNull(want) && !equals(v, want) }

// canMatch reports whether any value can match an inequality. If none can, the inequality does not order the results.
func canMatch(op operator, want *value) bool {
	return !isNull(want) && (!isNaN(want) || op > firestorepb.StructuredQuery_FieldFilter_GREATER_THAN_OR_EQUAL)
}

func hasElement(array, want *value) bool {
	return slices.ContainsFunc(elements(array), func(e *value) bool { return equals(e, want) })
}

func elements(array *value) []*value { return array.GetArrayValue().GetValues() }

// unordered are the operators that do not order the results by their field.
var unordered = map[operator]bool{
	firestorepb.StructuredQuery_FieldFilter_EQUAL: true, firestorepb.StructuredQuery_FieldFilter_IN: true,
	firestorepb.StructuredQuery_FieldFilter_ARRAY_CONTAINS:     true,
	firestorepb.StructuredQuery_FieldFilter_ARRAY_CONTAINS_ANY: true,
}

// unaries has the test of each unary operator, and the operator by whose rules it is limited.
var unaries = map[firestorepb.StructuredQuery_UnaryFilter_Operator]struct {
	op   operator
	test func(v, _ *value) bool
}{
	firestorepb.StructuredQuery_UnaryFilter_IS_NULL:     {firestorepb.StructuredQuery_FieldFilter_EQUAL, null},
	firestorepb.StructuredQuery_UnaryFilter_IS_NAN:      {firestorepb.StructuredQuery_FieldFilter_EQUAL, nan},
	firestorepb.StructuredQuery_UnaryFilter_IS_NOT_NULL: {firestorepb.StructuredQuery_FieldFilter_NOT_EQUAL, notNull},
	firestorepb.StructuredQuery_UnaryFilter_IS_NOT_NAN:  {firestorepb.StructuredQuery_FieldFilter_NOT_EQUAL, notNaN},
}

func null(v, _ *value) bool    { return isNull(v) }
func nan(v, _ *value) bool     { return isNaN(v) }
func notNull(v, _ *value) bool { return !isNull(v) }
func notNaN(v, _ *value) bool  { return !isNull(v) && !isNaN(v) }

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
	return slices.ContainsFunc(elements(array), func(e *value) bool { return compareValues(e, v) == 0 })
}

const numbers = 2 // their class

// classOf returns the class of a value. In Firestore's order a value of a lower class sorts
// before every value of a higher one.
func classOf(v *value) int {
	switch v.GetValueType().(type) {
	case *firestorepb.Value_BooleanValue:
		return 1
	case *firestorepb.Value_IntegerValue, *firestorepb.Value_DoubleValue:
		return numbers
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
		if isVector(v) {
			return 9
		}
		return 10
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
		if x, y := a.GetMapValue().GetFields()["value"], b.GetMapValue().GetFields()["value"]; isVector(a) {
			// The shorter vector comes first.
			return cmp.Or(cmp.Compare(len(elements(x)), len(elements(y))), compareValues(x, y))
		}
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
