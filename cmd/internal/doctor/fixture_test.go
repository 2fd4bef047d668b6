package doctor_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	scheduler "google.golang.org/api/cloudscheduler/v1"
	"google.golang.org/api/option"
	"google.golang.org/grpc/codes"
	"sigs.k8s.io/yaml"

	"taskguard/cmd/internal/doctor"
	"taskguard/internal/testing/must"
	"taskguard/worker"
)

const (
	deploy    = "../../../deploy/"
	workerURL = "https://taskguard-worker-123456789012.europe-west1.run.app"
	queueName = "projects/my-project/locations/europe-west1/queues/analyses"
	longJob   = "projects/my-project/locations/europe-west1/jobs/long"

	caller         = "taskguard-caller@my-project.iam.gserviceaccount.com"
	workerAccount  = "taskguard-worker@my-project.iam.gserviceaccount.com"
	doclockAccount = "taskguard-doclock@my-project.iam.gserviceaccount.com"

	// Paths of Google's APIs.
	location      = "/v1/projects/my-project/locations/europe-west1"
	workerService = location + "/services/taskguard-worker"
	groups        = "/v1/projects/my-project/databases/(default)/collectionGroups/"
	finder        = "/v1/projects/my-project/roles/taskguardTaskFinder"
	projectPolicy = "/v1/projects/my-project:getIamPolicy"
	queuePolicy   = "/v2/" + queueName + ":getIamPolicy"
	databaseName  = "projects/my-project/databases/(default)"
)

type facts = doctor.Facts

func read(t *testing.T, path string) string {
	t.Helper()
	text := must.Get(os.ReadFile(path))(t)
	return string(text)
}

// lookup returns the environment of settings such as PORT=1.
func lookup(settings ...string) func(string) (string, bool) {
	env := map[string]string{}
	assign(env, settings)
	return func(name string) (string, bool) { v, ok := env[name]; return v, ok }
}

// assign sets variables. An empty value removes the variable.
func assign(env map[string]string, settings []string) {
	for _, setting := range settings {
		name, value, _ := strings.Cut(setting, "=")
		env[name] = value
		if value == "" {
			delete(env, name)
		}
	}
}

// set sets variables of the worker.
func set(settings ...string) func(*facts) {
	return func(f *facts) { assign(f.Worker.Environment, settings) }
}

// ask reads facts.
func ask(t *testing.T, o doctor.Options) facts {
	t.Helper()
	f := must.Get(doctor.Read(t.Context(), o))(t)
	return f
}

// files returns the facts of the shipped files.
func files(t *testing.T) facts {
	t.Helper()
	return ask(t, doctor.Options{
		Service: deploy + "service.yaml", Doclock: deploy + "doclock.yaml", Queue: deploy + "queue.yaml",
		Indexes: deploy + "firestore.indexes.json", Lookup: lookup(),
	})
}

// shipped returns the facts of a deployment of the shipped files, all of them known.
func shipped(t *testing.T) facts {
	t.Helper()
	f := files(t)
	f.Queue.State, f.AllJobs = "RUNNING", true
	f.Worker.Callers = []string{"serviceAccount:" + caller}
	f.Jobs = []*scheduler.Job{{
		Name: "x/taskguard-recover", State: "ENABLED", Schedule: "* * * * *",
		HttpTarget: &scheduler.HttpTarget{
			Uri: workerURL + "/internal/tasks/recover", HttpMethod: "POST",
			OidcToken: &scheduler.OidcToken{ServiceAccountEmail: caller, Audience: workerURL},
		},
	}}
	f.Tasks = make([]doctor.Task, 2)
	for i := range f.Tasks {
		f.Tasks[i] = doctor.Task{
			Name: "a", URL: workerURL + "/internal/tasks/analysis", Audience: workerURL, Deadline: 26 * time.Minute,
		}
	}
	f.Tasks[1].Last = codes.Aborted
	f.Grants, f.Alerts = doctor.NeededGrants(queueName, caller, databaseName, longJob), 2
	for i := range f.Grants {
		f.Grants[i].Given = true
	}
	for _, p := range []doctor.Part{
		doctor.WorkerCallers, doctor.DoclockCallers, doctor.SchedulerJobs, doctor.QueueTasks, doctor.AccountRoles,
		doctor.AlertPolicies,
	} {
		f.Status[p] = doctor.Status{From: "test"}
	}
	return f
}

// rulesOf returns the rules that find something.
func rulesOf(f facts) string {
	var rules []string
	for _, one := range doctor.Check(f) {
		rules = append(rules, one.Rule)
	}
	return strings.Join(rules, " ")
}

// lost takes the permissions of one rule away from the worker's account.
func lost(rule string) func(*facts) {
	return func(f *facts) {
		for i := range f.Grants {
			f.Grants[i].Given = f.Grants[i].Given && f.Grants[i].Rule() != rule
		}
	}
}

