package doctor

import (
	"slices"
	"strings"
	"time"

	"taskguard/worker"
)

// Facts hold what is known of a deployment. The zero value knows nothing.
type Facts struct {
	Worker, Doclock Service
	Kinds           []worker.Kind // of work
	Queue           Queue
	Indexes         Indexes
	Jobs            []Job // of Cloud Scheduler in the queue's region
	Live
	Status map[Part]Status
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
)

// parts returns all parts in the order of the output.
func parts() []Part {
	return append([]Part{
		WorkerSettings, QueueSettings, DatabaseIndexes, SchedulerJobs, WorkerCallers, DoclockSettings, DoclockCallers,
	}, liveParts()...)
}

// Status holds where a part was read from, or why it was not.
type Status struct {
	From   string // the file or resource; empty: not read
	Why    string // why it was not read
	Failed bool   // reading was tried
}

// Service holds a service's settings and callers.
type Service struct {
	Settings
	Callers []string // members that may invoke it by its own policy, such as allUsers
}

// Settings are those of a Cloud Run service, of the revision that serves.
type Settings struct {
	Name         string
	Environment  map[string]string // a secret's value is Secret
	Timeout      time.Duration
	Concurrency  int64
	Memory       int64 // bytes, of the container that gets the requests; 0: unknown
	MaxInstances int64
	URLs         string // a JSON list of all its addresses; empty: unknown
	InvokerCheck bool   // Cloud Run checks the callers
	Account      string
	Secrets      []string // that its containers use
	Twice        []string // variables that the container sets more than once
	Probes       []string // the paths of the container's probes
	// Serving is the revision that gets the most requests, Newest has the settings that were
	// changed last, and NewestShare is its part of the requests in percent. Empty: unknown.
	Serving, Newest string
	NewestShare     int64
}

// Secret stands for the unknown value of a secret. It is long enough for one.
const Secret = "unknown-unknown-unknown-unknown-unknown-unknown-"

// value returns a variable's value; empty: unset or unknown.
func (s Settings) value(name string) string { return strings.TrimPrefix(s.Environment[name], Secret) }

// Queue holds a queue's settings.
type Queue struct {
	Project     string        // of a flags file; empty: unknown
	Region      string        // likewise
	State       string        // RUNNING, PAUSED, DISABLED; empty: unknown
	Concurrent  int64         // dispatches at once
	MaxAttempts int64         // of a task; -1: no limit
	MaxDuration time.Duration // of a task's retries; 0: no limit
	MinBackoff  time.Duration
	MaxBackoff  time.Duration
}

// Job is a job of Cloud Scheduler that calls by HTTP.
type Job struct {
	Name, State string // state: ENABLED, PAUSED, DISABLED, UPDATE_FAILED
	Method, URI string
	Failure     string // of the last call; empty: it succeeded, or there was none
}

// Source lists the parts that were read from one place.
type Source struct {
	Parts []string `json:"parts"`
	From  string   `json:"from"`
}

// Sources lists what was read.
func (f Facts) Sources() (all []Source) {
	for _, p := range parts() {
		from := f.Status[p].From
		if from == "" {
			continue
		}
		i := slices.IndexFunc(all, func(o Source) bool { return o.From == from })
		if i < 0 {
			i, all = len(all), append(all, Source{From: from})
		}
		all[i].Parts = append(all[i].Parts, string(p))
	}
	return all
}
