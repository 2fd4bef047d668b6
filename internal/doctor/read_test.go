package doctor_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/auth"
	"google.golang.org/api/option"
	run "google.golang.org/api/run/v1"
	"sigs.k8s.io/yaml"

	"taskguard/internal/doctor"
	"taskguard/worker"
)

// cloud answers GET requests as Google's APIs do, by path.
type cloud struct {
	*httptest.Server
	answers map[string]string
	refused int    // the status of every answer, unless 0; that of an empty answer is 403
	quota   string // of the credentials
}

const (
	location       = "/v1/projects/my-project/locations/europe-west1"
	workerAccount  = "taskguard-worker@my-project.iam.gserviceaccount.com"
	doclockAccount = "taskguard-doclock@my-project.iam.gserviceaccount.com"
	secretBody     = "aHVudGVyMg" // printed nowhere
	groups         = "/v1/projects/my-project/databases/(default)/collectionGroups/"
)

func newCloud(t *testing.T) *cloud {
	t.Helper()
	const job = `{"name":"projects/my-project/locations/europe-west1/jobs/taskguard-recover","state":"ENABLED","status":{"code":-1},
		"httpTarget":{"uri":"` + workerURL + `/internal/tasks/recover","httpMethod":"POST"}}`
	index := func(field, by, order string) string {
		return `{"queryScope":"COLLECTION","fields":[{"fieldPath":"` + field + `","order":"ASCENDING"},
			{"fieldPath":"` + by + `","order":"` + order + `"},{"fieldPath":"__name__","order":"ASCENDING"}],"state":"READY"}`
	}
	c := &cloud{quota: "my-project", answers: map[string]string{
		location + "/services/taskguard-worker":               serviceJSON(t, "service.yaml"),
		location + "/services/taskguard-worker:getIamPolicy":  `{"bindings":[{"role":"roles/run.invoker","members":["serviceAccount:` + caller + `"]},{"role":"roles/run.viewer","members":["allUsers"]}]}`,
		location + "/services/taskguard-doclock":              serviceJSON(t, "doclock.yaml"),
		location + "/services/taskguard-doclock:getIamPolicy": `{"etag":"ACAB"}`,
		"/v2/" + queueName: `{"name":"` + queueName + `","rateLimits":{"maxConcurrentDispatches":95},
			"retryConfig":{"maxAttempts":-1,"minBackoff":"30s","maxBackoff":"600s","maxDoublings":5},"state":"RUNNING"}`,
		groups + "analyses/indexes": `{"indexes":[` + index("status", "updatedAt", "ASCENDING") + "," + index("status", "updatedAt", "DESCENDING") + "," +
			index("error.code", "updatedAt", "DESCENDING") + "," + index("lastError.code", "updatedAt", "DESCENDING") + "," + index("status", "createdAt", "ASCENDING") + `]}`,
		groups + "-/fields": fieldsJSON(map[string]string{
			"__default__/fields/*": `{"indexes":[{"queryScope":"COLLECTION"}]}`, "analyses/fields/input": `{}`, "analyses/fields/result": `{}`,
			"analyses/fields/error": `{}`, "analyses/fields/lastError": `{}`, "analyses/fields/progress": `{}`, "analyses/fields/checkpoint": `{}`,
			"analyses/fields/history": `{}`, "analyses/fields/expireAt": `{"usesAncestorConfig":true},"ttlConfig":{"state":"ACTIVE"}`,
		}),
		"/v2/" + queueName + "/tasks": `{"tasks":[{"name":"` + queueName + `/tasks/1a2b","dispatchDeadline":"1560s","view":"FULL",
			"httpRequest":{"url":"` + workerURL + `/internal/tasks/analysis","httpMethod":"POST","body":"` + secretBody + `",
			"oidcToken":{"serviceAccountEmail":"` + caller + `","audience":"` + workerURL + `"}},
			"lastAttempt":{"responseStatus":{"code":10,"message":"ABORTED(10): HTTP status code 409"}}}]}`,
		"/v2/" + queueName + ":getIamPolicy":                               policy("cloudtasks.enqueuer", workerAccount, ""),
		"/v2/" + queueName + ":testIamPermissions":                         `{"permissions":["cloudtasks.tasks.create"]}`,
		"/v1/projects/-/serviceAccounts/" + caller + ":getIamPolicy":       policy("iam.serviceAccountUser", workerAccount, ""),
		"/v1/projects/-/serviceAccounts/" + caller + ":testIamPermissions": `{"permissions":["iam.serviceAccounts.actAs"]}`,
		"/v1/projects/my-project/secrets/taskguard-session:getIamPolicy":   policy("secretmanager.secretAccessor", doclockAccount, ""),
		// The document lock may have a database of its own.
		"/v1/projects/my-project:getIamPolicy": strings.Replace(policy("datastore.user", workerAccount, `resource.name == 'projects/my-project/databases/(default)'`),
			`"bindings":[`, `"bindings":[{"role":"roles/datastore.owner","members":["serviceAccount:`+doclockAccount+`"]},`, 1),
		"/v1/projects/my-project/databases/(default)":         `{"name":"projects/my-project/databases/(default)","type":"FIRESTORE_NATIVE","databaseEdition":"STANDARD"}`,
		"/v1/projects/my-project/databases/taskguard-doclock": `{"type":"FIRESTORE_NATIVE"}`,
		"/v3/projects/my-project/alertPolicies": `{"alertPolicies":[
			{"displayName":"Taskguard: tasks wait","enabled":true,"notificationChannels":["projects/my-project/notificationChannels/1"],
			"conditions":[{"conditionPrometheusQueryLanguage":{"query":"logging_googleapis_com:user_taskguard_deliveries > 1"}}]},
			{"displayName":"another's","enabled":true,"conditions":[{"conditionThreshold":{"filter":"resource.type=\"gce_instance\""}}]}]}`,
		location + "/jobs":   `{"jobs":[{"name":"x/y","pubsubTarget":{"topicName":"t"}}],"nextPageToken":"2"}`,
		location + "/jobs?2": `{"jobs":[` + job + `]}`,
	}}
	c.Server = httptest.NewServer(c)
	t.Cleanup(c.Close)
	return c
}

