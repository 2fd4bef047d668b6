package doctor_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	iam "google.golang.org/api/iam/v1"
	"google.golang.org/grpc/codes"

	"taskguard/cmd/internal/doctor"
	"taskguard/internal/testing/must"
)

func TestCheck(t *testing.T) {
	t.Run("the shipped deployment has no finding", func(t *testing.T) {
		if found := doctor.Check(shipped(t)); len(found) > 0 {
			t.Errorf("%+v", found)
		}
	})

	t.Run("the shipped files have none, and lack two parts for a reason", func(t *testing.T) {
		f := files(t)
		found := doctor.Check(f)
		_, unread := f.Readings()
		if len(found) > 0 || len(unread) != 2 {
			t.Fatalf("%+v, %+v", found, unread)
		}
		for _, part := range unread {
			if part.Failed || part.Why == "" {
				t.Errorf("%+v", part)
			}
		}
	})

	t.Run("what is unknown is no finding", func(t *testing.T) {
		if found := doctor.Check(facts{}); len(found) > 0 {
			t.Errorf("%+v", found)
		}
	})

	t.Run("problems come before advice", func(t *testing.T) {
		f := shipped(t)
		f.Worker.Memory, f.Queue.State, f.Alerts = 512<<20, "PAUSED", 0
		if got, want := rulesOf(f), "queue-stopped memory alerts"; got != want {
			t.Errorf("%q, want %q", got, want)
		}
	})

	t.Run("no output has a password, a query or a token", func(t *testing.T) {
		f := shipped(t)
		set("TASK_TARGET_URL=http://me:hunter2@x.example/?k=hunter2", "LOCK_TTL=150s")(&f)
		assign(f.Doclock.Environment, []string{"SESSION_SECRET=hunter2-hunter2-hunter2-hunter2-hunter2"})
		found := doctor.Check(f)
		for _, one := range found {
			if strings.Contains(one.Problem+one.Fix, "hunter2") {
				t.Errorf("%+v", one)
			}
		}
		if len(found) == 0 {
			t.Error("nothing is found")
		}
	})
}

var sentence = regexp.MustCompile(`^.+\.$`)

// finds checks that one rule, and no other, finds a change of the shipped facts. Without a rule,
// nothing may be found.
func finds(t *testing.T, want, name string, change func(*facts)) {
	t.Helper()
	f := shipped(t)
	change(&f)
	var got []string
	for _, one := range doctor.Check(f) {
		got = append(got, string(one.Severity)+" "+one.Rule)
		for _, text := range []string{one.Problem, one.Fix} {
			if !sentence.MatchString(text) || strings.Contains(text, "%!") {
				t.Errorf("%s: not a sentence: %s", name, text)
			}
		}
	}
	if strings.Join(got, ", ") != want {
		t.Errorf("%s: got %q, want %q", name, got, want)
	}
}

