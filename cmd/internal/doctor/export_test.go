package doctor

import "slices"

// LiveParts returns the parts of Live.
func LiveParts() []Part { return liveParts() }

// Rules returns the names of all rules.
func Rules() (names []string) {
	for _, r := range rules(Facts{}) {
		if !slices.Contains(names, r.name) {
			names = append(names, r.name)
		}
	}
	return names
}
