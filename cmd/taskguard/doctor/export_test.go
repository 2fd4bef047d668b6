package doctor

import "slices"

// Rules are the names of all rules, each once.
func Rules() (names []string) {
	for _, r := range rules() {
		if !slices.Contains(names, r.name) {
			names = append(names, r.name)
		}
	}
	return names
}
