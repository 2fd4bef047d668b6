package doctor

import "time"

// Part is something that was read, or why it was not.
type Part[T any] struct {
	Value  T
	From   string // what it was read from, for people; empty: not read
	Live   bool   // from Google, so that a command changes it; otherwise a line in a file does
	Why    string // it was not read
	Failed bool   // it was tried
}

// Known reports whether the part was read.
func (p Part[T]) Known() bool { return p.From != "" }

func read[T any](v T, from string) Part[T] { return Part[T]{Value: v, From: from} }

func unread[T any](why string) Part[T] { return Part[T]{Why: why} }

func failed[T any](err error) Part[T] { return Part[T]{Why: scrub(err.Error()), Failed: true} }

// Facts are what is known of a deployment. The zero value knows nothing.
type Facts struct {
	Worker, Doclock Service
	Queue           Part[Queue]
	Indexes         Part[Indexes]
	Database        Part[Database]
	Jobs            Part[Jobs]
}

// Service is one of the two.
type Service struct {
	Environment Part[Environment]
	Settings    Part[Settings]
	Callers     Part[[]string] // members that may invoke it by its own policy, such as allUsers
}

// Environment is what variables are set.
type Environment map[string]Variable

// Variable is a variable's value; Secret: it comes from elsewhere, and is unknown.
type Variable struct {
	Value  string
	Secret bool
}

// value is a variable's, as far as it is known.
func (e Environment) value(name string) string { return e[name].Value }

// Settings are those of a Cloud Run service.
type Settings struct {
	Name         string
	Project      string   // empty: unknown
	Region       string   // empty: unknown
	URLs         []string // its own
	Audiences    []string // that tokens may name besides
	Timeout      time.Duration
	Concurrency  int64
	Memory       int64 // bytes, of the container that takes requests; 0: unknown
	MaxInstances int64
	Account      string // that it runs as; empty: the project's default
	Image        string // of the container that takes requests
	Port         int64  // of that container
	Startup      string // path of its startup probe; empty: none by HTTP
	Liveness     string // path of its liveness probe; empty: none by HTTP
	Containers   int
	Revisions    Revisions
	CPUAlways    bool // also between requests
	InvokerCheck bool // Cloud Run checks who calls
}

// Queue is a queue's settings.
type Queue struct {
	Name        string        // projects/P/locations/L/queues/Q; empty: unknown
	Location    string        // of a flags file; empty: unknown, or Name has it
	State       string        // RUNNING, PAUSED, DISABLED; empty: unknown
	Concurrent  int64         // dispatches at once
	MaxAttempts int64         // of a task; -1: no limit
	MaxDuration time.Duration // of a task's retries; 0: no limit
	MinBackoff  time.Duration
	MaxBackoff  time.Duration
	Doublings   int64
}

// Indexes are a database's, as far as they were asked for.
type Indexes struct {
	Project   string // empty: unknown
	Database  string // short, as FIRESTORE_DATABASE has it
	Group     string // the collection group of the analyses
	Composite []Index
	Fields    map[Field]bool // that have settings of their own: whether they are indexed
}

// Field is a field of a collection group. The path * is each field that has no
// settings of its own, the group __default__ each group likewise.
type Field struct{ Group, Path string }

// Index is a composite one.
type Index struct {
	Group  string
	Fields []IndexField
	State  string // READY, CREATING, NEEDS_REPAIR; empty: unknown
}

// IndexField is a field of a composite index.
type IndexField struct {
	Path  string
	Order string // ASCENDING or DESCENDING; empty: another kind
}

// Database is what Firestore says of a database.
type Database struct {
	Name string
	Type string // FIRESTORE_NATIVE or DATASTORE_MODE
}

// Jobs are those of one region.
type Jobs struct {
	Project, Region string
	List            []*Job
}

// Job is one of Cloud Scheduler's that calls by HTTP.
type Job struct {
	Name     string
	State    string // ENABLED, PAUSED, DISABLED, UPDATE_FAILED
	Method   string
	URI      string
	Account  string // that signs; empty: no token
	Audience string
	Failure  string // why the last call failed; empty: it did not, or there was none
}
