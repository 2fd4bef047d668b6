package doctor

import (
	"fmt"
	"slices"
	"strings"

	doclock "taskguard/cmd/internal/doclockservice"
	worker "taskguard/cmd/internal/workerservice"
	guarded "taskguard/worker"
)

// rule checks the parts that it needs, after all of them were read.
type rule struct {
	name  string
	needs []Part
	check func() findings
}

// rules returns all rules, in the order of their findings.
func rules(f Facts) []rule {
	d := deployment{Facts: f}
	// Where the environment is wrong the configuration holds defaults, and the rule
	// "environment" reports it.
	d.worker, _ = worker.ParseConfig(f.Worker.lookup)

	health := []string{"/health/live", "/health/ready"}
	w := service{
		Service: f.Worker, title: "the worker", probes: health,
		parse: func(l lookup) error { _, err := worker.ParseConfig(l); return err },
		own:   slices.ContainsFunc(f.Kinds, func(k guarded.Kind) bool { return k.Name != "analysis" }),
	}
	l := service{
		Service: f.Doclock, title: "doclock", probes: append(health, "/", "/locks.js"),
		parse: func(l lookup) error { _, err := doclock.ParseConfig(l); return err },
	}
	return slices.Concat(
		w.rules(WorkerSettings, WorkerCallers),
		d.workerRules(), d.otherRules(), d.liveRules(),
		l.rules(DoclockSettings, DoclockCallers),
	)
}

// deployment holds the facts and the worker's configuration as they give it.
type deployment struct {
	Facts
	worker worker.Config
}

type lookup = func(string) (string, bool)

// lookup returns a variable as the service reads it.
func (s Settings) lookup(name string) (string, bool) {
	v, ok := s.Environment[name]
	if program, ok := strings.CutPrefix(v, "exec:"); ok && name == "ANALYZER" && strings.TrimSpace(program) != "" {
		v = "builtin:document" // the program is in the image, not here
	}
	return v, ok
}

// findings are those of one rule.
type findings []Finding

// findIf returns a finding if the condition holds, otherwise none.
func findIf(condition bool, s Severity, problem string, args ...any) findings {
	if !condition {
		return nil
	}
	return findings{{Severity: s, Problem: fmt.Sprintf(problem, args...)}}
}

// fix sets the Fix of all findings.
func (all findings) fix(text string, args ...any) findings {
	for i := range all {
		all[i].Fix = fmt.Sprintf(text, args...)
	}
	return all
}

// setVariable is a fix that sets a variable of a service.
const setVariable = "Set %s=%s (--update-env-vars=%[1]s=%[2]s)."
