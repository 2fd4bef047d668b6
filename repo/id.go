package repo

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"taskguard/lease"
)

// CheckCollection refuses what is not the path of a collection, such as
// analyses or tenants/a/analyses.
func CheckCollection(path string) error {
	segments := strings.Split(path, "/")
	if len(segments)%2 == 0 || slices.ContainsFunc(segments, func(s string) bool { return CheckID(s) != nil }) {
		return fmt.Errorf("%q is not the path of a collection", path)
	}
	return nil
}

// maxID is Firestore's limit, in bytes.
const maxID = 1500

// CheckID refuses, with lease.ErrInvalidKey, an id that Firestore cannot hold
// or that would name another path, before Firestore sees it: `a/b/c` would
// silently be a nested document.
func CheckID(id string) error { return checkID("analysis", id) }

// checkID names in its error what the id is of.
func checkID(what, id string) error {
	var problem string
	switch {
	case id == "":
		problem = "is empty"
	case len(id) > maxID:
		problem = fmt.Sprintf("has %d bytes, at most %d are possible", len(id), maxID)
	case !utf8.ValidString(id):
		problem = "is not UTF-8"
	case id == "." || id == "..":
		problem = "is a path"
	case strings.Contains(id, "/"):
		problem = "has a slash"
	case len(id) >= 4 && strings.HasPrefix(id, "__") && strings.HasSuffix(id, "__"):
		problem = "is reserved: __…__"
	case strings.ContainsRune(id, utf8.RuneError): // JSON decodes half a surrogate pair to it
		problem = "has a replacement character (U+FFFD)"
	case strings.ContainsFunc(id, unicode.IsControl):
		problem = "has a control character"
	default:
		return nil
	}
	return fmt.Errorf("%w: the %s id %s", lease.ErrInvalidKey, what, problem)
}
