package doctor_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/api/option"

	"taskguard/cmd/internal/doctor"
	"taskguard/internal/testing/must"
	"taskguard/worker"
)

// Without the revision that serves, doctor would judge settings that no request meets.
func TestRead_Revision(t *testing.T) {
	target := func(percent int, name, tag string) string {
		return fmt.Sprintf(`{"revisionName":%q,"percent":%d,"tag":%q}`, name, percent, tag)
	}
	for name, tc := range map[string]struct{ traffic, rules string }{
		"all to the newest":     {target(100, "w-2", "") + "," + target(0, "w-1", "candidate"), ""},
		"all to an earlier one": {target(0, "w-2", "candidate") + "," + target(100, "w-1", ""), "traffic run-timeout"},
		"all to one like it":    {target(100, "w-0", ""), ""},
		"a share to the newest": {target(10, "w-2", "") + "," + target(90, "w-1", ""), "run-timeout traffic"},
		"two entries of one": {
			target(40, "w-1", "") + "," + target(30, "w-2", "a") + "," + target(30, "w-2", "b"), "",
		},
		"the latest": {`{"latestRevision":true,"percent":100}`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCloud(t)
			var got struct {
				Spec struct{ Template json.RawMessage }
			}
			service := c.answers[workerService]
			must.OK(t, json.Unmarshal([]byte(service), &got))
			c.answers[location+"/revisions/w-0"] = string(got.Spec.Template)
			c.answers[location+"/revisions/w-1"] = string(got.Spec.Template)
			c.edit(t, location+"/revisions/w-1", `"timeoutSeconds":1560`, `"timeoutSeconds":300`)
			c.answers[workerService] = strings.TrimSuffix(service, "}") + `,"status":{"latestCreatedRevisionName":"w-2",
				"latestReadyRevisionName":"w-2","traffic":[` + tc.traffic + `]}}`
			if got := rulesOf(c.ask(t)); got != tc.rules {
				t.Errorf("got %q, want %q", got, tc.rules)
			}
		})
	}
}

// In one project there are other deployments, whose failures are not this one's.
func TestRead_OtherDeployment(t *testing.T) {
	c := newCloud(t)
	var jobs struct{ Jobs []json.RawMessage }
	must.OK(t, json.Unmarshal([]byte(c.answers[location+"/jobs"]), &jobs))
	ours := string(jobs.Jobs[2])
	change := func(job string, pairs ...string) string { return strings.NewReplacer(pairs...).Replace(job) }
	staging := change(ours, "taskguard-worker-", "taskguard-worker-staging-", "taskguard-recover", "staging-recover")
	for name, tc := range map[string]struct{ jobs, rule string }{
		"staging's fails":     {ours + "," + change(staging, `"code":-1`, `"code":7`), ""},
		"staging's is paused": {ours + "," + change(staging, "ENABLED", "PAUSED", `"code":-1`, `"code":7`), ""},
		"ours is paused":      {change(ours, "ENABLED", "PAUSED") + "," + staging, "recovery-unscheduled"},
		"only staging's":      {staging, "recovery-unscheduled"},
		"an old one of ours":  {ours + "," + change(ours, "ENABLED", "PAUSED", `"code":-1`, `"code":7`), ""},
	} {
		c.answers[location+"/jobs"] = `{"jobs":[` + tc.jobs + `]}`
		if got := rulesOf(c.ask(t)); got != tc.rule {
			t.Errorf("%s: got %q, want %q", name, got, tc.rule)
		}
	}
}

