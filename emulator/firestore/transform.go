package firestore

import (
	"math"
	"slices"
	"time"

	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// transform computes a field's new value from its present one.
type transform struct {
	path fieldPath
	pb   *firestorepb.DocumentTransform_FieldTransform
}

func parseTransforms(list []*firestorepb.DocumentTransform_FieldTransform) ([]transform, error) {
	transforms := make([]transform, 0, len(list))
	for _, pb := range list {
		fp, err := parseFieldPath(pb.GetFieldPath())
		if err != nil {
			return nil, err
		}
		if fp.isDocumentID() {
			return nil, invalid("%s cannot be transformed", documentID)
		}
		t := transform{path: fp, pb: pb}
		if err := t.check(); err != nil {
			return nil, err
		}
		transforms = append(transforms, t)
	}
	return transforms, nil
}

func (t transform) check() error {
	switch op := t.pb.GetTransformType().(type) {
	case *firestorepb.DocumentTransform_FieldTransform_SetToServerValue:
		if op.SetToServerValue != firestorepb.DocumentTransform_FieldTransform_REQUEST_TIME {
			return invalid("unknown server value %v", op.SetToServerValue)
		}
		return nil
	case *firestorepb.DocumentTransform_FieldTransform_Increment:
		return checkNumber(op.Increment)
	case *firestorepb.DocumentTransform_FieldTransform_Maximum:
		return checkNumber(op.Maximum)
	case *firestorepb.DocumentTransform_FieldTransform_Minimum:
		return checkNumber(op.Minimum)
	case *firestorepb.DocumentTransform_FieldTransform_AppendMissingElements:
		return checkElements(op.AppendMissingElements)
	case *firestorepb.DocumentTransform_FieldTransform_RemoveAllFromArray:
		return checkElements(op.RemoveAllFromArray)
	}
	return invalid("a field transform has no operation")
}

func checkNumber(v *value) error {
	if classOf(v) != classNumber {
		return invalid("the operand of a numeric transform is not a number")
	}
	return nil
}

func checkElements(a *firestorepb.ArrayValue) error {
	return checkValue(&value{ValueType: &firestorepb.Value_ArrayValue{ArrayValue: a}}, 1, 0)
}

// apply returns, for a commit at the given time, the field's next value and the result to report to the client.
// old is nil where the field does not exist.
func (t transform) apply(old *value, at time.Time) (next, result *value) {
	null := &value{ValueType: &firestorepb.Value_NullValue{}}
	switch op := t.pb.GetTransformType().(type) {
	case *firestorepb.DocumentTransform_FieldTransform_SetToServerValue:
		next = &value{ValueType: &firestorepb.Value_TimestampValue{TimestampValue: timestamppb.New(at.Truncate(time.Millisecond))}}
	case *firestorepb.DocumentTransform_FieldTransform_Increment:
		next = increment(old, op.Increment)
	case *firestorepb.DocumentTransform_FieldTransform_Maximum:
		next = extreme(old, op.Maximum, 1)
	case *firestorepb.DocumentTransform_FieldTransform_Minimum:
		next = extreme(old, op.Minimum, -1)
	case *firestorepb.DocumentTransform_FieldTransform_AppendMissingElements:
		return appendMissing(old, op.AppendMissingElements.GetValues()), null
	case *firestorepb.DocumentTransform_FieldTransform_RemoveAllFromArray:
		return removeAll(old, op.RemoveAllFromArray.GetValues()), null
	}
	return next, next
}

// increment adds; integers stop at the ends of int64. A field that holds no
// number becomes the operand.
func increment(old, by *value) *value {
	if old == nil || classOf(old) != classNumber {
		return by
	}
	i, oldInt := old.GetValueType().(*firestorepb.Value_IntegerValue)
	j, byInt := by.GetValueType().(*firestorepb.Value_IntegerValue)
	if oldInt && byInt {
		return integerValue(addSaturating(i.IntegerValue, j.IntegerValue))
	}
	return &value{ValueType: &firestorepb.Value_DoubleValue{DoubleValue: asDouble(old) + asDouble(by)}}
}

func addSaturating(a, b int64) int64 {
	switch {
	case b > 0 && a > math.MaxInt64-b:
		return math.MaxInt64
	case b < 0 && a < math.MinInt64-b:
		return math.MinInt64
	}
	return a + b
}

func integerValue(i int64) *value {
	return &value{ValueType: &firestorepb.Value_IntegerValue{IntegerValue: i}}
}

func asDouble(v *value) float64 {
	if i, ok := v.GetValueType().(*firestorepb.Value_IntegerValue); ok {
		return float64(i.IntegerValue)
	}
	return v.GetDoubleValue()
}

// extreme returns the larger (sign 1) or smaller (sign -1) of two numbers, the
// old one where they are equal. A field that holds no number becomes the other.
func extreme(old, other *value, sign int) *value {
	switch {
	case old == nil || classOf(old) != classNumber:
		return other
	case isNaN(old):
		return old
	case isNaN(other):
		return other
	case compareNumbers(other, old)*sign > 0:
		return other
	}
	return old
}

func appendMissing(old *value, add []*value) *value {
	elements := slices.Clone(old.GetArrayValue().GetValues())
	for _, v := range add {
		if !containsValue(elements, v) {
			elements = append(elements, v)
		}
	}
	return arrayValue(elements)
}

func removeAll(old *value, drop []*value) *value {
	var elements []*value
	for _, v := range old.GetArrayValue().GetValues() {
		if !containsValue(drop, v) {
			elements = append(elements, v)
		}
	}
	return arrayValue(elements)
}

func arrayValue(elements []*value) *value {
	return &value{ValueType: &firestorepb.Value_ArrayValue{ArrayValue: &firestorepb.ArrayValue{Values: elements}}}
}

func containsValue(list []*value, v *value) bool {
	return slices.ContainsFunc(list, func(e *value) bool { return compareValues(e, v) == 0 })
}
