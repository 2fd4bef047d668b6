package operator

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

// State is the content of the state file: {"storage": {session: {"data": string,
// "updated_at": ISO 8601}}}, and other programs' fields. It is immutable (SEEDS O3).
type State struct {
	storage map[string]entry
	rest    map[string]json.RawMessage // all fields of the file; storage is superseded
	corrupt int                        // the size of a corrupt file
}

// entry is one session's value.
type entry struct {
	fields  map[string]json.RawMessage // as in the file
	data    string                     // empty: none, or it could not be read
	updated time.Time
}

// usedAt returns e as last used at now.
func (e entry) usedAt(now time.Time) entry {
	e.updated = now.UTC().Truncate(time.Millisecond)
	return e.set("updated_at", iso8601.Format(e.updated))
}

func (e entry) set(field, text string) entry {
	fields := map[string]json.RawMessage{}
	maps.Copy(fields, e.fields)
	fields[field], _ = json.Marshal(text)
	e.fields = fields
	return e
}

// format is the state file's lease.Format; the key is the path.
type format struct{}

func (format) Name(path string) (string, error) {
	name := filepath.Base(path)
	if name == "." || name == ".." || name == string(filepath.Separator) {
		return "", fmt.Errorf("%w: %q is not a file name", lease.ErrInvalidKey, path)
	}
	return name, nil
}

func (format) Encode(_ string, s State, _ time.Time) ([]byte, error) {
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

// Decode returns no time of writing: other programs set the times of the file, so
// only the clock counts. A corrupt file is an empty one, without corrupt entries.
func (format) Decode(_ string, data []byte, modified time.Time) (s State, _ time.Time, _ error) {
	var entries map[string]json.RawMessage
	_ = json.Unmarshal(data, &s.rest) // nil unless data is one object
	sound := s.rest != nil
	if raw, ok := s.rest["storage"]; ok {
		sound = json.Unmarshal(raw, &entries) == nil
	}
	s.storage = make(map[string]entry, len(entries))
	for session, raw := range entries {
		var fields map[string]json.RawMessage
		if json.Unmarshal(raw, &fields) != nil || fields == nil || session == "" {
			sound = false
			continue
		}
		s.storage[session] = entryOf(fields, modified)
	}
	if !sound {
		s.corrupt = len(data)
	}
	return s, time.Time{}, nil
}

func entryOf(fields map[string]json.RawMessage, modified time.Time) entry {
	e := entry{fields: fields}
	var text string
	_ = json.Unmarshal(fields["data"], &e.data) // other JSON is no operator
	_ = json.Unmarshal(fields["updated_at"], &text)
	updated, ok := iso8601.Parse(text)
	if !ok {
		return e.usedAt(modified)
	}
	e.updated = updated
	return e
}
