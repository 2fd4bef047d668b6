package doctor_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	scheduler "google.golang.org/api/cloudscheduler/v1"
	iam "google.golang.org/api/iam/v1"
	"google.golang.org/grpc/codes"

	"taskguard/cmd/internal/doctor"
	"taskguard/worker"
)

const (
	deploy    = "../../../deploy/"
	workerURL = "https://taskguard-worker-123456789012.europe-west1.run.app"
	caller    = "taskguard-caller@my-project.iam.gserviceaccount.com"
	queueName = "projects/my-project/locations/europe-west1/queues/analyses"
	longJob   = "projects/my-project/locations/europe-west1/jobs/long"

	databaseName = "projects/my-project/databases/(default)"
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
	f.Queue.State, f.AllJobs = "RUNNING", true
	f.Worker.Callers = []string{"serviceAccount:" + caller}
	f.Jobs = []*scheduler.Job{{Name: "x/taskguard-recover", State: "ENABLED", Schedule: "* * * * *", HttpTarget: &scheduler.HttpTarget{
		Uri: workerURL + "/internal/tasks/recover", HttpMethod: "POST", OidcToken: &scheduler.OidcToken{ServiceAccountEmail: caller, Audience: workerURL},
	}}}
	f.Tasks = []doctor.Task{
		{Name: "a", URL: workerURL + "/internal/tasks/analysis", Audience: workerURL, Deadline: 26 * time.Minute},
		{Name: "b", URL: workerURL + "/internal/tasks/analysis", Audience: workerURL, Deadline: 26 * time.Minute, Last: codes.Aborted},
	}
	f.Grants, f.Alerts = doctor.NeededGrants(queueName, caller, databaseName, longJob), 2
	for i := range f.Grants {
		f.Grants[i].Given = true
	}
	for _, p := range []doctor.Part{
		doctor.WorkerCallers, doctor.DoclockCallers, doctor.SchedulerJobs, doctor.QueueTasks, doctor.AccountRoles, doctor.AlertPolicies,
	} {
		f.Status[p] = doctor.Status{From: "test"}
	}
	return f
}

func TestShippedDeploymentHasNoFinding(t *testing.T) {
	if found := doctor.Check(shipped(t)); len(found) > 0 {
		t.Errorf("%+v", found)
	}
}

func TestShippedFilesHaveNoFindingAndLackPartsForAReason(t *testing.T) {
	f := files(t)
	_, unread := f.Readings()
	if found := doctor.Check(f); len(found) > 0 || len(unread) != 2 || unread[0].Failed || unread[0].Why == "" || unread[1].Failed || unread[1].Why == "" {
		t.Errorf("%+v, %+v", found, unread)
	}
}

func TestWhatIsUnknownIsNoFinding(t *testing.T) {
	if found := doctor.Check(doctor.Facts{}); len(found) > 0 {
		t.Errorf("%+v", found)
	}
}

