package firestore

import (
	"slices"
	"time"

	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// write is a checked firestorepb.Write.
type write struct {
	remove     bool
	path       path
	condition  *firestorepb.Precondition
	fields     fields
	masked     bool        // only the paths in mask change
	mask       []fieldPath // a path absent from fields is deleted
	transforms []transform // applied after fields, in order
}

// parseWrites checks everything about the writes that does not depend on stored
// data, so that later only preconditions, transforms and sizes can fail.
func parseWrites(database string, list []*firestorepb.Write) ([]*write, error) {
	writes := make([]*write, 0, len(list))
	for _, pb := range list {
		w, err := parseWrite(database, pb)
		if err != nil {
			return nil, err
		}
		writes = append(writes, w)
	}
	return writes, nil
}

func parseWrite(database string, pb *firestorepb.Write) (*write, error) {
	w := &write{condition: pb.GetCurrentDocument()}
	var name string
	var err error
	switch op := pb.GetOperation().(type) {
	case *firestorepb.Write_Update:
		name = op.Update.GetName()
		err = w.parseUpdate(pb, op.Update)
	case *firestorepb.Write_Transform:
		name = op.Transform.GetDocument()
		w.masked = true
		if len(op.Transform.GetFieldTransforms()) == 0 {
			return nil, invalid("a transform has no field transforms")
		}
		w.transforms, err = parseTransforms(op.Transform.GetFieldTransforms())
	case *firestorepb.Write_Delete:
		name, w.remove = op.Delete, true
	default:
		return nil, invalid("a write has no operation")
	}
	if err != nil {
		return nil, err
	}
	if pb.GetUpdate() == nil && (pb.GetUpdateMask() != nil || len(pb.GetUpdateTransforms()) > 0) {
		return nil, invalid("only an update takes a mask or transforms")
	}
	if err := checkCondition(w.condition); err != nil {
		return nil, err
	}
	if w.path, err = parseDocument(database, name); err != nil {
		return nil, err
	}
	if !w.remove {
		err = w.path.checkLimits()
	}
	return w, err
}

func (w *write) parseUpdate(pb *firestorepb.Write, doc *firestorepb.Document) error {
	var err error
	w.masked = pb.GetUpdateMask() != nil
	if w.mask, err = parseUpdateMask(pb.GetUpdateMask()); err != nil {
		return err
	}
	w.fields = doc.GetFields()
	if err = checkFields(w.fields); err != nil {
		return err
	}
	w.transforms, err = parseTransforms(pb.GetUpdateTransforms())
	return err
}

// parseUpdateMask reads the paths that an update may change. The name of the
// document is no field of it and is left out.
func parseUpdateMask(pb *firestorepb.DocumentMask) ([]fieldPath, error) {
	mask, err := parseMask(pb)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(mask, fieldPath.isDocumentID), nil
}

func checkCondition(c *firestorepb.Precondition) error {
	u, ok := c.GetConditionType().(*firestorepb.Precondition_UpdateTime)
	if ok && u.UpdateTime.GetNanos()%int32(time.Microsecond) != 0 {
		return invalid("update_time is finer than a microsecond")
	}
	return nil
}

// update works out the document's next version from the current one, nil where
// there is none.
func (w *write) update(current *document, at time.Time) (*document, []*value, error) {
	next := w.fields
	if w.masked {
		next = nil
		if current != nil {
			next = current.pb.Fields
		}
		for _, fp := range w.mask {
			next = withField(next, fp, lookup(w.fields, fp))
		}
	}
	var results []*value
	for _, t := range w.transforms {
		v, result := t.apply(lookup(next, t.path), at)
		next = withField(next, t.path, v)
		results = append(results, result)
	}
	if len(w.transforms) > 0 { // the only way to what parseWrite has not seen
		if err := checkFields(next); err != nil {
			return nil, nil, err
		}
	}
	d := &document{path: w.path, pb: &firestorepb.Document{
		Name:       w.path.String(),
		Fields:     next,
		CreateTime: timestamppb.New(at),
		UpdateTime: timestamppb.New(at),
	}}
	if current != nil {
		d.pb.CreateTime = current.pb.CreateTime
	}
	if err := checkSize(d); err != nil {
		return nil, nil, err
	}
	return d, results, nil
}

// sameAs tells whether two versions of a document differ at most in when they
// were written.
func (d *document) sameAs(other *document) bool {
	return other != nil && d.pb.CreateTime == other.pb.CreateTime && equalFields(d.pb.Fields, other.pb.Fields)
}

func equalFields(a, b fields) bool {
	if len(a) != len(b) {
		return false
	}
	for name, v := range a {
		w, ok := b[name]
		if !ok || v != w && !proto.Equal(v, w) {
			return false
		}
	}
	return true
}
