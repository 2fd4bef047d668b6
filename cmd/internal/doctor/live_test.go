package doctor_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"taskguard/cmd/internal/doctor"
)

// liveFacts returns those of a project with the shipped files.
func liveFacts() doctor.Live {
	grant := func(resource string) []doctor.Grant {
		return []doctor.Grant{{Account: workerAccount, Resource: resource, Given: true}}
	}
	return doctor.Live{
		Tasks: []doctor.Task{
			{Name: "a", URL: workerURL + "/internal/tasks/analysis", Audience: workerURL, Deadline: 26 * time.Minute},
			{Name: "b", URL: workerURL + "/internal/tasks/analysis", Audience: workerURL, Deadline: 26 * time.Minute, Last: codes.Aborted},
		},
		Databases: []doctor.Database{{Name: "projects/my-project/databases/(default)", Mode: "FIRESTORE_NATIVE", Edition: "STANDARD"}}, QuotaProject: "my-project", Alerts: 2,
		Grants: map[doctor.Part][]doctor.Grant{
			doctor.CreateTasks: grant(queueName), doctor.FindTasks: grant(queueName), doctor.ActAsCaller: grant(caller), doctor.UseDatabase: grant("projects/my-project/databases/(default)"), doctor.ReadSecrets: grant("projects/my-project/secrets/s"),
		},
	}
}

func seededLive() []misconfiguration {
	const problem, advice = doctor.Problem, doctor.Advice
	task := func(change func(*doctor.Task)) func(*doctor.Facts) {
		return func(f *doctor.Facts) { change(&f.Tasks[1]) }
	}
	lost := func(p doctor.Part) func(*doctor.Facts) {
		return func(f *doctor.Facts) { f.Grants[p][0].Given = false }
	}
	return []misconfiguration{
		{"task to another service", "task-url", problem, task(func(t *doctor.Task) { t.URL = strings.Replace(workerURL, "worker", "worker2", 1) })},
		{"task to a malformed URL", "task-url", problem, task(func(t *doctor.Task) { t.URL = "https://%" })},
		{"task without a token", "task-audience", problem, task(func(t *doctor.Task) { t.Audience = "" })},
		{"task with another's token", "task-audience", problem, task(func(t *doctor.Task) { t.Audience = "https://other-1.run.app" })},
		{"task with a token for the address and a slash", "task-audience", problem, task(func(t *doctor.Task) { t.Audience = workerURL + "/" })},
		{"dispatch as long as the run", "task-deadline", problem, task(func(t *doctor.Task) { t.Deadline = 25 * time.Minute })},
		{"task answered 401", "task-refused", problem, task(func(t *doctor.Task) { t.Last = codes.Unauthenticated })},
		{"database of Datastore", "database-mode", problem, func(f *doctor.Facts) { f.Databases[0].Mode = "DATASTORE_MODE" }},
		{"Enterprise edition", "database-edition", advice, func(f *doctor.Facts) { f.Databases[0].Edition = "ENTERPRISE" }},
		{"worker that cannot book", "account-cannot-book", problem, lost(doctor.CreateTasks)},
		{"worker that cannot find its tasks", "account-cannot-find-tasks", advice, lost(doctor.FindTasks)},
		{"worker that cannot sign", "account-cannot-sign", problem, lost(doctor.ActAsCaller)},
		{"worker without the database", "account-cannot-use-database", problem, lost(doctor.UseDatabase)},
		{"worker without its secret", "account-cannot-read-secret", problem, lost(doctor.ReadSecrets)},
		{"operator who cannot book", "you-cannot-book", advice, func(f *doctor.Facts) { f.Lacking = []string{"cloudtasks.tasks.create"} }},
		{"user without a quota project", "quota-project", advice, func(f *doctor.Facts) { f.QuotaProject = "" }},
		{"alert without a channel", "alerts", advice, func(f *doctor.Facts) { f.Unsent = 1 }},
		{"no alert", "alerts", advice, func(f *doctor.Facts) { f.Alerts = 0 }},
	}
}

// With TASK_AUTH=oidc the worker compares the audience as a whole.
func TestTheAudienceOfATaskIsThatOfTheWorker(t *testing.T) {
	for audience, want := range map[string]int{workerURL: 0, workerURL + "/": 1, "": 1} {
		f := shipped(t)
		set("TASK_AUTH", "oidc", "TASK_AUDIENCE", workerURL, "TASK_SERVICE_ACCOUNTS", caller)(&f)
		f.Worker.InvokerCheck = false
		f.Tasks[1].Audience = audience
		if found, _ := doctor.Check(f); len(found) != want {
			t.Errorf("%q: %+v", audience, found)
		}
	}
}

