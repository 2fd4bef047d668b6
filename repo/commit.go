package repo

import (
	"context"
	"time"

	"cloud.google.com/go/firestore"
	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/protobuf/types/known/timestamppb"
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
