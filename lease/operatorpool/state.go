package operatorpool

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"time"

	"taskguard/lease"
	"taskguard/lease/iso8601"
)

// State is what the state file holds (O3): {"storage": {session: {"data": T,
// "updated_at": ISO 8601}}}, and whatever other programs have put there. It is
// never changed: each change makes a new one.
type State[T any] struct {
	storage map[string]entry[T]
	rest    map[string]json.RawMessage // fields beside storage
	damaged []byte                     // what the file held, where not all of it is kept
}

// entry is one session's value.
type entry[T any] struct {
	fields  map[string]json.RawMessage // as they are in the file
	data    T
	known   bool      // data is one
	updated time.Time // the file's last write, where updated_at cannot be read
	unsound bool      // updated_at cannot be read
}

// with is e as of now.
func (e entry[T]) with(now time.Time) entry[T] {
	e.updated, e.unsound = now.UTC().Truncate(time.Millisecond), false
	return e.set("updated_at", quoted(iso8601.Format(e.updated)))
}

// holding is e with data, which is raw in JSON.
func (e entry[T]) holding(data T, raw []byte) entry[T] {
	e.data, e.known = data, true
	return e.set("data", raw)
}

func (e entry[T]) set(field string, raw []byte) entry[T] {
	fields := map[string]json.RawMessage{field: nil}
	maps.Copy(fields, e.fields)
	fields[field] = raw
	e.fields = fields
	return e
}

// quoted is text in JSON, which every text has.
func quoted(text string) json.RawMessage {
	raw, _ := json.Marshal(text)
	return raw
}

// same reports whether a and b have the same entry of session.
func same[T any](a, b State[T], session string) bool {
	x, inA := a.storage[session]
	y, inB := b.storage[session]
	return inA == inB && bytes.Equal(x.fields["data"], y.fields["data"]) && bytes.Equal(x.fields["updated_at"], y.fields["updated_at"])
}

// shows reports whether something was changed between was and next and s has all of
// it.
func (s State[T]) shows(was, next State[T]) (all bool) {
	for _, entries := range []map[string]entry[T]{was.storage, next.storage} {
		for session := range entries {
			switch {
			case same(was, next, session):
			case !same(s, next, session):
				return false
			default:
				all = true
			}
		}
	}
	return all
}

// format is the state file as a lease.Format, its key being its path.
type format[T any] struct{}

func (format[T]) Name(path string) (string, error) {
	name := filepath.Base(path)
	if name == "." || name == ".." || name == string(filepath.Separator) {
		return "", fmt.Errorf("%w: %q names no file", lease.ErrInvalidKey, path)
	}
	return name, nil
}

func (format[T]) Encode(_ string, s State[T], _ time.Time) ([]byte, error) {
	entries := make(map[string]map[string]json.RawMessage, len(s.storage))
	for session, e := range s.storage {
		entries[session] = e.fields
	}
	file := map[string]any{}
	for name, raw := range s.rest {
		file[name] = raw
	}
	file["storage"] = entries
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(file)
	return b.Bytes(), err
}

// Decode answers no time of the write: the times in the file are any program's, and
// so is the file's own. The clock alone says what time it is. A file that is no
// state is an empty one, and what is no entry is none.
func (format[T]) Decode(_ string, data []byte, modified time.Time) (s State[T], _ time.Time, _ error) {
	var entries map[string]json.RawMessage
	sound := json.Unmarshal(data, &s.rest) == nil && s.rest != nil
	if raw, ok := s.rest["storage"]; ok {
		sound = json.Unmarshal(raw, &entries) == nil
	}
	delete(s.rest, "storage")
	s.storage = make(map[string]entry[T], len(entries))
	for session, raw := range entries {
		var fields map[string]json.RawMessage
		if json.Unmarshal(raw, &fields) != nil || fields == nil || session == "" {
			sound = false
			continue
		}
		s.storage[session] = entryOf[T](fields, modified)
	}
	if !sound {
		s.damaged = data
	}
	return s, time.Time{}, nil
}

func entryOf[T any](fields map[string]json.RawMessage, modified time.Time) entry[T] {
	e := entry[T]{fields: fields}
	var data T
	if e.known = json.Unmarshal(fields["data"], &data) == nil; e.known {
		e.data = data
	}
	var ok bool
	if e.updated, ok = parseTime(fields["updated_at"]); !ok {
		e.updated, e.unsound = modified, true
	}
	return e
}

func parseTime(raw json.RawMessage) (time.Time, bool) {
	var text string
	if json.Unmarshal(raw, &text) != nil {
		return time.Time{}, false
	}
	return iso8601.Parse(text)
}
