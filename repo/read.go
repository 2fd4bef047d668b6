package repo

import (
	"cmp"
	"context"
	"errors"
	"io"
	"math"
	"slices"
	"strings"
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

	"taskguard/internal/clock"
)

// The time limits of one call to Firestore, including the client's own retries. The
// rollback of a transaction that has reached its limit takes up to 5 s more.
const (
	callTimeout        = 5 * time.Second
	transactionTimeout = 10 * time.Second
	queryTimeout       = 15 * time.Second // a query, or a method that makes several calls
)

// reading is a document as a call read it: whole, or the fields of a mask.
type reading struct {
	id      string
	exists  bool
	fields  map[string]any                // the values as decodeValue returns them
	encoded map[string]*firestorepb.Value // existing fields of wanted.encoded; nil: they were not read
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

// wanted selects what a read returns of a document.
type wanted struct {
	fields  []string // fields to decode; nil: all, unless encoded is set
	encoded []string // fields to return encoded, from the top level
	// small leaves out encoded if the answer would have more than largeAnswer bytes. Then the
	// document is read twice, but gRPC receives the larger answer only in part.
	small bool
}

// paths returns the fields to read, without those inside another one of them.
func (w wanted) paths() []string {
	return slices.DeleteFunc(slices.Concat(w.fields, w.encoded), func(path string) bool {
		top, _, inside := strings.Cut(path, ".")
		return inside && slices.Contains(w.encoded, top)
	})
}

// read reads a document, or only fields of it, which Google's client cannot. It calls use once with
// the reading; use must not keep reading.encoded of a large document. A try takes up to callTimeout.
// read tries again until ctx ends, unless the error is final.
func (d *Database) read(ctx context.Context, doc *firestore.DocumentRef, want wanted, use func(r reading)) error {
	for pause := 100 * time.Millisecond; ; pause *= 2 {
		err := d.readOnce(ctx, doc, want, use)
		switch status.Code(err) {
		case codes.OK, codes.Canceled, codes.InvalidArgument, codes.NotFound, codes.FailedPrecondition,
			codes.PermissionDenied, codes.Unauthenticated:
			return err
		case codes.ResourceExhausted:
			if want.small {
				want = wanted{fields: want.fields}
				continue
			}
		}
		if !clock.Sleep(ctx, pause) {
			return err
		}
	}
}

// readOnce makes one try of read. A document that does not exist is not an error.
func (d *Database) readOnce(ctx context.Context, doc *firestore.DocumentRef, want wanted, use func(r reading)) error {
	f, err := d.receive(ctx, doc, want)
	if err != nil {
		return err
	}
	if len(f) > largeAnswer {
		if err := d.decoders.Acquire(ctx, 1); err != nil {
			return status.FromContextError(err).Err()
		}
		defer d.decoders.Release(1)
	}

	var answer firestorepb.BatchGetDocumentsResponse
	if err := proto.Unmarshal(f, &answer); err != nil {
		return err
	}
	if answer.GetResult() == nil {
		return errAnswer
	}
	use(decodeReading(&answer, doc.ID, want.encoded))
	return nil
}

// decodeReading decodes an answer, except these fields of its document.
func decodeReading(answer *firestorepb.BatchGetDocumentsResponse, id string, encoded []string) reading {
	found := answer.GetFound()
	r := reading{
		id: id, exists: found != nil, fields: map[string]any{}, created: found.GetCreateTime().AsTime(),
		updated: found.GetUpdateTime().AsTime(), at: answer.GetReadTime().AsTime(),
	}
	if encoded != nil {
		r.encoded = map[string]*firestorepb.Value{}
	}
	for name, v := range found.GetFields() {
		if slices.Contains(encoded, name) {
			r.encoded[name] = v
		} else {
			r.fields[name] = decodeValue(v)
		}
	}
	return r
}

// receive sends a read of one document and returns its answer. A stream with more than one answer is an error.
func (d *Database) receive(ctx context.Context, doc *firestore.DocumentRef, want wanted) (f frame, err error) {
	get := &firestorepb.BatchGetDocumentsRequest{Database: d.name, Documents: []string{doc.Path}}
	if want.fields != nil || want.encoded != nil {
		get.Mask = &firestorepb.DocumentMask{FieldPaths: want.paths()}
	}
	limit := math.MaxInt32
	if want.small {
		limit = largeAnswer
	}

	ctx, cancel := context.WithTimeout(d.outgoing(ctx), callTimeout)
	defer cancel()
	codec := frames{encoding.GetCodecV2("proto")}
	stream, err := d.api.BatchGetDocuments(ctx, get, grpc.ForceCodecV2(codec), grpc.MaxCallRecvMsgSize(limit))
	if err != nil {
		return nil, err
	}
	if err := stream.RecvMsg(&f); err != nil {
		return nil, err
	}
	if err := stream.RecvMsg(new(frame)); !errors.Is(err, io.EOF) {
		return nil, cmp.Or(err, errAnswer)
	}
	return f, nil
}

// outgoing adds the headers of a call to ctx.
func (d *Database) outgoing(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx,
		"google-cloud-resource-prefix", d.name, "x-goog-request-params", d.routing)
}

// errAnswer reports an answer that Firestore's protocol does not allow.
var errAnswer = errors.New("repo: a call did not get exactly one answer")

// frame is an encoded message.
type frame []byte

// frames is gRPC's codec of protocol buffers, except that it receives undecoded messages.
type frames struct{ encoding.CodecV2 }

// Unmarshal implements encoding.CodecV2.
func (frames) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*frame) = data.Materialize()
	return nil
}

// encoding waits until fields may be encoded. The caller then calls done, which is never nil and may
// be called more than once.
func (d *Database) encoding(ctx context.Context, fields map[string]any) (done func(), err error) {
	if size(fields) <= largeResult {
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
