package firestore

import (
	"maps"
	"time"

	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// write is a checked firestorepb.Write: an update, or a delete.
type write struct {
	remove     bool
	name       string
	condition  *firestorepb.Precondition
	fields     fields
	mask       []fieldPath // nil: all fields are replaced; a path that is not in fields is deleted
	transforms []transform // applied after fields, in order
}

// parseWrites checks the writes as far as that does not depend on stored data. Later only
// preconditions and sizes can fail.
func parseWrites(database string, list []*firestorepb.Write) ([]*write, error) {
	writes := make([]*write, 0, len(list))
	for _, pb := range list {
		w, err := parseWrite(pb)
		if err != nil {
			return nil, err
		}
		if err := checkDocument(database, w.name); err != nil {
			return nil, err
		}
		writes = append(writes, w)
	}
	return writes, nil
}

func parseWrite(pb *firestorepb.Write) (w *write, err error) {
	w = &write{condition: pb.GetCurrentDocument()}
	switch op := pb.GetOperation().(type) {
	case *firestorepb.Write_Delete:
		w.name, w.remove = op.Delete, true
		return w, nil
	case *firestorepb.Write_Update:
		w.name, w.fields = op.Update.GetName(), op.Update.GetFields()
	default:
		return nil, unimplemented("a write that is neither an update nor a delete")
	}

	if w.mask, err = parseMask(pb.GetUpdateMask()); err != nil {
		return nil, err
	}
	if err := checkMap(w.fields, 0, 0); err != nil {
		return nil, err
	}
	w.transforms, err = parseTransforms(pb.GetUpdateTransforms())
	return w, err
}

// update returns the document's next version. current is nil if the document does not
// exist.
func (w *write) update(current *document, at time.Time) (*document, error) {
	next := w.fields
	if w.mask != nil {
		next = current.GetFields()
		for _, fp := range w.mask {
			next = withField(next, fp, lookup(w.fields, fp))
		}
	}
	for _, t := range w.transforms {
		next = withField(next, t.path, t.apply(lookup(next, t.path), at))
	}

	d := &document{Name: w.name, Fields: next, CreateTime: timestamppb.New(at), UpdateTime: timestamppb.New(at)}
	if current != nil {
		d.CreateTime = current.CreateTime
	}
	return d, checkSize(d)
}

// sameDocument reports whether two versions of a document differ at most in
// their update times. One of them may be nil.
func sameDocument(a, b *document) bool {
	return b != nil && a.CreateTime == b.CreateTime &&
		maps.EqualFunc(a.Fields, b.Fields, func(v, w *value) bool { return v == w || proto.Equal(v, w) })
}
