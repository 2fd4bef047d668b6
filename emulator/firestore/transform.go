package firestore

import (
	"slices"
	"time"

	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// transform computes a field's new value. old is nil where the field does not exist, and at is the
// time of the commit.
type transform struct {
	path  fieldPath
	apply func(old *value, at time.Time) *value
}

func parseTransforms(list []*firestorepb.DocumentTransform_FieldTransform) ([]transform, error) {
	transforms := make([]transform, 0, len(list))
	for _, pb := range list {
		fp, err := parseFieldPath(pb.GetFieldPath())
		if err != nil {
			return nil, err
		}

		t := transform{path: fp}
		switch op := pb.GetTransformType().(type) {
		case *firestorepb.DocumentTransform_FieldTransform_SetToServerValue:
			t.apply = func(_ *value, at time.Time) *value {
				now := timestamppb.New(at.Truncate(time.Millisecond))
				return &value{ValueType: &firestorepb.Value_TimestampValue{TimestampValue: now}}
			}
		case *firestorepb.DocumentTransform_FieldTransform_Increment:
			t.apply = func(old *value, _ time.Time) *value { return sum(old, op.Increment) }
		case *firestorepb.DocumentTransform_FieldTransform_AppendMissingElements:
			err = checkArray(op.AppendMissingElements.GetValues(), 1, 0)
			t.apply = func(old *value, _ time.Time) *value { return union(old, op.AppendMissingElements) }
		case *firestorepb.DocumentTransform_FieldTransform_RemoveAllFromArray:
			removed := &value{ValueType: &firestorepb.Value_ArrayValue{ArrayValue: op.RemoveAllFromArray}}
			t.apply = func(old *value, _ time.Time) *value {
				return arrayOf(slices.DeleteFunc(slices.Clone(old.GetArrayValue().GetValues()), func(v *value) bool {
					return contains(removed, v)
				}))
			}
		default:
			err = unimplemented("the transforms maximum and minimum")
		}

		if err != nil {
			return nil, err
		}
		transforms = append(transforms, t)
	}
	return transforms, nil
}

// sum adds two numbers. A value that is no number becomes the increment. An overflow of integers
// wraps around, unlike in Firestore.
func sum(old, increment *value) *value {
	_, aDouble := old.GetValueType().(*firestorepb.Value_DoubleValue)
	_, bDouble := increment.GetValueType().(*firestorepb.Value_DoubleValue)
	if aDouble || bDouble {
		return &value{ValueType: &firestorepb.Value_DoubleValue{DoubleValue: asDouble(old) + asDouble(increment)}}
	}
	return integerValue(old.GetIntegerValue() + increment.GetIntegerValue())
}

// union appends the elements that an array lacks, each once. A value that is no array is an empty
// one.
func union(old *value, elements *firestorepb.ArrayValue) *value {
	all := arrayOf(slices.Clone(old.GetArrayValue().GetValues()))
	for _, e := range elements.GetValues() {
		if !contains(all, e) {
			all.GetArrayValue().Values = append(all.GetArrayValue().Values, e)
		}
	}
	return all
}

func arrayOf(elements []*value) *value {
	array := &firestorepb.ArrayValue{Values: elements}
	return &value{ValueType: &firestorepb.Value_ArrayValue{ArrayValue: array}}
}

func integerValue(i int64) *value {
	return &value{ValueType: &firestorepb.Value_IntegerValue{IntegerValue: i}}
}
