package doctor_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/api/option"
	"sigs.k8s.io/yaml"

	"taskguard/cmd/internal/doctor"
	"taskguard/worker"
)

// cloud answers GET requests as Google's APIs do, by path.
type cloud struct {
	*httptest.Server
	answers map[string]string
	refused int // the status of every answer, unless 0; that of an empty answer is 403
}

const (
	location       = "/v1/projects/my-project/locations/europe-west1"
	workerAccount  = "taskguard-worker@my-project.iam.gserviceaccount.com"
	doclockAccount = "taskguard-doclock@my-project.iam.gserviceaccount.com"
	groups         = "/v1/projects/my-project/databases/(default)/collectionGroups/"
)

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
	c := &cloud{answers: map[string]string{
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
			"analyses/fields/effects": `{}`, "analyses/fields/history": `{}`, "analyses/fields/expireAt": `{"usesAncestorConfig":true},"ttlConfig":{"state":"ACTIVE"}`,
		}),
		"/v2/" + queueName + "/tasks": `{"tasks":[{"name":"` + queueName + `/tasks/1a2b","dispatchDeadline":"1560s","view":"FULL",
			"httpRequest":{"url":"` + workerURL + `/internal/tasks/analysis","httpMethod":"POST",
			"oidcToken":{"serviceAccountEmail":"` + caller + `","audience":"` + workerURL + `"}},
			"lastAttempt":{"responseStatus":{"code":10,"message":"ABORTED(10): HTTP status code 409"}}}]}`,
		"/v2/" + queueName + ":getIamPolicy": strings.Replace(policy("cloudtasks.enqueuer", "serviceAccount:"+workerAccount),
			`{"role":"projects/`, `{"role":"projects/my-project/roles/taskguardTaskFinder","members":["serviceAccount:`+workerAccount+`"]},{"role":"projects/`, 1),
		"/v1/projects/my-project/roles/taskguardTaskFinder":          `{"includedPermissions":["cloudtasks.tasks.get"],"stage":"GA"}`,
		"/v1/projects/-/serviceAccounts/" + caller + ":getIamPolicy": policy("iam.serviceAccountUser", "serviceAccount:"+workerAccount),
		"/v1/projects/my-project:getIamPolicy":                       policy("datastore.user", "serviceAccount:"+workerAccount),
		location + "/services/taskguard-recovery":                    strings.ReplaceAll(serviceJSON(t, "service.yaml"), "taskguard-worker\"", "taskguard-recovery\""),
		"/v3/projects/my-project/alertPolicies": `{"alertPolicies":[
			{"displayName":"Taskguard: tasks wait","enabled":true,"notificationChannels":["projects/my-project/notificationChannels/1"]},
			{"displayName":"another's","enabled":true}]}`,
		location + "/jobs": `{"jobs":[{"name":"x/y","pubsubTarget":{"topicName":"t"}},` + other + "," + job + "," + other + `]}`,
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
	var all []string
	for field, config := range settings {
		all = append(all, `{"name":"projects/my-project/databases/(default)/collectionGroups/`+field+`","indexConfig":`+config+`}`)
	}
	return `{"fields":[` + strings.Join(all, ",") + `]}`
}

// serviceJSON returns a shipped service as Cloud Run answers it.
func serviceJSON(t *testing.T, file string) string {
	t.Helper()
	text, err := yaml.YAMLToJSON([]byte(read(t, deploy+file)))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
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
		answer = fmt.Sprintf(`{"error":{"code":%d,"message":"Permission denied.\nSee https://x%s"}}`, code, strings.Repeat("x", 300))
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
		if r.FormValue("options.requestedPolicyVersion") != "3" && !strings.Contains(string(body), `"requestedPolicyVersion":3`) {
			all["bindings"] = nil // Google refuses to show conditions
		}
	case "tasks":
		const fields = "tasks(name,dispatchDeadline,httpRequest(url,oidcToken),lastAttempt/responseStatus/code)"
		if r.FormValue("responseView") != "FULL" || r.FormValue("pageSize") != "100" || r.FormValue("fields") != fields {
			delete(all, "tasks")
		}
	case "fields":
		if r.FormValue("filter") != "indexConfig.usesAncestorConfig:false OR ttlConfig:*" {
			delete(all, "fields")
		}
	}
	for name, list := range all {
		if rows, ok := list.([]any); ok && slices.Contains([]string{"indexes", "fields", "jobs", "locations", "alertPolicies"}, name) {
			if r.FormValue("pageToken") != "2" {
				all[name], all["nextPageToken"] = rows[:len(rows)/2], "2"
			} else {
				all[name] = rows[len(rows)/2:]
			}
		}
	}
	data, _ := json.Marshal(all)
	return string(data)
}

