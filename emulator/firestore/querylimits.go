package firestore

import (
	"slices"
	"strings"

	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/protobuf/proto"
)

// Firestore's limits on one query.
const (
	maxFilters      = 100 // filters of one field and one value, and orders
	maxDisjunctions = 30
	maxInequalities = 10 // fields
	maxOperandBytes = 1500
)

// longest is how many values the array of an operator may have.
var longest = map[operator]int{
	firestorepb.StructuredQuery_FieldFilter_IN:                 30,
	firestorepb.StructuredQuery_FieldFilter_ARRAY_CONTAINS_ANY: 30,
	firestorepb.StructuredQuery_FieldFilter_NOT_IN:             10,
}

// operands returns the different values of a filter. It refuses values that a filter of the field
// cannot have.
func (f *filters) operands(fp fieldPath, op operator, want *value) ([]*value, error) {
	operands := []*value{want}
	if most, list := longest[op]; list {
		operands = slices.Clone(elements(want))
		if len(operands) == 0 || len(operands) > most {
			return nil, invalid("%v has an array of %d values, want 1 to %d", op, len(operands), most)
		}
	}

	for _, v := range operands {
		switch err := checkOperand(f.database, fp, v); {
		case err != nil:
			return nil, err
		case fp.isKey() && strings.HasPrefix(op.String(), "ARRAY_CONTAINS"):
			return nil, invalid("%v is not an operator of %s", op, documentID)
		case !fp.isKey() && valueBytes(v) > maxOperandBytes:
			return nil, invalid("the value of a filter has %d bytes, the limit is %d", valueBytes(v), maxOperandBytes)
		}
	}
	slices.SortFunc(operands, compareValues)
	return slices.CompactFunc(operands, func(v, w *value) bool { return proto.Equal(v, w) }), nil
}

// checkOperand refuses a value that cannot be compared with the field.
func checkOperand(database string, fp fieldPath, v *value) error {
	if fp.isKey() {
		return checkDocument(database, v.GetReferenceValue())
	}
	return checkValue(v, inQuery, inQuery)
}

// check refuses a condition that Firestore does not search for. orders is the number of the query's orders.
func (f *filters) check(c condition, orders int) error {
	slices.SortFunc(f.ranges, slices.Compare[fieldPath])
	f.ranges = slices.CompactFunc(f.ranges, slices.Equal[fieldPath])
	switch {
	case c.filters+orders > maxFilters:
		return invalid("a query has %d filters and orders, the limit is %d", c.filters+orders, maxFilters)
	case c.terms > maxDisjunctions:
		return invalid("the filters have %d disjunctions, the limit is %d", c.terms, maxDisjunctions)
	case c.arrays > 1:
		return invalid("a disjunction has %d array-contains, the limit is 1", c.arrays)
	case f.negatives > 1:
		return invalid("a query has %d of !=, not-in, is not null and is not NaN, the limit is 1", f.negatives)
	case f.notIn && f.or:
		return invalid("not-in cannot be in one query with in, array-contains-any or an or")
	case len(f.ranges) > maxInequalities:
		return invalid("a query has inequalities of %d fields, the limit is %d", len(f.ranges), maxInequalities)
	case f.key && len(f.ranges) > 0 && !slices.ContainsFunc(f.ranges, fieldPath.isKey):
		return invalid("an equality of %s cannot be in one query with inequalities of other fields alone", documentID)
	}
	return nil
}
