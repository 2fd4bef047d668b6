package repo

import (
	"cmp"
	"context"
	"errors"
	"io"
	"math"
	"sync"
	"time"

	"cloud.google.com/go/firestore"
	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec that frames uses
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// A value of one byte takes a hundred bytes of memory as a protocol buffer. So the
// database decodes large documents, and encodes large results, one at a time.
const (
	largeAnswer = 64 << 10 // bytes
	largeResult = 4 << 10  // values
)

// reading is a document as a call read it: whole, or the fields of a mask.
type reading struct {
	id      string
	exists  bool
	fields  map[string]any // as Google's client decodes them, except references; see goValue
	created time.Time
	updated time.Time
	at      time.Time // Firestore's time of the reading
}

// snapshot converts a reading by Google's client.
func snapshot(s *firestore.DocumentSnapshot) reading {
	return reading{
		id: s.Ref.ID, exists: s.Exists(), fields: s.Data(),
		created: s.CreateTime, updated: s.UpdateTime, at: s.ReadTime,
	}
}

// read reads a document, or only the given fields of it, which Google's client cannot.
// It returns the error of use unchanged; use must not keep r.fields. A try takes up to
// callTimeout. read tries again until ctx ends, unless the error is final.
func (d *Database) read(ctx context.Context, doc *firestore.DocumentRef, fields []string,
	use func(r reading) error,
) error {
	for pause := 100 * time.Millisecond; ; pause *= 2 {
		var used error
		err := d.request(ctx, callTimeout, doc, fields).receive(ctx, func(r reading) error {
			used = use(r)
			return nil
		})
		switch status.Code(err) {
		case codes.OK:
			return used
		case codes.Canceled, codes.InvalidArgument, codes.NotFound, codes.FailedPrecondition,
			codes.PermissionDenied, codes.Unauthenticated:
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause):
		}
	}
}

// request is a read that has been sent. receive receives its answer.
type request struct {
	db     *Database
	doc    *firestore.DocumentRef
	cancel context.CancelFunc
	stream firestorepb.Firestore_BatchGetDocumentsClient
	err    error
}

// request sends a read. The answer must be received within timeout; until then it stays
// in gRPC's buffers.
func (d *Database) request(ctx context.Context, timeout time.Duration, doc *firestore.DocumentRef,
	fields []string,
) *request {
	get := &firestorepb.BatchGetDocumentsRequest{Database: d.name, Documents: []string{doc.Path}}
	if fields != nil {
		get.Mask = &firestorepb.DocumentMask{FieldPaths: fields}
	}

	r := &request{db: d, doc: doc}
	ctx, r.cancel = context.WithTimeout(ctx, timeout)
	ctx = metadata.AppendToOutgoingContext(ctx,
		"google-cloud-resource-prefix", d.name, "x-goog-request-params", d.routing)
	r.stream, r.err = d.api.BatchGetDocuments(ctx, get,
		grpc.ForceCodecV2(frames{}), grpc.MaxCallRecvMsgSize(math.MaxInt32))
	return r
}

// receive waits for the answer, or until ctx ends, and calls use with the decoded
// document. It is called once. A document that does not exist is not an error.
func (r *request) receive(ctx context.Context, use func(reading) error) error {
	defer r.cancel()
	defer context.AfterFunc(ctx, r.cancel)()
	if r.err != nil {
		return r.err
	}

	var f, end frame
	if err := r.stream.RecvMsg(&f); err != nil {
		return err
	}
	if err := r.stream.RecvMsg(&end); !errors.Is(err, io.EOF) {
		return cmp.Or(err, errAnswer)
	}

	if len(f) > largeAnswer {
		if err := r.db.decoders.Acquire(ctx, 1); err != nil {
			return status.FromContextError(err).Err()
		}
		defer r.db.decoders.Release(1)
	}
	var answer firestorepb.BatchGetDocumentsResponse
	if err := proto.Unmarshal(f, &answer); err != nil || answer.GetResult() == nil {
		return cmp.Or(err, errAnswer)
	}

	got := reading{id: r.doc.ID, at: answer.GetReadTime().AsTime()}
	if found := answer.GetFound(); found != nil {
		got.exists, got.fields = true, goFields(found.GetFields())
		got.created, got.updated = found.GetCreateTime().AsTime(), found.GetUpdateTime().AsTime()
	}
	return use(got)
}

// errAnswer reports an answer that Firestore's protocol does not allow.
var errAnswer = errors.New("repo: a read did not get exactly one answer")

// frame is an encoded message.
type frame []byte

// frames is a gRPC codec that sends protocol buffers and receives undecoded messages.
type frames struct{}

// Name implements encoding.CodecV2.
func (frames) Name() string { return "proto" }

// Marshal implements encoding.CodecV2.
func (frames) Marshal(v any) (mem.BufferSlice, error) { return encoding.GetCodecV2("proto").Marshal(v) }

// Unmarshal implements encoding.CodecV2.
func (frames) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*frame) = data.Materialize()
	return nil
}

func goFields(fields map[string]*firestorepb.Value) map[string]any {
	m := make(map[string]any, len(fields))
	for name, v := range fields {
		m[name] = goValue(v)
	}
	return m
}

// goValue decodes v as Google's client does, except that a reference becomes its path,
// and a vector an array.
func goValue(v *firestorepb.Value) any {
	switch v := v.GetValueType().(type) {
	case *firestorepb.Value_BooleanValue:
		return v.BooleanValue
	case *firestorepb.Value_IntegerValue:
		return v.IntegerValue
	case *firestorepb.Value_DoubleValue:
		return v.DoubleValue
	case *firestorepb.Value_TimestampValue:
		return v.TimestampValue.AsTime()
	case *firestorepb.Value_StringValue:
		return v.StringValue
	case *firestorepb.Value_BytesValue:
		return v.BytesValue
	case *firestorepb.Value_ReferenceValue:
		return v.ReferenceValue
	case *firestorepb.Value_GeoPointValue:
		return v.GeoPointValue

	case *firestorepb.Value_ArrayValue:
		s := make([]any, len(v.ArrayValue.GetValues()))
		for i, e := range v.ArrayValue.GetValues() {
			s[i] = goValue(e)
		}
		return s
	case *firestorepb.Value_MapValue:
		m := goFields(v.MapValue.GetFields())
		if m["__type__"] == "__vector__" {
			return m["value"]
		}
		return m
	}
	return nil
}

// encoding waits until updates may be encoded. The caller then calls done, which is never
// nil and may be called more than once.
func (d *Database) encoding(ctx context.Context, updates []firestore.Update) (done func(), err error) {
	n := 0
	for i := range updates {
		n += size(updates[i].Value)
	}
	if n <= largeResult {
		return func() {}, nil
	}
	if err := d.encoders.Acquire(ctx, 1); err != nil {
		return func() {}, err
	}
	return sync.OnceFunc(func() { d.encoders.Release(1) }), nil
}

// size returns the number of values in v, including v.
func size(v any) (n int) {
	switch v := v.(type) {
	case map[string]any:
		for _, e := range v {
			n += size(e)
		}
	case []any:
		for _, e := range v {
			n += size(e)
		}
	}
	return n + 1
}