// Cloud Scheduler is not in all regions of Cloud Tasks, and any job may call the worker.
func TestRead_OtherRegion(t *testing.T) {
	for regions, want := range map[string]string{
		"europe-west1 europe-west3": "",
		"europe-west2 europe-west3": "", // the first is not read
		"europe-west1":              "problem recovery-unscheduled",
		"europe-west1 europe-west2": "advice recovery-unscheduled",
	} {
		c := newCloud(t)
		c.answers["/v1/projects/my-project/locations/europe-west3/jobs"] = c.answers[location+"/jobs"]
		c.answers[location+"/jobs"] = `{}`
		var names []string
		for _, region := range strings.Fields(regions) {
			names = append(names, `{"name":"projects/my-project/locations/`+region+`"}`)
		}
		c.answers["/v1/projects/my-project/locations"] = `{"locations":[` + strings.Join(names, ",") + `]}`
		f, got := c.ask(t), ""
		for _, one := range doctor.Check(f) {
			got += string(one.Severity) + " " + one.Rule
		}
		if got != want || f.Status[doctor.SchedulerJobs].Why != "" {
			t.Errorf("%s: got %q, want %q; %+v", regions, got, want, f.Status)
		}
	}
}

func TestRead_Kinds(t *testing.T) {
	c := newCloud(t)
	c.answers[groups+"orders/indexes"] = strings.Replace(c.answers[groups+"analyses/indexes"], "READY", "CREATING", 1)
	f := ask(t, doctor.Options{
		Kinds: []worker.Kind{
			{Name: "analysis", Collection: "analyses"}, {Name: "order", Collection: "shops/s/orders"},
		},
		Lookup: lookup("GOOGLE_CLOUD_PROJECT=my-project"), Google: c.google(),
	})
	want := "index-missing field-indexed field-indexed field-indexed field-indexed"
	if got := rulesOf(f); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	for _, one := range doctor.Check(f) {
		if !strings.Contains(one.Problem, "orders") {
			t.Errorf("%+v", one)
		}
	}
}

