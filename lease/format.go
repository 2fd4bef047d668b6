//go:build unix

package lease

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"time"
)

// Format is how a File keeps its records: in which files, and in what bytes. Its
// methods are pure and safe for concurrent use.
type Format[D any] interface {
	// Name is the file of a key within the directory, or ErrInvalidKey.
	Name(key string) (string, error)
	// Encode is what the file is to hold from at on, or nil where such a record
	// is not kept and its file removed.
	Encode(key string, doc D, at time.Time) ([]byte, error)
	// Decode makes out what a file holds, whoever wrote it, and the store's time
	// of that write; modified is the file system's.
	Decode(key string, data []byte, modified time.Time) (doc D, at time.Time, err error)
}

// envelopes are the files of NewFile.
type envelopes[D any] struct{}

const fileFormat = "taskguard/lease/1"

// envelope is what such a file holds.
type envelope struct {
	Format string          `json:"format"`
	Key    string          `json:"key"`
	Rev    string          `json:"rev"` // new with each write, so that no two versions are alike
	At     time.Time       `json:"at"`  // time of that write
	Doc    json.RawMessage `json:"doc"`
}

func (envelopes[D]) Name(key string) (string, error) { return fileName(key) }

func (envelopes[D]) Encode(key string, doc D, at time.Time) ([]byte, error) {
	data, err := json.Marshal(doc)
	if err != nil {
		return nil, err
	}
	return json.Marshal(envelope{Format: fileFormat, Key: key, Rev: rand.Text(), At: at, Doc: data})
}

func (envelopes[D]) Decode(key string, data []byte, _ time.Time) (doc D, at time.Time, err error) {
	var e envelope
	if err = json.Unmarshal(data, &e); err != nil {
		return doc, at, err
	}
	if e.Format != fileFormat || e.Key != key || e.At.IsZero() || len(e.Doc) == 0 {
		return doc, at, errors.New("not a record of this key")
	}
	err = json.Unmarshal(e.Doc, &doc)
	return doc, e.At, err
}
