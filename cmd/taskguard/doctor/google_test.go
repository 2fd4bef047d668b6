package doctor_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/api/option"
	run "google.golang.org/api/run/v1"
	"sigs.k8s.io/yaml"

	"taskguard/cmd/taskguard/doctor"
)

// cloud answers GET requests as Google's APIs do, by path.
type cloud struct {
	*httptest.Server
	answers map[string]string
	refused int // the code of every answer, unless 0
}

func newCloud(t *testing.T) *cloud {
	t.Helper()
	c := &cloud{answers: map[string]string{
		"/v1/projects/my-project/locations/europe-west1/services/taskguard-worker":               serviceJSON(t, "service.yaml"),
		"/v1/projects/my-project/locations/europe-west1/services/taskguard-worker:getIamPolicy":  `{"version":1,"etag":"BwY=","bindings":[{"role":"roles/run.invoker","members":["serviceAccount:` + caller + `"]},{"role":"roles/run.viewer","members":["allUsers"]}]}`,
		"/v1/projects/my-project/locations/europe-west1/services/taskguard-doclock":              serviceJSON(t, "doclock.yaml"),
		"/v1/projects/my-project/locations/europe-west1/services/taskguard-doclock:getIamPolicy": `{"etag":"ACAB"}`,
		"/v2/" + queueName: `{"name":"` + queueName + `","rateLimits":{"maxDispatchesPerSecond":10,"maxBurstSize":10,"maxConcurrentDispatches":100},
			"retryConfig":{"maxAttempts":-1,"minBackoff":"30s","maxBackoff":"600s","maxDoublings":5},"state":"RUNNING"}`,
		"/v1/projects/my-project/databases/(default)": `{"name":"projects/my-project/databases/(default)","uid":"1","type":"FIRESTORE_NATIVE","locationId":"eur3","concurrencyMode":"PESSIMISTIC"}`,
		"/v1/projects/my-project/databases/(default)/collectionGroups/analyses/indexes": `{"indexes":[{"name":"projects/my-project/databases/(default)/collectionGroups/analyses/indexes/CICA","queryScope":"COLLECTION",
			"fields":[{"fieldPath":"status","order":"ASCENDING"},{"fieldPath":"updatedAt","order":"ASCENDING"},{"fieldPath":"__name__","order":"ASCENDING"}],"state":"READY"}]}`,
		"/v1/projects/my-project/databases/(default)/collectionGroups/-/fields": `{"fields":[{"name":"projects/my-project/databases/(default)/collectionGroups/__default__/fields/*","indexConfig":{"indexes":[{"queryScope":"COLLECTION"}]}},
			{"name":"projects/my-project/databases/(default)/collectionGroups/analyses/fields/input","indexConfig":{}},
			{"name":"projects/my-project/databases/(default)/collectionGroups/analyses/fields/result","indexConfig":{}},
			{"name":"projects/my-project/databases/(default)/collectionGroups/analyses/fields/tag","indexConfig":{"indexes":[{"queryScope":"COLLECTION"}]}}]}`,
		"/v1/projects/my-project/locations/europe-west1/jobs": `{"jobs":[` + jobJSON("taskguard-recover", workerURL, "/internal/tasks/recover") + `,{"name":"x/y","pubsubTarget":{"topicName":"t"}}],"nextPageToken":"2"}`,
	}}
	c.Server = httptest.NewServer(c)
	t.Cleanup(c.Close)
	return c
}

func jobJSON(name, base, path string) string {
	return fmt.Sprintf(`{"name":"projects/my-project/locations/europe-west1/jobs/%s","schedule":"* * * * *","timeZone":"Etc/UTC","state":"ENABLED","status":{"code":-1},"attemptDeadline":"60s",
		"httpTarget":{"uri":"%s%s","httpMethod":"POST","oidcToken":{"serviceAccountEmail":"%s","audience":"%[2]s"}}}`, name, base, path, caller)
}

