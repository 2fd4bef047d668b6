package analysislock

import "strings"

// Crashed is the code of an attempt that has no end: its worker died, or could not record the end.
const Crashed = "crashed"

// Instance returns the worker's instance: Owner without the part that is the delivery's.
func (a *Attempt) Instance() string {
	if i := strings.LastIndexByte(a.Owner, '/'); i >= 0 {
		return a.Owner[:i]
	}
	return a.Owner
}
