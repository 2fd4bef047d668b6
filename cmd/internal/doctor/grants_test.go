package doctor_test

import (
	"slices"
	"strings"
	"testing"

	"taskguard/cmd/internal/doctor"
)

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
		if got := rulesOf(doctor.Check(c.ask(t, t.Context()))); got != want {
			t.Errorf("%s: %q, want %q", answer, got, want)
		}
	}
}

// Each command can be run as it is printed.
func TestTheFixNamesItsResource(t *testing.T) {
	for want, change := range map[string]func(*doctor.Facts){
		"gcloud tasks queues add-iam-policy-binding analyses --location=europe-west1 --member=":                   lost("account-cannot-book"),
		"gcloud iam service-accounts add-iam-policy-binding " + caller + " --member=":                             lost("account-cannot-sign"),
		"--member=serviceAccount:" + workerAccount + " --role=roles/cloudtasks.viewer)":                           lost("account-cannot-find-tasks"),
		"my-project --condition=\"title=taskguard,expression=resource.name == '" + databaseName + "'\" --member=": lost("account-cannot-use-database"),
		"run jobs add-iam-policy-binding long --region=europe-west1 --member=":                                    lost("account-cannot-start"),
		" --oidc-service-account-email=" + caller + " --oidc-token-audience=" + workerURL + " (":                  func(f *doctor.Facts) { f.Jobs[0].HttpTarget.OidcToken = nil },
		"Set TASK_AUTH=oidc":                      setDoclock("TASK_AUTH", "iam", "TASK_AUDIENCE", "", "TASK_SERVICE_ACCOUNTS", ""),
		"Set LOCK_TTL to at least 15s":            set("LOCK_TTL", "12s", "LOCK_HEARTBEAT", ""),
		"--update-secrets=API_KEY=SECRET:NUMBER)": set("API_KEY", "0123456789"),
		"Correct LOCK_TTL, LOCK_HEARTBEAT (":      set("LOCK_TTL", "1s"),
		"--uri=" + workerURL + "/internal/tasks/recover --oidc-service-account-email=" + caller + " --oidc-token-audience=" + workerURL + ")": func(f *doctor.Facts) { set("TASK_TARGET_URL", workerURL+"/")(f); f.Jobs = nil },
		"composite create --database='(default)' --collection-group=analyses --field-config=field-path=error.code,order=ascending --field-config=field-path=updatedAt,order=descending)": func(f *doctor.Facts) {
			delete(f.Indexes.Composite, doctor.NeededIndexes(f.Kinds[0])[2])
		},
	} {
		f := shipped(t)
		change(&f)
		if found := doctor.Check(f); len(found) != 1 || !strings.Contains(found[0].Fix, want) {
			t.Errorf("%+v, want %q", found, want)
		}
	}
}

func TestTheFixOfAnIndexFitsItsState(t *testing.T) {
	for state, want := range map[string][]string{"CREATING": {"Wait"}, "NEEDS_REPAIR": {"Delete", "create"}, "UNKNOWN": {"create"}} {
		f := shipped(t)
		f.Indexes.Composite[doctor.NeededIndexes(f.Kinds[0])[2]] = state
		found := doctor.Check(f)
		if len(found) != 1 {
			t.Fatalf("%s: %+v", state, found)
		}
		for _, verb := range []string{"Wait", "Delete", "create"} {
			if strings.Contains(found[0].Fix, verb) != slices.Contains(want, verb) {
				t.Errorf("%s: got %q, want %q alone", state, found[0].Fix, want)
			}
		}
	}
}

