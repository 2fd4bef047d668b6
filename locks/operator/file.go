package operator

import (
	"path/filepath"

	"taskguard/lease"
)

// guard is the suffix of the file for flock. It is not .lock: other programs exclude
// each other by making a file of that name, and remove one that is too old.
const guard = ".guard"

// Path returns the path of a host's state file (SEEDS O3).
func Path(hostname string) string { return "/tmp/coeiroink-operators-" + hostname + ".json" }

// Open returns the state file at path as a store, whose key is the path. The file need not exist;
// its directory must. It has the mode 0600, and is no symbolic link (SEEDS O9).
func Open(path string) *lease.File[State] {
	return lease.NewFile(filepath.Dir(path), filepath.Base(path)+guard, format{})
}