// policy returns an IAM policy with one role.
func policy(role, account, condition string) string {
	if condition != "" {
		condition = `,"condition":{"title":"t","expression":"` + condition + `"}`
	}
	return `{"version":3,"bindings":[{"role":"roles/` + role + `","members":["serviceAccount:` + account + `"]` + condition + `},
		{"role":"projects/my-project/roles/deployer","members":["user:a@example.com"]}]}`
}

// credentials are a user's, with a quota project unless it is empty.
func credentials(quota string) func() (*auth.Credentials, error) {
	return func() (*auth.Credentials, error) {
		return auth.NewCredentials(&auth.CredentialsOptions{
			JSON:                   []byte(`{"type": "authorized_user", "refresh_token": "` + secretBody + `"}`),
			QuotaProjectIDProvider: auth.CredentialsPropertyFunc(func(context.Context) (string, error) { return quota, nil }),
		}), nil
	}
}

func fieldsJSON(settings map[string]string) string {
	var all []string
	for field, config := range settings {
		all = append(all, `{"name":"projects/my-project/databases/(default)/collectionGroups/`+field+`","indexConfig":`+config+`}`)
	}
	return `{"fields":[` + strings.Join(all, ",") + `]}`
}

// serviceJSON returns a shipped service as Cloud Run answers it.
func serviceJSON(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(deploy + file)
	if err != nil {
		t.Fatal(err)
	}
	var s run.Service
	if err := yaml.UnmarshalStrict(data, &s); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(&s)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func (c *cloud) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	path := r.URL.Path
	if page := r.FormValue("pageToken"); page != "" {
		path += "?" + page
	}
	answer, known := c.answers[path]
	code := c.refused
	if known && answer == "" {
		code = http.StatusForbidden
	}
	switch {
	case code != 0:
		w.WriteHeader(code)
		answer = fmt.Sprintf(`{"error":{"code":%d,"message":"Permission denied.\nSee https://x"}}`, code)
	case !known, r.Method != http.MethodGet && !strings.HasSuffix(path, ":getIamPolicy") && !strings.HasSuffix(path, ":testIamPermissions"):
		w.WriteHeader(http.StatusNotFound)
		answer = `{"error":{"code":404,"message":"Requested entity was not found."}}`
	}
	_, _ = w.Write([]byte(answer))
}

