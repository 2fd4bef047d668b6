package firestore

import (
	"time"

	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// transform computes a field's new value from its present one.
type transform struct {
	path fieldPath
	by   *value // the increment; nil: the server's timestamp
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
		case *firestorepb.DocumentTransform_FieldTransform_Increment:
			t.by = op.Increment
		default:
			return nil, unimplemented("a transform other than a server timestamp or an increment")
		}
		transforms = append(transforms, t)
	}
	return transforms, nil
}

// apply returns the field's next value in a commit at the given time. old is nil
// where the field does not exist.
func (t transform) apply(old *value, at time.Time) *value {
	if t.by == nil {
		return &value{ValueType: &firestorepb.Value_TimestampValue{TimestampValue: timestamppb.New(at.Truncate(time.Millisecond))}}
	}
	return increment(old, t.by)
}

// increment adds; an overflow wraps around, unlike in Firestore. A field without a
// number becomes the increment.
func increment(old, by *value) *value {
	if old == nil || classOf(old) != classNumber {
		return by
	}
	i, oldInt := old.GetValueType().(*firestorepb.Value_IntegerValue)
	j, byInt := by.GetValueType().(*firestorepb.Value_IntegerValue)
	if oldInt && byInt {
		return integerValue(i.IntegerValue + j.IntegerValue)
	}
	return &value{ValueType: &firestorepb.Value_DoubleValue{DoubleValue: asDouble(old) + asDouble(by)}}
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
