// Package build says which build of the program this is.
package build

import "runtime/debug"

// Release is the newest version in CHANGELOG.md.
const Release = "0.1.0"

// commit is set by the linker where the source has no .git, as in deploy/cloudbuild-release.yaml.
var commit string

// Commit returns the commit that the program was built from, with "+dirty" if files had been changed.
// Without a commit it returns the version of the main module: "(devel)" if that is unknown too.
func Commit() string {
	info, ok := debug.ReadBuildInfo()
	if commit != "" || !ok {
		return commit
	}
	revision, dirty := info.Main.Version, ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			revision = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "+dirty"
		}
	}
	return revision + dirty
}