// ask reads through c what the short names and the environment name.
func (c *cloud) ask(t *testing.T, ctx context.Context) doctor.Facts { //nolint:revive // t first, as everywhere here
	t.Helper()
	f, err := doctor.Read(ctx, doctor.Options{
		Service: "taskguard-worker", Doclock: "projects/my-project/locations/europe-west1/services/taskguard-doclock",
		Lookup: lookup(map[string]string{"GOOGLE_CLOUD_PROJECT": "my-project", "CLOUDSDK_RUN_REGION": "europe-west1"}),
		Google: []option.ClientOption{option.WithEndpoint(c.URL), option.WithoutAuthentication()}, Credentials: credentials(c.quota),
	})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestTheIndexesOfEachKindAreRead(t *testing.T) {
	c := newCloud(t)
	c.answers[groups+"orders/indexes"] = strings.Replace(c.answers[groups+"analyses/indexes"], "READY", "CREATING", 1)
	f, err := doctor.Read(t.Context(), doctor.Options{
		Kinds:  []worker.Kind{{Name: "analysis", Collection: "analyses"}, {Name: "order", Collection: "shops/s/orders"}},
		Lookup: lookup(map[string]string{"GOOGLE_CLOUD_PROJECT": "my-project"}),
		Google: []option.ClientOption{option.WithEndpoint(c.URL), option.WithoutAuthentication()},
	})
	if err != nil {
		t.Fatal(err)
	}
	var rules []string
	found, _ := doctor.Check(f)
	for _, one := range found {
		rules = append(rules, one.Rule)
		if !strings.Contains(one.Problem, "orders") {
			t.Errorf("%+v", one)
		}
	}
	if want := []string{"index-missing", "field-indexed", "field-indexed", "field-indexed", "field-indexed", "field-indexed", "field-indexed", "field-indexed"}; !slices.Equal(rules, want) {
		t.Errorf("%q, want %q", rules, want)
	}
}

// Each row changes one answer of Google's.
func TestAnswersOfGoogleAreChecked(t *testing.T) {
	for _, tc := range []struct{ path, old, replacement, rule string }{
		{"", "", "", ""},
		{"/services/taskguard-worker", `"timeoutSeconds":1560`, `"timeoutSeconds":300`, "run-timeout"},
		{"/services/taskguard-worker", `"run.googleapis.com/maxScale":"10"`, `"run.googleapis.com/maxScale":"3"`, "dispatches"},
		{"/services/taskguard-worker", `"run.googleapis.com/startup-cpu-boost":"true"`, `"autoscaling.knative.dev/maxScale":"9"`, "dispatches"},
		{"/services/taskguard-worker", `"containerConcurrency":10,`, `"containerConcurrency":5,`, "dispatches"},
		{"/services/taskguard-worker", `"memory":"1Gi"`, `"memory":"512Mi"`, "memory"},
		{"/services/taskguard-worker", `"run.googleapis.com/ingress":"all"`, `"run.googleapis.com/urls":"[\"https://taskguard-worker-1.europe-west3.run.app\"]"`, "target-url"},
		{"/services/taskguard-worker", `"run.googleapis.com/ingress":"all"`, `"run.googleapis.com/urls":"[\"` + workerURL + `\",\"https://taskguard-worker-x-ew.a.run.app\"]"`, ""},
		{"/services/taskguard-worker:getIamPolicy", caller, "x@example.com", "caller-not-invoker"},
		{"/services/taskguard-worker:getIamPolicy", "roles/run.viewer", "roles/run.invoker", "invoker-public"},
		{"/services/taskguard-doclock", `"run.googleapis.com/invoker-iam-disabled":"true"`, `"a":"b"`, "oidc-behind-iam"},
		{"/services/taskguard-doclock", `"valueFrom":{"secretKeyRef":{"key":"latest","name":"taskguard-session"}}`, `"value":"0123456789012345678901234567890123456789"`, "plain-secret"},
		{"/queues/analyses", `"maxAttempts":-1`, `"maxAttempts":100`, "queue-gives-up"},
		{"/queues/analyses", `"minBackoff":"30s"`, `"minBackoff":"0.100s"`, "queue-hot"},
		{"/queues/analyses", `"RUNNING"`, `"PAUSED"`, "queue-stopped"},
		{"/queues/analyses", `"maxConcurrentDispatches":95`, `"maxConcurrentDispatches":100`, "dispatches"},
		{"/indexes", "READY", "CREATING", "index-missing"},
		{"/indexes", `"queryScope":"COLLECTION"`, `"queryScope":"COLLECTION_GROUP"`, "index-missing"},
		{"/fields", "fields/input", "fields/other", "field-indexed"},
		{"/fields", `fields/input","indexConfig":{`, `fields/input","indexConfig":{"usesAncestorConfig":true`, "field-indexed"},
		{"/fields", "fields/checkpoint", "fields/other", "field-indexed"},
		{"/jobs?2", workerURL + "/internal/tasks", "https://example.com/internal", "recovery-unscheduled"},
		{"/jobs?2", `"code":-1`, `"code":7`, "recovery-failed"},
		{"/tasks", `"url":"` + workerURL, `"url":"https://taskguard-old-1.run.app`, "task-url"},
		{"/tasks", `"url":"https`, `"url":"http`, "task-url"},
		{"/tasks", `"audience":"` + workerURL, `"audience":"https://taskguard-old-1.run.app`, "task-audience"},
		{"/tasks", `"oidcToken"`, `"oauthToken"`, "task-audience"},
		{"/tasks", `1560s`, `600s`, "task-deadline"},
		{"/tasks", `"dispatchDeadline":"1560s",`, ``, "task-deadline"},
		{"/tasks", `"code":10`, `"code":7`, "task-refused"},
		{"/queues/analyses:getIamPolicy", workerAccount, doclockAccount, "account-cannot-book"},
		{"/queues/analyses:getIamPolicy", "enqueuer", "viewer", "account-cannot-book"},
		{caller + ":getIamPolicy", workerAccount, caller, "account-cannot-sign"},
		{"/secrets/taskguard-session:getIamPolicy", "secretAccessor", "viewer", "account-cannot-read-secret"},
		{"my-project:getIamPolicy", "datastore.user", "datastore.viewer", "account-cannot-use-database"},
		{"my-project:getIamPolicy", "databases/(default)", "databases/other", "account-cannot-use-database"},
		{"my-project:getIamPolicy", doclockAccount, "x@example.com", "account-cannot-use-database"},
		{"/databases/(default)", "FIRESTORE_NATIVE", "DATASTORE_MODE", "database-mode"},
		{"/databases/taskguard-doclock", "FIRESTORE_NATIVE", "DATASTORE_MODE", "database-mode"},
		{"/databases/(default)", "STANDARD", "ENTERPRISE", "database-edition"},
		{":testIamPermissions", `["`, `["x`, "you-cannot-book"},
		{"/alertPolicies", `"projects/my-project/notificationChannels/1"`, ``, "alerts"},
		{"/alertPolicies", `"enabled":true`, `"enabled":false`, "alerts"},
		{"/alertPolicies", `taskguard_`, `other_`, "alerts"},
		{"/alertPolicies", `taskguard_`, `taskguard_staging_`, "alerts"},
	} {
		t.Run(tc.rule, func(t *testing.T) {
			c := newCloud(t)
			for path, answer := range c.answers {
				if tc.path == "" || !strings.HasSuffix(path, tc.path) {
					continue
				}
				if c.answers[path] = strings.Replace(answer, tc.old, tc.replacement, 1); c.answers[path] == answer {
					t.Fatalf("%s lacks %q: %s", path, tc.old, answer)
				}
			}
			found, unchecked := doctor.Check(c.ask(t, t.Context()))
			right := len(found) == 0 && tc.rule == "" || len(found) > 0
			for _, one := range found { // one for each account
				right = right && one.Rule == tc.rule && !strings.Contains(one.Problem+one.Fix, secretBody)
			}
			if !right || len(unchecked) > 0 {
				t.Errorf("want a finding of %q, got %+v, unchecked %+v", tc.rule, found, unchecked)
			}
		})
	}
}

func TestATTLPolicyIsReadWithOrWithoutIndexSettings(t *testing.T) {
	for config, want := range map[string]int{
		`{"usesAncestorConfig":true},"ttlConfig":{"state":"CREATING"}`: 0, `{},"ttlConfig":{"state":"ACTIVE"}`: 0, `{}`: 1, `{},"ttlConfig":{"state":"NEEDS_REPAIR"}`: 1,
	} {
		c := newCloud(t)
		c.answers[groups+"-/fields"] = fieldsJSON(map[string]string{"analyses/fields/*": `{}`, "analyses/fields/expireAt": config})
		f := c.ask(t, t.Context())
		set("KEEP_FINISHED", "2160h", "FIRESTORE_DATABASE", "other")(&f)
		if found, _ := doctor.Check(f); len(found) != want || want == 1 && !strings.Contains(found[0].Fix, "expireAt --database='(default)' --collection-group=analyses ") {
			t.Errorf("%s: %+v", config, found)
		}
	}
}

func TestFieldIsIndexedByTheNearestSetting(t *testing.T) {
	const none, some = `{}`, `{"indexes":[{"queryScope":"COLLECTION"}]}`
	for name, tc := range map[string]struct {
		settings map[string]string
		found    int
	}{
		"database exempts all": {map[string]string{"__default__/fields/*": none}, 0},
		"group exempts all":    {map[string]string{"__default__/fields/*": some, "analyses/fields/*": none}, 0},
		"another group does":   {map[string]string{"__default__/fields/*": some, "others/fields/*": none}, 7},
		"group indexes all":    {map[string]string{"__default__/fields/*": none, "analyses/fields/*": some}, 7},
		"one field is indexed": {map[string]string{"__default__/fields/*": none, "analyses/fields/input": some}, 1},
		"no setting":           {nil, 7},
	} {
		c := newCloud(t)
		c.answers[groups+"-/fields"] = fieldsJSON(tc.settings)
		if found, _ := doctor.Check(c.ask(t, t.Context())); len(found) != tc.found {
			t.Errorf("%s: want %d findings, got %+v", name, tc.found, found)
		}
	}
}

func TestRefusalOfGoogleIsReportedWithItsReason(t *testing.T) {
	for code, want := range map[int]string{403: "Google answers 403: Permission denied. See https://x", 404: "does not exist"} {
		c := newCloud(t)
		c.refused = code
		found, unchecked := doctor.Check(c.ask(t, t.Context()))
		if len(found) > 0 || len(unchecked) < 4 {
			t.Errorf("%d: %+v, %+v", code, found, unchecked)
		}
		for _, u := range unchecked {
			if u.Failed && !strings.Contains(u.Why, want) || strings.Contains(u.Why, "\n") {
				t.Errorf("%d: %+v", code, u)
			}
		}
	}
}

func TestOneRefusalLeavesTheOtherPartsChecked(t *testing.T) {
	c := newCloud(t)
	delete(c.answers, "/v2/"+queueName)
	found, unchecked := doctor.Check(c.ask(t, t.Context()))
	if len(found) > 0 || len(unchecked) != 1 || !unchecked[0].Failed || !slices.Equal(unchecked[0].Parts, []string{"the queue"}) ||
		!slices.Contains(unchecked[0].Rules, "dispatches") || !strings.Contains(unchecked[0].Why, queueName+" does not exist") {
		t.Errorf("%+v %+v", found, unchecked)
	}
}

func TestCallWithoutAnAnswerEndsWithItsContext(t *testing.T) {
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	defer silent.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, unchecked := doctor.Check((&cloud{Server: silent}).ask(t, ctx)); len(unchecked) == 0 || !unchecked[0].Failed {
		t.Errorf("%+v", unchecked)
	}
}

// An operator has these variables, which Terraform's output sets, and no worker's.
func TestEnvironmentOfAnOperatorNamesTheParts(t *testing.T) {
	c := newCloud(t)
	f, err := doctor.Read(t.Context(), doctor.Options{
		Lookup: lookup(map[string]string{"TASK_QUEUE": queueName, "GOOGLE_CLOUD_PROJECT": "my-project"}),
		Google: []option.ClientOption{option.WithEndpoint(c.URL), option.WithoutAuthentication()},
	})
	if err != nil {
		t.Fatal(err)
	}
	if found, _ := doctor.Check(f); len(found) > 0 || len(f.Sources()) != 3 {
		t.Errorf("%+v, %+v, want the queue, the indexes and the jobs", found, f.Sources())
	}
}

func TestFilesAreReadStrictly(t *testing.T) {
	const service = "apiVersion: serving.knative.dev/v1\nkind: Service\nmetadata: {name: w}\n"
	const container = service + "spec: {template: {spec: {containers: "
	for name, tc := range map[string]struct{ flag, text, wrong string }{
		"container without a port":  {"--service", container + "[{image: a}]}}}", ""},
		"second container has port": {"--service", container + "[{image: a}, {image: b, ports: [{containerPort: 8080}]}]}}}", ""},
		"no container has a port":   {"--service", container + "[{image: a}, {image: b}]}}}", "none of 2 containers"},
		"no container":              {"--service", container + "[null]}}}", "none of 1 containers"},
		"no template":               {"--service", service, "no template"},
		"another kind":              {"--service", "kind: Job\n", `a "Job" is not a Service`},
		"unknown field":             {"--service", container + "[{imagee: a}]}}}", `unknown field "imagee"`},
		"numeric namespace":         {"--service", strings.Replace(container, "name: w", "name: w, namespace: 123", 1) + "[{image: a}]}}}", ""},
		"queue without limits":      {"--queue", "--location: l\n", ""},
		"description of a queue":    {"--queue", "name: projects/p/locations/l/queues/q\n", "is not a flags file of a queue"},
		"flag set twice":            {"--queue", "--max-attempts: 1\n--max-attempts: 2\n", "already set"},
		"unknown flag":              {"--queue", "--max-attempt: 3\n", `unknown field "--max-attempt"`},
		"malformed duration":        {"--queue", "--min-backoff: 30x\n", "is not a duration"},
		"indexes":                   {"--indexes", `{"indexes": [{"collectionGroup": "a", "queryScope": "COLLECTION", "fields": []}]}`, ""},
		"not indexes":               {"--indexes", "--location: l\n", "is not a firestore.indexes.json"},
	} {
		file := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(file, []byte(tc.text), 0o600); err != nil {
			t.Fatal(err)
		}
		o := doctor.Options{Lookup: lookup(nil)}
		*map[string]*string{"--service": &o.Service, "--queue": &o.Queue, "--indexes": &o.Indexes}[tc.flag] = file
		f, err := doctor.Read(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		why := ""
		for _, s := range f.Status {
			if s.Failed {
				why = s.Why
			}
		}
		if (tc.wrong == "") != (why == "") || !strings.Contains(why, tc.wrong) || tc.wrong != "" && !strings.HasPrefix(why, file) {
			t.Errorf("%s: got %q, want %q", name, why, tc.wrong)
		}
	}
}