// orders adds a kind whose documents have a vocabulary of their own, and all that it needs.
func orders(f *facts) {
	f.Kinds = append(f.Kinds, worker.Kind{
		Name: "order", Collection: "shops/s/orders", Path: "/tasks/order",
		Fields: worker.Fields{Status: "state", Input: "payload", Error: "failure"},
	})
	for _, needed := range []string{
		"state ASCENDING, updatedAt ASCENDING", "state ASCENDING, updatedAt DESCENDING",
		"failure.code ASCENDING, updatedAt DESCENDING", "lastError.code ASCENDING, updatedAt DESCENDING",
		"state ASCENDING, createdAt ASCENDING",
	} {
		f.Indexes.Composite["orders: "+needed] = "READY"
	}
	for _, name := range []string{
		"payload", "result", "failure", "lastError", "progress", "checkpoint", "effects", "history",
	} {
		f.Indexes.Fields["orders/"+name] = false
	}
}

// transport is a RoundTripper that is a function.
type transport func(*http.Request) (*http.Response, error)

func (f transport) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// cloud answers GET requests as Google's APIs do, by path.
type cloud struct {
	*httptest.Server
	answers map[string]string
	refused int // the status of every answer, unless 0; that of an empty answer is 403
}

func newCloud(t *testing.T) *cloud {
	t.Helper()
	const job = `{"name":"projects/my-project/locations/europe-west1/jobs/taskguard-recover","state":"ENABLED","status":{"code":-1},
		"schedule":"* * * * *","httpTarget":{"uri":"` + workerURL + `/internal/tasks/recover","httpMethod":"POST",
		"oidcToken":{"serviceAccountEmail":"` + caller + `","audience":"` + workerURL + `"}}}`
	const other = `{"name":"x/z","httpTarget":{"uri":"https://example.com/"},"status":{"code":7}}`
	index := func(field, by, order string) string {
		return `{"queryScope":"COLLECTION","fields":[{"fieldPath":"` + field + `","order":"ASCENDING"},
			{"fieldPath":"` + by + `","order":"` + order + `"},{"fieldPath":"__name__","order":"ASCENDING"}],"state":"READY"}`
	}
	indexes := []string{
		index("status", "updatedAt", "ASCENDING"), index("status", "updatedAt", "DESCENDING"),
		index("error.code", "updatedAt", "DESCENDING"), index("lastError.code", "updatedAt", "DESCENDING"),
		index("status", "createdAt", "ASCENDING"),
	}
	fields := map[string]string{
		"__default__/fields/*":     `{"indexes":[{"queryScope":"COLLECTION"}]}`,
		"analyses/fields/expireAt": `{"usesAncestorConfig":true},"ttlConfig":{"state":"ACTIVE"}`,
	}
	for _, name := range []string{
		"input", "result", "error", "lastError", "progress", "checkpoint", "effects", "history",
	} {
		fields["analyses/fields/"+name] = `{}`
	}
	finds := `{"role":"projects/my-project/roles/taskguardTaskFinder","members":["serviceAccount:` + workerAccount + `"]},`
	c := &cloud{answers: map[string]string{
		workerService: serviceJSON(t, "service.yaml"),
		workerService + ":getIamPolicy": `{"bindings":[{"role":"roles/run.invoker","members":["serviceAccount:` + caller + `"]},
			{"role":"roles/run.viewer","members":["allUsers"]}]}`,
		location + "/services/taskguard-recovery": strings.ReplaceAll(serviceJSON(t, "service.yaml"),
			`taskguard-worker"`, `taskguard-recovery"`),
		location + "/services/taskguard-doclock":              serviceJSON(t, "doclock.yaml"),
		location + "/services/taskguard-doclock:getIamPolicy": `{"etag":"ACAB"}`,
		location + "/jobs": `{"jobs":[{"name":"x/y","pubsubTarget":{"topicName":"t"}},` +
			other + "," + job + "," + other + `]}`,
		"/v2/" + queueName: `{"name":"` + queueName + `","rateLimits":{"maxConcurrentDispatches":95},
			"retryConfig":{"maxAttempts":-1,"minBackoff":"30s","maxBackoff":"600s","maxDoublings":5},"state":"RUNNING"}`,
		"/v2/" + queueName + "/tasks": `{"tasks":[{"name":"` + queueName + `/tasks/1a2b","dispatchDeadline":"1560s","view":"FULL",
			"httpRequest":{"url":"` + workerURL + `/internal/tasks/analysis","httpMethod":"POST",
			"oidcToken":{"serviceAccountEmail":"` + caller + `","audience":"` + workerURL + `"}},
			"lastAttempt":{"responseStatus":{"code":10,"message":"ABORTED(10): HTTP status code 409"}}}]}`,
		queuePolicy: strings.Replace(policy("cloudtasks.enqueuer", "serviceAccount:"+workerAccount),
			`{"role":"projects/`, finds+`{"role":"projects/`, 1),
		finder: `{"includedPermissions":["cloudtasks.tasks.get"],"stage":"GA"}`,
		"/v1/projects/-/serviceAccounts/" + caller + ":getIamPolicy": policy(
			"iam.serviceAccountUser", "serviceAccount:"+workerAccount),
		projectPolicy:               policy("datastore.user", "serviceAccount:"+workerAccount),
		groups + "analyses/indexes": `{"indexes":[` + strings.Join(indexes, ",") + `]}`,
		groups + "-/fields":         fieldsJSON(fields),
		"/v3/projects/my-project/alertPolicies": `{"alertPolicies":[
			{"displayName":"Taskguard: tasks wait","enabled":true,"notificationChannels":["projects/my-project/notificationChannels/1"]},
			{"displayName":"another's","enabled":true}]}`,
	}}
	c.Server = httptest.NewServer(c)
	t.Cleanup(c.Close)
	return c
}

