package firestore

import (
	"strings"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	// maxIDBytes is the longest document or collection id, and field name.
	maxIDBytes = 1500
	// maxDocumentLevels is how deep documents nest in collections.
	maxDocumentLevels = 100
)

// path is a resource name taken apart. Database is "projects/P/databases/D";
// segments are the ids after "/documents": an even number names a document, an
// odd number a collection, none the database's root.
type path struct {
	database string
	segments []string
}

func (p path) isDocument() bool { return len(p.segments) > 0 && len(p.segments)%2 == 0 }

// collection is the id of the collection that the document is in.
func (p path) collection() string { return p.segments[len(p.segments)-2] }

// parent is the full name of the collection that the document is in.
func (p path) parent() string {
	return p.database + "/documents/" + strings.Join(p.segments[:len(p.segments)-1], "/")
}

func (p path) String() string {
	name := p.database + "/documents"
	if len(p.segments) > 0 {
		name += "/" + strings.Join(p.segments, "/")
	}
	return name
}

func invalid(format string, args ...any) error {
	return status.Errorf(codes.InvalidArgument, format, args...)
}

// checkDatabase refuses what is not "projects/P/databases/D".
func checkDatabase(name string) error {
	parts := strings.Split(name, "/")
	if len(parts) != 4 || parts[0] != "projects" || parts[2] != "databases" || parts[1] == "" || parts[3] == "" {
		return invalid("database name %q is not projects/P/databases/D", name)
	}
	return nil
}

// parsePath takes apart the name of a document, a collection or the root
// ("…/documents").
func parsePath(name string) (path, error) {
	parts := strings.Split(name, "/")
	if len(parts) < 5 || parts[4] != "documents" {
		return path{}, invalid("resource name %q is not projects/P/databases/D/documents/…", name)
	}
	p := path{database: strings.Join(parts[:4], "/"), segments: parts[5:]}
	if err := checkDatabase(p.database); err != nil {
		return path{}, err
	}
	for i, id := range p.segments {
		isDocument := i%2 == 1
		if isDocument && isNumericID(id) {
			continue
		}
		if err := checkID(id); err != nil {
			return path{}, err
		}
	}
	return p, nil
}

// parseDocument takes apart the name of a document of the database. An empty
// database allows any.
func parseDocument(database, name string) (path, error) {
	p, err := parsePath(name)
	if err != nil {
		return path{}, err
	}
	if !p.isDocument() {
		return path{}, invalid("%q names no document: it has an odd number of segments", name)
	}
	if database != "" && p.database != database {
		return path{}, invalid("document %q is not in database %q", name, database)
	}
	return p, nil
}

// checkLimits refuses a name that can be asked for, but not written.
func (p path) checkLimits() error {
	if len(p.segments) > 2*maxDocumentLevels {
		return invalid("a document's name has more than %d levels", maxDocumentLevels)
	}
	for _, id := range p.segments {
		if len(id) > maxIDBytes {
			return invalid("an id has %d bytes, the limit is %d", len(id), maxIDBytes)
		}
	}
	return nil
}

// checkID refuses what cannot be the id of a document or of a collection,
// whatever its length.
func checkID(id string) error {
	switch {
	case id == "":
		return invalid("a resource name has an empty segment")
	case id == "." || id == "..":
		return invalid("the id %q is reserved", id)
	case isReserved(id):
		return invalid("the id %q is reserved", id)
	case !utf8.ValidString(id):
		return invalid("an id is not valid UTF-8")
	case strings.Contains(id, "/"):
		return invalid("the id %q contains a slash", id)
	}
	return nil
}

// isNumericID tells whether a document id has the one reserved form that is
// allowed: __id7__ stands for the number 7 as an id.
func isNumericID(id string) bool {
	digits, numeric := strings.CutPrefix(id, "__id")
	digits, closed := strings.CutSuffix(digits, "__")
	return numeric && closed && digits != "" && strings.Trim(digits, "0123456789") == ""
}

// isReserved tells whether an id or a field name has the form __x__; ____ is
// free.
func isReserved(name string) bool {
	return len(name) > 4 && strings.HasPrefix(name, "__") && strings.HasSuffix(name, "__")
}