// Each row changes who has a role. A right that depends on what doctor does not know is
// neither granted nor missing.
func TestARightThatCannotBeEvaluatedIsNotChecked(t *testing.T) {
	const queue, ofProject, member = "/v2/" + queueName + ":getIamPolicy", "/v1/projects/my-project:getIamPolicy", "serviceAccount:" + workerAccount
	for _, tc := range []struct {
		name, path, old, replacement, why string
		parts                             int
	}{
		{"custom role that is not read", queue, "roles/cloudtasks.enqueuer", "projects/my-project/roles/booker", "projects/my-project/roles/booker of " + member, 1},
		{"group", queue, member, "group:workers@example.com", "roles/cloudtasks.enqueuer of group:workers@example.com", 2},
		{"condition", ofProject, "resource.name == ", "resource.name != ", "roles/datastore.user of " + member, 1},
	} {
		c := newCloud(t)
		answer := strings.ReplaceAll(c.answers[tc.path], tc.old, tc.replacement)
		if answer == c.answers[tc.path] {
			t.Fatalf("%s: %s", tc.name, answer)
		}
		c.answers[tc.path] = answer
		found, unchecked := doctor.Check(c.ask(t, t.Context()))
		if len(found) != 0 || len(unchecked) != tc.parts || unchecked[0].Failed || !strings.Contains(unchecked[0].Why, tc.why) || len(unchecked[0].Rules) != 1 {
			t.Errorf("%s: %+v, %+v", tc.name, found, unchecked)
		}
	}
}

func TestAnAccountHasThePermissionsOfItsCustomRoles(t *testing.T) {
	const role = "/v1/projects/my-project/roles/taskguardTaskFinder"
	for answer, want := range map[string]string{
		`{"includedPermissions":["cloudtasks.tasks.create","cloudtasks.tasks.get"]}`:                    "",
		`{"includedPermissions":["cloudtasks.tasks.create"]}`:                                           "account-cannot-find-tasks",
		`{"includedPermissions":["cloudtasks.tasks.get"]}`:                                              "account-cannot-book",
		`{"includedPermissions":["cloudtasks.tasks.get","cloudtasks.tasks.create"],"deleted":true}`:     "account-cannot-book account-cannot-find-tasks",
		`{"includedPermissions":["cloudtasks.tasks.get","cloudtasks.tasks.create"],"stage":"DISABLED"}`: "account-cannot-book account-cannot-find-tasks",
	} {
		c := newCloud(t)
		c.answers["/v2/"+queueName+":getIamPolicy"] = strings.ReplaceAll(c.answers["/v2/"+queueName+":getIamPolicy"], "cloudtasks.enqueuer", "cloudtasks.taskDeleter")
		c.answers[role] = answer
		var rules []string
		found, unchecked := doctor.Check(c.ask(t, t.Context()))
		for _, one := range found {
			rules = append(rules, one.Rule)
		}
		if got := strings.Join(rules, " "); got != want || len(unchecked) > 0 {
			t.Errorf("%s: %q, want %q; %+v", answer, got, want, unchecked)
		}
	}
}

// The policies of deploy, and the same of a deployment whose name begins with this one's.
func TestOnlyTheAlertsOfThisDeploymentAreCounted(t *testing.T) {
	files, err := filepath.Glob(deploy + "monitoring/policies/*.json")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	var all []string
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, string(text))
	}
	ours := strings.Join(all, ",")
	theirs := strings.NewReplacer("taskguard_", "taskguard_staging_", "taskguard-", "taskguard-staging-", `\"analyses\"`, `\"taskguard-staging-analyses\"`).Replace(ours)
	for answer, want := range map[string]int{ours: len(all) - 1, theirs: 0} { // one is about the document lock
		c := newCloud(t)
		c.answers["/v3/projects/my-project/alertPolicies"] = `{"alertPolicies":[` + answer + `]}`
		if f := c.ask(t, t.Context()); f.Alerts != want {
			t.Errorf("%d alerts, want %d", f.Alerts, want)
		}
	}
}