// Each row replaces, in the answers whose path has the suffix, the text before the arrow.
func TestRead_Answers(t *testing.T) {
	const (
		service, doclock = "/services/taskguard-worker", "/services/taskguard-doclock"
		queue, ingress   = "/queues/analyses", `"run.googleapis.com/ingress":"all" → "run.googleapis.com/urls":"[\"`
		limit            = `"maxConcurrentDispatches":95 → "maxConcurrentDispatches":95,"maxDispatchesPerSecond":`
	)
	for _, tc := range []struct{ path, edit, rule string }{
		{"", "", ""},
		{service, `"run.googleapis.com/maxScale":"10" → "run.googleapis.com/maxScale":"3"`, "dispatches"},
		{service, `"run.googleapis.com/startup-cpu-boost":"true" → "autoscaling.knative.dev/maxScale":"9"`, "dispatches"},
		{service, ingress + `https://taskguard-worker-1.europe-west3.run.app\"]"`, "target-url"},
		{service, ingress + workerURL + `\",\"https://taskguard-worker-x-ew.a.run.app\"]"`, ""},
		{service, `"memory":"1Gi" → "memory":"128Mi"`, "memory"},
		{service, `"memory":"1Gi" → "ephemeral-storage":"1Gi"`, "memory"},
		{service, `"timeoutSeconds":1560 → "timeoutSeconds":0`, "run-timeout"},
		{service, `"containerConcurrency":10 → "containerConcurrency":0`, "memory"},
		{doclock, `"run.googleapis.com/invoker-iam-disabled":"true" → "a":"b"`, "oidc-behind-iam"},
		{doclock, `"key":"1" → "key":"latest"`, "secret-latest"},
		{queue, `"maxAttempts":-1 → "maxAttempts":100`, "queue-gives-up"},
		{queue, `"RUNNING" → "PAUSED"`, "queue-stopped"},
		{queue, limit + "0.05", "queue-rate"},
		{"/indexes", "READY → CREATING", "index-missing"},
		{"/indexes", `"queryScope":"COLLECTION" → "queryScope":"COLLECTION_GROUP"`, "index-missing"},
		{"/fields", "fields/input → fields/other", "field-indexed"},
		{"/fields", `fields/input","indexConfig":{ → fields/input","indexConfig":{"usesAncestorConfig":true`, "field-indexed"},
		{"/tasks", `"url":"` + workerURL + ` → "url":"https://taskguard-old-1.run.app`, "task-url"},
		{"/tasks", `"url":"https://taskguard-worker- → "url":"https://taskguard-worker-staging-`, "task-url"},
		{"/tasks", `"url":"https → "url":"http`, "task-url"},
		{"/tasks", "/internal/tasks/analysis → /internal/tasks/analyses", "task-url"},
		{"/tasks", `"audience":"` + workerURL + ` → "audience":"https://taskguard-old-1.run.app`, "task-audience"},
		{"/tasks", `"oidcToken" → "oauthToken"`, "task-audience"},
		{"/tasks", `1560s → 600s`, "task-deadline"},
		{"/tasks", `"dispatchDeadline":"1560s", → `, "task-deadline"},
		{"/tasks", `"code":10 → "code":7`, "task-refused"},
		{queue + ":getIamPolicy", "enqueuer → viewer", "account-cannot-book"},
		{caller + ":getIamPolicy", workerAccount + " → " + caller, "account-cannot-sign"},
		{service + ":getIamPolicy", `run.invoker → run.developer`, "caller-not-invoker"},
		{"/jobs", `"code":-1 → "code":7`, "recovery-failed"},
		{"/jobs", `"code":-1 → "code":0`, ""},
		{"/jobs", `"* * * * *" → "0 * * * *"`, "recovery-schedule"},
		{"/jobs", `"httpMethod":"POST" → "httpMethod":"GET"`, "recovery-method"},
		{"/jobs", `"audience":"` + workerURL + ` → "audience":"` + workerURL + `/`, "recovery-audience"},
		{"/jobs", `"audience":"` + workerURL + `" → "scope":""`, ""},
		{"/jobs", `"oidcToken" → "oauthToken"`, "recovery-audience"},
		{"/jobs", `"serviceAccountEmail":"` + caller + ` → "serviceAccountEmail":"another@p`, "recovery-caller"},
		{"/jobs", `"ENABLED","status":{"code":-1} → "PAUSED","status":{"code":-1}`, "recovery-unscheduled"},
		{"/jobs", workerURL + "/internal/tasks → https://example.com/internal", "recovery-unscheduled"},
		{"/jobs", "/internal/tasks/recover → /internal/tasks/recover2", "recovery-unscheduled"},
		{"/jobs", workerURL + "/internal → https://taskguard-recovery-123456789012.europe-west1.run.app/internal", ""},
		{"/alertPolicies", `"projects/my-project/notificationChannels/1" → `, "alerts"},
		{"/alertPolicies", `"enabled":true → "enabled":false`, "alerts"},
		{"/alertPolicies", `another's → taskguard: no channel`, "alerts"},
		{"/alertPolicies", `Taskguard → Taskguard-Staging`, "alerts"},
	} {
		t.Run(tc.rule, func(t *testing.T) {
			c := newCloud(t)
			old, replacement, _ := strings.Cut(tc.edit, " → ")
			for path, answer := range c.answers {
				if tc.path == "" || !strings.HasSuffix(path, tc.path) {
					continue
				}
				if c.answers[path] = strings.Replace(answer, old, replacement, 1); c.answers[path] == answer {
					t.Fatalf("%s lacks %q: %s", path, old, answer)
				}
			}
			f := c.ask(t)
			if _, unread := f.Readings(); rulesOf(f) != tc.rule || len(unread) > 0 {
				t.Errorf("%s: got %+v, unread %+v", tc.edit, doctor.Check(f), unread)
			}
		})
	}

	// The module's alert_overrides may disable an alert.
	t.Run("a disabled alert is a fact", func(t *testing.T) {
		c := newCloud(t)
		const alerts = "/v3/projects/my-project/alertPolicies"
		c.edit(t, alerts, `another's","enabled":true`, `taskguard: disabled","enabled":false`)
		f := c.ask(t)
		read, _ := f.Readings()
		if last := read[len(read)-1]; len(doctor.Check(f)) > 0 || !strings.Contains(last.From, "1 of 2") {
			t.Errorf("%+v, %+v", last, doctor.Check(f))
		}
	})
}

