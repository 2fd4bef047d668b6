package doctor

import (
	"maps"
	"slices"
	"strings"
)

// known are the variables that a service asks for, whatever its mode.
func (n names) known() map[string]bool {
	asked := map[string]bool{}
	for _, mode := range []string{"oidc", "iam"} {
		_ = n.refused(func(name string) (string, bool) { // what it asks is wanted, not what it answers
			asked[name] = true
			if name == "TASK_AUTH" || name == "SESSION_AUTH" {
				return mode, true
			}
			return "", false
		})
	}
	return asked
}

// misspelt finds variables that are nearly one that the service asks for and that
// is not set. Others may be the analyzer's own.
func (n names) misspelt(_ *view, s Service) (found []Finding) {
	e, known := s.Environment.Value, n.known()
	for _, name := range slices.Sorted(maps.Keys(e)) {
		near := nearest(strings.ToUpper(name), slices.Sorted(maps.Keys(known)))
		ofTheSDK := strings.HasPrefix(name, "OTEL_") && distance(name, near) > 1 // which has many more that look alike
		if near == "" || known[name] || e[near] != (Variable{}) || ofTheSDK {
			continue
		}
		found = append(found, Finding{Severity: Advice,
			Problem: n.title + " reads no variable " + name + ", and " + near + ", which it reads, is not set.",
			Fix:     s.set(near, "VALUE") + ", instead of " + name + "."})
	}
	return found
}

// nearest is the known name that one or two slips make of name; empty: none.
func nearest(name string, known []string) string {
	best, slips := "", 3
	for _, k := range known {
		if d := distance(name, k); d < slips && len(k) > 2*d+2 {
			best, slips = k, d
		}
	}
	return best
}

// distance is how many letters are to be inserted, removed or replaced to make b
// of a.
func distance(a, b string) int {
	last := make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := range len(a) {
		row := make([]int, len(b)+1)
		row[0] = i + 1
		for j := range len(b) {
			row[j+1] = min(last[j+1]+1, row[j]+1)
			if a[i] == b[j] {
				row[j+1] = min(row[j+1], last[j])
			} else {
				row[j+1] = min(row[j+1], last[j]+1)
			}
		}
		last = row
	}
	return last[len(b)]
}