// ask reads through c what the short names and the environment name.
func (c *cloud) ask(t *testing.T, ctx context.Context) doctor.Facts { //nolint:revive // t first, as everywhere here
	t.Helper()
	f, err := doctor.Read(ctx, doctor.Options{
		Service: "taskguard-worker", Doclock: "projects/my-project/locations/europe-west1/services/taskguard-doclock",
		Lookup: lookup(map[string]string{"GOOGLE_CLOUD_PROJECT": "my-project", "CLOUDSDK_RUN_REGION": "europe-west1"}),
		Google: []option.ClientOption{option.WithEndpoint(c.URL), option.WithoutAuthentication()},
	})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// Without the revision that serves, doctor would judge settings that no request meets.
func TestTheSettingsAreThoseOfTheRevisionThatServes(t *testing.T) {
	const service = location + "/services/taskguard-worker"
	target := func(percent int, name, tag string) string {
		return fmt.Sprintf(`{"revisionName":%q,"percent":%d,"tag":%q}`, name, percent, tag)
	}
	for name, tc := range map[string]struct {
		traffic []string
		rules   string
		text    string // of the first finding
	}{
		"all to the newest":     {[]string{target(100, "w-2", ""), target(0, "w-1", "candidate")}, "", ""},
		"all to an earlier one": {[]string{target(0, "w-2", "candidate"), target(100, "w-1", "")}, "traffic run-timeout", "w-2, which gets 0 % of the requests; most go to w-1"},
		"all to one like it":    {[]string{target(100, "w-0", "")}, "", ""},
		"a share to the newest": {[]string{target(10, "w-2", ""), target(90, "w-1", "")}, "run-timeout traffic", ""},
		"two entries of one":    {[]string{target(40, "w-1", ""), target(30, "w-2", "a"), target(30, "w-2", "b")}, "", ""},
		"the latest":            {[]string{`{"latestRevision":true,"percent":100}`}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCloud(t)
			var got struct {
				Spec struct{ Template json.RawMessage }
			}
			if err := json.Unmarshal([]byte(c.answers[service]), &got); err != nil {
				t.Fatal(err)
			}
			like := string(got.Spec.Template)
			c.answers[location+"/revisions/w-0"] = like
			c.answers[location+"/revisions/w-1"] = strings.Replace(like, `"timeoutSeconds":1560`, `"timeoutSeconds":300`, 1)
			c.answers[service] = strings.TrimSuffix(c.answers[service], "}") + `,"status":{"latestCreatedRevisionName":"w-2","latestReadyRevisionName":"w-2",
				"traffic":[` + strings.Join(tc.traffic, ",") + `]}}`

			found := doctor.Check(c.ask(t, t.Context()))
			if rulesOf(found) != tc.rules || len(found) > 0 && !strings.Contains(found[0].Problem, tc.text) {
				t.Errorf("want %s with %q, got %+v", tc.rules, tc.text, found)
			}
		})
	}
}

// In one project there are other deployments, whose failures are not this one's.
func TestAnotherDeploymentIsNotJudged(t *testing.T) {
	staging := func(text string) string {
		return strings.ReplaceAll(strings.ReplaceAll(text, "taskguard-worker-", "taskguard-worker-staging-"), "taskguard-recover", "staging-recover")
	}
	c := newCloud(t)
	var jobs struct{ Jobs []json.RawMessage }
	if err := json.Unmarshal([]byte(c.answers[location+"/jobs"]), &jobs); err != nil {
		t.Fatal(err)
	}
	ours := string(jobs.Jobs[2])
	failing := strings.Replace(staging(ours), `"code":-1`, `"code":7`, 1)
	for name, tc := range map[string]struct{ jobs, rule string }{
		"staging's fails":                     {ours + "," + failing, ""},
		"staging's is paused":                 {ours + "," + strings.Replace(failing, "ENABLED", "PAUSED", 1), ""},
		"ours is paused, staging's is not":    {strings.Replace(ours, "ENABLED", "PAUSED", 1) + "," + staging(ours), "recovery-unscheduled"},
		"there is only staging's":             {staging(ours), "recovery-unscheduled"},
		"an old one of ours is paused, fails": {ours + "," + strings.NewReplacer("ENABLED", "PAUSED", `"code":-1`, `"code":7`).Replace(ours), ""},
	} {
		c.answers[location+"/jobs"] = `{"jobs":[` + tc.jobs + `]}`
		if found := doctor.Check(c.ask(t, t.Context())); rulesOf(found) != tc.rule {
			t.Errorf("%s: got %+v, want %q", name, found, tc.rule)
		}
	}
}

