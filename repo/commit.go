package repo

import (
	"context"
	"fmt"
	"time"

	"cloud.google.com/go/firestore"
	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"taskguard/lease"
)

// update commits updates if the document still has the update time read, and returns the new
// one. Google's client would need more than twice the allocations, and would send the commit
// again by itself. The paths of updates are names of fields.
func (d *Database) update(ctx context.Context, doc *firestore.DocumentRef, updates []firestore.Update,
	read time.Time,
) (at time.Time, err error) {
	fields, paths := make(map[string]*firestorepb.Value, len(updates)), make([]string, len(updates))
	for i, u := range updates {
		paths[i] = u.Path
		if u.Value == firestore.Delete {
			continue
		}
		if fields[u.Path], err = encodeValue(u.Value); err != nil {
			return at, err
		}
	}

	answer, err := d.api.Commit(d.outgoing(ctx), &firestorepb.CommitRequest{
		Database: d.name,
		Writes: []*firestorepb.Write{{
			Operation:  &firestorepb.Write_Update{Update: &firestorepb.Document{Name: doc.Path, Fields: fields}},
			UpdateMask: &firestorepb.DocumentMask{FieldPaths: paths},
			CurrentDocument: &firestorepb.Precondition{
				ConditionType: &firestorepb.Precondition_UpdateTime{UpdateTime: timestamppb.New(read)},
			},
		}},
	})
	if err != nil {
		return at, err
	}
	if len(answer.GetWriteResults()) != 1 {
		return at, errAnswer // written, but at an unknown time: Edit must read it
	}
	return answer.GetWriteResults()[0].GetUpdateTime().AsTime(), nil
}

// encodeValue encodes a value of the types that the codecs and orchestrator.Storable make.
func encodeValue(v any) (_ *firestorepb.Value, err error) {
	switch v := v.(type) {
	case nil:
		return &firestorepb.Value{ValueType: &firestorepb.Value_NullValue{}}, nil
	case bool:
		return &firestorepb.Value{ValueType: &firestorepb.Value_BooleanValue{BooleanValue: v}}, nil
	case int:
		return encodeValue(int64(v))
	case int64:
		return &firestorepb.Value{ValueType: &firestorepb.Value_IntegerValue{IntegerValue: v}}, nil
	case float64:
		return &firestorepb.Value{ValueType: &firestorepb.Value_DoubleValue{DoubleValue: v}}, nil
	case string:
		return &firestorepb.Value{ValueType: &firestorepb.Value_StringValue{StringValue: v}}, nil
	case time.Time:
		return &firestorepb.Value{ValueType: &firestorepb.Value_TimestampValue{TimestampValue: timestamppb.New(v)}}, nil

	case []any:
		array := &firestorepb.ArrayValue{Values: make([]*firestorepb.Value, len(v))}
		for i, e := range v {
			if array.Values[i], err = encodeValue(e); err != nil {
				return nil, err
			}
		}
		return &firestorepb.Value{ValueType: &firestorepb.Value_ArrayValue{ArrayValue: array}}, nil
	case map[string]any:
		m := &firestorepb.MapValue{Fields: make(map[string]*firestorepb.Value, len(v))}
		for name, e := range v {
			if m.Fields[name], err = encodeValue(e); err != nil {
				return nil, err
			}
		}
		return &firestorepb.Value{ValueType: &firestorepb.Value_MapValue{MapValue: m}}, nil
	}
	return nil, fmt.Errorf("%w: a value of the type %T", lease.ErrRefused, v)
}
