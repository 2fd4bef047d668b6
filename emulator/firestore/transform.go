package firestore

import (
	"time"

	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// transform computes a field's new value from its present one.
type transform struct {
	path      fieldPath
	increment *firestorepb.Value_IntegerValue // nil: the server's timestamp
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
			t.increment, _ = op.Increment.GetValueType().(*firestorepb.Value_IntegerValue)
			if t.increment == nil {
				return nil, unimplemented("an increment by a double")
			}
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
	if t.increment == nil {
		now := timestamppb.New(at.Truncate(time.Millisecond))
		return &value{ValueType: &firestorepb.Value_TimestampValue{TimestampValue: now}}
	}

	if old, isDouble := old.GetValueType().(*firestorepb.Value_DoubleValue); isDouble {
		sum := old.DoubleValue + float64(t.increment.IntegerValue)
		return &value{ValueType: &firestorepb.Value_DoubleValue{DoubleValue: sum}}
	}
	// A field without a number becomes the increment. An overflow wraps around, unlike
	// in Firestore.
	return integerValue(old.GetIntegerValue() + t.increment.IntegerValue)
}

func integerValue(i int64) *value {
	return &value{ValueType: &firestorepb.Value_IntegerValue{IntegerValue: i}}
}