// rulesOf returns the names of the findings' rules.
func rulesOf(found []doctor.Finding) string {
	var rules []string
	for _, one := range found {
		rules = append(rules, one.Rule)
	}
	return strings.Join(rules, " ")
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
	return []misconfiguration{
		{"stall timeout that never ends a run", "environment", problem, set("STALL_TIMEOUT", "25m")},
		{"no program", "environment", problem, set("ANALYZER", "exec:")},
		{"variables of no program", "environment", problem, set("ANALYZER_ENV", "MODEL")},
		{"TTL too short for its heartbeat", "environment", problem, set("LOCK_TTL", "150s")},
		{"doclock: audience missing", "environment", problem, setDoclock("TASK_AUDIENCE", "")},
		{"misspelled variable that a program may read", "unknown-variable", advice, set("RUN_TIEMOUT", "25m", "ANALYZER", "exec:/no/such", "ANALYZER_ENV", "A")},
		{"misspelled variable", "unknown-variable", problem, set("RUN_TIMEOUT", "", "RUN_TIEMOUT", "25m")},
		{"doclock: misspelled variable", "unknown-variable", problem, setDoclock("DOCUMENT_LOCKS_TTL", "30s")},
		{"Firestore emulator", "environment", problem, set("FIRESTORE_EMULATOR_HOST", "localhost:8080")},
		{"session secret in plain text", "plain-secret", problem, setDoclock("SESSION_SECRET", "0123456789012345678901234567890123456789")},
		{"secret that the program does not get", "variable-withheld", advice, set("ANALYZER", "exec:/app/analyze", "MODEL_API_KEY", doctor.Secret, "OTHER_KEY", doctor.Secret, "ANALYZER_ENV", "OTHER_*")},
		{"no check of the callers", "invoker-check-disabled", problem, func(f *doctor.Facts) { f.Worker.InvokerCheck = false }},
		{"everybody may call", "invoker-public", problem, func(f *doctor.Facts) { f.Worker.Callers = append(f.Worker.Callers, "allUsers") }},
		{"doclock: token without its signature", "oidc-behind-iam", problem, func(f *doctor.Facts) { f.Doclock.InvokerCheck = true }},
		{"run as long as its request", "run-timeout", problem, func(f *doctor.Facts) { f.Worker.Timeout = 25 * 60e9 }},
		{"request longer than its dispatch", "dispatch-deadline", problem, func(f *doctor.Facts) { f.Worker.Timeout = 3600e9 }},
		{"dispatch longer than 30 minutes", "dispatch-deadline", problem, func(f *doctor.Facts) { set("RUN_TIMEOUT", "30m")(f); f.Worker.Timeout, f.Tasks = 1801e9, nil }},
		{"another service's address", "target-url", problem, set("TASK_TARGET_URL", strings.Replace(workerURL, "worker", "worker2", 1))},
		{"address in another project", "target-url", problem, func(f *doctor.Facts) { f.Worker.URLs = `["` + strings.Replace(workerURL, "1234", "9234", 1) + `"]` }},
		{"address with a kind's path", "target-url", problem, set("TASK_TARGET_URL", workerURL+"/internal/tasks/analysis")},
		{"address in plain text", "target-url", problem, set("TASK_TARGET_URL", "http://worker.example")},
		{"malformed address", "environment", problem, func(f *doctor.Facts) { set("TASK_TARGET_URL", "https://%")(f); f.Tasks = nil }},
		{"more deliveries than the worker takes", "max-runs", problem, set("MAX_RUNS", "9")},
		{"a byte too little memory", "memory", advice, func(f *doctor.Facts) { f.Worker.Memory = 700<<20 - 1 }},
		{"log level above info", "log-lines", problem, set("LOG_LEVEL", "warn")},
		{"log lines as text", "log-lines", problem, set("LOG_FORMAT", "text")},
		{"caller without permission", "caller-not-invoker", advice, func(f *doctor.Facts) { f.Worker.Callers = []string{"user:a@example.com"} }},
		{"caller without permission in either policy", "caller-not-invoker", problem, func(f *doctor.Facts) {
			f.Worker.Callers = nil
			onProject("roles/run.viewer", "serviceAccount:"+doclockAccount)(f)
		}},
		{"caller beside a group with another role", "caller-not-invoker", problem, func(f *doctor.Facts) {
			f.Worker.Callers = nil
			onProject("roles/owner", "group:admins@example.com")(f)
		}},
		{"caller that is an editor", "caller-role", problem, onProject("roles/editor", "serviceAccount:"+caller)},
		{"worker that runs as the caller", "caller-role", problem, func(f *doctor.Facts) { f.Worker.Account = caller }},
		{"doclock that runs as the caller", "caller-role", problem, func(f *doctor.Facts) { f.Doclock.Account = caller }},
		{"a longer caller", "caller-not-invoker", advice, func(f *doctor.Facts) { f.Worker.Callers = []string{"serviceAccount:" + caller + ".example"} }},
		{"newest revision without traffic", "traffic", problem, func(f *doctor.Facts) { f.Worker.Serving, f.Worker.Newest = "w-1", "w-2" }},
		{"paused queue", "queue-stopped", problem, func(f *doctor.Facts) { f.Queue.State = "PAUSED" }},
		{"as many dispatches as places", "dispatches", problem, func(f *doctor.Facts) { f.Queue.Concurrent = 100 }},
		{"queue with a limit of time", "queue-gives-up", problem, func(f *doctor.Facts) { f.Queue.MaxDuration = 3600e9 }},
		{"no index", "index-missing", problem, func(f *doctor.Facts) { delete(f.Indexes.Composite, doctor.NeededIndexes(f.Kinds[0])[2]) }},
		{"no index of another kind", "index-missing", problem, func(f *doctor.Facts) { orders(f); delete(f.Indexes.Composite, doctor.NeededIndexes(f.Kinds[1])[2]) }},
		{"indexed input", "field-indexed", problem, func(f *doctor.Facts) { delete(f.Indexes.Fields, "analyses/input") }},
		{"indexed input of another kind", "field-indexed", problem, func(f *doctor.Facts) { orders(f); delete(f.Indexes.Fields, "orders/payload") }},
		{"indexed checkpoint", "field-indexed", problem, func(f *doctor.Facts) { delete(f.Indexes.Fields, "analyses/checkpoint") }},
		{"indexed acts", "field-indexed", problem, func(f *doctor.Facts) { delete(f.Indexes.Fields, "analyses/effects") }},
		{"expiry without a policy", "keep-no-ttl", advice, func(f *doctor.Facts) { set("KEEP_FINISHED", "2160h")(f); delete(f.Indexes.TTL, "analyses/expireAt") }},
		{"expiry of another kind without a policy", "keep-no-ttl", advice, func(f *doctor.Facts) {
			orders(f)
			set("KEEP_FINISHED", "2160h")(f)
			f.Indexes.TTL["analyses/expireAt"] = true
		}},
		{"recovery as an account that the project may allow", "recovery-caller", advice, func(f *doctor.Facts) { f.Jobs[0].HttpTarget.OidcToken.ServiceAccountEmail = doclockAccount }},
		{"no recovery in the queue's region", "recovery-unscheduled", advice, func(f *doctor.Facts) { f.Jobs, f.AllJobs = nil, false }},
		{"paused recovery", "recovery-unscheduled", problem, func(f *doctor.Facts) { f.Jobs[0].State = "PAUSED" }},
		{"recovery refused", "recovery-failed", problem, func(f *doctor.Facts) { f.Jobs[0].Status = &scheduler.Status{Code: 7} }},
		{"task to a malformed URL", "task-url", problem, func(f *doctor.Facts) { f.Tasks[1].URL = "https://%" }},
		{"task for the region before", "task-url", problem, func(f *doctor.Facts) {
			const before = "https://taskguard-worker-123456789012.us-central1.run.app"
			f.Tasks[1].URL, f.Tasks[1].Audience = before+"/internal/tasks/analysis", before
		}},
		{"task with a token for the address and a slash", "task-audience", problem, func(f *doctor.Facts) { f.Tasks[1].Audience = workerURL + "/" }},
		{"task for another address than the audience", "task-audience", problem, func(f *doctor.Facts) { oidc(f); f.Tasks[1].Audience = "https://taskguard-worker-x-ew.a.run.app" }},
		{"dispatch as long as the run", "task-deadline", problem, func(f *doctor.Facts) { f.Tasks[1].Deadline = 25 * time.Minute }},
		{"task answered 401", "task-refused", problem, func(f *doctor.Facts) { f.Tasks[1].Last = codes.Unauthenticated }},
		{"worker that cannot book", "account-cannot-book", problem, lost("account-cannot-book")},
		{"worker that cannot sign", "account-cannot-sign", problem, lost("account-cannot-sign")},
		{"worker that cannot find its tasks", "account-cannot-find-tasks", advice, lost("account-cannot-find-tasks")},
		{"worker without its database", "account-cannot-use-database", problem, lost("account-cannot-use-database")},
		{"worker that cannot start its job", "account-cannot-start", problem, lost("account-cannot-start")},
		{"misspelt collection", "collection", problem, func(f *doctor.Facts) { f.Kinds[0].Collection = "analysis" }},
		{"lock's expiry without an index", "field-not-indexed", problem, func(f *doctor.Facts) { f.Indexes.Fields["analyses/lockExpiresAt"] = false }},
		{"next attempt without an index", "field-not-indexed", problem, func(f *doctor.Facts) { f.Indexes.Fields["analyses/nextAttemptAt"] = false }},
		{"place in the line of a key without an index", "field-not-indexed", problem, func(f *doctor.Facts) {
			set("CONCURRENCY_KEY", "tenant")(f)
			f.Indexes.Fields["analyses/parkedFor"] = false
		}},
		{"place of another kind without an index", "field-not-indexed", problem, func(f *doctor.Facts) {
			orders(f)
			f.Kinds[1].KeyFields = []string{"shop"}
			f.Indexes.Fields["ordersKeys/slots"], f.Indexes.Fields["ordersKeys/expireAt"] = false, false
			f.Indexes.TTL["ordersKeys/expireAt"] = true
			f.Indexes.Fields["orders/parkedFor"] = false
		}},
		{"key without a TTL policy", "key-no-ttl", advice, func(f *doctor.Facts) {
			set("CONCURRENCY_KEY", "tenant")(f)
			delete(f.Indexes.TTL, "analysesKeys/expireAt")
		}},
		{"indexed slots", "key-indexed", advice, func(f *doctor.Facts) {
			set("CONCURRENCY_KEY", "tenant")(f)
			delete(f.Indexes.Fields, "analysesKeys/slots")
		}},
		{"limit without a key", "environment", problem, set("CONCURRENCY_LIMIT", "3")},
		{"key of a job's runs", "environment", problem, set("ANALYZER", "job:"+longJob, "SMOKE_INPUT", "", "CONCURRENCY_KEY", "tenant")},
		{"key that is no field", "environment", problem, set("CONCURRENCY_KEY", "input..tenant")},
		{"more heartbeats than the key's document takes", "concurrency-limit", advice, set("CONCURRENCY_KEY", "tenant", "CONCURRENCY_LIMIT", "101")},
		{"TTL of the lock's expiry", "ttl-field", problem, func(f *doctor.Facts) { f.Indexes.TTL["analyses/lockExpiresAt"] = true }},
		{"TTL of the creation", "ttl-field", problem, func(f *doctor.Facts) { f.Indexes.TTL["analyses/createdAt"] = true }},
		{"TTL of an application", "ttl-field", problem, func(f *doctor.Facts) { f.Indexes.TTL["analyses/deleteAfter"] = true }},
		{"heartbeat of a second", "heartbeat", problem, set("LOCK_HEARTBEAT", "1s")},
		{"misspelt first word", "unknown-variable", problem, set("ANALYSES_COLLECTION", "", "ANALYSIS_COLLECTION", "analyses")},
		{"key in plain text", "plain-secret", problem, set("OPENAI_API_KEY", "sk-0123456789abcdef")},
		{"short password", "plain-secret", problem, set("DB_PASSWORD", "hunter2")},
		{"password of PostgreSQL", "plain-secret", problem, set("PGPASSWORD", "hunter2")},
		{"short name of a password", "plain-secret", problem, set("DB_PASS", "hunter2")},
		{"key of another name", "plain-secret", problem, set("STRIPE_KEY", "0123456789")},
		{"key for encryption", "plain-secret", problem, set("ENCRYPTION_KEY", "c2l4dGVlbiBieXRlcyEh")},
		{"key for signatures", "plain-secret", problem, set("JWT_SIGNING_KEY", "0123456789")},
		{"token of GitHub", "plain-secret", problem, set("REPOSITORY_ACCESS", "ghp"+"_0123456789")},
		{"personal token", "plain-secret", problem, set("GITHUB_PAT", "0123456789")},
		{"key of Stripe", "plain-secret", problem, set("STRIPE", "sk"+"_live_0123456789")},
		{"key of Sentry", "plain-secret", problem, set("SENTRY_DSN", "https://0123456789abcdef0123456789abcdef@o1.ingest.sentry.io/1")},
		{"key of AWS", "plain-secret", problem, set("AWS_ACCESS_KEY_ID", "AKIA"+"0123456789ABCDEF")},
		{"token of Slack", "plain-secret", problem, set("SLACK", "xoxb"+"-0123456789")},
		{"address of Slack", "plain-secret", problem, set("NOTIFY_URL", "https://hooks.slack.com"+"/services/T0/B0/x")},
		{"password of a database", "plain-secret", problem, set("DATABASE_URL", "postgres://app:hunter2@10.0.0.1/app")},
		{"token of an exporter", "plain-secret", problem, set("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Basic 0123456789")},
		{"token of a program", "plain-secret", problem, set("ANALYZER", "exec:/app/run --token=0123456789")},
		{"password of a sidecar", "plain-secret", problem, func(f *doctor.Facts) { f.Worker.Sidecars = []map[string]string{{"DB_PASSWORD": "0123456789"}} }},
		{"application without a container", "analyzer-missing", problem, set("ANALYZER", "http://localhost:9000/analyze")},
		{"worker that calls itself", "analyzer-missing", problem, func(f *doctor.Facts) {
			set("ANALYZER", "http://127.0.0.1:8080/analyze")(f)
			f.Worker.Sidecars = []map[string]string{{}}
		}},
		{"database of another project", "projects", advice, set("GOOGLE_CLOUD_PROJECT", "your-project")},
		{"caller of another project", "projects", advice, func(f *doctor.Facts) {
			set("TASK_CALLER", "taskguard-caller@staging.iam.gserviceaccount.com")(f)
			f.Worker.Callers, f.Jobs[0].HttpTarget.OidcToken.ServiceAccountEmail = []string{"group:a@b.c"}, ""
		}},
		{"doclock in another project", "projects", advice, func(f *doctor.Facts) { f.Doclock.Account = "taskguard-doclock@staging.iam.gserviceaccount.com" }},
		{"queue's file for another project", "queue-place", problem, func(f *doctor.Facts) { f.Queue.Project = "staging" }},
		{"queue's file for another region", "queue-place", problem, func(f *doctor.Facts) { f.Queue.Region = "europe-west3" }},
		{"queue's file for another queue", "queue-place", problem, func(f *doctor.Facts) { f.Queue.Name = queueName + "-staging" }},
		{"a task in a minute", "queue-rate", problem, func(f *doctor.Facts) { f.Queue.PerSecond = 0.0166 }},
		{"address in another region", "target-url", problem, func(f *doctor.Facts) { f.Worker.Region = "europe-west3" }},
		{"staging's address", "target-url", problem, set("TASK_TARGET_URL", strings.Replace(workerURL, "worker", "worker-staging", 1))},
		{"no alert", "alerts", advice, func(f *doctor.Facts) { f.Alerts = 0 }},
	}
}