// Each row is one change of the settings. Some of those without a finding are the last value that is right.
func TestCheck_Settings(t *testing.T) {
	worker2 := strings.Replace(workerURL, "worker", "worker2", 1)
	staging := strings.Replace(workerURL, "worker", "worker-staging", 1)
	const secret = doctor.Secret
	for want, changes := range map[string][]string{
		"problem environment": {
			"STALL_TIMEOUT=25m", "ANALYZER=exec:", "ANALYZER_ENV=MODEL", "LOCK_TTL=150s", "CONCURRENCY_LIMIT=3",
			"CONCURRENCY_KEY=input..tenant", "FIRESTORE_EMULATOR_HOST=localhost:8080", "doclock TASK_AUDIENCE=",
			"ANALYZER=job:" + longJob + "; SMOKE_INPUT=; CONCURRENCY_KEY=tenant",
		},
		"problem unknown-variable": {
			"RUN_TIMEOUT=; RUN_TIEMOUT=25m", "ANALYSES_COLLECTION=; ANALYSIS_COLLECTION=analyses",
			"doclock DOCUMENT_LOCKS_TTL=30s",
		},
		// A program may read it.
		"advice unknown-variable": {"RUN_TIEMOUT=25m; ANALYZER=exec:/no/such; ANALYZER_ENV=A"},
		"advice variable-withheld": {
			"ANALYZER=exec:/app/analyze; MODEL_API_KEY=" + secret + "; OTHER_KEY=" + secret + "; ANALYZER_ENV=OTHER_*",
		},
		"problem target-url": {
			"TASK_TARGET_URL=" + worker2, "TASK_TARGET_URL=" + staging,
			"TASK_TARGET_URL=" + workerURL + "/internal/tasks/analysis", "TASK_TARGET_URL=http://worker.example",
		},
		"problem max-runs":         {"MAX_RUNS=9"},
		"problem log-lines":        {"LOG_LEVEL=warn", "LOG_FORMAT=text"},
		"problem heartbeat":        {"LOCK_HEARTBEAT=1s"},
		"problem analyzer-missing": {"ANALYZER=http://localhost:9000/analyze"},
		"advice concurrency-limit": {"CONCURRENCY_KEY=tenant; CONCURRENCY_LIMIT=101"},
		"advice projects":          {"GOOGLE_CLOUD_PROJECT=your-project"},
		"problem plain-secret": {
			"OPENAI_API_KEY=sk-0123456789abcdef", "DB_PASSWORD=hunter2", "PGPASSWORD=hunter2", "DB_PASS=hunter2",
			"STRIPE_KEY=0123456789", "ENCRYPTION_KEY=c2l4dGVlbiBieXRlcyEh", "JWT_SIGNING_KEY=0123456789",
			"GITHUB_PAT=0123456789", "REPOSITORY_ACCESS=ghp" + "_0123456789", "STRIPE=sk" + "_live_0123456789",
			"SENTRY_DSN=https://0123456789abcdef0123456789abcdef@o1.ingest.sentry.io/1", "SLACK=xoxb" + "-0123456789",
			"AWS_ACCESS_KEY_ID=AKIA" + "0123456789ABCDEF", "NOTIFY_URL=https://hooks.slack.com" + "/services/T0/B0/x",
			"DATABASE_URL=postgres://app:hunter2@10.0.0.1/app", "ANALYZER=exec:/app/run --token=0123456789",
			"OTEL_EXPORTER_OTLP_HEADERS=authorization=Basic 0123456789",
			"doclock SESSION_SECRET=0123456789012345678901234567890123456789",
		},
		"": {
			"TASK_QUEUE=" + secret, "LOG_LEVEL=" + secret + "; LOG_FORMAT=" + secret, "LOCK_HEARTBEAT=5s",
			"LOCK_TTL=1h; LOCK_HEARTBEAT=", "CONCURRENCY_KEY=input.tenant; CONCURRENCY_LIMIT=100",
			"TASK_TARGET_URL=" + workerURL + "/", "ANALYZER=https://analyzer.example:8080/analyze",
			"ANALYZER=exec:/no/such/program -x; ANALYZER_ENV=MODEL", // of the image
			"MY_MODEL=x; PORTS=x; GOMEMLIMIT=x; GOOGLE_API_KEY=x; OTEL_BLRP_SCHEDULE_DELAY=5000",
			"ANALYZER=exec:/app/analyze; ANALYZER_ENV=MODEL_*; MODEL_API_KEY=" + secret + "; HTTPS_PROXY=" + secret +
				"; OTEL_EXPORTER_OTLP_HEADERS=" + secret,

			// No secrets.
			"MODEL_TOKENS=4096000000", "API_KEY_FILE=/secrets/key", "MODEL_API_KEY=projects/p/secrets/key",
			"STOP_TOKEN=<|endoftext|>", "EOS_TOKEN=[end_of_text]", "PUSHER_APP_KEY=0123456789",
			"STRIPE_KEY=pk_live_0123456789", "CONCURRENCY_KEY=customer_id", "STRIPE_PUBLIC_KEY=0123456789",
			"BYPASS=hunter2", "DB_PASS=/secrets/password", "MODEL_PATH=0123456789", "HOME_PWD=/app",
			"DB_PASSWORD=" + secret, "AUTH_TOKEN=https://auth.example/token",
		},
	} {
		for _, change := range changes {
			finds(t, want, change, func(f *facts) {
				if settings, doclock := strings.CutPrefix(change, "doclock "); doclock {
					assign(f.Doclock.Environment, []string{settings})
				} else {
					set(strings.Split(change, "; ")...)(f)
				}
			})
		}
	}
}

// oidc lets the worker verify the tokens.
func oidc(f *facts) {
	set("TASK_AUTH=oidc", "TASK_AUDIENCE="+workerURL, "TASK_SERVICE_ACCOUNTS="+caller)(f)
	f.Worker.InvokerCheck = false
}

// onProject lets the project's policy have one binding.
func onProject(role, account string) func(*facts) {
	return func(f *facts) {
		f.Project = []*iam.Binding{{Role: "roles/" + role, Members: []string{"serviceAccount:" + account}}}
	}
}

