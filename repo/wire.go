package repo

import (
	"bytes"
	"math"
	"slices"
	"time"

	"google.golang.org/genproto/googleapis/type/latlng"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// This file decodes Firestore's messages without protocol buffers, which need twice the
// allocations, and cannot leave a field encoded.

// eachField calls use for each field of an encoded message, with its number and its value: n for
// a number, b for bytes and for a message.
func eachField(message []byte, use func(field protowire.Number, n uint64, b []byte) error) error {
	for len(message) > 0 {
		field, kind, size := protowire.ConsumeTag(message)
		if size < 0 {
			return protowire.ParseError(size)
		}
		message = message[size:]

		var n uint64
		var b []byte
		switch kind {
		case protowire.VarintType:
			n, size = protowire.ConsumeVarint(message)
		case protowire.Fixed64Type:
			n, size = protowire.ConsumeFixed64(message)
		case protowire.BytesType:
			b, size = protowire.ConsumeBytes(message)
		default:
			size = protowire.ConsumeFieldValue(field, kind, message)
		}
		if size < 0 {
			return protowire.ParseError(size)
		}
		message = message[size:]
		if err := use(field, n, b); err != nil {
			return err
		}
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
	return eachField(document, func(field protowire.Number, _ uint64, b []byte) (err error) {
		switch field {
		case 2:
			var name string
			var v []byte
			if name, v, err = decodeEntry(b); err != nil {
				return err
			}
			if slices.Contains(encoded, name) {
				r.encoded[name] = v
			} else {
				r.fields[name], err = decodeValue(v)
			}
		case 3:
			r.created, err = decodeTime(b)
		case 4:
			r.updated, err = decodeTime(b)
		}
		return err
	})
}

// decodeEntry decodes the name and the encoded value of a field of a document or a map.
func decodeEntry(entry []byte) (name string, v []byte, err error) {
	err = eachField(entry, func(field protowire.Number, _ uint64, b []byte) error {
		if field == 1 {
			name = string(b)
		} else {
			v = b
		}
		return nil
	})
	return name, v, err
}

// decodeTime decodes a message Timestamp.
func decodeTime(message []byte) (time.Time, error) {
	var seconds, nanos int64
	err := eachField(message, func(field protowire.Number, n uint64, _ []byte) error {
		if field == 1 {
			seconds = int64(n)
		} else {
			nanos = int64(n)
		}
		return nil
	})
	return time.Unix(seconds, nanos).UTC(), err
}

// decodeValue decodes a message Value as Google's client does, except that a reference becomes
// its path, and a vector an array.
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
			v, err = decodeMap(b)
		case 8:
			point := &latlng.LatLng{}
			v, err = point, proto.Unmarshal(b, point)
		case 9:
			v, err = decodeArray(b)
		case 10:
			v, err = decodeTime(b)
		case 18:
			v = bytes.Clone(b)
		}
		return err
	})
	return v, err
}

func decodeArray(message []byte) (any, error) {
	s := []any{}
	err := eachField(message, func(_ protowire.Number, _ uint64, b []byte) error {
		v, err := decodeValue(b)
		s = append(s, v)
		return err
	})
	return s, err
}

func decodeMap(message []byte) (any, error) {
	m := map[string]any{}
	err := eachField(message, func(_ protowire.Number, _ uint64, b []byte) error {
		name, v, err := decodeEntry(b)
		if err == nil {
			m[name], err = decodeValue(v)
		}
		return err
	})
	if m["__type__"] == "__vector__" {
		return m["value"], err
	}
	return m, err
}