// oidc lets the worker verify the tokens.
func oidc(f *doctor.Facts) {
	set("TASK_AUTH", "oidc", "TASK_AUDIENCE", workerURL, "TASK_SERVICE_ACCOUNTS", caller)(f)
	f.Worker.InvokerCheck = false
}

// onProject lets the project's policy have one binding.
func onProject(role, member string) func(*doctor.Facts) {
	return func(f *doctor.Facts) { f.Project = []*iam.Binding{{Role: role, Members: []string{member}}} }
}

// lost takes the permissions of one rule away from the worker's account.
func lost(rule string) func(*doctor.Facts) {
	return func(f *doctor.Facts) {
		for i := range f.Grants {
			f.Grants[i].Given = f.Grants[i].Given && f.Grants[i].Rule() != rule
		}
	}
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
	for _, name := range []string{"payload", "result", "failure", "lastError", "progress", "checkpoint", "effects", "history"} {
		f.Indexes.Fields["orders/"+name] = false
	}
}

// Some rows are the last value without a finding.
func TestWhatIsRightIsNoFinding(t *testing.T) {
	for name, change := range map[string]func(f *doctor.Facts){
		"limits of the worker":     func(f *doctor.Facts) { set("MAX_RUNS", "10")(f); f.Worker.Memory = 700 << 20 },
		"limits of the queue":      func(f *doctor.Facts) { f.Queue.Concurrent = 99 },
		"no limit of attempts":     func(f *doctor.Facts) { f.Queue.MaxAttempts = 0 },
		"unknown memory":           func(f *doctor.Facts) { f.Worker.Memory = 0 },
		"unknown queue":            set("TASK_QUEUE", doctor.Secret),
		"unknown log lines":        set("LOG_LEVEL", doctor.Secret, "LOG_FORMAT", doctor.Secret),
		"variables of an analyzer": set("MY_MODEL", "x", "PORTS", "x", "GOMEMLIMIT", "x", "GOOGLE_API_KEY", "x", "OTEL_BLRP_SCHEDULE_DELAY", "5000"),
		"another kind":             orders,
		"group of callers":         func(f *doctor.Facts) { f.Worker.Callers = []string{"group:callers@example.com"} },
		"domain of callers":        func(f *doctor.Facts) { f.Worker.Callers = []string{"domain:example.com"} },
		"task of what is deleted":  func(f *doctor.Facts) { f.Tasks[1].Last = codes.NotFound },
		"a program of the image":   set("ANALYZER", "exec:/no/such/program -x", "ANALYZER_ENV", "MODEL"),
		"tokens of the audience":   oidc,
		"tasks in ten seconds":     func(f *doctor.Facts) { f.Queue.PerSecond = 0.1 },
		"a key":                    set("CONCURRENCY_KEY", "input.tenant", "CONCURRENCY_LIMIT", "100"),
		"no key":                   func(f *doctor.Facts) { f.Indexes.Fields["analyses/parkedFor"] = false },
		"heartbeat of 5 s":         set("LOCK_HEARTBEAT", "5s"),
		"long TTL":                 set("LOCK_TTL", "1h", "LOCK_HEARTBEAT", ""),
		"secrets of a program":     set("ANALYZER", "exec:/app/analyze", "ANALYZER_ENV", "MODEL_*", "MODEL_API_KEY", doctor.Secret, "HTTPS_PROXY", doctor.Secret, "OTEL_EXPORTER_OTLP_HEADERS", doctor.Secret),
		"memory for starting jobs": func(f *doctor.Facts) {
			set("ANALYZER", "job:"+longJob, "SMOKE_INPUT", "")(f)
			f.Worker.Memory = 512 << 20
		},
		"caller by the project": func(f *doctor.Facts) {
			f.Worker.Callers = nil
			onProject("roles/run.invoker", "serviceAccount:"+caller)(f)
		},
		"caller by a custom role of the project": func(f *doctor.Facts) {
			f.Worker.Callers = nil
			onProject("projects/my-project/roles/invoker", "serviceAccount:"+caller)(f)
		},
		"recovery as an account of the project": func(f *doctor.Facts) {
			f.Jobs[0].HttpTarget.OidcToken.ServiceAccountEmail = doclockAccount
			onProject("roles/run.invoker", "serviceAccount:"+doclockAccount)(f)
		},
		"no secrets": set("MAX_OUTPUT", "", "MODEL_TOKENS", "4096000000", "API_KEY_FILE", "/secrets/key", "MODEL_API_KEY", "projects/p/secrets/key",
			"STOP_TOKEN", "<|endoftext|>", "EOS_TOKEN", "[end_of_text]", "PUSHER_APP_KEY", "0123456789", "CONCURRENCY_KEY", "customer_id", "STRIPE_PUBLIC_KEY", "0123456789",
			"STRIPE_KEY", "pk_live_0123456789", "DB_PASS", "/secrets/password", "BYPASS", "hunter2", "MODEL_PATH", "0123456789", "HOME_PWD", "/app", "DB_PASSWORD", doctor.Secret, "AUTH_TOKEN", "https://auth.example/token"),
		"application in a container": func(f *doctor.Facts) {
			set("ANALYZER", "http://localhost:9000/analyze")(f)
			f.Worker.Sidecars = []map[string]string{{"APP_PORT": "9000", "DATABASE_URL": "postgres://app@10.0.0.1/app", "DB_PASSWORD": doctor.Secret}}
		},
		"application elsewhere": set("ANALYZER", "https://analyzer.example:8080/analyze"),
		"queue in a region": func(f *doctor.Facts) {
			f.Worker.Region, f.Worker.URLs = "", `["`+workerURL+`"]`
			f.Queue.Region = "europe-west1"
		},
		"account without project":  func(f *doctor.Facts) { f.Doclock.Account = "doclock@my-project.example.com.iam.gserviceaccount.com" },
		"image of another project": func(f *doctor.Facts) { f.Worker.Image = "europe-docker.pkg.dev/images/taskguard/worker@sha256:00" },
		"custom audience": func(f *doctor.Facts) {
			f.Worker.Audiences, f.Tasks[0].Audience = `["analyses"]`, "analyses"
			f.Jobs[0].HttpTarget.OidcToken.Audience = "analyses"
		},
		"indexed times": func(f *doctor.Facts) { f.Indexes.Fields["analyses/lockExpiresAt"] = true },
		"TTL of another group": func(f *doctor.Facts) {
			f.Indexes.TTL["users/createdAt"], f.Indexes.TTL["analyses/createdAt"] = true, false
		},
		"slash of the address":  set("TASK_TARGET_URL", workerURL+"/"),
		"another address of it": func(f *doctor.Facts) { f.Tasks[1].Audience = "https://taskguard-worker-x-ew.a.run.app" },
	} {
		f := shipped(t)
		change(&f)
		if found := doctor.Check(f); len(found) > 0 {
			t.Errorf("%s: %+v", name, found)
		}
	}
}

