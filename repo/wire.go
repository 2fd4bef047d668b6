package repo

import (
	"bytes"
	"math"
	"time"

	"google.golang.org/genproto/googleapis/type/latlng"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// This file decodes Firestore's messages without protocol buffers, which need twice the
// allocations, and cannot leave a field encoded.

// eachField calls use for each field of an encoded message, with its number and its value: n for
// a number, b for bytes and for a message.
func eachField(message []byte, use func(field protowire.Number, n uint64, b []byte) error) error {
	for len(message) > 0 {
		field, kind, size := protowire.ConsumeField(message)
		if size < 0 {
			return protowire.ParseError(size)
		}
		_, _, tag := protowire.ConsumeTag(message)

		var n uint64
		var b []byte
		switch value := message[tag:size]; kind {
		case protowire.VarintType:
			n, _ = protowire.ConsumeVarint(value)
		case protowire.Fixed64Type:
			n, _ = protowire.ConsumeFixed64(value)
		case protowire.BytesType:
			b, _ = protowire.ConsumeBytes(value)
		}
		if err := use(field, n, b); err != nil {
			return err
		}
		message = message[size:]
	}
	return nil
}

// decode decodes an answer to BatchGetDocuments. It leaves the fields of the document encoded
// that are named so.
func (r *reading) decode(answer []byte, encoded []string) error {
	answered := false
	err := eachField(answer, func(field protowire.Number, _ uint64, b []byte) (err error) {
		switch field {
		case 1: // found
			answered, r.exists = true, true
			err = r.decodeDocument(b, encoded)
		case 2: // missing
			answered = true
		case 4:
			r.at, err = decodeTime(b)
		}
		return err
	})
	if err == nil && !answered {
		err = errAnswer
	}
	return err
}

// decodeDocument decodes a message Document.
func (r *reading) decodeDocument(document []byte, encoded []string) error {
	r.fields = map[string]any{}
	if encoded != nil {
		r.encoded = map[string][]byte{}
	}
	for _, name := range encoded {
		r.encoded[name] = nil
	}
	return eachField(document, func(field protowire.Number, _ uint64, b []byte) (err error) {
		switch field {
		case 2:
			err = decodeEntry(b, r.fields, r.encoded)
		case 3:
			r.created, err = decodeTime(b)
		case 4:
			r.updated, err = decodeTime(b)
		}
		return err
	})
}

// decodeEntry adds a field of a document or a map to decoded, or to encoded if that has its name.
func decodeEntry(entry []byte, decoded map[string]any, encoded map[string][]byte) error {
	var name string
	var value []byte
	err := eachField(entry, func(field protowire.Number, _ uint64, b []byte) error {
		if field == 1 {
			name = string(b)
		} else {
			value = b
		}
		return nil
	})
	if err != nil {
		return err
	}

	if _, found := encoded[name]; found {
		encoded[name] = value
		return nil
	}
	decoded[name], err = decodeValue(value)
	return err
}

// decodeTime decodes a message Timestamp.
func decodeTime(message []byte) (time.Time, error) {
	var t timestamppb.Timestamp
	err := proto.Unmarshal(message, &t)
	return t.AsTime(), err
}

// decodeValue decodes a message Value as Google's client does, except that a reference becomes
// its path, and a vector an array. It returns nil for an empty message.
func decodeValue(message []byte) (v any, err error) {
	err = eachField(message, func(field protowire.Number, n uint64, b []byte) (err error) {
		switch field {
		case 1:
			v = n != 0
		case 2:
			v = int64(n)
		case 3:
			v = math.Float64frombits(n)
		case 5, 17: // a reference, a string
			v = string(b)
		case 6:
			m := map[string]any{}
			err = eachField(b, func(_ protowire.Number, _ uint64, e []byte) error { return decodeEntry(e, m, nil) })
			if v = m; m["__type__"] == "__vector__" {
				v = m["value"]
			}
		case 8:
			point := &latlng.LatLng{}
			v, err = point, proto.Unmarshal(b, point)
		case 9:
			n := 0
			_ = eachField(b, func(protowire.Number, uint64, []byte) error { n++; return nil })
			s := make([]any, 0, n) // growing would need three times the memory
			err = eachField(b, func(_ protowire.Number, _ uint64, b []byte) error {
				e, err := decodeValue(b)
				s = append(s, e)
				return err
			})
			v = s
		case 10:
			v, err = decodeTime(b)
		case 18:
			v = bytes.Clone(b)
		}
		return err
	})
	return v, err
}