func TestTheWorkerMustBeAllowedToStartItsJob(t *testing.T) {
	const builtin = `"builtin:document"},{"name":"ANALYZER_OUTPUT","value":"json"},{"name":"SMOKE_INPUT","value":"{\"text\":\"a test\"}"}`
	const service, ofJob = location + "/services/taskguard-worker", "/v1/" + longJob + ":getIamPolicy"
	for answer, want := range map[string]string{
		policy("run.jobsExecutorWithOverrides", "serviceAccount:"+workerAccount): "",
		policy("run.developer", "serviceAccount:"+workerAccount):                 "",
		policy("run.invoker", "serviceAccount:"+workerAccount):                   "account-cannot-start",
		"":        "", // refused
		"missing": "",
	} {
		c := newCloud(t)
		if !strings.Contains(c.answers[service], builtin) {
			t.Fatal(c.answers[service])
		}
		c.answers[service] = strings.Replace(c.answers[service], builtin, `"job:`+longJob+`"}`, 1)
		if c.answers[ofJob] = answer; answer == "missing" {
			delete(c.answers, ofJob)
		}
		f := c.ask(t, t.Context())
		if got, why := rulesOf(doctor.Check(f)), f.Status[doctor.AccountRoles].Why; got != want || (why == "") != (len(answer) > 10) {
			t.Errorf("%q: got %q, want %q, unread: %q", answer, got, want, why)
		}
	}
}

func TestARoleOnTheProjectOrOfAGroupIsOneOnItsResources(t *testing.T) {
	for _, member := range []string{"serviceAccount:" + workerAccount, "group:workers@example.com"} {
		c := newCloud(t)
		c.answers["/v1/projects/my-project:getIamPolicy"] = policy("editor", member)
		c.answers["/v2/"+queueName+":getIamPolicy"] = "" // refused
		c.answers["/v1/projects/-/serviceAccounts/"+caller+":getIamPolicy"] = `{}`
		if f := c.ask(t, t.Context()); len(doctor.Check(f)) > 0 || len(f.Grants) != 4 {
			t.Errorf("%s: %+v, %+v", member, doctor.Check(f), f.Status)
		}
	}
}

func TestARoleThatCannotBeReadIsNotJudged(t *testing.T) {
	c := newCloud(t)
	delete(c.answers, "/v1/projects/my-project/roles/taskguardTaskFinder")
	f := c.ask(t, t.Context())
	if found := doctor.Check(f); len(found) > 0 || f.Status[doctor.AccountRoles].Why == "" || len(f.Grants) != 3 {
		t.Errorf("%+v, %+v", found, f)
	}
}

// The permissions may come from several custom roles. A condition may name another database.
func TestTheWorkerMustBeAllowedToUseItsDatabase(t *testing.T) {
	const project, role = "/v1/projects/my-project:getIamPolicy", "/v1/projects/my-project/roles/"
	binding := func(role, condition string) string {
		return `{"role":"` + role + `","members":["serviceAccount:` + workerAccount + `"],"condition":{"expression":"` + condition + `"}}`
	}
	const database = "resource.name == 'projects/my-project/databases/"
	for name, tc := range map[string]struct{ bindings, rule string }{
		"its database":       {binding("roles/datastore.user", database+"(default)'"), ""},
		"databases like it":  {binding("roles/datastore.user", "resource.name.startsWith('projects/my-project/databases/(def')"), ""},
		"all but another":    {binding("roles/datastore.user", "resource.name != 'projects/my-project/databases/staging'"), ""},
		"a role of its own":  {binding("roles/datastore.owner", ""), ""},
		"two custom roles":   {binding("projects/my-project/roles/reads", "") + "," + binding("projects/my-project/roles/writes", ""), ""},
		"only the first":     {binding("projects/my-project/roles/reads", ""), "account-cannot-use-database"},
		"another database":   {binding("roles/datastore.user", database+"staging'"), "account-cannot-use-database"},
		"a role that reads":  {binding("roles/datastore.viewer", ""), "account-cannot-use-database"},
		"another's role":     {strings.ReplaceAll(binding("roles/datastore.user", ""), workerAccount, doclockAccount), "account-cannot-use-database"},
		"a role for doclock": {binding("roles/datastore.user", database+"taskguard-doclock'"), "account-cannot-use-database"},
	} {
		c := newCloud(t)
		c.answers[project] = `{"bindings":[` + tc.bindings + `]}`
		c.answers[role+"reads"] = `{"includedPermissions":["datastore.databases.get","datastore.entities.get","datastore.entities.list"]}`
		c.answers[role+"writes"] = `{"includedPermissions":["datastore.entities.create","datastore.entities.update"]}`
		if found := doctor.Check(c.ask(t, t.Context())); rulesOf(found) != tc.rule {
			t.Errorf("%s: got %+v, want %q", name, found, tc.rule)
		}
	}
}
