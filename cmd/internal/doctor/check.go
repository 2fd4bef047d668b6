package doctor

import (
	"cmp"
	"slices"
)

// Severity is a finding's weight.
type Severity string

// A Problem loses, doubles or delays work, lets others in, or silences the alerts.
// With Advice the deployment works, but can be improved.
const (
	Problem Severity = "problem"
	Advice  Severity = "advice"
)

// Finding is the result of one rule.
type Finding struct {
	Rule     string   `json:"rule"` // a stable name
	Severity Severity `json:"severity"`
	Problem  string   `json:"problem"`
	Fix      string   `json:"fix"`
}

// Unchecked lists rules that were skipped because parts were not read.
type Unchecked struct {
	Parts  []string `json:"parts"`
	Why    string   `json:"why"`
	Failed bool     `json:"failed"` // reading was tried
	Rules  []string `json:"rules"`
}

// Check applies each rule whose parts were read.
func Check(f Facts) (found []Finding, unchecked []Unchecked) {
	missing := map[Part]int{} // the index in unchecked
	for _, p := range parts() {
		s := f.Status[p]
		if s.From != "" {
			continue
		}
		i := slices.IndexFunc(unchecked, func(u Unchecked) bool { return u.Why == s.Why && u.Failed == s.Failed })
		if i < 0 {
			i, unchecked = len(unchecked), append(unchecked, Unchecked{Why: s.Why, Failed: s.Failed})
		}
		unchecked[i].Parts = append(unchecked[i].Parts, string(p))
		missing[p] = i
	}

	for _, r := range rules(f) {
		complete := true
		for _, need := range r.needs {
			i, absent := missing[need]
			complete = complete && !absent
			if absent && !slices.Contains(unchecked[i].Rules, r.name) {
				unchecked[i].Rules = append(unchecked[i].Rules, r.name)
			}
		}
		if !complete {
			continue
		}

		for _, one := range r.check() {
			one.Rule, one.Problem, one.Fix = r.name, scrub(one.Problem), scrub(one.Fix)
			found = append(found, one)
		}
	}

	slices.SortStableFunc(found, func(a, b Finding) int { return cmp.Compare(b.Severity, a.Severity) })
	return found, unchecked
}