// Cloud Scheduler is not in all regions of Cloud Tasks, and any job may call the worker.
func TestARecoveryInAnotherRegionCounts(t *testing.T) {
	const elsewhere = "/v1/projects/my-project/locations/europe-west3/jobs"
	for name, tc := range map[string]struct{ regions, rule, severity string }{
		"it recovers":            {`"europe-west1"},{"name":"projects/my-project/locations/europe-west3"`, "", ""},
		"it is read after error": {`"europe-west2"},{"name":"projects/my-project/locations/europe-west3"`, "", ""},
		"no other region":        {`"europe-west1"`, "recovery-unscheduled", "problem"},
		"a region is not read":   {`"europe-west1"},{"name":"projects/my-project/locations/europe-west2"`, "recovery-unscheduled", "advice"},
	} {
		c := newCloud(t)
		c.answers[elsewhere], c.answers[location+"/jobs"] = c.answers[location+"/jobs"], `{}`
		c.answers["/v1/projects/my-project/locations"] = `{"locations":[{"name":` + strings.Replace(tc.regions, `"`, `"projects/my-project/locations/`, 1) + `}]}`
		f := c.ask(t, t.Context())
		found := doctor.Check(f)
		if rulesOf(found) != tc.rule || len(found) > 0 && string(found[0].Severity) != tc.severity || f.Status[doctor.SchedulerJobs].Why != "" {
			t.Errorf("%s: got %+v, want %s by %q", name, found, tc.severity, tc.rule)
		}
	}
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
	want := "index-missing field-indexed field-indexed field-indexed field-indexed"
	found := doctor.Check(f)
	if rules := rulesOf(found); rules != want || slices.ContainsFunc(found, func(one doctor.Finding) bool { return !strings.Contains(one.Problem, "orders") }) {
		t.Errorf("%+v, want %q", found, want)
	}
}

