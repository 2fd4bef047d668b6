package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	scheduler "google.golang.org/api/cloudscheduler/v1"
	iam "google.golang.org/api/iam/v1"
	"google.golang.org/grpc/codes"

	doclock "taskguard/cmd/internal/doclockservice"
	worker "taskguard/cmd/internal/workerservice"
	guarded "taskguard/worker"
)

// Facts hold what is known of a deployment. The zero value knows nothing.
type Facts struct {
	Worker, Doclock Service
	Recovery        Service // NAME-recovery, if a job calls it
	Kinds           []guarded.Kind
	Queue           Queue
	Indexes         Indexes
	Target          string           // TASK_TARGET_URL of the worker, or without a worker of this process
	Jobs            []*scheduler.Job // the jobs in the queue's region, of any deployment
	AllJobs         bool             // Jobs has the jobs of all regions
	Tasks           []Task           // the first tasks of the queue
	Grants          []Grant          // what the worker's account needs, without what could not be evaluated
	Project         []*iam.Binding   // the project's IAM policy; nil: not read
	Alerts, Unsent  int              // how many alert policies are enabled, and how many of them notify nobody
	Disabled        int              // how many more are disabled
	Status          map[Part]Status
}

// Part names a part of Facts in the output.
type Part string

// The parts.
const (
	WorkerSettings   Part = "the worker's settings"
	QueueSettings    Part = "the queue"
	DatabaseIndexes  Part = "the indexes"
	SchedulerJobs    Part = "Cloud Scheduler's jobs"
	RecoverySettings Part = "the settings of recovery's service" // if there is one
	WorkerCallers    Part = "who may call the worker"
	DoclockSettings  Part = "doclock's settings"
	DoclockCallers   Part = "who may call doclock"
	QueueTasks       Part = "the queue's tasks"
	AccountRoles     Part = "the roles of the worker's account"
	AlertPolicies    Part = "the alert policies"
)

// parts are all parts in the order of the output. An operator may lack the right to read the
// optional ones: it is no failure if one of them could not be read.
var (
	optionalParts = []Part{QueueTasks, AccountRoles, AlertPolicies}
	parts         = slices.Concat([]Part{
		WorkerSettings, QueueSettings, DatabaseIndexes, SchedulerJobs, RecoverySettings, WorkerCallers,
		DoclockSettings, DoclockCallers,
	}, optionalParts)
)

// Status holds where a part was read from, or why it was not.
type Status struct {
	From   string `json:"from,omitempty"` // the file or resource; empty: not read
	Why    string `json:"why,omitempty"`  // why it was not read
	Failed bool   `json:"failed"`         // an attempt to read it failed
}

// Reading lists the parts that have the same status.
type Reading struct {
	Parts []string `json:"parts"`
	Status
}

// Readings returns what was read, and what was not. Parts with the same status are one Reading.
func (f Facts) Readings() (read, unread []Reading) {
	for _, p := range parts {
		status, named := f.Status[p]
		if p == AlertPolicies && f.Disabled > 0 { // on purpose, perhaps
			status.From += fmt.Sprintf(" (%d of %d alerts are disabled)", f.Disabled, f.Disabled+f.Alerts)
		}
		if status.From != "" {
			read = addPart(read, p, status)
		} else if named || p != RecoverySettings {
			unread = addPart(unread, p, status)
		}
	}
	return read, unread
}

func addPart(all []Reading, p Part, status Status) []Reading {
	for i := range all {
		if all[i].Status == status {
			all[i].Parts = append(all[i].Parts, string(p))
			return all
		}
	}
	return append(all, Reading{[]string{string(p)}, status})
}

// Service holds the callers of a Cloud Run service, and the settings of its serving revision.
type Service struct {
	Callers      []string // members that may invoke it by its own policy, such as allUsers
	Name         string
	Environment  map[string]string // a secret's value is Secret
	Timeout      time.Duration
	Concurrency  int64
	Memory       int64 // bytes, of the container that gets the requests; 0: unknown
	MaxInstances int64
	URLs         string // a JSON list of all its addresses; empty: unknown
	Audiences    string // a JSON list of further audiences that Cloud Run accepts
	InvokerCheck bool   // Cloud Run checks the callers
	Account      string
	Region       string
	Number       string // of its project; empty: unknown
	Image        string // of the container that gets the requests, like the next two
	Port         string
	Twice        []string            // variables that are set twice
	Latest       []string            // variables with the version latest of a secret
	Sidecars     []map[string]string // the environments of the other containers
	Probed       []string            // the ports at which the other containers are probed
	// Serving is the revision that gets the most requests, Newest has the settings that were
	// changed last, and NewestShare is its part of the requests in percent. Empty: unknown.
	Serving, Newest string
	NewestShare     int64
}

// Secret stands for the unknown value of a secret. It is long enough for one.
const Secret = "unknown-unknown-unknown-unknown-unknown-unknown-"