// TestRead_Fields finds how many fields are indexed wrongly, or lack a TTL policy.
func TestRead_Fields(t *testing.T) {
	const none, some = `{}`, `{"indexes":[{"queryScope":"COLLECTION"}]}`
	const database, group = "__default__/fields/*", "analyses/fields/*"
	// queried has an index of each field that queries need.
	queried := func(pairs ...string) map[string]string {
		all := map[string]string{}
		for _, name := range []string{"status", "lockExpiresAt", "nextAttemptAt", "updatedAt"} {
			all["analyses/fields/"+name] = some
		}
		for pair := range slices.Chunk(pairs, 2) {
			all[pair[0]] = pair[1]
		}
		return all
	}
	for name, tc := range map[string]struct {
		settings map[string]string
		found    int
	}{
		"database exempts all": {map[string]string{database: none}, 4},
		"group exempts all":    {map[string]string{database: some, group: none}, 4},
		"but what is queried":  {queried(database, none), 0},
		"one query fails":      {queried(database, none, "analyses/fields/lockExpiresAt", none), 1},
		"another group does":   {map[string]string{database: some, "others/fields/*": none}, 4},
		"group indexes all":    {map[string]string{database: none, group: some}, 4},
		"one field is indexed": {queried(database, none, "analyses/fields/input", some), 1},
		"no setting":           {nil, 4},
	} {
		c := newCloud(t)
		c.answers[groups+"-/fields"] = fieldsJSON(tc.settings)
		if found := doctor.Check(c.ask(t)); len(found) != tc.found {
			t.Errorf("%s: want %d findings, got %+v", name, tc.found, found)
		}
	}

	for config, want := range map[string]string{
		`{"usesAncestorConfig":true},"ttlConfig":{"state":"CREATING"}`: "", `{},"ttlConfig":{"state":"ACTIVE"}`: "",
		`{}`: "keep-no-ttl", `{},"ttlConfig":{"state":"NEEDS_REPAIR"}`: "keep-no-ttl",
	} {
		c := newCloud(t)
		c.answers[groups+"-/fields"] = fieldsJSON(queried(group, none, "analyses/fields/expireAt", config))
		f := c.ask(t)
		set("KEEP_FINISHED=2160h", "FIRESTORE_DATABASE=other")(&f)
		if got := rulesOf(f); got != want {
			t.Errorf("%s: %q, want %q", config, got, want)
		}
		const policy = "expireAt --database='(default)' --collection-group=analyses "
		if want != "" && !strings.Contains(doctor.Check(f)[0].Fix, policy) {
			t.Errorf("%s: %s", config, doctor.Check(f)[0].Fix)
		}
	}
}

