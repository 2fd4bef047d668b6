package doctor

import (
	"cmp"
	"fmt"
	"slices"

	doclock "taskguard/cmd/internal/doclockservice"
	worker "taskguard/cmd/internal/workerservice"
	guarded "taskguard/worker"
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

// fix sets the Fix.
func (f *Finding) fix(text string, args ...any) { f.Fix = fmt.Sprintf(text, args...) }

// Check applies each rule whose parts were read. Problems come first.
func Check(f Facts) []Finding {
	d := diagnosis{Facts: f}
	// Where the environment is wrong the configuration holds defaults, and the rule
	// "environment" reports it.
	d.config, _ = worker.ParseConfig(f.Worker.lookup)

	d.checkService(service{
		Service: f.Worker, title: "the worker", settings: WorkerSettings, callers: WorkerCallers,
		parse: func(l lookup) error { _, err := worker.ParseConfig(l); return err },
		own:   slices.ContainsFunc(f.Kinds, func(k guarded.Kind) bool { return k.Name != "analysis" }),
	})
	d.checkWorker()
	d.checkQueue()
	d.checkIndexes()
	d.checkRecovery()
	d.checkTasks()
	d.checkGrants()
	d.checkAlerts()
	d.checkService(service{
		Service: f.Doclock, title: "doclock", settings: DoclockSettings, callers: DoclockCallers,
		parse: func(l lookup) error { _, err := doclock.ParseConfig(l); return err },
	})

	for i, one := range d.found {
		d.found[i].Problem, d.found[i].Fix = scrub(one.Problem), scrub(one.Fix)
	}
	slices.SortStableFunc(d.found, func(a, b Finding) int { return cmp.Compare(b.Severity, a.Severity) })
	return d.found
}

// diagnosis collects findings.
type diagnosis struct {
	Facts
	config worker.Config // of the worker
	found  []Finding
}

// read reports whether all of the parts were read.
func (d *diagnosis) read(parts ...Part) bool {
	return !slices.ContainsFunc(parts, func(p Part) bool { return d.Status[p].From == "" })
}

// add adds a finding, and returns it for its fix.
func (d *diagnosis) add(s Severity, rule, problem string, args ...any) *Finding {
	d.found = append(d.found, Finding{Rule: rule, Severity: s, Problem: fmt.Sprintf(problem, args...)})
	return &d.found[len(d.found)-1]
}

func (d *diagnosis) problem(rule, text string, args ...any) *Finding {
	return d.add(Problem, rule, text, args...)
}

func (d *diagnosis) advice(rule, text string, args ...any) *Finding {
	return d.add(Advice, rule, text, args...)
}