// Each row changes one answer of Google's.
func TestAnswersOfGoogleAreChecked(t *testing.T) {
	for _, tc := range []struct{ path, old, replacement, rule string }{
		{"", "", "", ""},
		{"/services/taskguard-worker", `"run.googleapis.com/maxScale":"10"`, `"run.googleapis.com/maxScale":"3"`, "dispatches"},
		{"/services/taskguard-worker", `"run.googleapis.com/startup-cpu-boost":"true"`, `"autoscaling.knative.dev/maxScale":"9"`, "dispatches"},
		{"/services/taskguard-worker", `"run.googleapis.com/ingress":"all"`, `"run.googleapis.com/urls":"[\"https://taskguard-worker-1.europe-west3.run.app\"]"`, "target-url"},
		{"/services/taskguard-worker", `"run.googleapis.com/ingress":"all"`, `"run.googleapis.com/urls":"[\"` + workerURL + `\",\"https://taskguard-worker-x-ew.a.run.app\"]"`, ""},
		{"/services/taskguard-worker", `"memory":"1Gi"`, `"memory":"128Mi"`, "memory"},
		{"/services/taskguard-worker", `"memory":"1Gi"`, `"ephemeral-storage":"1Gi"`, "memory"},
		{"/services/taskguard-worker", `"timeoutSeconds":1560`, `"timeoutSeconds":0`, "run-timeout"},
		{"/services/taskguard-worker", `"containerConcurrency":10`, `"containerConcurrency":0`, "memory"},
		{"/services/taskguard-doclock", `"run.googleapis.com/invoker-iam-disabled":"true"`, `"a":"b"`, "oidc-behind-iam"},
		{"/services/taskguard-doclock", `"valueFrom":{"secretKeyRef":{"key":"1","name":"taskguard-session"}}`, `"value":"0123456789012345678901234567890123456789"`, "plain-secret"},
		{"/services/taskguard-doclock", `"key":"1"`, `"key":"latest"`, "secret-latest"},
		{"/queues/analyses", `"maxAttempts":-1`, `"maxAttempts":100`, "queue-gives-up"},
		{"/queues/analyses", `"RUNNING"`, `"PAUSED"`, "queue-stopped"},
		{"/indexes", "READY", "CREATING", "index-missing"},
		{"/indexes", `"queryScope":"COLLECTION"`, `"queryScope":"COLLECTION_GROUP"`, "index-missing"},
		{"/fields", "fields/input", "fields/other", "field-indexed"},
		{"/fields", `fields/input","indexConfig":{`, `fields/input","indexConfig":{"usesAncestorConfig":true`, "field-indexed"},
		{"/jobs", workerURL + "/internal/tasks", "https://example.com/internal", "recovery-unscheduled"},
		{"/jobs", "/internal/tasks/recover", "/internal/tasks/recover2", "recovery-unscheduled"},
		{"/jobs", `"code":-1`, `"code":7`, "recovery-failed"},
		{"/jobs", `"code":-1`, `"code":0`, ""},
		{"/tasks", `"url":"` + workerURL, `"url":"https://taskguard-old-1.run.app`, "task-url"},
		{"/tasks", `"url":"` + workerURL, `"url":"https://taskguard-worker2-1.run.app`, "task-url"},
		{"/tasks", `"url":"https`, `"url":"http`, "task-url"},
		{"/tasks", `"audience":"` + workerURL, `"audience":"https://taskguard-old-1.run.app`, "task-audience"},
		{"/tasks", `"oidcToken"`, `"oauthToken"`, "task-audience"},
		{"/tasks", `1560s`, `600s`, "task-deadline"},
		{"/tasks", `"dispatchDeadline":"1560s",`, ``, "task-deadline"},
		{"/tasks", `"code":10`, `"code":7`, "task-refused"},
		{"/queues/analyses:getIamPolicy", workerAccount, doclockAccount, "account-cannot-book"},
		{"/queues/analyses:getIamPolicy", "enqueuer", "viewer", "account-cannot-book"},
		{caller + ":getIamPolicy", workerAccount, caller, "account-cannot-sign"},
		{"/my-project:getIamPolicy", `"bindings":[`, `"bindings":[{"role":"roles/editor","members":["serviceAccount:` + caller + `"]},`, "caller-role"},
		{"/taskguard-worker:getIamPolicy", `run.invoker`, `run.developer`, "caller-not-invoker"},
		{"/jobs", `"* * * * *"`, `"0 * * * *"`, "recovery-schedule"},
		{"/jobs", `"* * * * *"`, `"*/10 * * * *"`, "recovery-schedule"},
		{"/jobs", `"* * * * *"`, `"* 8-18 * * 1-5"`, "recovery-schedule"},
		{"/jobs", `"* * * * *"`, `"every 24 hours"`, "recovery-schedule"},
		{"/jobs", `"* * * * *"`, `"*/2 * * * *"`, ""},
		{"/jobs", `"* * * * *"`, `"every 1 minutes"`, ""},
		{"/jobs", `"* * * * *"`, `"* * * * 0-6"`, ""},
		{"/jobs", `"* * * * *"`, `"*/2 0-23 1-31 1-12 MON-SUN"`, ""},
		{"/jobs", `"* * * * *"`, `"* 1-12 * * *"`, "recovery-schedule"},
		{"/jobs", `"* * * * *"`, `"58-59 * * * *"`, "recovery-schedule"},
		{"/jobs", `"httpMethod":"POST"`, `"httpMethod":"GET"`, "recovery-method"},
		{"/jobs", `"audience":"` + workerURL, `"audience":"https://taskguard-doclock-123456789012.europe-west1.run.app`, "recovery-audience"},
		{"/jobs", `"audience":"` + workerURL, `"audience":"` + workerURL + `/`, "recovery-audience"},
		{"/jobs", `"audience":"` + workerURL + `"`, `"scope":""`, ""},
		{"/jobs", `"oidcToken"`, `"oauthToken"`, "recovery-audience"},
		{"/jobs", `"serviceAccountEmail":"` + caller, `"serviceAccountEmail":"` + doclockAccount, "recovery-caller"},
		{"/jobs", `"ENABLED","status":{"code":-1}`, `"PAUSED","status":{"code":-1}`, "recovery-unscheduled"},
		{"/jobs", "https://taskguard-worker-123456789012", "https://taskguard-worker-staging-123456789012", "recovery-unscheduled"},
		{"/jobs", "https://taskguard-worker-1234", "https://taskguard-worker-9234", "recovery-unscheduled"},
		{"/jobs", workerURL + "/internal", "https://taskguard-recovery-123456789012.europe-west1.run.app/internal", ""},
		{"/queues/analyses", `"maxConcurrentDispatches":95`, `"maxConcurrentDispatches":95,"maxDispatchesPerSecond":0.05`, "queue-rate"},
		{"/queues/analyses", `"maxConcurrentDispatches":95`, `"maxConcurrentDispatches":95,"maxDispatchesPerSecond":0.1`, ""},
		{"/tasks", "/internal/tasks/analysis", "/internal/tasks/analyses", "task-url"},
		{"/tasks", `"url":"https://taskguard-worker-`, `"url":"https://taskguard-worker-staging-`, "task-url"},
		{"/services/taskguard-worker", `"taskguard-worker@my-project.iam`, `"123456789012-compute@developer`, "default-account account-cannot-book account-cannot-sign account-cannot-use-database account-cannot-find-tasks"},
		{"/alertPolicies", `"projects/my-project/notificationChannels/1"`, ``, "alerts"},
		{"/alertPolicies", `"enabled":true`, `"enabled":false`, "alerts"},
		{"/alertPolicies", `another's`, `taskguard: no channel`, "alerts"},
		{"/alertPolicies", `another's","enabled":true`, `taskguard: disabled","enabled":false`, ""},
		{"/alertPolicies", `Taskguard`, `Taskguard-Staging`, "alerts"},
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
			f := c.ask(t, t.Context())
			found := doctor.Check(f)
			if _, unread := f.Readings(); rulesOf(found) != tc.rule || len(unread) > 0 {
				t.Errorf("want a finding of %q, got %+v, unread %+v", tc.rule, found, unread)
			}
		})
	}
}

