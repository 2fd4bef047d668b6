package doctor_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"taskguard/cmd/taskguard/doctor"
)

// misconfiguration changes the shipped facts so that one rule, and no other, finds it.
type misconfiguration struct {
	name, rule string
	severity   doctor.Severity
	change     func(*doctor.Facts)
}

// set sets variables of the worker; an empty value unsets.
func set(pairs ...string) func(*doctor.Facts) {
	return func(f *doctor.Facts) { assign(f.Worker.Environment.Value, pairs) }
}

// setDoclock does the same for doclock.
func setDoclock(pairs ...string) func(*doctor.Facts) {
	return func(f *doctor.Facts) { assign(f.Doclock.Environment.Value, pairs) }
}

func assign(e doctor.Environment, pairs []string) {
	for pair := range slices.Chunk(pairs, 2) {
		delete(e, pair[0])
		if pair[1] != "" {
			e[pair[0]] = doctor.Variable{Value: pair[1]}
		}
	}
}

func worker(change func(*doctor.Settings)) func(*doctor.Facts) {
	return func(f *doctor.Facts) { change(&f.Worker.Settings.Value) }
}

func doclock(change func(*doctor.Settings)) func(*doctor.Facts) {
	return func(f *doctor.Facts) { change(&f.Doclock.Settings.Value) }
}

func queue(change func(*doctor.Queue)) func(*doctor.Facts) {
	return func(f *doctor.Facts) { change(&f.Queue.Value) }
}

// job changes the first or second of the shipped jobs.
func job(i int, change func(*doctor.Job)) func(*doctor.Facts) {
	return func(f *doctor.Facts) { change(f.Jobs.Value.List[i]) }
}

// behindIAM has Cloud Run check who calls doclock.
func behindIAM(f *doctor.Facts) {
	setDoclock("TASK_AUTH", "iam", "TASK_AUDIENCE", "", "TASK_SERVICE_ACCOUNTS", "")(f)
	f.Doclock.Settings.Value.InvokerCheck = true
	f.Doclock.Callers.Value = []string{"serviceAccount:" + caller}
}

func both(changes ...func(*doctor.Facts)) func(*doctor.Facts) {
	return func(f *doctor.Facts) {
		for _, change := range changes {
			change(f)
		}
	}
}

const (
	problem = doctor.Problem
	advice  = doctor.Advice
)

var seeded = slices.Concat(seededService, seededWorker, seededQueue, seededFirestore, seededDoclock)

