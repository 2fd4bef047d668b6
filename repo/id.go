package repo

import (
	"fmt"
	"slices"
	"strings"

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
func CheckID(id string) error { return lease.CheckKey("analysis", id, maxID) }