// queried has an index of each field that queries need.
func queried() map[string]string {
	const some = `{"indexes":[{"queryScope":"COLLECTION"}]}`
	all := map[string]string{}
	for _, name := range []string{"status", "lockExpiresAt", "nextAttemptAt", "updatedAt"} {
		all["analyses/fields/"+name] = some
	}
	return all
}

func with(all map[string]string, pairs ...string) map[string]string {
	assign(all, pairs)
	return all
}

func TestATTLPolicyIsReadWithOrWithoutIndexSettings(t *testing.T) {
	for config, want := range map[string]int{
		`{"usesAncestorConfig":true},"ttlConfig":{"state":"CREATING"}`: 0, `{},"ttlConfig":{"state":"ACTIVE"}`: 0, `{}`: 1, `{},"ttlConfig":{"state":"NEEDS_REPAIR"}`: 1,
	} {
		c := newCloud(t)
		c.answers[groups+"-/fields"] = fieldsJSON(with(queried(), "analyses/fields/*", `{}`, "analyses/fields/expireAt", config))
		f := c.ask(t, t.Context())
		set("KEEP_FINISHED", "2160h", "FIRESTORE_DATABASE", "other")(&f)
		if found := doctor.Check(f); len(found) != want || want == 1 && !strings.Contains(found[0].Fix, "expireAt --database='(default)' --collection-group=analyses ") {
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
		"database exempts all": {map[string]string{"__default__/fields/*": none}, 4},
		"group exempts all":    {map[string]string{"__default__/fields/*": some, "analyses/fields/*": none}, 4},
		"but what is queried":  {with(queried(), "__default__/fields/*", none), 0},
		"one query fails":      {with(queried(), "__default__/fields/*", none, "analyses/fields/lockExpiresAt", none), 1},
		"another group does":   {map[string]string{"__default__/fields/*": some, "others/fields/*": none}, 4},
		"group indexes all":    {map[string]string{"__default__/fields/*": none, "analyses/fields/*": some}, 4},
		"one field is indexed": {with(queried(), "__default__/fields/*", none, "analyses/fields/input", some), 1},
		"no setting":           {nil, 4},
	} {
		c := newCloud(t)
		c.answers[groups+"-/fields"] = fieldsJSON(tc.settings)
		if found := doctor.Check(c.ask(t, t.Context())); len(found) != tc.found {
			t.Errorf("%s: want %d findings, got %+v", name, tc.found, found)
		}
	}
}

func TestARefusalOfGoogleIsReportedWithItsReason(t *testing.T) {
	for code, want := range map[int]string{403: "Google answers 403: Permission denied. See https://x", 404: "does not exist"} {
		c := newCloud(t)
		c.refused = code
		f := c.ask(t, t.Context())
		read, unread := f.Readings()
		if found := doctor.Check(f); len(found)+len(read) > 0 || len(unread) < 4 {
			t.Errorf("%d: %+v, %+v, %+v", code, found, read, unread)
		}
		for _, u := range unread {
			if u.Failed && !strings.Contains(u.Why, want) || strings.Contains(u.Why, "\n") {
				t.Errorf("%d: %+v", code, u)
			}
		}
	}
}

func TestARefusalOrAWrongAnswerLeavesTheOtherPartsChecked(t *testing.T) {
	for name := range newCloud(t).answers {
		unneeded := name == "/v1/projects/my-project:getIamPolicy" || // beside the resources'
			name == location+"/services/taskguard-recovery" // without a job that calls it
		if !unneeded {
			testWithAnswer(t, name, "") // refused
		}
	}
	testWithAnswer(t, location+"/services/taskguard-worker", `{"kind":"Job"}`)
	testWithAnswer(t, "/v2/"+queueName, `{"retryConfig":{"maxRetryDuration":"soon"}}`)
	testWithAnswer(t, "/v2/"+queueName+"/tasks", `{"tasks":[{"dispatchDeadline":"soon"}]}`)
}

func testWithAnswer(t *testing.T, name, answer string) {
	t.Helper()
	c := newCloud(t)
	c.answers[name] = answer
	f := c.ask(t, t.Context())
	if _, unread := f.Readings(); len(doctor.Check(f)) > 0 || len(unread) == 0 || unread[0].Why == "" {
		t.Errorf("%s: %+v", name, f.Status)
	}
}

func TestWithoutAClientNothingIsFound(t *testing.T) {
	f, err := doctor.Read(t.Context(), doctor.Options{
		Service: "taskguard-worker", Doclock: "taskguard-doclock",
		Lookup: lookup(map[string]string{"GOOGLE_CLOUD_PROJECT": "my-project", "TASK_QUEUE": queueName}),
		Google: []option.ClientOption{option.WithoutAuthentication(), option.WithAPIKey("k")}, // which exclude each other
	})
	if read, unread := f.Readings(); err != nil || len(doctor.Check(f))+len(read) > 0 || slices.ContainsFunc(unread, func(u doctor.Reading) bool { return u.Why == "" }) {
		t.Errorf("%+v, %v", f.Status, err)
	}
}

// A call gets 15 s, and the parts one after the other.
func TestCallsWithoutAnAnswerEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		silent := &http.Client{Transport: transport(func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		})}
		begun := time.Now()
		f, err := doctor.Read(t.Context(), doctor.Options{
			Lookup: lookup(map[string]string{"TASK_QUEUE": queueName}), Google: []option.ClientOption{option.WithHTTPClient(silent)},
		})
		if s := f.Status[doctor.QueueSettings]; err != nil || !strings.HasPrefix(s.Why, queueName+": ") || !s.Failed || time.Since(begun) != 45*time.Second {
			t.Errorf("%+v, %v, after %v", s, err, time.Since(begun))
		}
	})
}