// Each command can be run as it is printed.
func TestTheFixNamesItsResource(t *testing.T) {
	lost := func(p doctor.Part) func(*doctor.Facts) {
		return func(f *doctor.Facts) { f.Grants[p][0].Given = false }
	}
	for want, change := range map[string]func(*doctor.Facts){
		"gcloud tasks queues add-iam-policy-binding analyses --location=europe-west1 --member=":                                                                           lost(doctor.CreateTasks),
		"--member=serviceAccount:" + workerAccount + " --role=roles/cloudtasks.viewer)":                                                                                   lost(doctor.FindTasks),
		"gcloud iam service-accounts add-iam-policy-binding " + caller + " --member=":                                                                                     lost(doctor.ActAsCaller),
		"gcloud secrets add-iam-policy-binding s --member=":                                                                                                               lost(doctor.ReadSecrets),
		"Set --max-concurrent-dispatches=99 ":                                                                                                                             func(f *doctor.Facts) { f.Queue.Concurrent = 1 },
		"Set MAX_ATTEMPTS=VALUE (--update-env-vars=MAX_ATTEMPTS=VALUE)":                                                                                                   set("MAX_ATTEMPTS", "ten"),
		"Set LOCK_TTL=VALUE,LOCK_HEARTBEAT=VALUE (":                                                                                                                       set("LOCK_TTL", "1s"),
		"--uri=" + workerURL + "/internal/tasks/recover --oidc-service-account-email=" + caller + " --oidc-token-audience=" + workerURL + ")":                             func(f *doctor.Facts) { set("TASK_TARGET_URL", workerURL+"/")(f); f.Jobs = nil },
		`gcloud projects add-iam-policy-binding my-project --condition="title=(default),expression=resource.name == 'projects/my-project/databases/(default)'" --member=`: lost(doctor.UseDatabase),
		"composite create --database='(default)' --collection-group=analyses --field-config=field-path=error.code,order=ascending --field-config=field-path=updatedAt,order=descending)": func(f *doctor.Facts) {
			delete(f.Indexes.Composite, doctor.NeededIndexes(f.Kinds[0])[2])
		},
	} {
		f := shipped(t)
		change(&f)
		if found, _ := doctor.Check(f); len(found) != 1 || !strings.Contains(found[0].Fix, want) {
			t.Errorf("%+v, want %q", found, want)
		}
	}
}

func TestARoleOnTheProjectIsOneOnItsResources(t *testing.T) {
	c := newCloud(t)
	c.answers["/v1/projects/my-project:getIamPolicy"] = policy("editor", workerAccount+`","serviceAccount:`+doclockAccount, "")
	c.answers["/v2/"+queueName+":getIamPolicy"] = "" // refused
	c.answers["/v1/projects/-/serviceAccounts/"+caller+":getIamPolicy"] = `{}`
	if found, unchecked := doctor.Check(c.ask(t, t.Context())); len(found)+len(unchecked) > 0 {
		t.Errorf("%+v, %+v", found, unchecked)
	}
}

func TestAUsersCredentialsNeedAQuotaProject(t *testing.T) {
	c := newCloud(t)
	c.quota = ""
	if found, _ := doctor.Check(c.ask(t, t.Context())); len(found) != 1 || found[0].Rule != "quota-project" {
		t.Errorf("%+v", found)
	}
}

func TestSecretsOfAllContainersAndVolumesAreChecked(t *testing.T) {
	c := newCloud(t)
	const name = location + "/services/taskguard-worker"
	c.answers[name] = strings.Replace(c.answers[name], `"containers":[`, `"volumes":[{"name":"e","emptyDir":{}},{"name":"v","secret":{"secretName":"mounted"}},{"name":"w","secret":{"secretName":"app-key"}}],"containers":[
		{"image":"app","env":[{"name":"KEY","valueFrom":{"secretKeyRef":{"key":"latest","name":"app-key"}}}]},`, 1)
	for _, secret := range []string{"mounted", "app-key"} {
		c.answers["/v1/projects/my-project/secrets/"+secret+":getIamPolicy"] = policy("secretmanager.viewer", workerAccount, "")
	}
	found, unchecked := doctor.Check(c.ask(t, t.Context()))
	if len(found) != 2 || len(unchecked) > 0 || found[0].Rule != "account-cannot-read-secret" || !strings.Contains(found[0].Problem+found[1].Problem, "/secrets/mounted") {
		t.Errorf("%+v, %+v", found, unchecked)
	}
}
