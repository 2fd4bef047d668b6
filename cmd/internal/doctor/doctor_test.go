package doctor_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"taskguard/cmd/internal/doctor"
	"taskguard/worker"
)

const (
	deploy    = "../../../deploy/"
	workerURL = "https://taskguard-worker-123456789012.europe-west1.run.app"
	caller    = "taskguard-caller@my-project.iam.gserviceaccount.com"
	queueName = "projects/my-project/locations/europe-west1/queues/analyses"
)

func lookup(env map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) { v, ok := env[name]; return v, ok }
}

// files returns the facts of the shipped files.
func files(t testing.TB) doctor.Facts {
	t.Helper()
	f, err := doctor.Read(t.Context(), doctor.Options{
		Service: deploy + "service.yaml", Doclock: deploy + "doclock.yaml", Queue: deploy + "queue.yaml",
		Indexes: deploy + "firestore.indexes.json", Lookup: lookup(nil),
	})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// shipped returns the facts of a deployment of the shipped files, all of them known.
func shipped(t testing.TB) doctor.Facts {
	t.Helper()
	f := files(t)
	f.Queue.State = "RUNNING"
	f.Worker.Callers = []string{"serviceAccount:" + caller}
	f.Jobs = []doctor.Job{
		{Name: "taskguard-recover", State: "ENABLED", Method: "POST", URI: workerURL + "/internal/tasks/recover"},
		{Name: "another", State: "PAUSED", Method: "GET", URI: "https://example.com/"},
	}
	f.Live = liveFacts()
	for _, p := range slices.Concat(doctor.LiveParts(), []doctor.Part{doctor.WorkerCallers, doctor.DoclockCallers, doctor.SchedulerJobs}) {
		f.Status[p] = doctor.Status{From: "test"}
	}
	return f
}

func TestShippedDeploymentHasNoFinding(t *testing.T) {
	if found, unchecked := doctor.Check(shipped(t)); len(found)+len(unchecked) > 0 {
		t.Errorf("%+v\n%+v", found, unchecked)
	}
}

func TestShippedFilesHaveNoFindingAndLackPartsForAReason(t *testing.T) {
	found, unchecked := doctor.Check(files(t))
	if len(found) > 0 || len(unchecked) != 2 {
		t.Errorf("%+v, %+v", found, unchecked)
	}
	f, err := doctor.Read(t.Context(), doctor.Options{Queue: deploy + "queue.yaml", Lookup: lookup(nil)})
	_, more := doctor.Check(f)
	if err != nil {
		t.Error(err)
	}
	for _, u := range append(unchecked, more...) {
		if u.Failed || u.Why == "" || len(u.Rules) == 0 {
			t.Errorf("%+v", u)
		}
	}
}

// Each row changes one line of a shipped file.
func TestAMistakeInAFileIsFound(t *testing.T) {
	for _, tc := range []struct{ file, old, replacement, rule string }{
		{"service.yaml", "path: /health/ready", "path: /readyz", "probe-path"},
		{"service.yaml", "path: /health/live", "port: 8080", "probe-path"},
		{"service.yaml", "livenessProbe:\n            httpGet:\n              path: /health/live", "readinessProbe:\n            httpGet:\n              path: /live", "probe-path"},
		{"service.yaml", "livenessProbe:\n            httpGet:\n              path: /health/live", "livenessProbe:\n            tcpSocket:\n              port: 8080", ""},
		{"service.yaml", "name: RETRY_MIN", "name: RETRY_MAX", "variable-twice"},
		{"service.yaml", "value: my-project", "value: other-project", "project"},
		{"service.yaml", "memory: 1Gi", "memory: 128Mi", "memory"},
		{"service.yaml", "STALL_TIMEOUT", "STALL_TIMOUT", "unknown-variable"},
		{"service.yaml", "europe-west1.run.app", "europe-west1.run.app/", ""},
		{"service.yaml", "memory: 1Gi", "ephemeral-storage: 1Gi", "memory"},
		{"service.yaml", "timeoutSeconds: 1560", "", "run-timeout"},
		{"service.yaml", "containerConcurrency: 10", "", "memory"},
		{"service.yaml", "value: builtin:document", "value: exec:/no/such/program -x\n            - name: ANALYZER_ENV\n              value: MODEL", ""},
		{"service.yaml", "value: builtin:document", "value: 'exec:'", "environment"},
		{"service.yaml", "value: builtin:document", "value: builtin:document\n            - name: ANALYZER_ENV\n              value: MODEL", "environment"},
		{"service.yaml", "name: LOG_LEVEL\n              value: info", "name: KEEP_FINISHED\n              value: 2160h", "keep-no-ttl"},
		{"queue.yaml", "--location: europe-west1", "--project: other-project", "project"},
		{"queue.yaml", "--location: europe-west1", "--project: 123456789012", ""},
		{"queue.yaml", "--max-concurrent-dispatches: 95", "--max-concurrent-dispatches: 1", "dispatches"},
		{"queue.yaml", "--max-backoff: 600s", "--max-backoff: 29s", "queue-backoff"},
		{"queue.yaml", "--min-backoff: 30s\n--max-backoff: 600s", "--min-backoff: 3600s", ""},
		{"queue.yaml", "--min-backoff: 30s\n--max-backoff: 600s", "--min-backoff: 3601s", "queue-backoff"},
	} {
		text, err := os.ReadFile(deploy + tc.file)
		if err != nil || !strings.Contains(string(text), tc.old) {
			t.Fatal(err, tc)
		}
		file := filepath.Join(t.TempDir(), tc.file)
		if err := os.WriteFile(file, []byte(strings.Replace(string(text), tc.old, tc.replacement, 1)), 0o600); err != nil {
			t.Fatal(err)
		}
		o := doctor.Options{Service: deploy + "service.yaml", Queue: deploy + "queue.yaml", Indexes: deploy + "firestore.indexes.json", Lookup: lookup(nil)}
		*map[string]*string{"service.yaml": &o.Service, "queue.yaml": &o.Queue}[tc.file] = file
		f, err := doctor.Read(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		found, unchecked := doctor.Check(f)
		readable := !slices.ContainsFunc(unchecked, func(u doctor.Unchecked) bool { return u.Failed })
		if !readable || len(found) > 1 || (len(found) == 1) != (tc.rule != "") || len(found) == 1 && found[0].Rule != tc.rule {
			t.Errorf("%s: got %+v, %+v, want %s", tc.replacement, found, unchecked, tc.rule)
		}
	}
}

func TestUnreadPartsSkipEveryRule(t *testing.T) {
	found, unchecked := doctor.Check(doctor.Facts{})
	if len(found) > 0 {
		t.Errorf("%+v", found)
	}
	for _, r := range doctor.Rules() {
		if !slices.ContainsFunc(unchecked, func(u doctor.Unchecked) bool { return slices.Contains(u.Rules, r) }) {
			t.Errorf("%s is neither applied nor reported as skipped", r)
		}
	}
}

// misconfiguration changes the shipped facts so that one rule, and no other, finds it.
type misconfiguration struct {
	name, rule string
	severity   doctor.Severity
	change     func(*doctor.Facts)
}

// set sets variables of the worker. An empty value removes the variable.
func set(pairs ...string) func(*doctor.Facts) {
	return func(f *doctor.Facts) { assign(f.Worker.Environment, pairs) }
}

// setDoclock does the same for doclock.
func setDoclock(pairs ...string) func(*doctor.Facts) {
	return func(f *doctor.Facts) { assign(f.Doclock.Environment, pairs) }
}

func assign(env map[string]string, pairs []string) {
	for pair := range slices.Chunk(pairs, 2) {
		delete(env, pair[0])
		if pair[1] != "" {
			env[pair[0]] = pair[1]
		}
	}
}

func seeded() []misconfiguration {
	const problem, advice = doctor.Problem, doctor.Advice
	return append(seededLive(), []misconfiguration{
		{"stall timeout that never ends a run", "environment", problem, set("STALL_TIMEOUT", "25m")},
		{"TTL too short for its heartbeat", "environment", problem, set("LOCK_TTL", "150s")},
		{"no authentication mode", "environment", problem, set("TASK_AUTH", "")},
		{"malformed number", "environment", problem, set("MAX_ATTEMPTS", "ten")},
		{"unknown analyzer", "environment", problem, set("ANALYZER", "python main.py")},
		{"no caller", "environment", problem, set("TASK_CALLER", "")},
		{"doclock: audience missing", "environment", problem, setDoclock("TASK_AUDIENCE", "")},
		{"misspelled variable", "unknown-variable", problem, set("RUN_TIMEOUT", "", "RUN_TIEMOUT", "25m")},
		{"doclock: misspelled variable", "unknown-variable", problem, setDoclock("DOCUMENT_LOCKS_TTL", "30s")},
		{"misspelled variable that a program may read", "unknown-variable", advice, set("RUN_TIEMOUT", "25m", "ANALYZER", "exec:true", "ANALYZER_ENV", "A, RUN_T*")},
		{"misspelled variable beside the program's", "unknown-variable", problem, set("RUN_TIEMOUT", "25m", "ANALYZER", "exec:true", "ANALYZER_ENV", "RUN_T, X*")},
		{"variable set twice", "variable-twice", problem, func(f *doctor.Facts) { f.Worker.Twice = []string{"MAX_RUNS"} }},
		{"probe of no route", "probe-path", problem, func(f *doctor.Facts) { f.Worker.Probes[1] = "/healthz" }},
		{"doclock: probe of no route", "probe-path", problem, func(f *doctor.Facts) { f.Doclock.Probes[0] = "/healthz" }},
		{"Firestore emulator", "test-setting", problem, set("FIRESTORE_EMULATOR_HOST", "localhost:8080")},
		{"Cloud Tasks emulator", "test-setting", problem, set("CLOUD_TASKS_EMULATOR_HOST", "localhost:8123")},
		{"doclock: other signing keys", "test-setting", problem, setDoclock("TASK_JWKS_URL", "https://keys.example/certs")},
		{"session secret in plain text", "plain-secret", problem, setDoclock("SESSION_SECRET", "0123456789012345678901234567890123456789")},
		{"no check of the callers", "invoker-check-disabled", problem, func(f *doctor.Facts) { f.Worker.InvokerCheck = false }},
		{"everybody may call", "invoker-public", problem, func(f *doctor.Facts) { f.Worker.Callers = append(f.Worker.Callers, "allUsers") }},
		{"doclock: token without its signature", "oidc-behind-iam", problem, func(f *doctor.Facts) { f.Doclock.InvokerCheck = true }},
		{"token without its signature", "oidc-behind-iam", problem, set("TASK_AUTH", "oidc", "TASK_AUDIENCE", workerURL, "TASK_SERVICE_ACCOUNTS", caller)},
		{"Cloud Run's default timeout", "run-timeout", problem, func(f *doctor.Facts) { f.Worker.Timeout = 300e9 }},
		{"run as long as its request", "run-timeout", problem, func(f *doctor.Facts) { f.Worker.Timeout = 25 * 60e9 }},
		{"request longer than its dispatch", "dispatch-deadline", problem, func(f *doctor.Facts) { f.Worker.Timeout = 3600e9 }},
		{"dispatch longer than 30 minutes", "dispatch-deadline", problem, func(f *doctor.Facts) { set("RUN_TIMEOUT", "30m")(f); f.Worker.Timeout, f.Tasks = 1801e9, nil }},
		{"another service's address", "target-url", problem, set("TASK_TARGET_URL", strings.Replace(workerURL, "worker", "worker2", 1))},
		{"address in another project", "target-url", problem, func(f *doctor.Facts) { f.Worker.URLs = `["` + strings.Replace(workerURL, "1234", "9234", 1) + `"]` }},
		{"queue's file of another region", "queue-elsewhere", problem, func(f *doctor.Facts) { f.Queue.Region = "europe-west3" }},
		{"address with a kind's path", "target-url", problem, set("TASK_TARGET_URL", workerURL+"/internal/tasks/analysis")},
		{"address with a kind's path and a slash", "target-url", problem, set("TASK_TARGET_URL", workerURL+"/internal/tasks/analysis/")},
		{"address in plain text", "target-url", problem, set("TASK_TARGET_URL", "http://worker.example")},
		{"documents of another project", "project", advice, set("GOOGLE_CLOUD_PROJECT", "other-project")},
		{"queue of another project", "project", problem, set("TASK_QUEUE", strings.Replace(queueName, "my-", "your-", 1))},
		{"caller of another project", "project", problem, func(f *doctor.Facts) {
			set("TASK_CALLER", "c@other-project.iam.gserviceaccount.com")(f)
			f.Worker.Callers = []string{"serviceAccount:c@other-project.iam.gserviceaccount.com"}
		}},
		{"queue's file of another project", "project", problem, func(f *doctor.Facts) { f.Queue.Project = "other-project" }},
		{"malformed address", "environment", problem, func(f *doctor.Facts) { set("TASK_TARGET_URL", "https://%")(f); f.Tasks = nil }},
		{"more deliveries than the worker takes", "max-runs", problem, set("MAX_RUNS", "9")},
		{"a byte too little memory", "memory", advice, func(f *doctor.Facts) { f.Worker.Memory = 700<<20 - 1 }},
		{"memory for one delivery", "memory", advice, func(f *doctor.Facts) { f.Worker.Memory = 250 << 20 }},
		{"memory for no delivery", "memory", problem, func(f *doctor.Facts) { f.Worker.Memory = 250<<20 - 1 }},
		{"log level above info", "log-lines", problem, set("LOG_LEVEL", "warn")},
		{"log lines as text", "log-lines", problem, set("LOG_FORMAT", "text")},
		{"caller without permission", "caller-not-invoker", advice, func(f *doctor.Facts) { f.Worker.Callers = []string{"user:a@example.com"} }},
		{"newest revision without traffic", "traffic", problem, func(f *doctor.Facts) { f.Worker.Serving, f.Worker.Newest = "w-1", "w-2" }},
		{"newest revision of doclock without traffic", "traffic", problem, func(f *doctor.Facts) { f.Doclock.Serving, f.Doclock.Newest = "d-1", "d-2" }},
		{"paused queue", "queue-stopped", problem, func(f *doctor.Facts) { f.Queue.State = "PAUSED" }},
		{"disabled queue", "queue-stopped", problem, func(f *doctor.Facts) { f.Queue.State = "DISABLED" }},
		{"more dispatches than places", "dispatches", problem, func(f *doctor.Facts) { f.Worker.MaxInstances = 9 }},
		{"as many dispatches as places", "dispatches", problem, func(f *doctor.Facts) { f.Queue.Concurrent = 100 }},
		{"one dispatch at once", "dispatches", problem, func(f *doctor.Facts) { f.Queue.Concurrent = 1 }},
		{"backoffs in reverse", "queue-backoff", problem, func(f *doctor.Facts) { f.Queue.MinBackoff, f.Queue.MaxBackoff = 61e9, 60e9 }},
		{"queue with a limit of attempts", "queue-gives-up", problem, func(f *doctor.Facts) { f.Queue.MaxAttempts = 5 }},
		{"queue with a limit of time", "queue-gives-up", problem, func(f *doctor.Facts) { f.Queue.MaxDuration = 3600e9 }},
		{"queue's default backoff", "queue-hot", problem, func(f *doctor.Facts) { f.Queue.MinBackoff = 1e8 }},
		{"no index", "index-missing", problem, func(f *doctor.Facts) { delete(f.Indexes.Composite, doctor.NeededIndexes(f.Kinds[0])[2]) }},
		{"no index of another kind", "index-missing", problem, func(f *doctor.Facts) { orders(f); delete(f.Indexes.Composite, doctor.NeededIndexes(f.Kinds[1])[2]) }},
		{"index being built", "index-missing", problem, indexState("CREATING")},
		{"broken index", "index-missing", problem, indexState("NEEDS_REPAIR")},
		{"indexed input", "field-indexed", problem, func(f *doctor.Facts) { delete(f.Indexes.Fields, "analyses/input") }},
		{"indexed input of another kind", "field-indexed", problem, func(f *doctor.Facts) { orders(f); delete(f.Indexes.Fields, "orders/payload") }},
		{"indexed checkpoint", "field-indexed", problem, func(f *doctor.Facts) { delete(f.Indexes.Fields, "analyses/checkpoint") }},
		{"indexed history", "field-indexed", advice, func(f *doctor.Facts) { delete(f.Indexes.Fields, "analyses/history") }},
		{"expiry without a policy", "keep-no-ttl", advice, func(f *doctor.Facts) { set("KEEP_FINISHED", "2160h")(f); delete(f.Indexes.TTL, "analyses/expireAt") }},
		{"expiry of another kind without a policy", "keep-no-ttl", advice, func(f *doctor.Facts) {
			orders(f)
			set("KEEP_FINISHED", "2160h")(f)
			f.Indexes.TTL["analyses/expireAt"] = true
		}},
		{"no recovery", "recovery-unscheduled", problem, func(f *doctor.Facts) { f.Jobs = f.Jobs[1:] }},
		{"recovery by GET", "recovery-unscheduled", problem, func(f *doctor.Facts) { f.Jobs[0].Method = "GET" }},
		{"recovery on another path", "recovery-unscheduled", problem, func(f *doctor.Facts) { f.Jobs[0].URI = workerURL + "/internal/recover" }},
		{"paused recovery", "recovery-unscheduled", problem, func(f *doctor.Facts) { f.Jobs[0].State = "PAUSED" }},
		{"recovery refused", "recovery-failed", problem, func(f *doctor.Facts) { f.Jobs[0].Failure = "PermissionDenied" }},
	}...)
}

// orders adds a kind whose documents have a vocabulary of their own, and all that it needs.
func orders(f *doctor.Facts) {
	f.Kinds = append(f.Kinds, worker.Kind{Name: "order", Collection: "shops/s/orders", Path: "/tasks/order", Fields: worker.Fields{Status: "state", Input: "payload", Error: "failure"}})
	for _, needed := range []string{
		"state ASCENDING, updatedAt ASCENDING", "state ASCENDING, updatedAt DESCENDING", "failure.code ASCENDING, updatedAt DESCENDING",
		"lastError.code ASCENDING, updatedAt DESCENDING", "state ASCENDING, createdAt ASCENDING",
	} {
		f.Indexes.Composite["orders: "+needed] = "READY"
	}
	for _, name := range []string{"payload", "result", "failure", "lastError", "progress", "checkpoint", "history"} {
		f.Indexes.Fields["orders/"+name] = false
	}
}

// Some rows are the last value without a finding.
func TestWhatIsRightIsNoFinding(t *testing.T) {
	for name, change := range map[string]func(f *doctor.Facts){
		"limits of the worker":     func(f *doctor.Facts) { set("MAX_RUNS", "10")(f); f.Worker.Memory = 700 << 20 },
		"limits of the queue":      func(f *doctor.Facts) { f.Queue.Concurrent, f.Queue.MinBackoff, f.Queue.MaxBackoff = 99, 10e9, 10e9 },
		"no limit of attempts":     func(f *doctor.Facts) { f.Queue.MaxAttempts = 0 },
		"unknown memory":           func(f *doctor.Facts) { f.Worker.Memory = 0 },
		"one of two places":        func(f *doctor.Facts) { f.Worker.MaxInstances, f.Worker.Concurrency, f.Queue.Concurrent = 1, 2, 1 },
		"unknown queue":            set("TASK_QUEUE", doctor.Secret),
		"unknown log lines":        set("LOG_LEVEL", doctor.Secret, "LOG_FORMAT", doctor.Secret),
		"variables of an analyzer": set("MY_MODEL", "x", "PORTS", "x", "GOMEMLIMIT", "x", "GOOGLE_API_KEY", "x", "OTEL_BLRP_SCHEDULE_DELAY", "5000"),
		"routes of doclock":        func(f *doctor.Facts) { f.Doclock.Probes = []string{"/", "/locks.js"} },
		"a kind and its routes":    func(f *doctor.Facts) { orders(f); f.Worker.Probes = []string{"/healthz"} },
		"group of callers":         func(f *doctor.Facts) { f.Worker.Callers = []string{"group:callers@example.com"} },
		"domain of callers":        func(f *doctor.Facts) { f.Worker.Callers = []string{"domain:example.com"} },
		"task of what is deleted":  func(f *doctor.Facts) { f.Tasks[1].Last = codes.NotFound },
		"slash of the address":     set("TASK_TARGET_URL", workerURL+"/"),
		"another address of it":    func(f *doctor.Facts) { f.Tasks[1].Audience = "https://taskguard-worker-x-ew.a.run.app" },
		"number of a project":      set("GOOGLE_CLOUD_PROJECT", "123456789012"),
	} {
		f := shipped(t)
		change(&f)
		if found, _ := doctor.Check(f); len(found) > 0 {
			t.Errorf("%s: %+v", name, found)
		}
	}
}

func TestProblemsComeBeforeAdvice(t *testing.T) {
	f := shipped(t)
	f.Worker.Memory, f.Queue.State, f.QuotaProject = 512<<20, "PAUSED", ""
	found, _ := doctor.Check(f)
	var rules []string
	for _, one := range found {
		rules = append(rules, one.Rule)
	}
	if want := []string{"queue-stopped", "memory", "quota-project"}; !slices.Equal(rules, want) {
		t.Errorf("%q, want %q", rules, want)
	}
}

func indexState(state string) func(*doctor.Facts) {
	return func(f *doctor.Facts) {
		f.Indexes.Composite[doctor.NeededIndexes(f.Kinds[0])[0]] = state
	}
}

func TestEachSeededMisconfigurationIsFoundByItsRuleAndNoOther(t *testing.T) {
	for _, c := range seeded() {
		t.Run(c.name, func(t *testing.T) {
			f := shipped(t)
			c.change(&f)
			found, _ := doctor.Check(f)
			if len(found) != 1 || found[0].Rule != c.rule || found[0].Severity != c.severity {
				t.Fatalf("want one %s by %s, got %+v", c.severity, c.rule, found)
			}
			if p, fix := found[0].Problem, found[0].Fix; !strings.HasSuffix(p, ".") || !strings.HasSuffix(fix, ".") || strings.ContainsAny(p+fix, "\n") || strings.Contains(p+fix, "%!") {
				t.Errorf("not two sentences: %s %s", p, fix)
			}
		})
	}
}

func TestEachRuleHasASeededMisconfiguration(t *testing.T) {
	for _, rule := range doctor.Rules() {
		if !slices.ContainsFunc(seeded(), func(c misconfiguration) bool { return c.rule == rule }) {
			t.Errorf("no seeded misconfiguration shows %s", rule)
		}
	}
}

func TestAVariableWithoutItsFeatureIsRemovedOrTheFeatureIsSet(t *testing.T) {
	f := shipped(t)
	set("TASK_QUEUE", "")(&f)
	found, _ := doctor.Check(f)
	if len(found) == 0 {
		t.Error("no finding")
	}
	for _, c := range found {
		if !strings.HasPrefix(c.Fix, "Set what it belongs to, or remove it (--remove-env-vars=") {
			t.Errorf("%s %s", c.Problem, c.Fix)
		}
	}
}

func TestOutputHasNoPasswordQueryOrToken(t *testing.T) {
	f := shipped(t)
	set("TASK_TARGET_URL", "http://me:hunter2@x.example/?k=hunter2", "LOCK_TTL", "ya29.hunter2")(&f)
	setDoclock("SESSION_SECRET", "hunter2-hunter2-hunter2-hunter2-hunter2")(&f)
	found, _ := doctor.Check(f)
	for _, one := range found {
		if strings.Contains(one.Problem+one.Fix, "hunter2") {
			t.Errorf("%+v", one)
		}
	}
	if len(found) == 0 {
		t.Error("nothing is found")
	}
}