// value returns a variable's value; empty: unset or unknown.
func (s Service) value(name string) string { return strings.TrimPrefix(s.Environment[name], Secret) }

type lookup = func(string) (string, bool)

// lookup returns a variable as the service reads it on Cloud Run.
func (s Service) lookup(name string) (string, bool) {
	v, ok := s.Environment[name]
	switch {
	case name == "K_SERVICE":
		return s.Name, true
	case name == "ANALYZER" && strings.HasPrefix(v, "exec:") && strings.TrimSpace(v) != "exec:":
		v = "exec:true" // the program is in the image, not here
	}
	return v, ok
}

// Exports returns the variables that the commands need for this deployment, without secrets. One that is
// not set is empty, so that it replaces another deployment's in a shell.
func (f Facts) Exports() map[string]string {
	project, region := place(f.Status[WorkerSettings].From)
	all := map[string]string{"FIRESTORE_EMULATOR_HOST": "", "CLOUD_TASKS_EMULATOR_HOST": ""}
	for _, name := range []string{
		"GOOGLE_CLOUD_PROJECT", "FIRESTORE_DATABASE", "ANALYSES_COLLECTION", "CONCURRENCY_KEY", "CONCURRENCY_LIMIT",
		"KEEP_FINISHED", "LOCK_TTL", "LOCK_HEARTBEAT", "MAX_ATTEMPTS", "RUN_TIMEOUT", "TASK_QUEUE", "TASK_TARGET_URL", "TASK_CALLER", "TASK_AUDIENCE",
	} {
		all[name] = f.Worker.value(name)
	}
	all["GOOGLE_CLOUD_PROJECT"] = cmp.Or(all["GOOGLE_CLOUD_PROJECT"], project)
	all["CLOUDSDK_CORE_PROJECT"] = cmp.Or(project, all["GOOGLE_CLOUD_PROJECT"])
	all["CLOUDSDK_RUN_REGION"] = cmp.Or(region, f.Worker.Region)
	if f.Status[DoclockSettings].From != "" {
		all["DOCLOCK_DATABASE"] = f.Doclock.value("FIRESTORE_DATABASE")
		all["DOCUMENT_LOCKS_COLLECTION"] = f.Doclock.value("DOCUMENT_LOCKS_COLLECTION")
	}
	return all
}

// Queue holds a queue's settings.
type Queue struct {
	// Name, Project and Region come from its file; empty: not in it.
	Name, Project, Region string

	State       string        // RUNNING, PAUSED, DISABLED; empty: unknown
	Concurrent  int64         // dispatches at once
	PerSecond   float64       // dispatches a second
	MaxAttempts int64         // the limit for one task; -1: none
	MaxDuration time.Duration // how long one task is retried; 0: without limit
}

// Task holds a task's settings, without its body.
type Task struct {
	Name, URL, Audience string // the audience is empty if there is no token
	Deadline            time.Duration
	Last                codes.Code // the answer to its last attempt; OK: there was none
}

// Severity is a finding's weight.
type Severity string

// A Problem loses, doubles or delays work, lets others in, or keeps log lines from the alerts.
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

// Check applies each rule whose parts were read. Problems come first.
func Check(f Facts) []Finding {
	d := diagnose(f)
	d.checkService(service{
		Service: f.Worker, title: "the worker", settings: WorkerSettings, callers: WorkerCallers,
		parse:  func(l lookup) error { _, err := worker.ParseConfig(l); return err },
		custom: slices.ContainsFunc(f.Kinds, func(k guarded.Kind) bool { return k.Name != "analysis" }),
	})
	d.checkWorker()
	d.checkCaller()
	d.checkPlaces()
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
	config worker.Config
	found  []Finding
}

// diagnose returns a diagnosis without findings. Where the worker's environment is wrong, the
// configuration holds defaults, and the rule "environment" reports it.
func diagnose(f Facts) *diagnosis {
	config, _ := worker.ParseConfig(f.Worker.lookup)
	return &diagnosis{Facts: f, config: config}
}

// adviceIf returns the severity of a rule that is only advice in some cases, as where it may be wrong.
func adviceIf(mild bool) Severity {
	if mild {
		return Advice
	}
	return Problem
}

// hasRead reports whether all of the parts were read.
func (d *diagnosis) hasRead(parts ...Part) bool {
	return !slices.ContainsFunc(parts, func(p Part) bool { return d.Status[p].From == "" })
}

// rule adds a finding if it is broken. The first line of text is the problem, the second one the fix.
func (d *diagnosis) rule(s Severity, name string, broken bool, text string, args ...any) {
	if broken {
		problem, fix, _ := strings.Cut(fmt.Sprintf(text, args...), "\n")
		d.found = append(d.found, Finding{Rule: name, Severity: s, Problem: problem, Fix: fix})
	}
}