var seededService = []misconfiguration{
	{"a TTL too short for its heartbeat", "environment", problem, set("LOCK_TTL", "150s")},
	{"no mode of authentication", "environment", problem, set("TASK_AUTH", "")},
	{"a duration without a unit", "environment", problem, set("MAX_ATTEMPTS", "ten")},
	{"no caller", "environment", problem, set("TASK_CALLER", "")},
	{"a short session secret", "environment", problem, both(setDoclock("SESSION_AUTH", "oidc", "SESSION_SECRET", ""))},
	{"a misspelt variable", "unknown-variable", advice, set("RUN_TIMEOUT", "", "RUN_TIEMOUT", "25m")},
	{"doclock's misspelt variable", "unknown-variable", advice, setDoclock("DOCUMENT_LOCK_TTL", "", "DOCUMENT_LOCKS_TTL", "30s")},
	{"an emulator of Firestore", "emulator-deployed", problem, set("FIRESTORE_EMULATOR_HOST", "localhost:8080")},
	{"an emulator of Cloud Tasks", "emulator-deployed", problem, set("CLOUD_TASKS_EMULATOR_HOST", "localhost:8123")},
	{"keys of somebody else", "keys-elsewhere", problem, setDoclock("TASK_JWKS_URL", "https://keys.example/certs")},
	{"a session secret for all to read", "plain-secret", problem, setDoclock("SESSION_SECRET", "0123456789012345678901234567890123456789")},
	{"a password in the analyzer's URL", "plain-secret", problem, set("ANALYZER", "https://user:hunter2@analyzer.example/run")},
	{"nobody checks who calls", "invoker-check-disabled", problem, worker(func(s *doctor.Settings) { s.InvokerCheck = false })},
	{"everybody may call", "invoker-public", problem, func(f *doctor.Facts) { f.Worker.Callers.Value = append(f.Worker.Callers.Value, "allUsers") }},
	{"a token is checked whose signature is gone", "oidc-behind-iam", problem, doclock(func(s *doctor.Settings) { s.InvokerCheck = true })},
	{"the worker's own check behind Cloud Run's", "oidc-behind-iam", problem, set("TASK_AUTH", "oidc", "TASK_AUDIENCE", workerURL, "TASK_SERVICE_ACCOUNTS", caller)},
	{"the default account", "default-account", advice, worker(func(s *doctor.Settings) { s.Account = "" })},
	{"Compute Engine's account", "default-account", advice, doclock(func(s *doctor.Settings) { s.Account = "123456789012-compute@developer.gserviceaccount.com" })},
	{"an image by its tag", "image-tag", advice, worker(func(s *doctor.Settings) { s.Image = "europe-west1-docker.pkg.dev/my-project/taskguard/worker:latest" })},
	{"a digest of zeros", "image-placeholder", problem, worker(func(s *doctor.Settings) { s.Image = strings.Replace(s.Image, "my-project", "acme", 1) })},
	{"a revision that does not start", "not-ready", problem, worker(func(s *doctor.Settings) { s.Revisions.NotReady = "The container did not listen" })},
	{"a revision that did not become ready", "not-ready", problem, worker(func(s *doctor.Settings) { s.Revisions.Created = "taskguard-worker-00008" })},
	{"a revision that starts just now", "not-ready", advice, worker(func(s *doctor.Settings) {
		s.Revisions.Created, s.Revisions.NotReady, s.Revisions.Underway = "taskguard-worker-00008", "Deploying", true
	})},
	{"traffic to an earlier revision", "traffic-elsewhere", advice, worker(func(s *doctor.Settings) { s.Revisions.Shares = map[string]int64{"taskguard-worker-00006": 100} })},
	{"traffic to two revisions", "traffic-elsewhere", advice, doclock(func(s *doctor.Settings) {
		s.Revisions = doctor.Revisions{Created: "b", Ready: "b", Shares: map[string]int64{"a": 90, "b": 10}}
	})},
	{"a startup probe of nothing", "probe-path", problem, worker(func(s *doctor.Settings) { s.Startup = "/healthz" })},
	{"a startup probe of the root", "probe-path", problem, worker(func(s *doctor.Settings) { s.Startup = "/" })},
	{"a liveness probe of nothing", "probe-path", problem, doclock(func(s *doctor.Settings) { s.Liveness = "/healthz" })},
	{"a worker that restarts with Firestore", "liveness", problem, worker(func(s *doctor.Settings) { s.Liveness = "/health/ready" })},
}

