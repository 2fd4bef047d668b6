package doctor

import (
	"slices"
	"strings"
	"time"

	scheduler "google.golang.org/api/cloudscheduler/v1"
	"google.golang.org/grpc/codes"

	"taskguard/worker"
)

// Facts hold what is known of a deployment. The zero value knows nothing.
type Facts struct {
	Worker, Doclock Service
	Kinds           []worker.Kind // of work
	Queue           Queue
	Indexes         Indexes
	Jobs            []*scheduler.Job // that call recovery, in the queue's region
	Tasks           []Task           // the first of the queue
	Grants          []Grant          // of the worker's account, as far as they could be evaluated
	Alerts, Unsent  int              // the alert policies of this deployment; those without a channel, or disabled
	Status          map[Part]Status
}

// Part names a part of Facts in the output.
type Part string

// The parts.
const (
	WorkerSettings  Part = "the worker's settings"
	QueueSettings   Part = "the queue"
	DatabaseIndexes Part = "the indexes"
	SchedulerJobs   Part = "Cloud Scheduler's jobs"
	WorkerCallers   Part = "who may call the worker"
	DoclockSettings Part = "doclock's settings"
	DoclockCallers  Part = "who may call doclock"
	QueueTasks      Part = "the queue's tasks"
	AccountRoles    Part = "the roles of the worker's account"
	AlertPolicies   Part = "the alert policies"
)

// parts returns all parts in the order of the output.
func parts() []Part {
	return append([]Part{
		WorkerSettings, QueueSettings, DatabaseIndexes, SchedulerJobs, WorkerCallers, DoclockSettings, DoclockCallers,
	}, optionalParts()...)
}

// optionalParts returns the parts that an operator may lack the right to read. It is no failure if
// one of them could not be read.
func optionalParts() []Part { return []Part{QueueTasks, AccountRoles, AlertPolicies} }

// Status holds where a part was read from, or why it was not.
type Status struct {
	From   string `json:"from,omitempty"` // the file or resource; empty: not read
	Why    string `json:"why,omitempty"`  // why it was not read
	Failed bool   `json:"failed"`         // reading was tried
}

// Reading lists the parts that have the same status.
type Reading struct {
	Parts []string `json:"parts"`
	Status
}

// Readings returns what was read, and what was not.
func (f Facts) Readings() (read, unread []Reading) {
	for _, p := range parts() {
		list, status := &unread, f.Status[p]
		if status.From != "" {
			list = &read
		}
		i := slices.IndexFunc(*list, func(r Reading) bool { return r.Status == status })
		if i < 0 {
			i, *list = len(*list), append(*list, Reading{Status: status})
		}
		(*list)[i].Parts = append((*list)[i].Parts, string(p))
	}
	return read, unread
}

// Service holds the callers and the settings of a Cloud Run service, those of the revision that serves.
type Service struct {
	Callers      []string // members that may invoke it by its own policy, such as allUsers
	Name         string
	Environment  map[string]string // a secret's value is Secret
	Timeout      time.Duration
	Concurrency  int64
	Memory       int64 // bytes, of the container that gets the requests; 0: unknown
	MaxInstances int64
	URLs         string // a JSON list of all its addresses; empty: unknown
	InvokerCheck bool   // Cloud Run checks the callers
	Account      string
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

// Queue holds a queue's settings.
type Queue struct {
	State       string        // RUNNING, PAUSED, DISABLED; empty: unknown
	Concurrent  int64         // dispatches at once
	MaxAttempts int64         // of a task; -1: no limit
	MaxDuration time.Duration // of a task's retries; 0: no limit
}

// Task holds a task's settings, without its body.
type Task struct {
	Name, URL, Audience string // the audience is empty if there is no token
	Deadline            time.Duration
	Last                codes.Code // of its last attempt; OK: there was none
}
