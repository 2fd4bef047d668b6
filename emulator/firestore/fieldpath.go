package firestore

import (
	"maps"
	"strings"

	"cloud.google.com/go/firestore/apiv1/firestorepb"
)

// documentID is the pseudo-field that stands for a document's name.
const documentID = "__name__"

// maxPathBytes is one more than the longest field path in a request.
const maxPathBytes = 1500

type (
	value  = firestorepb.Value
	fields = map[string]*firestorepb.Value
)

// fieldPath is a path into a document's maps, outermost name first.
type fieldPath []string

// parseFieldPath reads Firestore's notation: names joined by dots; a name that
// is not a plain identifier stands in backquotes, where a backslash escapes.
func parseFieldPath(s string) (fieldPath, error) {
	if len(s) >= maxPathBytes {
		return nil, invalid("a field path has %d bytes, the limit is %d", len(s), maxPathBytes-1)
	}
	var fp fieldPath
	for rest, more := s, true; more; {
		var name string
		name, rest, more = cutFieldName(rest)
		if name == "" || isReserved(name) && s != documentID {
			return nil, invalid("field path %q: a name is empty, reserved or malformed", s)
		}
		fp = append(fp, name)
	}
	return fp, nil
}

// cutFieldName takes the first name off s, and the dot after it if there is more.
// The name is empty where s is malformed.
func cutFieldName(s string) (name, rest string, more bool) {
	if !strings.HasPrefix(s, "`") {
		return strings.Cut(s, ".")
	}

	var b strings.Builder
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '`':
			rest, more = strings.CutPrefix(s[i+1:], ".")
			return b.String(), rest, more
		case '\\':
			i++
		}
		if i < len(s) {
			b.WriteByte(s[i])
		}
	}
	return "", "", false
}

func (fp fieldPath) isDocumentID() bool { return len(fp) == 1 && fp[0] == documentID }

// lookup returns the value at fp, or nil.
func lookup(f fields, fp fieldPath) *value {
	for i, name := range fp {
		v := f[name]
		if v == nil || i == len(fp)-1 {
			return v
		}
		f = v.GetMapValue().GetFields()
	}
	return nil
}

// withField returns f with v at fp, or without fp if v is nil. f is not
// changed: maps along the path are copied, everything else is shared. A value
// on the way that is not a map gives way to one, but never for a removal.
func withField(f fields, fp fieldPath, v *value) fields {
	name := fp[0]
	if len(fp) == 1 {
		next := copyFields(f)
		if v == nil {
			delete(next, name)
		} else {
			next[name] = v
		}
		return next
	}

	_, isMap := f[name].GetValueType().(*firestorepb.Value_MapValue)
	if !isMap && v == nil {
		return f
	}
	next := copyFields(f)
	next[name] = mapValue(withField(f[name].GetMapValue().GetFields(), fp[1:], v))
	return next
}

func copyFields(f fields) fields {
	next := make(fields, len(f)+1)
	maps.Copy(next, f)
	return next
}

func mapValue(f fields) *value {
	return &value{ValueType: &firestorepb.Value_MapValue{MapValue: &firestorepb.MapValue{Fields: f}}}
}

// parseMask reads a document mask; a nil mask gives nil, meaning every field.
func parseMask(mask *firestorepb.DocumentMask) ([]fieldPath, error) {
	if mask == nil {
		return nil, nil
	}
	paths := make([]fieldPath, 0, len(mask.GetFieldPaths()))
	for _, s := range mask.GetFieldPaths() {
		fp, err := parseFieldPath(s)
		if err != nil {
			return nil, err
		}
		paths = append(paths, fp)
	}
	return paths, nil
}