// callers lets these members call the worker.
func callers(all ...string) func(*facts) { return func(f *facts) { f.Worker.Callers = all } }

// indexed sets whether a field has an index.
func indexed(field string, is bool) func(*facts) {
	return func(f *facts) { f.Indexes.Fields[field] = is }
}

// ttl sets whether a field has a TTL policy.
func ttl(field string, is bool) func(*facts) { return func(f *facts) { f.Indexes.TTL[field] = is } }

// and makes several changes.
func and(changes ...func(*facts)) func(*facts) {
	return func(f *facts) {
		for _, change := range changes {
			change(f)
		}
	}
}

func TestCheck_Worker(t *testing.T) {
	url := func(old, replacement string) func(*facts) {
		return func(f *facts) { f.Worker.URLs = `["` + strings.Replace(workerURL, old, replacement, 1) + `"]` }
	}
	account := func(name string) func(*facts) { return func(f *facts) { f.Doclock.Account = name } }
	sidecar := func(env map[string]string, settings ...string) func(*facts) {
		return func(f *facts) {
			set(settings...)(f)
			f.Worker.Sidecars = []map[string]string{env}
		}
	}
	memory := func(bytes int64) func(*facts) { return func(f *facts) { f.Worker.Memory = bytes } }
	timeout := func(d time.Duration) func(*facts) { return func(f *facts) { f.Worker.Timeout = d } }
	noTasks := func(f *facts) { f.Tasks = nil }
	for _, tc := range []struct {
		name, want string
		change     func(*facts)
	}{
		{"no check of the callers", "problem invoker-check-disabled", func(f *facts) { f.Worker.InvokerCheck = false }},
		{"everybody may call", "problem invoker-public", callers("serviceAccount:"+caller, "allUsers")},
		{"token without its signature", "problem oidc-behind-iam", func(f *facts) { f.Doclock.InvokerCheck = true }},
		{"run as long as its request", "problem run-timeout", timeout(25 * 60e9)},
		{"request longer than dispatch", "problem dispatch-deadline", timeout(3600e9)},
		{"over 30 minutes", "problem dispatch-deadline", and(set("RUN_TIMEOUT=30m"), timeout(1801e9), noTasks)},
		{"another project's address", "problem target-url", url("1234", "9234")},
		{"another region's address", "problem target-url", func(f *facts) { f.Worker.Region = "europe-west3" }},
		{"malformed address", "problem environment", and(set("TASK_TARGET_URL=https://%"), noTasks)},
		{"a byte too little memory", "advice memory", memory(700<<20 - 1)},
		{"just enough memory", "", and(set("MAX_RUNS=10"), memory(700<<20))},
		{"unknown memory", "", memory(0)},
		{"memory for starting jobs", "", and(set("ANALYZER=job:"+longJob, "SMOKE_INPUT="), memory(512<<20))},
		{"another's image", "", func(f *facts) { f.Worker.Image = "europe-docker.pkg.dev/images/worker@sha256:00" }},
		{"tokens of the audience", "", oidc},
		{"no alert", "advice alerts", func(f *facts) { f.Alerts = 0 }},

		{"a sidecar's password", "problem plain-secret", sidecar(map[string]string{"DB_PASSWORD": "0123456789"})},
		{"worker that calls itself", "problem analyzer-missing", sidecar(map[string]string{},
			"ANALYZER=http://127.0.0.1:8080/analyze")},
		{"application in a container", "", sidecar(map[string]string{
			"APP_PORT": "9000", "DATABASE_URL": "postgres://app@10.0.0.1/app", "DB_PASSWORD": doctor.Secret,
		}, "ANALYZER=http://localhost:9000/analyze")},

		{"caller not known", "advice caller-not-invoker", callers("user:a@example.com")},
		{"a longer caller", "advice caller-not-invoker", callers("serviceAccount:" + caller + ".example")},
		{"caller in no policy", "problem caller-not-invoker", and(callers(), onProject("run.viewer", doclockAccount))},
		{"a group's other role", "problem caller-not-invoker", and(callers(), func(f *facts) {
			f.Project = []*iam.Binding{{Role: "roles/owner", Members: []string{"group:admins@example.com"}}}
		})},
		{"caller by the project", "", and(callers(), onProject("run.invoker", caller))},
		{"caller by a custom role", "", and(callers(), func(f *facts) {
			members := []string{"serviceAccount:" + caller}
			f.Project = []*iam.Binding{{Role: "projects/my-project/roles/invoker", Members: members}}
		})},
		{"group of callers", "", callers("group:callers@example.com")},
		{"domain of callers", "", callers("domain:example.com")},
		{"caller that is an editor", "problem caller-role", onProject("editor", caller)},
		{"worker as the caller", "problem caller-role", func(f *facts) { f.Worker.Account = caller }},
		{"that cannot find tasks", "advice account-cannot-find-tasks", lost("account-cannot-find-tasks")},
		{"worker that cannot book", "problem account-cannot-book", lost("account-cannot-book")},
		{"worker that cannot sign", "problem account-cannot-sign", lost("account-cannot-sign")},
		{"without its database", "problem account-cannot-use-database", lost("account-cannot-use-database")},
		{"that cannot start its job", "problem account-cannot-start", lost("account-cannot-start")},

		{"caller of another project", "advice projects", func(f *facts) {
			set("TASK_CALLER=taskguard-caller@staging.iam.gserviceaccount.com")(f)
			f.Worker.Callers, f.Jobs[0].HttpTarget.OidcToken.ServiceAccountEmail = []string{"group:a@b.c"}, ""
		}},
		{"doclock in another project", "advice projects", account("doclock@staging.iam.gserviceaccount.com")},
		{"no account", "problem default-account", account("")},
		{"Google's account", "problem default-account", account("1-compute@developer.gserviceaccount.com")},
		{"account without project", "", account("doclock@my-project.example.com.iam.gserviceaccount.com")},
		{"doclock as the caller", "problem caller-role", account(caller)},
		{"custom audience", "", func(f *facts) {
			f.Worker.Audiences, f.Tasks[0].Audience = `["analyses"]`, "analyses"
			f.Jobs[0].HttpTarget.OidcToken.Audience = "analyses"
		}},
	} {
		finds(t, tc.want, tc.name, tc.change)
	}
}