func TestRead_Refused(t *testing.T) {
	t.Run("by Google, with its reason", func(t *testing.T) {
		for code, want := range map[int]string{
			403: "Google answers 403: Permission denied. See https://x", 404: "does not exist",
		} {
			c := newCloud(t)
			c.refused = code
			f := c.ask(t)
			read, unread := f.Readings()
			if len(doctor.Check(f))+len(read) > 0 || len(unread) < 4 {
				t.Errorf("%d: %+v, %+v", code, read, unread)
			}
			for _, u := range unread {
				reason := !u.Failed || strings.Contains(u.Why, want)
				if !reason || strings.Contains(u.Why, "\n") {
					t.Errorf("%d: %+v", code, u)
				}
			}
		}
	})

	t.Run("or with a wrong answer, it leaves the other parts checked", func(t *testing.T) {
		wrong := map[string]string{
			workerService: `{"kind":"Job"}`, "/v2/" + queueName: `{"retryConfig":{"maxRetryDuration":"soon"}}`,
			"/v2/" + queueName + "/tasks": `{"tasks":[{"dispatchDeadline":"soon"}]}`,
		}
		for path := range newCloud(t).answers {
			if path == projectPolicy || path == location+"/services/taskguard-recovery" {
				continue // beside the resources' policies, and without a job that calls it
			}
			for _, answer := range []string{"", wrong[path]} {
				c := newCloud(t)
				c.answers[path] = answer
				f := c.ask(t)
				_, unread := f.Readings()
				if len(doctor.Check(f)) > 0 || len(unread) == 0 {
					t.Fatalf("%s: %+v", path, f.Status)
				}
				if unread[0].Why == "" {
					t.Errorf("%s: no reason: %+v", path, unread[0])
				}
			}
		}
	})

	// No call is made: all parts have one reason, and none says that no service was named.
	t.Run("without credentials there is one reason", func(t *testing.T) {
		missing := filepath.Join(t.TempDir(), "missing.json")
		f := ask(t, doctor.Options{
			Service: "taskguard-worker", Lookup: lookup("GOOGLE_CLOUD_PROJECT=p", "TASK_QUEUE="+queueName),
			Google: []option.ClientOption{option.WithAuthCredentialsFile(option.ServiceAccount, missing)},
		})
		reasons := map[string]bool{}
		_, unread := f.Readings()
		for _, u := range unread {
			reasons[u.Why] = u.Failed
		}
		if len(unread)+len(reasons) != 6 || reasons["the worker's service could not be read"] {
			t.Errorf("%+v; want one that failed, the parts that depend on it, and doclock", unread)
		}
	})

	// A call gets 15 s, and the parts one after the other.
	t.Run("calls without an answer end", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			silent := &http.Client{Transport: transport(func(r *http.Request) (*http.Response, error) {
				<-r.Context().Done()
				return nil, r.Context().Err()
			})}
			begun := time.Now()
			f := ask(t, doctor.Options{
				Lookup: lookup("TASK_QUEUE=" + queueName), Google: []option.ClientOption{option.WithHTTPClient(silent)},
			})
			if took := time.Since(begun); took != 45*time.Second {
				t.Errorf("took %v, want 45s", took)
			}
			if s := f.Status[doctor.QueueSettings]; !strings.HasPrefix(s.Why, queueName+": ") || !s.Failed {
				t.Errorf("%+v", s)
			}
		})
	})
}