// Each row changes one text of service.yaml.
func TestServiceFilesAreChecked(t *testing.T) {
	const port = "              containerPort: 8080\n"
	for name, tc := range map[string]struct{ old, replacement, rule string }{
		"image by tag":         {"@sha256:" + strings.Repeat("0", 64), ":latest", "image-tag"},
		"no account":           {"serviceAccountName: taskguard-worker@my-project.iam.gserviceaccount.com", "containerConcurrency: 10", "default-account"},
		"variable twice":       {"            - name: LOCK_TTL\n", "            - name: LOCK_TTL\n              value: 600s\n            - name: LOCK_TTL\n", "variable-twice"},
		"probe of the port":    {"httpGet:\n              path: /health/ready", "tcpSocket:\n              port: 8080", ""},
		"application":          {"value: builtin:document", "value: http://localhost:9000/analyze", "analyzer-missing"},
		"number of a project":  {"123456789012.europe", "210987654321.europe", "target-url"},
		"placeholder left":     {"queues/analyses", "queues/analyses-2", ""},
		"queue of a project":   {"projects/my-project/locations", "projects/your-project/locations", "projects"},
		"queue in a region":    {"locations/europe-west1/queues", "locations/us-central1/queues", "queue-place"},
		"number as namespace":  {`namespace: "123456789012"`, "namespace: my-project", ""},
		"without its location": {"cloud.googleapis.com/location: europe-west1", "team: a", ""},
		"another port":         {port, strings.Replace(port, "8080", "9090", 1), ""},
		"sidecar":              {"value: builtin:document", "value: http://localhost:9000/analyze", ""},
		"sidecar elsewhere":    {"value: builtin:document", "value: http://localhost:8000/analyze", "analyzer-port"},
	} {
		text := read(t, deploy+"service.yaml")
		if name == "no account" {
			text = strings.Replace(text, "      containerConcurrency: 10\n", "", 1)
		}
		if strings.HasPrefix(name, "sidecar") {
			text += read(t, deploy+"sidecar/container.yaml")
		}
		if !strings.Contains(text, tc.old) {
			t.Fatalf("%s: no %q", name, tc.old)
		}
		file := filepath.Join(t.TempDir(), "service.yaml")
		if err := os.WriteFile(file, []byte(strings.Replace(text, tc.old, tc.replacement, 1)), 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := doctor.Read(t.Context(), doctor.Options{Service: file, Queue: deploy + "queue.yaml", Lookup: lookup(nil)})
		if found := doctor.Check(f); err != nil || rulesOf(found) != tc.rule {
			t.Errorf("%s: got %+v, %v, want %q", name, found, err, tc.rule)
		}
	}
}

func TestProblemsComeBeforeAdvice(t *testing.T) {
	f := shipped(t)
	f.Worker.Memory, f.Queue.State, f.Alerts = 512<<20, "PAUSED", 0
	if got, want := rulesOf(doctor.Check(f)), "queue-stopped memory alerts"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestEachSeededMisconfigurationIsFoundByItsRuleAndNoOther(t *testing.T) {
	for _, c := range seeded() {
		t.Run(c.name, func(t *testing.T) {
			f := shipped(t)
			c.change(&f)
			found := doctor.Check(f)
			if len(found) != 1 || found[0].Rule != c.rule || found[0].Severity != c.severity {
				t.Fatalf("want one %s by %s, got %+v", c.severity, c.rule, found)
			}
			if p, fix := found[0].Problem, found[0].Fix; !strings.HasSuffix(p, ".") || !strings.HasSuffix(fix, ".") || strings.ContainsAny(p+fix, "\n") || strings.Contains(p+fix, "%!") {
				t.Errorf("not two sentences: %s %s", p, fix)
			}
		})
	}
}

func TestOutputHasNoPasswordQueryOrToken(t *testing.T) {
	f := shipped(t)
	set("TASK_TARGET_URL", "http://me:hunter2@x.example/?k=hunter2", "LOCK_TTL", "150s")(&f)
	setDoclock("SESSION_SECRET", "hunter2-hunter2-hunter2-hunter2-hunter2")(&f)
	found := doctor.Check(f)
	for _, one := range found {
		if strings.Contains(one.Problem+one.Fix, "hunter2") {
			t.Errorf("%+v", one)
		}
	}
	if len(found) == 0 {
		t.Error("nothing is found")
	}
}
