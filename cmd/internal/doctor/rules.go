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
	check func() []Finding
}

// rules returns all rules, in the order of their findings.
func rules(f Facts) []rule {
	d := deployment{Facts: f}
	// Where the environment is wrong the configuration holds defaults, and the rule
	// "environment" reports it.
	d.worker, _ = worker.ParseConfig(f.Worker.lookup)
	health := []string{"/health/live", "/health/ready"}
	own := slices.ContainsFunc(f.Kinds, func(k guarded.Kind) bool { return k.Name != "analysis" })
	w := service{f.Worker, "the worker", func(l lookup) error { _, err := worker.ParseConfig(l); return err }, own, health}
	l := service{f.Doclock, "doclock", func(l lookup) error { _, err := doclock.ParseConfig(l); return err }, false, append(health, "/", "/locks.js")}
	return slices.Concat(w.rules(WorkerSettings, WorkerCallers), d.workerRules(), d.otherRules(), d.liveRules(), l.rules(DoclockSettings, DoclockCallers))
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

// findIf returns one finding if the condition holds.
func findIf(condition bool, s Severity, problem, fix string) []Finding {
	if !condition {
		return nil
	}
	return []Finding{{Severity: s, Problem: problem, Fix: fix}}
}

// setVariable returns a fix that sets a variable of a service.
func setVariable(name, value string) string {
	return fmt.Sprintf("Set %s=%s (--update-env-vars=%[1]s=%[2]s).", name, value)
}