func TestCheck_Queue(t *testing.T) {
	recovers := func(account string) func(*facts) {
		return func(f *facts) { f.Jobs[0].HttpTarget.OidcToken.ServiceAccountEmail = account }
	}
	audience := func(url string) func(*facts) { return func(f *facts) { f.Tasks[1].Audience = url } }
	deadline := func(d time.Duration) func(*facts) { return func(f *facts) { f.Tasks[1].Deadline = d } }
	const shortURL = "https://taskguard-worker-x-ew.a.run.app"
	for _, tc := range []struct {
		name, want string
		change     func(*facts)
	}{
		{"as many as places", "problem dispatches", func(f *facts) { f.Queue.Concurrent = 100 }},
		{"a place is left", "", func(f *facts) { f.Queue.Concurrent = 99 }},
		{"limit of time", "problem queue-gives-up", func(f *facts) { f.Queue.MaxDuration = 3600e9 }},
		{"no limit of attempts", "", func(f *facts) { f.Queue.MaxAttempts = 0 }},
		{"a file for another project", "problem queue-place", func(f *facts) { f.Queue.Project = "staging" }},
		{"a file for another region", "problem queue-place", func(f *facts) { f.Queue.Region = "europe-west3" }},
		{"a file for another queue", "problem queue-place", func(f *facts) { f.Queue.Name = queueName + "-staging" }},
		{"a file for this region", "", func(f *facts) {
			f.Worker.Region, f.Worker.URLs, f.Queue.Region = "", `["`+workerURL+`"]`, "europe-west1"
		}},
		{"a task in a minute", "problem queue-rate", func(f *facts) { f.Queue.PerSecond = 0.0166 }},
		{"a task in ten seconds", "", func(f *facts) { f.Queue.PerSecond = 0.1 }},

		{"malformed URL", "problem task-url", func(f *facts) { f.Tasks[1].URL = "https://%" }},
		{"the region before", "problem task-url", func(f *facts) {
			const before = "https://taskguard-worker-123456789012.us-central1.run.app"
			f.Tasks[1].URL, f.Tasks[1].Audience = before+"/internal/tasks/analysis", before
		}},
		{"audience with a slash", "problem task-audience", audience(workerURL + "/")},
		{"another address than oidc's", "problem task-audience", and(oidc, audience(shortURL))},
		{"another address of it", "", audience(shortURL)},
		{"dispatch as long as the run", "problem task-deadline", deadline(25 * time.Minute)},
		{"answered 401", "problem task-refused", func(f *facts) { f.Tasks[1].Last = codes.Unauthenticated }},
		{"answered 404", "", func(f *facts) { f.Tasks[1].Last = codes.NotFound }},

		{"no recovery in the region", "advice recovery-unscheduled", func(f *facts) { f.Jobs, f.AllJobs = nil, false }},
		{"another recovery account", "advice recovery-caller", recovers(doclockAccount)},
		{"the project's account", "", and(recovers(doclockAccount), onProject("run.invoker", doclockAccount))},
	} {
		finds(t, tc.want, tc.name, tc.change)
	}
	for want, schedules := range map[string][]string{
		"": {"*/2 * * * *", "every 1 minutes", "* * * * 0-6", "*/2 0-23 1-31 1-12 MON-SUN"},
		"problem recovery-schedule": {
			"*/10 * * * *", "* 8-18 * * 1-5", "every 24 hours", "* 1-12 * * *", "58-59 * * * *",
		},
	} {
		for _, schedule := range schedules {
			finds(t, want, schedule, func(f *facts) { f.Jobs[0].Schedule = schedule })
		}
	}
}

