package firestore

import (
	"maps"
	"regexp"
	"slices"
	"strings"

	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// maxIDBytes is the longest document or collection id, and field name.
const maxIDBytes = 1500

func invalid(format string, args ...any) error {
	return status.Errorf(codes.InvalidArgument, format, args...)
}

func unimplemented(feature string) error {
	return status.Errorf(codes.Unimplemented, "%s is not implemented", feature)
}

// checkDatabase refuses a name that is not "projects/P/databases/D".
func checkDatabase(name string) error {
	parts := strings.Split(name, "/")
	if len(parts) != 4 || parts[0] != "projects" || parts[2] != "databases" || parts[1] == "" || parts[3] == "" {
		return invalid("database name %q is not projects/P/databases/D", name)
	}
	return nil
}

// splitName returns the database of a resource name and the ids after "/documents". The
// database's root has no ids, a document an even number, and a collection an odd number.
func splitName(name string) (database string, ids []string, err error) {
	parts := strings.Split(name, "/")
	if len(parts) < 5 || parts[4] != "documents" {
		return "", nil, invalid("resource name %q is not projects/P/databases/D/documents/…", name)
	}
	database, ids = strings.Join(parts[:4], "/"), parts[5:]
	if err := checkDatabase(database); err != nil {
		return "", nil, err
	}
	for _, id := range ids {
		if err := checkID(id); err != nil {
			return "", nil, err
		}
	}
	return database, ids, nil
}

// checkDocument refuses a name that is not a document's in the database.
func checkDocument(database, name string) error {
	named, err := databaseOf(name)
	if err == nil && named != database {
		return invalid("document %q is not in database %q", name, database)
	}
	return err
}

// databaseOf returns the database of a document's name.
func databaseOf(name string) (string, error) {
	database, ids, err := splitName(name)
	if err == nil && (len(ids) == 0 || len(ids)%2 != 0) {
		return "", invalid("%q is not the name of a document: it has an odd number of segments", name)
	}
	return database, err
}

// checkID refuses an invalid id of a document or collection.
func checkID(id string) error {
	switch {
	case id == "":
		return invalid("a resource name has an empty segment")
	case id == "." || id == ".." || strings.Contains(id, "/") || isReserved(id):
		return invalid("the id %q is reserved or has a slash", id)
	case len(id) > maxIDBytes:
		return invalid("an id has %d bytes, the limit is %d", len(id), maxIDBytes)
	}
	return nil
}

// isReserved reports whether an id or a field name has the form __x__. ____ is not reserved.
func isReserved(name string) bool {
	return len(name) > 4 && strings.HasPrefix(name, "__") && strings.HasSuffix(name, "__")
}

// documentID is the pseudo-field that stands for a document's name.
const documentID = "__name__"

// maxPathBytes is the longest path of a stored field. A field path in a request must be
// shorter.
const maxPathBytes = 1500

type (
	value  = firestorepb.Value
	fields = map[string]*firestorepb.Value
)

// fieldPath is a path into a document's maps, outermost name first.
type fieldPath []string

// isKey reports whether fp stands for the name of the document.
func (fp fieldPath) isKey() bool { return len(fp) == 1 && fp[0] == documentID }

var (
	fieldName = regexp.MustCompile("^(?s:([a-zA-Z_][a-zA-Z_0-9]*)|`((?:[^`\\\\]|\\\\.)+)`)\\.")
	escaped   = regexp.MustCompile(`(?s)\\(.)`)
)

// parseFieldPath reads Firestore's notation: names joined by dots; a name that
// is not a plain identifier stands in backquotes, where a backslash escapes.
func parseFieldPath(s string) (fieldPath, error) {
	if len(s) >= maxPathBytes {
		return nil, invalid("a field path of %d bytes is not shorter than %d", len(s), maxPathBytes)
	}
	var fp fieldPath
	for rest := s + "."; rest != ""; {
		name := fieldName.FindStringSubmatch(rest)
		if name == nil {
			return nil, invalid("field path %q: a name is empty or malformed", s)
		}
		fp = append(fp, name[1]+escaped.ReplaceAllString(name[2], "$1"))
		rest = rest[len(name[0]):]
	}
	if slices.ContainsFunc(fp, isReserved) && !fp.isKey() {
		return nil, invalid("field path %q: a name is reserved", s)
	}
	return fp, nil
}

// lookup returns the value at fp, or nil.
func lookup(f fields, fp fieldPath) *value {
	for i, name := range fp {
		v := f[name]
		if v == nil || i == len(fp)-1 {
			return v
		}
		if isVector(v) {
			return nil // a whole, without fields
		}
		f = v.GetMapValue().GetFields()
	}
	return nil
}

// withField returns f with v at fp, or without fp if v is nil. It does not change f: it
// copies the maps along the path and shares everything else. A value along the path that
// is not a map is replaced by a map, but not to remove a field.
func withField(f fields, fp fieldPath, v *value) fields {
	name := fp[0]
	if len(fp) > 1 {
		_, isMap := f[name].GetValueType().(*firestorepb.Value_MapValue)
		if !isMap && v == nil {
			return f
		}
		inner := withField(f[name].GetMapValue().GetFields(), fp[1:], v)
		v = &value{ValueType: &firestorepb.Value_MapValue{MapValue: &firestorepb.MapValue{Fields: inner}}}
	}

	next := fields{}
	maps.Copy(next, f)
	next[name] = v
	if v == nil {
		delete(next, name)
	}
	return next
}

// parseMask reads a document mask. It returns nil for a nil mask, which stands for every
// field, and only then.
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