type transport func(*http.Request) (*http.Response, error)

func (f transport) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestWrongUsageIsAnError(t *testing.T) {
	for want, o := range map[string]doctor.Options{
		"nothing is named":            {},
		`--service: "A/b" is neither`: {Service: "A/b"},
		"the short name needs":        {Service: "w", Lookup: lookup(map[string]string{"GOOGLE_CLOUD_PROJECT": "p"})},
		`--doclock: "d" is neither`:   {Doclock: "d", Lookup: lookup(map[string]string{"CLOUDSDK_RUN_REGION": "r"})},
	} {
		if o.Lookup == nil {
			o.Lookup = lookup(nil)
		}
		if f, err := doctor.Read(t.Context(), o); err == nil || !strings.Contains(err.Error(), want) || f.Status != nil {
			t.Errorf("%v, want %q", err, want)
		}
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
	if read, _ := f.Readings(); len(doctor.Check(f)) > 0 || len(read) != 3 || read[0].From != queueName {
		t.Errorf("%+v, want the queue, the indexes and the jobs", read)
	}
}

// A document lock in the worker's place has no variables to export, and its queue is not asked for.
func TestAnotherServiceThanTheNamedOneIsNotRead(t *testing.T) {
	c := newCloud(t)
	const worker, lock = location + "/services/taskguard-worker", location + "/services/taskguard-doclock"
	c.answers[worker], c.answers[lock] = c.answers[lock], c.answers[worker]
	f := c.ask(t, t.Context())
	w, d := f.Status[doctor.WorkerSettings], f.Status[doctor.DoclockSettings]
	if !w.Failed || !d.Failed || f.Exports()["FIRESTORE_DATABASE"] != "" || len(doctor.Check(f)) > 0 {
		t.Errorf("%+v, %+v, %v", w, d, f.Exports())
	}
}

// For the variables nothing else is asked. The project is that of the service's name if it sets none.
func TestTheExportsAreOfTheDeployedService(t *testing.T) {
	c := newCloud(t)
	const service, variable = location + "/services/taskguard-worker", `{"name":"GOOGLE_CLOUD_PROJECT","value":"my-project"},`
	if !strings.Contains(c.answers[service], variable) {
		t.Fatal(c.answers[service])
	}
	c.answers = map[string]string{service: strings.Replace(c.answers[service], variable, "", 1)}
	f, err := doctor.Read(t.Context(), doctor.Options{
		Service: service[len("/v1/"):], Alone: true, Lookup: lookup(nil),
		Google: []option.ClientOption{option.WithEndpoint(c.URL), option.WithoutAuthentication()},
	})
	got := f.Exports()
	for name, want := range map[string]string{
		"GOOGLE_CLOUD_PROJECT": "my-project", "CLOUDSDK_CORE_PROJECT": "my-project", "CLOUDSDK_RUN_REGION": "europe-west1", "TASK_QUEUE": queueName,
		"TASK_TARGET_URL": workerURL, "TASK_CALLER": caller, "TASK_AUDIENCE": "", "FIRESTORE_EMULATOR_HOST": "",
	} {
		if value, set := got[name]; value != want || !set || err != nil {
			t.Errorf("%s is %q, want %q: %v, %+v", name, value, want, err, f.Status)
		}
	}
	if _, set := got["DOCLOCK_DATABASE"]; set || f.Status[doctor.QueueSettings].Failed {
		t.Errorf("%v, %+v", got, f.Status)
	}
}

func TestFilesAreReadStrictly(t *testing.T) {
	const service = "apiVersion: serving.knative.dev/v1\nkind: Service\nmetadata: {name: w}\n"
	const container = service + "spec: {template: {spec: {containers: "
	for name, tc := range map[string]struct{ flag, text, wrong string }{
		"container without a port":  {"--service", container + "[{image: a, env: [null]}]}}}", ""},
		"second container has port": {"--service", container + "[{image: a}, {image: b, ports: [{containerPort: 8080}]}]}}}", ""},
		"no container has a port":   {"--service", container + "[{image: a}, {image: b}]}}}", "none of 2 containers"},
		"no container":              {"--service", container + "[null]}}}", "none of 1 containers"},
		"no template":               {"--service", service, "no template"},
		"another kind":              {"--service", "kind: Job\n", `a "Job" is not a Service`},
		"unknown field":             {"--service", container + "[{imagee: a}]}}}", `unknown field "imagee"`},
		"numeric namespace":         {"--service", strings.Replace(container, "name: w", "name: w, namespace: 123", 1) + "[{image: a}]}}}", ""},
		"queue without limits":      {"--queue", "--location: l\n", ""},
		"malformed time of retries": {"--queue", "--max-retry-duration: 30x\n", `in duration "30x"`},
		"instances as text":         {"--service", strings.Replace(container, "name: w", "name: w, annotations: {run.googleapis.com/maxScale: many}", 1) + "[{image: a}]}}}", "invalid syntax"},
		"description of a queue":    {"--queue", "name: projects/p/locations/l/queues/q\nrateLimits: {maxBurstSize: 10, maxDispatchesPerSecond: 5.5}\nstate: RUNNING\n", ""},
		"another description":       {"--queue", "nam: projects/p/locations/l/queues/q\n", "is not a flags file of a queue"},
		"description without name":  {"--queue", "rateLimits: {maxDispatchesPerSecond: 5.5}\nstate: RUNNING\n", "neither gcloud's flags nor the name"},
		"no flags":                  {"--queue", "{}\n", "neither gcloud's flags nor the name"},
		"one flag":                  {"--queue", "---\n--min-backoff: 30s\n", ""},
		"two services":              {"--service", container + "[{image: a}]}}}\n---\n" + container + "[{image: a}]}}}\n", "2 YAML documents"},
		"two queues":                {"--queue", "--location: l\n--- # staging\n--location: m\n", "2 YAML documents"},
		"marks around a service":    {"--service", "# a\n---\n" + container + "[{image: a}]}}}\n---\n# b\n", ""},
		"document lock as worker":   {"--service", container + "[{image: a, env: [{name: SESSION_AUTH, value: cookie}]}]}}}", "is the document lock, not the worker"},
		"worker as document lock":   {"--doclock", container + "[{image: a, env: [{name: TASK_QUEUE, value: q}]}]}}}", "is the worker, not the document lock"},
		"application with sessions": {"--service", container + "[{image: a, env: [{name: SESSION_AUTH, value: a}, {name: TASK_QUEUE, value: q}]}]}}}", ""},
		"App Engine's queue.yaml":   {"--queue", "queue:\n- name: analyses\n  rate: 10/s\n  retry_parameters: {task_retry_limit: 7}\n", " is App Engine's queue.yaml"},
		"unlimited attempts":        {"--queue", "--max-attempts: unlimited\n", ""},
		"numbers in quotes":         {"--queue", "--max-attempts: '-1'\n--max-concurrent-dispatches: \"95\"\n", ""},
		"flag set twice":            {"--queue", "--max-attempts: 1\n--max-attempts: 2\n", "already set"},
		"unknown flag":              {"--queue", "--max-attempt: 3\n", `unknown field "--max-attempt"`},
		"indexes": {"--indexes", `{"fieldOverrides": [{"collectionGroup": "a", "fieldPath": "expireAt", "ttl": true}, {"collectionGroup": "a", "fieldPath": "b", "indexes": [{}]},
			{"collectionGroup": "a", "fieldPath": "c", "indexes": []}], "indexes": [{"collectionGroup": "a", "queryScope": "COLLECTION", "fields": []}]}`, ""},
		"not indexes":      {"--indexes", "--location: l\n", "is not a firestore.indexes.json"},
		"indexes of text":  {"--indexes", "module m\n", "json: cannot unmarshal string"},
		"limit of text":    {"--queue", "--max-attempts: many\n", "invalid number literal"},
		"no text of index": {"--indexes", "", " is empty"},
		"no text of queue": {"--queue", "\n", " is empty"},
	} {
		file := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(file, []byte(tc.text), 0o600); err != nil {
			t.Fatal(err)
		}
		o := doctor.Options{Lookup: lookup(nil)}
		*map[string]*string{"--service": &o.Service, "--doclock": &o.Doclock, "--queue": &o.Queue, "--indexes": &o.Indexes}[tc.flag] = file
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
		indexed := func(field string) bool { value, set := f.Indexes.Fields[field]; return value || !set }
		if name == "indexes" && (!f.Indexes.TTL["a/expireAt"] || !indexed("a/expireAt") || !indexed("a/b") || indexed("a/c")) {
			t.Errorf("the TTL policy is of expireAt and the exemption of c: %+v", f.Indexes)
		}
		if name == "unlimited attempts" && f.Queue.MaxAttempts != -1 {
			t.Errorf("%d attempts, want -1", f.Queue.MaxAttempts)
		}
		if (tc.wrong == "") != (why == "") || !strings.Contains(why, tc.wrong) || tc.wrong != "" && !strings.HasPrefix(why, file) || strings.Contains(why, " of type ") {
			t.Errorf("%s: got %q, want %q", name, why, tc.wrong)
		}
		if found := doctor.Check(f); tc.wrong != "" && len(found) > 0 {
			t.Errorf("%s: what is not read is judged: %+v", name, found)
		}
	}
}

// Recovery in a service of its own books the tasks of the worker's documents.
func TestARecoveryServiceHasTheSettingsOfTheWorker(t *testing.T) {
	const service = location + "/services/taskguard-recovery"
	for old, tc := range map[string]struct{ replacement, rule string }{
		"":                                {"", ""},
		`"300s"`:                          {`"5m"`, ""},
		`"name":"LOCK_TTL","value":"300s`: {`"name":"LOCK_TTL","value":"600s`, "recovery-settings"},
		`"value":"analyses"`:              {`"value":"orders"`, "recovery-settings"},
		"queues/analyses":                 {"queues/orders", "recovery-settings"},
		`"value":"(default)"`:             {`"value":"staging"`, "recovery-settings"},
		`"name":"FIRESTORE_DATABASE"`:     {`"name":"MY_DATABASE"`, ""},
	} {
		c := newCloud(t)
		c.answers[location+"/jobs"] = strings.ReplaceAll(c.answers[location+"/jobs"], "taskguard-worker-", "taskguard-recovery-")
		if !strings.Contains(c.answers[service], old) {
			t.Fatalf("no %q: %s", old, c.answers[service])
		}
		c.answers[service] = strings.Replace(c.answers[service], old, tc.replacement, 1)
		if found := doctor.Check(c.ask(t, t.Context())); rulesOf(found) != tc.rule {
			t.Errorf("%s: got %+v, want %q", old, found, tc.rule)
		}
	}

	c := newCloud(t)
	c.answers[location+"/jobs"] = strings.ReplaceAll(c.answers[location+"/jobs"], "taskguard-worker-", "taskguard-recovery-")
	c.answers[service] = ""
	if _, unread := c.ask(t, t.Context()).Readings(); len(unread) != 1 || !unread[0].Failed {
		t.Errorf("refused: %+v", unread)
	}
}

// The module's alert_overrides may disable an alert.
func TestADisabledAlertIsAFact(t *testing.T) {
	c := newCloud(t)
	const alerts = "/v3/projects/my-project/alertPolicies"
	c.answers[alerts] = strings.Replace(c.answers[alerts], `another's","enabled":true`, `taskguard: disabled","enabled":false`, 1)
	f := c.ask(t, t.Context())
	read, _ := f.Readings()
	if last := read[len(read)-1]; len(doctor.Check(f)) > 0 || !strings.Contains(last.From, "1 of 2") {
		t.Errorf("%+v, %+v", last, doctor.Check(f))
	}
}

// Without credentials no call is made: all parts have one reason, and none says that no service was named.
func TestWithoutCredentialsThereIsOneReason(t *testing.T) {
	f, err := doctor.Read(t.Context(), doctor.Options{
		Service: "taskguard-worker", Lookup: lookup(map[string]string{"GOOGLE_CLOUD_PROJECT": "p", "TASK_QUEUE": queueName}),
		Google: []option.ClientOption{option.WithAuthCredentialsFile(option.ServiceAccount, filepath.Join(t.TempDir(), "missing.json"))},
	})
	if err != nil {
		t.Fatal(err)
	}
	reasons := map[string]bool{}
	_, unread := f.Readings()
	for _, u := range unread {
		reasons[u.Why] = u.Failed
	}
	if len(unread) != 3 || len(reasons) != 3 || reasons["the worker's service could not be read"] {
		t.Errorf("%+v; want one that failed, the parts that depend on it, and doclock", unread)
	}
}