// serviceJSON is a shipped service as Cloud Run answers it.
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
	// As a release leaves it: the traffic pinned to the latest ready revision.
	revision := s.Metadata.Name + "-00007-abc"
	s.Spec.Traffic = []*run.TrafficTarget{{RevisionName: revision, Percent: 100}, {RevisionName: s.Metadata.Name + "-00005-abc", Tag: "candidate"}}
	s.Status = &run.ServiceStatus{
		Url: "https://" + s.Metadata.Name + "-abcdefghij-ew.a.run.app", Traffic: s.Spec.Traffic,
		LatestCreatedRevisionName: revision, LatestReadyRevisionName: revision,
		Conditions: []*run.GoogleCloudRunV1Condition{{Type: "RoutesReady", Status: "False"}, {Type: "Ready", Status: "True"}},
	}
	text, err := json.Marshal(&s)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func (c *cloud) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	answer, known := c.answers[r.URL.Path]
	switch {
	case c.refused != 0:
		w.WriteHeader(c.refused)
		_, _ = fmt.Fprintf(w, `{"error":{"code":%d,"message":"Permission denied on resource.\nSee https://x","status":"X"}}`, c.refused)
		return
	case r.Method != http.MethodGet || !known:
		w.WriteHeader(http.StatusNotFound)
		_, _ = fmt.Fprintf(w, `{"error":{"code":404,"message":"Requested entity was not found.","status":"NOT_FOUND"}}`)
		return
	case r.FormValue("pageToken") == "2":
		answer = `{"jobs":[` + jobJSON("taskguard-sweep", doclockURL, "/internal/sweep") + `]}`
	}
	_, _ = w.Write([]byte(answer))
}

