package doctor_test

import (
	"strings"
	"testing"

	"taskguard/cmd/internal/doctor"
)

func TestRead_CustomRole(t *testing.T) {
	const both = `{"includedPermissions":["cloudtasks.tasks.get","cloudtasks.tasks.create"]`
	for answer, want := range map[string]string{
		both + `}`: "",
		`{"includedPermissions":["cloudtasks.tasks.create"]}`: "account-cannot-find-tasks",
		`{"includedPermissions":["cloudtasks.tasks.get"]}`:    "account-cannot-book",
		both + `,"deleted":true}`:                             "account-cannot-book account-cannot-find-tasks",
		both + `,"stage":"DISABLED"}`:                         "account-cannot-book account-cannot-find-tasks",
	} {
		c := newCloud(t)
		c.edit(t, queuePolicy, "cloudtasks.enqueuer", "cloudtasks.taskDeleter")
		c.answers[finder] = answer
		if got := rulesOf(c.ask(t)); got != want {
			t.Errorf("%s: %q, want %q", answer, got, want)
		}
	}

	t.Run("that cannot be read is not judged", func(t *testing.T) {
		c := newCloud(t)
		delete(c.answers, finder)
		f := c.ask(t)
		if len(doctor.Check(f)) > 0 || len(f.Grants) != 3 {
			t.Errorf("%+v, %+v", doctor.Check(f), f.Grants)
		}
		if s := f.Status[doctor.AccountRoles]; s.Why == "" {
			t.Errorf("%+v: no reason", s)
		}
	})
}

func TestRead_JobPolicy(t *testing.T) {
	const builtin = `"builtin:document"},{"name":"ANALYZER_OUTPUT","value":"json"},{"name":"SMOKE_INPUT","value":"{\"text\":\"a test\"}"}`
	const account = "serviceAccount:" + workerAccount
	for answer, want := range map[string]string{
		policy("run.jobsExecutorWithOverrides", account): "", policy("run.developer", account): "",
		policy("run.invoker", account): "account-cannot-start",
		"":                             "", // refused
		"missing":                      "",
	} {
		c := newCloud(t)
		c.edit(t, workerService, builtin, `"job:`+longJob+`"}`)
		if answer != "missing" {
			c.answers["/v1/"+longJob+":getIamPolicy"] = answer
		}
		f := c.ask(t)
		known := strings.HasPrefix(answer, "{")
		if got, why := rulesOf(f), f.Status[doctor.AccountRoles].Why; got != want || (why == "") != known {
			t.Errorf("%q: got %q, want %q, unread: %q", answer, got, want, why)
		}
	}
}

// A role on the project, or of a group, is one on its resources.
func TestRead_ProjectRole(t *testing.T) {
	for _, member := range []string{"serviceAccount:" + workerAccount, "group:workers@example.com"} {
		c := newCloud(t)
		c.answers[projectPolicy] = policy("editor", member)
		c.answers[queuePolicy] = "" // refused
		c.answers["/v1/projects/-/serviceAccounts/"+caller+":getIamPolicy"] = `{}`
		if f := c.ask(t); len(doctor.Check(f)) > 0 || len(f.Grants) != 4 {
			t.Errorf("%s: %+v, %+v", member, doctor.Check(f), f.Status)
		}
	}
}

// The permissions may come from several custom roles. A condition may name another database.
func TestRead_DatabaseRole(t *testing.T) {
	binding := func(role, condition string) string {
		return `{"role":"` + role + `","members":["serviceAccount:` + workerAccount + `"],
			"condition":{"expression":"` + condition + `"}}`
	}
	user := func(condition string) string { return binding("roles/datastore.user", condition) }
	const missing, role = "account-cannot-use-database", "projects/my-project/roles/"
	for bindings, want := range map[string]string{
		user("resource.name == '" + databaseName + "'"):                            "",
		user("resource.name.startsWith('projects/my-project/databases/(def')"):     "",
		user("resource.name != 'projects/my-project/databases/staging'"):           "",
		user("resource.name == 'projects/my-project/databases/staging'"):           missing,
		user("resource.name == 'projects/my-project/databases/taskguard-doclock'"): missing,
		strings.ReplaceAll(user(""), workerAccount, doclockAccount):                missing,
		binding("roles/datastore.owner", ""):                                       "",
		binding("roles/datastore.viewer", ""):                                      missing,
		binding(role+"reads", "") + "," + binding(role+"writes", ""):               "",
		binding(role+"reads", ""):                                                  missing,
	} {
		c := newCloud(t)
		c.answers[projectPolicy] = `{"bindings":[` + bindings + `]}`
		c.answers["/v1/"+role+"reads"] = `{"includedPermissions":["datastore.databases.get","datastore.entities.get","datastore.entities.list"]}`
		c.answers["/v1/"+role+"writes"] = `{"includedPermissions":["datastore.entities.create","datastore.entities.update"]}`
		if got := rulesOf(c.ask(t)); got != want {
			t.Errorf("%s: got %q, want %q", bindings, got, want)
		}
	}
}