// policy returns an IAM policy in which a member has one role, with a condition.
func policy(role, member string) string {
	return `{"version":3,"bindings":[{"role":"roles/` + role + `","members":["` + member + `"],"condition":{"expression":"true"}},
		{"role":"projects/my-project/roles/deployer","members":["user:a@example.com"]}]}`
}

func fieldsJSON(settings map[string]string) string {
	const name = `{"name":"projects/my-project/databases/(default)/collectionGroups/`
	var all []string
	for field, config := range settings {
		all = append(all, name+field+`","indexConfig":`+config+`}`)
	}
	return `{"fields":[` + strings.Join(all, ",") + `]}`
}

// serviceJSON returns a shipped service as Cloud Run answers it.
func serviceJSON(t *testing.T, file string) string {
	t.Helper()
	text := must.Get(yaml.YAMLToJSON([]byte(read(t, deploy+file))))(t)
	return string(text)
}

// edit replaces text in an answer, or in all.
func (c *cloud) edit(t *testing.T, path string, pairs ...string) {
	t.Helper()
	before := c.answers[path]
	for pair := range slices.Chunk(pairs, 2) {
		if !strings.Contains(before, pair[0]) {
			t.Fatalf("%s lacks %q: %s", path, pair[0], before)
		}
	}
	c.answers[path] = strings.NewReplacer(pairs...).Replace(before)
}

func (c *cloud) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	answer, known := c.answers[r.URL.Path]
	code := c.refused
	if known && answer == "" {
		code = http.StatusForbidden
	}
	switch {
	case code != 0:
		w.WriteHeader(code)
		long := "Permission denied.\nSee https://x" + strings.Repeat("x", 300)
		answer = fmt.Sprintf(`{"error":{"code":%d,"message":%q}}`, code, long)
	case !known, r.Method != http.MethodGet && !strings.HasSuffix(r.URL.Path, ":getIamPolicy"):
		w.WriteHeader(http.StatusNotFound)
		answer = `{"error":{"code":404,"message":"Requested entity was not found."}}`
	default:
		answer = selected(r, answer)
	}
	_, _ = w.Write([]byte(answer))
}

// selected returns the part of an answer for which a request asks: a page of a list, the view of
// tasks without their bodies, and a policy with conditions.
func selected(r *http.Request, answer string) string {
	var all map[string]any
	if err := json.Unmarshal([]byte(answer), &all); err != nil {
		panic(err.Error() + answer)
	}
	body, _ := io.ReadAll(r.Body)
	switch _, verb, _ := strings.Cut(path.Base(r.URL.Path), ":"); cmp.Or(verb, path.Base(r.URL.Path)) {
	case "getIamPolicy":
		version := r.FormValue("options.requestedPolicyVersion")
		if version != "3" && !strings.Contains(string(body), `"requestedPolicyVersion":3`) {
			all["bindings"] = nil // Google refuses to show conditions
		}
	case "tasks":
		const fields = "tasks(name,dispatchDeadline,httpRequest(url,oidcToken),lastAttempt/responseStatus/code)"
		asked := r.FormValue("responseView") + " " + r.FormValue("pageSize") + " " + r.FormValue("fields")
		if asked != "FULL 100 "+fields {
			delete(all, "tasks")
		}
	case "fields":
		if r.FormValue("filter") != "indexConfig.usesAncestorConfig:false OR ttlConfig:*" {
			delete(all, "fields")
		}
	}
	for _, name := range []string{"indexes", "fields", "jobs", "locations", "alertPolicies"} {
		rows, ok := all[name].([]any)
		switch {
		case !ok:
		case r.FormValue("pageToken") == "2":
			all[name] = rows[len(rows)/2:]
		default:
			all[name], all["nextPageToken"] = rows[:len(rows)/2], "2"
		}
	}
	data, _ := json.Marshal(all)
	return string(data)
}

// google are the options of a client of c.
func (c *cloud) google() []option.ClientOption {
	return []option.ClientOption{option.WithEndpoint(c.URL), option.WithoutAuthentication()}
}

// ask reads through c what the short names and the environment name.
func (c *cloud) ask(t *testing.T) facts {
	t.Helper()
	return ask(t, doctor.Options{
		Service: "taskguard-worker", Doclock: "projects/my-project/locations/europe-west1/services/taskguard-doclock",
		Lookup: lookup("GOOGLE_CLOUD_PROJECT=my-project", "CLOUDSDK_RUN_REGION=europe-west1"), Google: c.google(),
	})
}
