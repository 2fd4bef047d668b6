package firestore

import (
	"context"
	"maps"
	"slices"
	"time"

	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// commit applies all writes at one moment, or none, and returns a result for each. In both cases
// it ends the transaction txn, if one is named. It waits while other transactions hold locks on the
// documents that it changes, until lockWait has passed or ctx ends. While it waits, await unlocks s.mu.
func (s *store) commit(
	ctx context.Context, dbName string, txn []byte, writes []*write,
) (at time.Time, results []*firestorepb.WriteResult, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var t *transaction
	if len(txn) > 0 {
		if t, err = s.use(dbName, txn); err != nil {
			return at, nil, err
		}
		defer s.end(t)
	}

	p, err := s.prepare(ctx, dbName, t, writes)
	if err != nil {
		return at, nil, err
	}

	p.db.install(p.at, p.changes(writes))
	for _, w := range writes { // a deleted document has no update time
		results = append(results, &firestorepb.WriteResult{UpdateTime: p.current(w.name).GetUpdateTime()})
		if !w.remove {
			s.billed.Writes++
		}
	}
	return p.at, results, nil
}

// prepare returns the effect of the writes when no lock forbids them. It computes the effect
// again each time that a lock has been freed. Locks come before preconditions.
func (s *store) prepare(ctx context.Context, dbName string, t *transaction, writes []*write) (*plan, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, lockWait, errLockTimeout)
	defer cancel()
	for {
		s.expire()
		p := &plan{db: s.database(dbName), at: s.clock.commit(), next: map[string]*document{}}
		err := p.apply(writes)
		blocker := s.blocker(dbName, t, p.changes(writes))
		if blocker == nil {
			return p, err
		}
		if err := s.await(ctx, t, blocker); err != nil {
			return nil, err
		}
		if t != nil && s.transactions[t.id] != t {
			return nil, errClosedTransaction
		}
	}
}

// plan is the effect of a commit before it is installed.
type plan struct {
	db   *database
	at   time.Time
	next map[string]*document // the new versions of the written documents; nil: deleted
}

func (p *plan) current(name string) *document {
	if d, touched := p.next[name]; touched {
		return d
	}
	return p.db.docs[name]
}

// changes returns the change of each written document, in the order of the first writes. A write
// that changes nothing has the same version before and after.
func (p *plan) changes(writes []*write) (list []change) {
	seen := map[string]bool{}
	for _, w := range writes {
		if !seen[w.name] {
			list = append(list, change{name: w.name, before: p.db.docs[w.name], after: p.current(w.name)})
		}
		seen[w.name] = true
	}
	return list
}

// apply applies each write to the result of the writes before it.
func (p *plan) apply(writes []*write) error {
	for _, w := range writes {
		current := p.current(w.name)
		if err := w.checkPrecondition(current); err != nil {
			return err
		}
		if w.remove {
			p.next[w.name] = nil
			continue
		}

		next, err := w.update(current, p.at)
		if err != nil {
			return err
		}

		// A write that results in the stored version changes nothing, and the update
		// time stays.
		if stored := p.db.docs[w.name]; unchanged(stored, next) {
			next = stored
		}
		p.next[w.name] = next
	}
	return nil
}

// checkPrecondition compares the write's condition with the document. current is nil if the
// document does not exist.
func (w *write) checkPrecondition(current *document) error {
	switch c := w.condition.GetConditionType().(type) {
	case *firestorepb.Precondition_Exists:
		if c.Exists && current == nil {
			return status.Errorf(codes.NotFound, "no entity to update: %s", w.name)
		}
		if !c.Exists && current != nil {
			return status.Errorf(codes.AlreadyExists, "entity already exists: %s", w.name)
		}
	case *firestorepb.Precondition_UpdateTime:
		want := c.UpdateTime.AsTime()
		if current == nil || want.Before(current.UpdateTime.AsTime()) {
			return status.Errorf(codes.FailedPrecondition,
				"the stored version of %s does not match the required base version", w.name)
		}
		if want.After(current.UpdateTime.AsTime()) {
			return invalid("the required base version of %s is greater than the stored version", w.name)
		}
	}
	return nil
}

// write is a checked firestorepb.Write: an update, or a delete.
type write struct {
	remove     bool
	name       string
	condition  *firestorepb.Precondition
	fields     fields
	mask       []fieldPath // nil: all fields are replaced; a path that is not in fields is deleted
	transforms []transform // applied after fields, in order
}

// parseWrites makes all checks of the writes that do not depend on stored data. Later only
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
		if pb.GetUpdateMask() != nil || len(pb.GetUpdateTransforms()) > 0 {
			return nil, invalid("a delete has an update mask or transforms")
		}
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

// unchanged reports whether next has the fields and the creation time of the stored version, so that at
// most the update times differ. stored is nil if the document does not exist.
func unchanged(stored, next *document) bool {
	return stored != nil && proto.Equal(stored.CreateTime, next.CreateTime) &&
		maps.EqualFunc(stored.Fields, next.Fields, func(v, w *value) bool { return v == w || proto.Equal(v, w) })
}

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

		if fp.isKey() {
			return nil, invalid("%s is not a field to transform", documentID)
		}
		for _, other := range transforms {
			n := min(len(fp), len(other.path))
			if len(fp) != len(other.path) && slices.Equal(fp[:n], other.path[:n]) {
				return nil, invalid("a field and one inside it cannot both be transformed")
			}
		}
		t := transform{path: fp}
		switch op := pb.GetTransformType().(type) {
		case *firestorepb.DocumentTransform_FieldTransform_SetToServerValue:
			if op.SetToServerValue != firestorepb.DocumentTransform_FieldTransform_REQUEST_TIME {
				return nil, invalid("set_to_server_value is not REQUEST_TIME")
			}
			t.apply = func(_ *value, at time.Time) *value {
				now := timestamppb.New(at.Truncate(time.Millisecond))
				return &value{ValueType: &firestorepb.Value_TimestampValue{TimestampValue: now}}
			}
		case *firestorepb.DocumentTransform_FieldTransform_Increment:
			if classOf(op.Increment) != numbers {
				return nil, invalid("an increment is not a number")
			}
			t.apply = func(old *value, _ time.Time) *value { return sum(old, op.Increment) }
		case *firestorepb.DocumentTransform_FieldTransform_AppendMissingElements:
			err = checkArray(op.AppendMissingElements.GetValues(), 1, 0)
			t.apply = func(old *value, _ time.Time) *value { return union(old, op.AppendMissingElements) }
		case *firestorepb.DocumentTransform_FieldTransform_RemoveAllFromArray:
			err = checkArray(op.RemoveAllFromArray.GetValues(), inQuery, inQuery)
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
