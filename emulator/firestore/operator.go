package firestore

import (
	"slices"

	"cloud.google.com/go/firestore/apiv1/firestorepb"
)

const (
	opEqual    = firestorepb.StructuredQuery_FieldFilter_EQUAL
	opNotEqual = firestorepb.StructuredQuery_FieldFilter_NOT_EQUAL
	opLess     = firestorepb.StructuredQuery_FieldFilter_LESS_THAN
	opAtMost   = firestorepb.StructuredQuery_FieldFilter_LESS_THAN_OR_EQUAL
	opGreater  = firestorepb.StructuredQuery_FieldFilter_GREATER_THAN
	opAtLeast  = firestorepb.StructuredQuery_FieldFilter_GREATER_THAN_OR_EQUAL
	opIn       = firestorepb.StructuredQuery_FieldFilter_IN
	opNotIn    = firestorepb.StructuredQuery_FieldFilter_NOT_IN
	opContains = firestorepb.StructuredQuery_FieldFilter_ARRAY_CONTAINS
	opAny      = firestorepb.StructuredQuery_FieldFilter_ARRAY_CONTAINS_ANY
)

const (
	maxIn    = 30 // values of in and array-contains-any
	maxNotIn = 10
)

// test makes the test of one field filter.
func (f *filters) test(fp fieldPath, op firestorepb.StructuredQuery_FieldFilter_Operator, want *value) (func(*value) bool, error) {
	switch op {
	case opEqual:
		return func(v *value) bool { return containsValue(matchable(want), v) }, nil
	case opNotEqual:
		f.nots++
		f.ordersBy(fp)
		return noneOf([]*value{want}), nil
	case opLess, opAtMost, opGreater, opAtLeast:
		f.ordersBy(fp)
		return inRange(op, want), nil
	case opContains:
		f.arrays++
		return func(v *value) bool { return containsAny(v, matchable(want)) }, nil
	case opIn, opNotIn, opAny:
		return f.listTest(fp, op, want)
	}
	return nil, invalid("a filter has no operator")
}

// matchable drops null and NaN, which equal nothing in a filter; the unary
// filters find them.
func matchable(list ...*value) []*value {
	return slices.DeleteFunc(slices.Clone(list), func(v *value) bool { return isNull(v) || isNaN(v) })
}

// containsAny tells whether the array v holds one of the values.
func containsAny(v *value, list []*value) bool {
	return slices.ContainsFunc(v.GetArrayValue().GetValues(), func(e *value) bool { return containsValue(list, e) })
}

// inRange compares within one class of values: 5 > "a" matches nothing. Null
// and NaN are in no range.
func inRange(op firestorepb.StructuredQuery_FieldFilter_Operator, want *value) func(*value) bool {
	return func(v *value) bool {
		if classOf(v) != classOf(want) || isNull(v) || isNaN(v) || isNaN(want) {
			return false
		}
		c := compareValues(v, want)
		switch op {
		case opLess:
			return c < 0
		case opAtMost:
			return c <= 0
		case opGreater:
			return c > 0
		}
		return c >= 0
	}
}

func (f *filters) listTest(fp fieldPath, op firestorepb.StructuredQuery_FieldFilter_Operator, want *value) (func(*value) bool, error) {
	limit := maxIn
	if op == opNotIn {
		limit = maxNotIn
	}
	list := want.GetArrayValue().GetValues()
	if len(list) == 0 || len(list) > limit {
		return nil, invalid("%v needs an array of 1 to %d values", op, limit)
	}
	switch op {
	case opAny:
		f.lists++
		f.arrays++
		return func(v *value) bool { return containsAny(v, matchable(list...)) }, nil
	case opIn:
		f.lists++
		return func(v *value) bool { return containsValue(matchable(list...), v) }, nil
	}
	f.notIns++
	f.nots++
	f.ordersBy(fp)
	return noneOf(list), nil
}

// noneOf is the test of != and not-in. Nothing is unequal to null, and NaN is
// unequal to NaN.
func noneOf(list []*value) func(*value) bool {
	if slices.ContainsFunc(list, isNull) {
		return func(*value) bool { return false }
	}
	list = matchable(list...)
	return func(v *value) bool { return !isNull(v) && !containsValue(list, v) }
}

// checkNameOperand refuses to compare a document's name with what is no name.
func checkNameOperand(fp fieldPath, op firestorepb.StructuredQuery_FieldFilter_Operator, want *value) error {
	if !fp.isDocumentID() {
		return nil
	}
	names := []*value{want}
	switch op {
	case opIn, opNotIn:
		names = want.GetArrayValue().GetValues()
	case opContains, opAny:
		return invalid("%s is not an array", documentID)
	}
	for _, v := range names {
		if classOf(v) != classReference {
			return invalid("%s is compared with a value that is not a reference", documentID)
		}
		if _, err := parseDocument("", v.GetReferenceValue()); err != nil {
			return err
		}
	}
	return nil
}