func TestCheck_Indexes(t *testing.T) {
	unset := func(field string) func(*facts) { return func(f *facts) { delete(f.Indexes.Fields, field) } }
	key, keep := set("CONCURRENCY_KEY=tenant"), set("KEEP_FINISHED=2160h")
	keyOfOrders := and(func(f *facts) { f.Kinds[1].KeyFields = []string{"shop"} }, ttl("ordersKeys/expireAt", true),
		indexed("ordersKeys/slots", false), indexed("ordersKeys/expireAt", false))
	for _, tc := range []struct {
		name, want string
		change     func(*facts)
	}{
		{"another kind", "", orders},
		{"no index of another kind", "problem index-missing", and(orders, func(f *facts) {
			delete(f.Indexes.Composite, doctor.NeededIndexes(f.Kinds[1])[2])
		})},
		{"misspelt collection", "problem collection", func(f *facts) { f.Kinds[0].Collection = "analysis" }},
		{"indexed checkpoint", "problem field-indexed", unset("analyses/checkpoint")},
		{"indexed acts", "problem field-indexed", unset("analyses/effects")},
		{"another kind's input", "problem field-indexed", and(orders, unset("orders/payload"))},
		{"lock's expiry", "problem field-not-indexed", indexed("analyses/lockExpiresAt", false)},
		{"next attempt", "problem field-not-indexed", indexed("analyses/nextAttemptAt", false)},
		{"indexed times", "", indexed("analyses/lockExpiresAt", true)},
		{"expiry without policy", "advice keep-no-ttl", and(keep, ttl("analyses/expireAt", false))},
		{"another kind's expiry", "advice keep-no-ttl", and(orders, keep, ttl("analyses/expireAt", true))},
		{"TTL of the lock", "problem ttl-field", ttl("analyses/lockExpiresAt", true)},
		{"TTL of the creation", "problem ttl-field", ttl("analyses/createdAt", true)},
		{"TTL of an application", "problem ttl-field", ttl("analyses/deleteAfter", true)},
		{"TTL of another group", "", and(ttl("users/createdAt", true), ttl("analyses/createdAt", false))},

		{"place of a key", "problem field-not-indexed", and(key, indexed("analyses/parkedFor", false))},
		{"place without a key", "", indexed("analyses/parkedFor", false)},
		{"another's place", "problem field-not-indexed", and(orders, keyOfOrders, indexed("orders/parkedFor", false))},
		{"key without policy", "advice key-no-ttl", and(key, ttl("analysesKeys/expireAt", false))},
		{"indexed slots", "advice key-indexed", and(key, unset("analysesKeys/slots"))},
	} {
		finds(t, tc.want, tc.name, tc.change)
	}
}

