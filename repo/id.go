package repo

import (
	"fmt"
	"slices"
	"strings"
	"taskguard/lease/analysislock"
)

// CheckCollection refuses what is not the path of a collection, such as
// analyses or tenants/a/analyses.
func CheckCollection(path string) error {
	segments := strings.Split(path, "/")
	if len(segments)%2 == 0 || slices.ContainsFunc(segments, func(s string) bool { return analysislock.CheckID(s) != nil }) {
		return fmt.Errorf("%q is not the path of a collection", path)
	}
	return nil
}