// ask reads through c what the short names and the environment name.
func (c *cloud) ask(t *testing.T, ctx context.Context) doctor.Facts { //nolint:revive // t first, as everywhere here
	t.Helper()
	env := map[string]string{"GOOGLE_CLOUD_PROJECT": "my-project", "CLOUDSDK_RUN_REGION": "europe-west1"}
	f, err := doctor.Read(ctx, doctor.Options{
		Service: "taskguard-worker", Doclock: "projects/my-project/locations/europe-west1/services/taskguard-doclock",
		Lookup: func(name string) (string, bool) { v, ok := env[name]; return v, ok },
		Google: []option.ClientOption{option.WithEndpoint(c.URL), option.WithoutAuthentication()},
	})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestNothingIsWrongWithTheShippedDeploymentAsGoogleTellsIt(t *testing.T) {
	c := newCloud(t)
	found, unchecked := doctor.Check(c.ask(t, t.Context()))
	if len(found)+len(unchecked) > 0 {
		t.Errorf("%+v\n%+v", found, unchecked)
	}
}

// Each answer with one thing changed: what was read is what is judged.
func TestWhatGoogleTellsIsJudged(t *testing.T) {
	for _, tc := range []struct{ path, old, replacement, rule string }{
		{"/services/taskguard-worker", `"timeoutSeconds":1560`, `"timeoutSeconds":300`, "run-timeout"},
		{"/services/taskguard-worker", `"autoscaling.knative.dev/maxScale":"10"`, `"autoscaling.knative.dev/maxScale":"3"`, "dispatches"},
		{"/services/taskguard-worker", `"containerConcurrency":10,`, `"containerConcurrency":5,`, "dispatches"},
		{"/services/taskguard-worker", `"run.googleapis.com/ingress":"all"`, `"run.googleapis.com/maxScale":"9"`, "dispatches"},
		{"/services/taskguard-worker:getIamPolicy", caller, "x@example.com", "caller-not-invoker"},
		{"/services/taskguard-worker:getIamPolicy", "roles/run.viewer", "roles/run.invoker", "invoker-public"},
		{"/services/taskguard-doclock", `"run.googleapis.com/invoker-iam-disabled":"true"`, `"a":"b"`, "oidc-behind-iam"},
		{"/services/taskguard-worker", `{"status":"True","type":"Ready"}`, `{"status":"False","type":"Ready","message":"It\ndid not start."}`, "not-ready"},
		{"/services/taskguard-worker", `"latestCreatedRevisionName":"taskguard-worker-00007-abc"`, `"latestCreatedRevisionName":"taskguard-worker-00008-abc"`, "not-ready"},
		{"/services/taskguard-worker", `"latestReadyRevisionName":"taskguard-worker-00007-abc"`, `"latestReadyRevisionName":""`, "not-ready"},
		{"/services/taskguard-doclock", `"traffic":[{"percent":100,"revisionName":"taskguard-doclock-00007-abc"},{"revisionName":"taskguard-doclock-00005-abc","tag":"candidate"}],"url"`,
			`"traffic":[{"percent":100,"revisionName":"taskguard-doclock-00006-abc"},{"revisionName":"taskguard-doclock-00005-abc","tag":"candidate"}],"url"`, "traffic-elsewhere"},
		{"/services/taskguard-doclock", `"valueFrom":{"secretKeyRef":{"key":"latest","name":"taskguard-session"}}`, `"value":"0123456789012345678901234567890123456789"`, "plain-secret"},
		{"/services/taskguard-worker", `"name":"LOG_LEVEL","value":"info"`, `"name":"LOG_LEVEL","value":"warn"`, "log-lines"},
		{"/services/taskguard-worker", `"/health/live"`, `"/health/ready"`, "liveness"},
		{"/services/taskguard-worker", `"builtin:document"`, `"http://127.0.0.1:9000"`, "analyzer-nowhere"},
		{"/services/taskguard-worker", `"builtin:document"`, `"http://127.0.0.1:8080"`, "analyzer-nowhere"},
		{"/jobs", `"code":-1`, `"code":7`, "recovery-failed"},
		{queueName, `"RUNNING"`, `"PAUSED"`, "queue-stopped"},
		{queueName, `"maxAttempts":-1`, `"maxAttempts":100`, "queue-gives-up"},
		{queueName, `"maxAttempts":-1`, `"maxAttempts":-1,"maxRetryDuration":"3600s"`, "queue-gives-up"},
		{queueName, `"minBackoff":"30s"`, `"minBackoff":"0.100s"`, "queue-hot"},
		{"(default)", "FIRESTORE_NATIVE", "DATASTORE_MODE", "database-mode"},
		{"/indexes", "READY", "CREATING", "index-not-ready"},
		{"/indexes", "READY", "NEEDS_REPAIR", "index-not-ready"},
		{"/indexes", `"queryScope":"COLLECTION"`, `"queryScope":"COLLECTION_GROUP"`, "index-missing"},
		{"/fields", `fields/input`, `fields/other`, "field-indexed"},
		{"/fields", `fields/input","indexConfig":{`, `fields/input","indexConfig":{"usesAncestorConfig":true`, "field-indexed"},
		{"/jobs", workerURL + "/internal", "https://example.com/internal", "recovery-unscheduled"},
		{"/jobs", `"ENABLED"`, `"PAUSED"`, "recovery-paused"},
		{"/jobs", "/tasks/recover", "/recover", "recovery-call"},
		{"/jobs", `"serviceAccountEmail"`, `"x"`, "recovery-token"},
	} {
		t.Run(tc.rule, func(t *testing.T) {
			c := newCloud(t)
			for path, answer := range c.answers {
				if strings.HasSuffix(path, tc.path) {
					if c.answers[path] = strings.Replace(answer, tc.old, tc.replacement, 1); c.answers[path] == answer {
						t.Fatalf("%s lacks %q: %s", path, tc.old, answer)
					}
				}
			}
			found, unchecked := doctor.Check(c.ask(t, t.Context()))
			if len(found) == 1 && strings.Contains(found[0].Fix, "run services update ") && !strings.Contains(found[0].Fix, "; then, as releases pin the traffic to a revision: gcloud run services update-traffic ") {
				t.Errorf("the traffic is pinned, and nobody says so: %s", found[0].Fix)
			}
			for _, one := range found {
				if strings.Count(one.Fix, "gcloud ") != strings.Count(one.Fix, " --project=my-project") {
					t.Errorf("the command may go to another project: %s", one.Fix)
				}
			}
			if len(found) != 1 || found[0].Rule != tc.rule || len(unchecked) > 0 {
				t.Errorf("want one finding of %s, got %+v, unchecked %+v", tc.rule, found, unchecked)
			}
		})
	}
}

// Between two commands the service would start without its secret, and --set-secrets
// removes the others.
func TestASecretIsMovedInOneUpdateThatKeepsTheOthers(t *testing.T) {
	c := newCloud(t)
	const doclock = "/v1/projects/my-project/locations/europe-west1/services/taskguard-doclock"
	c.answers[doclock] = strings.Replace(c.answers[doclock], `"valueFrom":{"secretKeyRef":{"key":"latest","name":"taskguard-session"}}`, `"value":"0123456789012345678901234567890123456789"`, 1)
	const want = "gcloud run services update taskguard-doclock --region=europe-west1 --project=my-project --remove-env-vars=SESSION_SECRET --update-secrets=SESSION_SECRET=taskguard-session:latest"
	if got := fix(t, c.ask(t, t.Context())); !strings.Contains(got, want) || strings.Count(got, "services update ") != 1 {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestAFieldIsIndexedByTheNearestSetting(t *testing.T) {
	const fields, none, some = "/v1/projects/my-project/databases/(default)/collectionGroups/-/fields", `{}`, `{"indexes":[{"queryScope":"COLLECTION"}]}`
	for name, tc := range map[string]struct {
		settings map[string]string
		found    int
	}{
		"the database exempts all":          {map[string]string{"__default__/fields/*": none}, 0},
		"the group exempts all":             {map[string]string{"__default__/fields/*": some, "analyses/fields/*": none}, 0},
		"another group does":                {map[string]string{"__default__/fields/*": some, "others/fields/*": none}, 2},
		"the group indexes all":             {map[string]string{"__default__/fields/*": none, "analyses/fields/*": some}, 2},
		"one field is indexed":              {map[string]string{"__default__/fields/*": none, "analyses/fields/input": some}, 1},
		"one field inherits, with a TTL":    {map[string]string{"__default__/fields/*": none, "analyses/fields/input": `{"usesAncestorConfig":true,"indexes":[{"queryScope":"COLLECTION"}]}`}, 0},
		"nothing is said, so all are":       {nil, 2},
		"another field of the group is not": {map[string]string{"analyses/fields/other": none}, 2},
	} {
		c := newCloud(t)
		var all []string
		for field, config := range tc.settings {
			all = append(all, `{"name":"projects/my-project/databases/(default)/collectionGroups/`+field+`","indexConfig":`+config+`}`)
		}
		c.answers[fields] = `{"fields":[` + strings.Join(all, ",") + `]}`
		found, _ := doctor.Check(c.ask(t, t.Context()))
		if len(found) != tc.found || slices.ContainsFunc(found, func(o doctor.Finding) bool { return o.Rule != "field-indexed" }) {
			t.Errorf("%s: want %d findings, got %+v", name, tc.found, found)
		}
	}
}

func TestWhatGoogleRefusesIsFailedWithItsReason(t *testing.T) {
	for code, want := range map[int]string{403: "Google answers 403: Permission denied on resource. See https://x", 404: "does not exist", 400: "400"} {
		c := newCloud(t)
		c.refused = code
		f := c.ask(t, t.Context())
		found, unchecked := doctor.Check(f)
		if len(found) > 0 || f.Worker.Environment.Known() {
			t.Errorf("%d: %+v", code, found)
		}
		for _, u := range unchecked {
			if (u.Failed && !strings.Contains(u.Why, want)) || strings.Contains(u.Why, "\n") {
				t.Errorf("%d: %+v", code, u)
			}
		}
	}
}

// A part that is refused alone leaves the others judged.
func TestOneRefusalLeavesTheOthersJudged(t *testing.T) {
	c := newCloud(t)
	delete(c.answers, "/v2/"+queueName)
	found, unchecked := doctor.Check(c.ask(t, t.Context()))
	if len(found) > 0 || len(unchecked) != 1 || !unchecked[0].Failed || !slices.Equal(unchecked[0].Parts, []string{"the queue"}) ||
		!slices.Contains(unchecked[0].Rules, "dispatches") || !strings.Contains(unchecked[0].Why, queueName+" does not exist") {
		t.Errorf("%+v %+v", found, unchecked)
	}
}

func TestACallThatIsNotAnsweredEndsWithItsContext(t *testing.T) {
	held := make(chan struct{})
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-held:
		case <-r.Context().Done():
		}
	}))
	defer silent.Close()
	defer close(held)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, unchecked := doctor.Check((&cloud{Server: silent}).ask(t, ctx))
	if len(unchecked) == 0 || !unchecked[0].Failed {
		t.Errorf("%+v", unchecked)
	}
}

func TestAShortNameOfAQueueIsCompletedFromTheEnvironment(t *testing.T) {
	c := newCloud(t)
	for _, env := range []map[string]string{
		{"GOOGLE_CLOUD_PROJECT": "my-project", "CLOUDSDK_RUN_REGION": "europe-west1"},
		{"TASK_QUEUE": "projects/my-project/locations/europe-west1/queues/others"},
	} {
		f, err := doctor.Read(t.Context(), doctor.Options{
			Queue: "analyses", Lookup: func(name string) (string, bool) { v, ok := env[name]; return v, ok },
			Google: []option.ClientOption{option.WithEndpoint(c.URL), option.WithoutAuthentication()},
		})
		if err != nil || f.Queue.Value.Name != queueName {
			t.Errorf("%v: read %+v, %v, want %s", env, f.Queue, err, queueName)
		}
	}
}
