package firestore

import (
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// maxIDBytes is the longest document or collection id, and field name.
const maxIDBytes = 1500

func invalid(format string, args ...any) error {
	return status.Errorf(codes.InvalidArgument, format, args...)
}

func unimplemented(what string) error {
	return status.Errorf(codes.Unimplemented, "%s is not implemented", what)
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
	in, ids, err := splitName(name)
	switch {
	case err != nil:
		return err
	case len(ids) == 0 || len(ids)%2 != 0:
		return invalid("%q is not the name of a document: it has an odd number of segments", name)
	case in != database:
		return invalid("document %q is not in database %q", name, database)
	}
	return nil
}

// checkID refuses an invalid id of a document or collection.
func checkID(id string) error {
	switch {
	case id == "":
		return invalid("a resource name has an empty segment")
	case id == "." || id == ".." || isReserved(id):
		return invalid("the id %q is reserved", id)
	case len(id) > maxIDBytes:
		return invalid("an id has %d bytes, the limit is %d", len(id), maxIDBytes)
	}
	return nil
}

// isReserved reports whether an id or a field name has the form __x__. ____ is not reserved.
func isReserved(name string) bool {
	return len(name) > 4 && strings.HasPrefix(name, "__") && strings.HasSuffix(name, "__")
}
