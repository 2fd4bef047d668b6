package doctor

import (
	"slices"
	"strings"
)

// Severity is what a finding weighs.
type Severity string

// Problem: runs are refused, lost, doubled or left lying, a secret is open, or
// nobody hears of it.
// Advice: it works, but worse than it could.
const (
	Problem Severity = "problem"
	Advice  Severity = "advice"
)

// Finding is what one rule has found.
type Finding struct {
	Rule     string   `json:"rule"` // stable
	Severity Severity `json:"severity"`
	Problem  string   `json:"problem"`
	Fix      string   `json:"fix"`
}

// Unchecked are rules that could not be asked, since parts were not read.
type Unchecked struct {
	Parts  []string `json:"parts"`
	Why    string   `json:"why"`
	Failed bool     `json:"failed"` // reading was tried
	Rules  []string `json:"rules"`
}

// part names one of Facts' parts, for people.
type part string

const (
	workerEnvironment  part = "the worker's environment"
	workerSettings     part = "the worker's settings"
	workerCallers      part = "who may call the worker"
	doclockEnvironment part = "doclock's environment"
	doclockSettings    part = "doclock's settings"
	doclockCallers     part = "who may call doclock"
	queueSettings      part = "the queue"
	queueNamed         part = "whether it is the queue of TASK_QUEUE"
	indexes            part = "the indexes"
	database           part = "the database"
	jobs               part = "Cloud Scheduler's jobs"
)

// status is what of a part's state does not depend on its type.
type status struct {
	part   part
	from   string
	why    string
	failed bool
}

func statusOf[T any](name part, p Part[T]) status { return status{name, p.From, p.Why, p.Failed} }

// parts are in the order in which they are told.
func (f Facts) parts() []status {
	all := []status{
		statusOf(workerEnvironment, f.Worker.Environment), statusOf(workerSettings, f.Worker.Settings),
		statusOf(queueSettings, f.Queue), statusOf(indexes, f.Indexes), statusOf(database, f.Database),
		statusOf(jobs, f.Jobs), statusOf(workerCallers, f.Worker.Callers),
		statusOf(doclockEnvironment, f.Doclock.Environment), statusOf(doclockSettings, f.Doclock.Settings),
		statusOf(doclockCallers, f.Doclock.Callers),
	}
	if f.Queue.Known() && f.Queue.Value.Name == "" && f.Worker.Environment.Value.value("TASK_QUEUE") != "" {
		all = append(all, status{part: queueNamed, why: f.Queue.From + " does not say which queue it is for"})
	}
	return all
}

// Source is where parts were read from.
type Source struct {
	Parts []string `json:"parts"`
	From  string   `json:"from"`
}

// Sources are what was read, in the words of people.
func (f Facts) Sources() (all []Source) {
	for _, s := range f.parts() {
		if s.from == "" {
			continue
		}
		i := slices.IndexFunc(all, func(o Source) bool { return o.From == s.from })
		if i < 0 {
			i, all = len(all), append(all, Source{From: s.from})
		}
		all[i].Parts = append(all[i].Parts, string(s.part))
	}
	return all
}

// rule finds one contradiction in the parts that it needs, all of which are known
// when it is asked.
type rule struct {
	name  string
	needs []part
	check func(*view) []Finding
}

// Check asks each rule whose parts are known.
func Check(f Facts) (found []Finding, unchecked []Unchecked) {
	v := newView(f)
	missing := map[part]*Unchecked{}
	var order []*Unchecked
	for _, s := range f.parts() {
		if s.from != "" {
			continue
		}
		i := slices.IndexFunc(order, func(u *Unchecked) bool { return u.Why == s.why && u.Failed == s.failed })
		if i < 0 {
			i, order = len(order), append(order, &Unchecked{Why: s.why, Failed: s.failed})
		}
		order[i].Parts = append(order[i].Parts, string(s.part))
		missing[s.part] = order[i]
	}
	for _, r := range rules() {
		asked := true
		for _, need := range r.needs {
			if u := missing[need]; u != nil {
				asked = false
				if !slices.Contains(u.Rules, r.name) {
					u.Rules = append(u.Rules, r.name)
				}
			}
		}
		if asked {
			for _, one := range r.check(v) {
				one.Rule, one.Problem, one.Fix = r.name, scrub(one.Problem), f.thenTraffic(scrub(one.Fix))
				found = append(found, one)
			}
		}
	}
	for _, u := range order {
		unchecked = append(unchecked, *u)
	}
	slices.SortStableFunc(found, func(a, b Finding) int { return strings.Compare(string(b.Severity), string(a.Severity)) })
	return found, unchecked
}

// rules are all of them, in the order in which their findings are told.
func rules() []rule {
	return slices.Concat(
		serviceRules(workerNames()), workerRules(), queueRules(), firestoreRules(),
		serviceRules(doclockNames()), doclockRules(),
	)
}

// one is a finding alone; found false: none.
func one(found bool, s Severity, problem, fix string) []Finding {
	if !found {
		return nil
	}
	return []Finding{{Severity: s, Problem: problem, Fix: fix}}
}