// Each row changes one text of service.yaml.
func TestRead_ServiceFile(t *testing.T) {
	const (
		port    = "              containerPort: 8080\n"
		ttl     = "            - name: LOCK_TTL\n"
		builtin = "value: builtin:document"
		probe   = "httpGet:\n              path: /health/ready"
	)
	for name, tc := range map[string]struct{ old, replacement, rule string }{
		"image by tag":         {"@sha256:" + strings.Repeat("0", 64), ":latest", "image-tag"},
		"variable twice":       {ttl, ttl + "              value: 600s\n" + ttl, "variable-twice"},
		"probe of the port":    {probe, "tcpSocket:\n              port: 8080", ""},
		"number of a project":  {"123456789012.europe", "210987654321.europe", "target-url"},
		"queue in a region":    {"locations/europe-west1/queues", "locations/us-central1/queues", "queue-place"},
		"number as namespace":  {`namespace: "123456789012"`, "namespace: my-project", ""},
		"without its location": {"cloud.googleapis.com/location: europe-west1", "team: a", ""},
		"another port":         {port, strings.Replace(port, "8080", "9090", 1), ""},
		"sidecar":              {builtin, "value: http://localhost:9000/analyze", ""},
		"sidecar elsewhere":    {builtin, "value: http://localhost:8000/analyze", "analyzer-port"},
	} {
		text := read(t, deploy+"service.yaml")
		if strings.HasPrefix(name, "sidecar") {
			text += read(t, deploy+"sidecar/container.yaml")
		}
		if !strings.Contains(text, tc.old) {
			t.Fatalf("%s: no %q", name, tc.old)
		}
		file := filepath.Join(t.TempDir(), "service.yaml")
		must.OK(t, os.WriteFile(file, []byte(strings.Replace(text, tc.old, tc.replacement, 1)), 0o600))
		f := ask(t, doctor.Options{Service: file, Queue: deploy + "queue.yaml", Lookup: lookup()})
		if got := rulesOf(f); got != tc.rule {
			t.Errorf("%s: got %+v, want %q", name, doctor.Check(f), tc.rule)
		}
	}
}

// Each command can be run as it is printed.
func TestFinding_Fix(t *testing.T) {
	const (
		asCaller   = " --oidc-service-account-email=" + caller + " --oidc-token-audience=" + workerURL
		uri        = "--uri=" + workerURL + "/internal/tasks/recover"
		ofDatabase = `"title=taskguard,expression=resource.name == '` + databaseName + `'" --member=`
		fields     = "field-path=error.code,order=ascending --field-config=field-path=updatedAt,order=descending)"
	)
	noIndex := func(f *facts) { delete(f.Indexes.Composite, doctor.NeededIndexes(f.Kinds[0])[2]) }
	noJobs := func(f *facts) { f.Jobs = nil }
	for want, change := range map[string]func(*facts){
		"queues add-iam-policy-binding analyses --location=europe-west1 --member=": lost("account-cannot-book"),
		"service-accounts add-iam-policy-binding " + caller + " --member=":         lost("account-cannot-sign"),
		" --role=roles/cloudtasks.viewer)":                                         lost("account-cannot-find-tasks"),
		"jobs add-iam-policy-binding long --region=europe-west1 --member=":         lost("account-cannot-start"),

		"my-project --condition=" + ofDatabase: lost("account-cannot-use-database"),
		asCaller + " (":                        func(f *facts) { f.Jobs[0].HttpTarget.OidcToken = nil },
		uri + asCaller + ")":                   and(set("TASK_TARGET_URL="+workerURL+"/"), noJobs),
		"Set TASK_AUTH=oidc": func(f *facts) {
			assign(f.Doclock.Environment, []string{"TASK_AUTH=iam", "TASK_AUDIENCE=", "TASK_SERVICE_ACCOUNTS="})
		},
		"Set LOCK_TTL to at least 15s":            set("LOCK_TTL=12s", "LOCK_HEARTBEAT="),
		"--update-secrets=API_KEY=SECRET:NUMBER)": set("API_KEY=0123456789"),
		"Correct LOCK_TTL, LOCK_HEARTBEAT (":      set("LOCK_TTL=1s"),
		"Correct it to MAX_RUNS, or remove it":    set("MAX_RUN=3"),

		"composite create --database='(default)' --collection-group=analyses --field-config=" + fields: noIndex,
	} {
		f := shipped(t)
		change(&f)
		if found := doctor.Check(f); len(found) != 1 || !strings.Contains(found[0].Fix, want) {
			t.Errorf("%+v, want %q", found, want)
		}
	}

	for state, want := range map[string][]string{
		"CREATING": {"Wait"}, "NEEDS_REPAIR": {"Delete", "create"}, "UNKNOWN": {"create"},
	} {
		f := shipped(t)
		f.Indexes.Composite[doctor.NeededIndexes(f.Kinds[0])[2]] = state
		fix := doctor.Check(f)[0].Fix
		for _, verb := range []string{"Wait", "Delete", "create"} {
			if strings.Contains(fix, verb) != slices.Contains(want, verb) {
				t.Errorf("%s: got %q, want %q alone", state, fix, want)
			}
		}
	}
}