var seededWorker = []misconfiguration{
	{"Cloud Run's default timeout", "run-timeout", problem, worker(func(s *doctor.Settings) { s.Timeout = 300 * time.Second })},
	{"a run as long as its request", "run-timeout", problem, worker(func(s *doctor.Settings) { s.Timeout = 25 * time.Minute })},
	{"a request that outlives its dispatch", "dispatch-deadline", problem, worker(func(s *doctor.Settings) { s.Timeout = time.Hour })},
	{"a run as long as a dispatch", "run-too-long", problem, both(set("RUN_TIMEOUT", "29m30s"), worker(func(s *doctor.Settings) { s.Timeout = 30 * time.Minute }))},
	{"another service's address", "target-url", problem, set("TASK_TARGET_URL", doclockURL)},
	{"an address in plain text", "target-url", problem, both(set("TASK_TARGET_URL", "http://worker.example"), job(0, func(j *doctor.Job) { j.URI = workerURL + "/internal/tasks/recover" }))},
	{"a domain that is no audience", "target-url", problem, set("TASK_TARGET_URL", "https://worker.example")},
	{"a caller who may not call", "caller-not-invoker", advice, func(f *doctor.Facts) { f.Worker.Callers.Value = []string{"user:somebody@example.com"} }},
	{"a caller of another project", "caller-far", problem, both(set("TASK_CALLER", "taskguard-caller@other-project.iam.gserviceaccount.com"), func(f *doctor.Facts) {
		f.Worker.Callers.Value = append(f.Worker.Callers.Value, "serviceAccount:taskguard-caller@other-project.iam.gserviceaccount.com")
	})},
	{"a queue of another project", "queue-far", advice, set("GOOGLE_CLOUD_PROJECT", "other-project")},
	{"too little memory", "memory", advice, worker(func(s *doctor.Settings) { s.Memory = 512 << 20 })},
	{"more deliveries than the worker takes", "max-runs", problem, set("MAX_RUNS", "9")},
	{"lines that nobody counts", "log-lines", problem, set("LOG_LEVEL", "warn")},
	{"lines whose fields nobody reads", "log-lines", problem, set("LOG_FORMAT", "text")},
	{"a queue of another region", "queue-far", advice, worker(func(s *doctor.Settings) { s.Region = "us-central1" })},
	{"no recovery", "recovery-unscheduled", advice, func(f *doctor.Facts) { f.Jobs.Value.List = f.Jobs.Value.List[1:] }},
	{"recovery on a wrong path", "recovery-call", problem, job(0, func(j *doctor.Job) { j.URI = workerURL + "/internal/recover" })},
	{"recovery by GET", "recovery-call", problem, job(0, func(j *doctor.Job) { j.Method = "GET" })},
	{"recovery paused", "recovery-paused", problem, job(0, func(j *doctor.Job) { j.State = "PAUSED" })},
	{"recovery whose last call failed", "recovery-failed", problem, job(0, func(j *doctor.Job) { j.Failure = "PermissionDenied" })},
	{"recovery by one who may not call", "recovery-caller", advice, job(0, func(j *doctor.Job) { j.Account = "other@my-project.iam.gserviceaccount.com" })},
	{"recovery for another's audience", "recovery-audience", problem, job(0, func(j *doctor.Job) { j.Audience = doclockURL })},
	{"tasks signed for what is refused", "task-audience", advice, both(
		set("TASK_AUTH", "oidc", "TASK_AUDIENCE", "taskguard", "TASK_SERVICE_ACCOUNTS", caller),
		worker(func(s *doctor.Settings) { s.InvokerCheck = false }), job(0, func(j *doctor.Job) { j.Audience = "taskguard" }))},
	{"nobody answers beside the worker", "analyzer-nowhere", problem, set("ANALYZER", "http://localhost:9000/analyze")},
	{"nobody answers at its own address", "analyzer-nowhere", problem, set("ANALYZER", "http://[::1]:9000/")},
	{"the worker analyzes by itself", "analyzer-nowhere", problem, set("ANALYZER", workerURL+"/analyze")},
	{"the worker analyzes at its own port", "analyzer-nowhere", problem, both(
		set("ANALYZER", "http://localhost:8080/"), worker(func(s *doctor.Settings) { s.Containers = 2 }))},
	{"recovery without a token", "recovery-token", problem, job(0, func(j *doctor.Job) { j.Account, j.Audience = "", "" })},
}

var seededQueue = []misconfiguration{
	{"another queue", "queue-other", problem, set("TASK_QUEUE", "projects/my-project/locations/europe-west1/queues/others")},
	{"flags for another region", "queue-region", problem, queue(func(q *doctor.Queue) { q.Name, q.Location = "", "us-central1" })},
	{"a paused queue", "queue-stopped", problem, queue(func(q *doctor.Queue) { q.State = "PAUSED" })},
	{"a disabled queue", "queue-stopped", problem, queue(func(q *doctor.Queue) { q.State = "DISABLED" })},
	{"more dispatches than places", "dispatches", problem, worker(func(s *doctor.Settings) { s.MaxInstances = 9 })},
	{"a queue that gives up", "queue-gives-up", problem, queue(func(q *doctor.Queue) { q.MaxAttempts = 5 })},
	{"a queue that gives up in time", "queue-gives-up", problem, queue(func(q *doctor.Queue) { q.MaxDuration = time.Hour })},
	{"a queue that gives up before a lock does", "queue-shorter-than-lock", problem, both(
		set("TASK_QUEUE", "", "TASK_TARGET_URL", "", "TASK_CALLER", ""), queue(func(q *doctor.Queue) { q.MaxAttempts = 5 }))},
	{"a queue that is too hot", "queue-hot", problem, queue(func(q *doctor.Queue) { q.MinBackoff, q.Doublings = 100*time.Millisecond, 5 })},
}