func TestRead_Usage(t *testing.T) {
	for want, o := range map[string]doctor.Options{
		"nothing is named":      {Lookup: lookup()},
		`--service: "A/b"`:      {Service: "A/b", Lookup: lookup()},
		"the short name needs":  {Service: "w", Lookup: lookup("GOOGLE_CLOUD_PROJECT=p")},
		`--doclock: "d" is nei`: {Doclock: "d", Lookup: lookup("CLOUDSDK_RUN_REGION=r")},
	} {
		f, err := doctor.Read(t.Context(), o)
		if !strings.Contains(fmt.Sprint(err), want) || f.Status != nil {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// An operator has these variables, which Terraform's output sets, and no worker's.
func TestRead_OperatorEnvironment(t *testing.T) {
	f := ask(t, doctor.Options{
		Lookup: lookup("TASK_QUEUE="+queueName, "GOOGLE_CLOUD_PROJECT=my-project"), Google: newCloud(t).google(),
	})
	if read, _ := f.Readings(); len(doctor.Check(f)) > 0 || len(read) != 3 {
		t.Errorf("%+v, want the queue, the indexes and the jobs", read)
	} else if read[0].From != queueName {
		t.Errorf("%+v, want the queue, the indexes and the jobs", read)
	}
}

// A document lock in the worker's place has no variables to export, and its queue is not asked for.
func TestRead_SwappedServices(t *testing.T) {
	c := newCloud(t)
	const lock = location + "/services/taskguard-doclock"
	c.answers[workerService], c.answers[lock] = c.answers[lock], c.answers[workerService]
	f := c.ask(t)
	w, d := f.Status[doctor.WorkerSettings], f.Status[doctor.DoclockSettings]
	if !w.Failed || !d.Failed {
		t.Errorf("%+v, %+v", w, d)
	}
	if len(doctor.Check(f)) > 0 || f.Exports()["FIRESTORE_DATABASE"] != "" {
		t.Errorf("%+v, exports %v", doctor.Check(f), f.Exports())
	}
}

// For the variables nothing else is asked. The project is that of the service's name if it sets none.
func TestFacts_Exports(t *testing.T) {
	c := newCloud(t)
	c.edit(t, workerService, `{"name":"GOOGLE_CLOUD_PROJECT","value":"my-project"},`, "")
	c.answers = map[string]string{workerService: c.answers[workerService]}
	f := ask(t, doctor.Options{
		Service: workerService[len("/v1/"):], Alone: true, Lookup: lookup(), Google: c.google(),
	})
	got := f.Exports()
	for name, want := range map[string]string{
		"GOOGLE_CLOUD_PROJECT": "my-project", "CLOUDSDK_CORE_PROJECT": "my-project",
		"CLOUDSDK_RUN_REGION": "europe-west1", "TASK_QUEUE": queueName, "TASK_TARGET_URL": workerURL,
		"TASK_CALLER": caller, "TASK_AUDIENCE": "", "FIRESTORE_EMULATOR_HOST": "",
	} {
		if value, set := got[name]; value != want || !set {
			t.Errorf("%s is %q, want %q: %+v", name, value, want, f.Status)
		}
	}
	if _, set := got["DOCLOCK_DATABASE"]; set || f.Status[doctor.QueueSettings].Failed {
		t.Errorf("%v, %+v", got, f.Status)
	}
}

// fromFile reads one file of Options.
func fromFile(t *testing.T, flag, text string) (f facts, why string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "file")
	must.OK(t, os.WriteFile(file, []byte(text), 0o600))
	o := doctor.Options{Lookup: lookup()}
	flags := map[string]*string{
		"--service": &o.Service, "--doclock": &o.Doclock, "--queue": &o.Queue, "--indexes": &o.Indexes,
	}
	*flags[flag] = file
	f = ask(t, o)
	for _, s := range f.Status {
		if s.Failed {
			why = s.Why
		}
	}
	named := why == "" || strings.HasPrefix(why, file)
	if !named || strings.Contains(why, " of type ") { // Go's types are no help
		t.Errorf("%s: want the file's name first, and no type", why)
	}
	return f, why
}

func TestRead_File(t *testing.T) {
	const service = "apiVersion: serving.knative.dev/v1\nkind: Service\nmetadata: {name: w}\n"
	containers := func(list string) string { return service + "spec: {template: {spec: {containers: " + list + "}}}" }
	env := func(more string) string { return containers("[{image: a, env: [" + more + "]}]") }
	one := containers("[{image: a}]")
	metadata := func(more string) string { return strings.Replace(one, "name: w", "name: w, "+more, 1) }
	const cookie, queue = "{name: SESSION_AUTH, value: cookie}", "{name: TASK_QUEUE, value: q}"
	const name = "name: projects/p/locations/l/queues/q\n"
	const rate = "rateLimits: {maxBurstSize: 10, maxDispatchesPerSecond: 5.5}\n"

	// By flag, then by the reason why files are not read.
	for flag, rows := range map[string]map[string][]string{
		"--service": {
			"": {
				env("null"), env(cookie + ", " + queue), metadata("namespace: 123"),
				"# a\n---\n" + one + "\n---\n# b\n",
				containers("[{image: a}, {image: b, ports: [{containerPort: 8080}]}]"),
			},
			"none of 2 containers":                 {containers("[{image: a}, {image: b}]")},
			"none of 1 containers":                 {containers("[null]")},
			"no template":                          {service},
			`a "Job" is not a Service`:             {"kind: Job\n"},
			`unknown field "imagee"`:               {containers("[{imagee: a}]")},
			"invalid syntax":                       {metadata("annotations: {run.googleapis.com/maxScale: many}")},
			"2 YAML documents":                     {one + "\n---\n" + one + "\n"},
			"is the document lock, not the worker": {env(cookie)},
		},
		"--doclock": {"is the worker, not the document lock": {env(queue)}},
		"--queue": {
			"": {
				"--location: l\n", "---\n--min-backoff: 30s\n", name + rate + "state: RUNNING\n",
				"--max-attempts: '-1'\n--max-concurrent-dispatches: \"95\"\n",
			},
			"is not a flags file of a queue":      {"nam: projects/p/locations/l/queues/q\n"},
			"neither gcloud's flags nor the name": {"{}\n", rate + "state: RUNNING\n"},
			`in duration "30x"`:                   {"--max-retry-duration: 30x\n"},
			"2 YAML documents":                    {"--location: l\n--- # staging\n--location: m\n"},
			"App Engine's queue.yaml":             {"queue:\n- name: analyses\n  rate: 10/s\n"},
			"already set":                         {"--max-attempts: 1\n--max-attempts: 2\n"},
			`unknown field "--max-attempt"`:       {"--max-attempt: 3\n"},
			"invalid number literal":              {"--max-attempts: many\n"},
			" is empty":                           {"\n"},
		},
		"--indexes": {
			"is not a firestore.indexes.json": {"--location: l\n"}, " is empty": {""},
			"json: cannot unmarshal string": {"module m\n"},
		},
	} {
		for wrong, texts := range rows {
			for _, text := range texts {
				f, why := fromFile(t, flag, text)
				if (wrong == "") != (why == "") || !strings.Contains(why, wrong) {
					t.Errorf("%s %s: got %q, want %q", flag, text, why, wrong)
				}
				if found := doctor.Check(f); wrong != "" && len(found) > 0 {
					t.Errorf("%s %s: what is not read is judged: %+v", flag, text, found)
				}
			}
		}
	}

	if f, _ := fromFile(t, "--queue", "--max-attempts: unlimited\n"); f.Queue.MaxAttempts != -1 {
		t.Errorf("%d attempts, want -1", f.Queue.MaxAttempts)
	}
	f, why := fromFile(t, "--indexes", `{"fieldOverrides": [{"collectionGroup": "a", "fieldPath": "expireAt", "ttl": true},
		{"collectionGroup": "a", "fieldPath": "b", "indexes": [{}]}, {"collectionGroup": "a", "fieldPath": "c", "indexes": []}],
		"indexes": [{"collectionGroup": "a", "queryScope": "COLLECTION", "fields": []}]}`)
	indexed := func(field string) bool { value, set := f.Indexes.Fields["a/"+field]; return value || !set }
	if why != "" || !f.Indexes.TTL["a/expireAt"] {
		t.Errorf("%s; want a TTL policy of expireAt: %+v", why, f.Indexes)
	}
	if got := []bool{indexed("expireAt"), indexed("b"), indexed("c")}; !slices.Equal(got, []bool{true, true, false}) {
		t.Errorf("want the exemption of c alone: %+v", f.Indexes)
	}
}

// Recovery in a service of its own books the tasks of the worker's documents.
func TestRead_RecoveryService(t *testing.T) {
	const service = location + "/services/taskguard-recovery"
	recovering := func() *cloud {
		c := newCloud(t)
		c.edit(t, location+"/jobs", "taskguard-worker-", "taskguard-recovery-")
		return c
	}
	for old, tc := range map[string]struct{ replacement, rule string }{
		`"300s"`:                          {`"5m"`, ""},
		`"name":"LOCK_TTL","value":"300s`: {`"name":"LOCK_TTL","value":"600s`, "recovery-settings"},
		`"value":"analyses"`:              {`"value":"orders"`, "recovery-settings"},
		"queues/analyses":                 {"queues/orders", "recovery-settings"},
		`"value":"(default)"`:             {`"value":"staging"`, "recovery-settings"},
		`"name":"FIRESTORE_DATABASE"`:     {`"name":"MY_DATABASE"`, ""},
	} {
		c := recovering()
		c.edit(t, service, old, tc.replacement)
		if got := rulesOf(c.ask(t)); got != tc.rule {
			t.Errorf("%s: got %q, want %q", old, got, tc.rule)
		}
	}

	c := recovering()
	c.answers[service] = ""
	if _, unread := c.ask(t).Readings(); len(unread) != 1 || !unread[0].Failed {
		t.Errorf("refused: %+v", unread)
	}
}
