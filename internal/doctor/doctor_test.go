package doctor_test

import (
	"slices"
	"strings"
	"testing"

	"taskguard/internal/doctor"
	"taskguard/worker"
)

const (
	deploy    = "../../deploy/"
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
	if len(found) > 0 || len(unchecked) == 0 {
		t.Errorf("%+v, %+v", found, unchecked)
	}
	for _, u := range unchecked {
		if u.Failed || u.Why == "" || len(u.Rules) == 0 {
			t.Errorf("%+v", u)
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
		{"no caller", "environment", problem, set("TASK_CALLER", "")},
		{"doclock: audience missing", "environment", problem, setDoclock("TASK_AUDIENCE", "")},
		{"misspelled variable", "unknown-variable", advice, set("RUN_TIMEOUT", "", "RUN_TIEMOUT", "25m")},
		{"doclock: misspelled variable", "unknown-variable", advice, setDoclock("DOCUMENT_LOCKS_TTL", "30s")},
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
		{"dispatch longer than 30 minutes", "dispatch-deadline", problem, func(f *doctor.Facts) { set("RUN_TIMEOUT", "40m")(f); f.Worker.Timeout, f.Tasks = 3600e9, nil }},
		{"another service's address", "target-url", problem, set("TASK_TARGET_URL", strings.Replace(workerURL, "worker", "doclock", 1))},
		{"address in another project", "target-url", problem, func(f *doctor.Facts) { f.Worker.URLs = `["` + strings.Replace(workerURL, "1234", "9234", 1) + `"]` }},
		{"queue's file of another region", "queue-elsewhere", problem, func(f *doctor.Facts) { f.Queue.Region = "europe-west3" }},
		{"address with a kind's path", "target-url", problem, set("TASK_TARGET_URL", workerURL+"/internal/tasks/analysis")},
		{"address in plain text", "target-url", problem, set("TASK_TARGET_URL", "http://worker.example")},
		{"more deliveries than the worker takes", "max-runs", problem, set("MAX_RUNS", "9")},
		{"too little memory", "memory", advice, func(f *doctor.Facts) { f.Worker.Memory = 512 << 20 }},
		{"log level above info", "log-lines", problem, set("LOG_LEVEL", "warn")},
		{"log lines as text", "log-lines", problem, set("LOG_FORMAT", "text")},
		{"caller without permission", "caller-not-invoker", advice, func(f *doctor.Facts) { f.Worker.Callers = []string{"user:a@example.com"} }},
		{"paused queue", "queue-stopped", problem, func(f *doctor.Facts) { f.Queue.State = "PAUSED" }},
		{"disabled queue", "queue-stopped", problem, func(f *doctor.Facts) { f.Queue.State = "DISABLED" }},
		{"more dispatches than places", "dispatches", problem, func(f *doctor.Facts) { f.Worker.MaxInstances = 9 }},
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

func TestAKindWithAllThatItNeedsHasNoFinding(t *testing.T) {
	f := shipped(t)
	orders(&f)
	if found, _ := doctor.Check(f); len(found) > 0 {
		t.Errorf("%+v", found)
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

func TestUnknownValueOfASecretIsNoFinding(t *testing.T) {
	for _, name := range []string{"TASK_QUEUE", "LOG_LEVEL", "LOG_FORMAT"} {
		f := shipped(t)
		set(name, doctor.Secret)(&f)
		if found, _ := doctor.Check(f); len(found) > 0 {
			t.Errorf("%s: %+v", name, found)
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

func TestVariablesOfTheAnalyzerAreNoFinding(t *testing.T) {
	f := shipped(t)
	set("MY_MODEL", "x", "PORTS", "x", "GOMEMLIMIT", "x", "GOOGLE_API_KEY", "x", "OTEL_BLRP_SCHEDULE_DELAY", "5000")(&f)
	if found, _ := doctor.Check(f); len(found) > 0 {
		t.Errorf("%+v", found)
	}
}

func TestCallerMayBeAMemberOfAGroup(t *testing.T) {
	for member, want := range map[string]int{"group:callers@example.com": 0, "domain:example.com": 0, "user:a@example.com": 1} {
		f := shipped(t)
		f.Worker.Callers = []string{member}
		if found, _ := doctor.Check(f); len(found) != want {
			t.Errorf("%s: want %d findings, got %+v", member, want, found)
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