var seededFirestore = []misconfiguration{
	{"Datastore's mode", "database-mode", problem, func(f *doctor.Facts) { f.Database.Value.Type = "DATASTORE_MODE" }},
	{"no index", "index-missing", problem, func(f *doctor.Facts) { f.Indexes.Value.Composite = nil }},
	{"an index the other way round", "index-missing", problem, func(f *doctor.Facts) { f.Indexes.Value.Composite[0].Fields[1].Order = "DESCENDING" }},
	{"an index that is being built", "index-not-ready", problem, func(f *doctor.Facts) { f.Indexes.Value.Composite[0].State = "CREATING" }},
	{"an index that is broken", "index-not-ready", problem, func(f *doctor.Facts) { f.Indexes.Value.Composite[0].State = "NEEDS_REPAIR" }},
	{"an indexed input", "field-indexed", problem, func(f *doctor.Facts) { delete(f.Indexes.Value.Fields, doctor.Field{Group: "analyses", Path: "input"}) }},
}

var seededDoclock = []misconfiguration{
	{"nobody sweeps", "sweep-unscheduled", advice, func(f *doctor.Facts) { f.Jobs.Value.List = f.Jobs.Value.List[:1] }},
	{"a sweep on a wrong path", "sweep-call", problem, job(1, func(j *doctor.Job) { j.URI = doclockURL + "/sweep" })},
	{"a paused sweep", "sweep-paused", problem, job(1, func(j *doctor.Job) { j.State = "PAUSED" })},
	{"a sweep whose last call failed", "sweep-failed", problem, job(1, func(j *doctor.Job) { j.Failure = "NotFound" })},
	{"a sweep by one who may not call", "sweep-caller", advice, both(behindIAM, job(1, func(j *doctor.Job) { j.Account = "other@my-project.iam.gserviceaccount.com" }))},
	{"a sweep for another's audience", "sweep-audience", problem, both(behindIAM, job(1, func(j *doctor.Job) { j.Audience = workerURL }))},
	{"doclock restarts with Firestore", "liveness", problem, doclock(func(s *doctor.Settings) { s.Liveness = "/health/ready" })},
	{"a sweep of somebody else", "sweep-token", problem, job(1, func(j *doctor.Job) { j.Account = "x@example.com" })},
	{"a sweep for another audience", "sweep-token", problem, job(1, func(j *doctor.Job) { j.Audience = j.URI })},
	{"a ticker that sleeps", "sweep-asleep", advice, setDoclock("SWEEP_INTERVAL", "60s")},
}

// seed is the shipped deployment with one thing wrong.
func seed(t testing.TB, c misconfiguration) doctor.Facts {
	f := shipped(t)
	c.change(&f)
	return f
}

func TestEachSeededMisconfigurationIsFoundByItsRuleAndNoOther(t *testing.T) {
	for _, c := range seeded {
		t.Run(c.name, func(t *testing.T) {
			found, _ := doctor.Check(seed(t, c))
			if len(found) != 1 || found[0].Rule != c.rule || found[0].Severity != c.severity {
				t.Errorf("want one %s by %s, got %d: %+v", c.severity, c.rule, len(found), found)
			}
		})
	}
}

func TestEachRuleHasASeededMisconfigurationAndEachOfThoseARule(t *testing.T) {
	rules := doctor.Rules()
	for _, rule := range rules {
		if !slices.ContainsFunc(seeded, func(c misconfiguration) bool { return c.rule == rule }) {
			t.Errorf("no seeded misconfiguration shows %s", rule)
		}
	}
	for _, c := range seeded {
		if !slices.Contains(rules, c.rule) {
			t.Errorf("%s: there is no rule %s", c.name, c.rule)
		}
	}
}
