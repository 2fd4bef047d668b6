package doctor

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	projects "google.golang.org/api/cloudresourcemanager/v1"
	cloudtasks "google.golang.org/api/cloudtasks/v2"
	iam "google.golang.org/api/iam/v1"
)

// Grant is a permission that the worker's account needs on a resource. The first delivery works
// without it, so one notices late that it is missing.
type Grant struct {
	Given bool

	rule        string
	severity    Severity
	permissions []string
	effect      string // what happens without the permissions
	resource    string
	command     string   // the gcloud command that grants a role
	roles       []string // the roles with the permissions, the narrowest first
}

// neededGrants returns what an account needs to book tasks in a queue that are signed as caller, to use a
// database, and to start executions of a job, unless that is empty.
func neededGrants(queue, caller, database, job string) []Grant {
	const editor, owner = "roles/editor", "roles/owner"
	project, region := place(queue)
	_, jobRegion := place(job)
	ofQueue := fmt.Sprintf("tasks queues add-iam-policy-binding %s --location=%s", path.Base(queue), region)
	return []Grant{
		{
			rule: "account-cannot-start", severity: Problem, permissions: []string{"run.jobs.runWithOverrides"},
			effect:   "it cannot start the runs",
			resource: job, command: "run jobs add-iam-policy-binding " + path.Base(job) + " --region=" + jobRegion,
			roles: []string{
				"roles/run.jobsExecutorWithOverrides", "roles/run.developer", "roles/run.admin", editor, owner,
			},
		},
		{
			rule: "account-cannot-book", severity: Problem, permissions: []string{"cloudtasks.tasks.create"},
			effect:   "retries and recovered analyses are not enqueued",
			resource: queue, command: ofQueue,
			roles: []string{
				"roles/cloudtasks.enqueuer", "roles/cloudtasks.admin", "roles/cloudtasks.editor", editor, owner,
			},
		},
		{
			rule: "account-cannot-sign", severity: Problem, permissions: []string{"iam.serviceAccounts.actAs"},
			effect:   "it cannot create tasks with this account's token",
			resource: "projects/-/serviceAccounts/" + caller,
			command:  "iam service-accounts add-iam-policy-binding " + caller,
			roles:    []string{"roles/iam.serviceAccountUser", editor, owner},
		},
		{
			rule: "account-cannot-find-tasks", severity: Advice, permissions: []string{"cloudtasks.tasks.get"},
			effect:   "each analysis that waits in the queue is enqueued again after each TTL",
			resource: queue, command: ofQueue,
			roles: []string{"roles/cloudtasks.viewer", "roles/cloudtasks.admin", "roles/cloudtasks.editor",
				"roles/viewer", editor, owner},
		},
		{
			rule: "account-cannot-use-database", severity: Problem,
			permissions: strings.Fields("datastore.databases.get datastore.entities.create datastore.entities.get " +
				"datastore.entities.list datastore.entities.update"),
			effect:   "it cannot read and write the analyses, and does not start",
			resource: "the database", command: "projects add-iam-policy-binding " + project +
				` --condition="title=taskguard,expression=resource.name == '` + database + `'"`,
			roles: []string{"roles/datastore.user", "roles/datastore.owner", "roles/firebase.admin",
				"roles/firebase.developAdmin", "roles/firebase.sdkAdminServiceAgent", editor, owner},
		},
	}
}

// askGrants evaluates grants of a project. It returns the error of the first that it cannot evaluate.
func (r *reader) askGrants(ctx context.Context, api google, needed []Grant, project string) (unknown error) {
	ofProject, errProject := api.policy(ctx, project)
	r.facts.Project = ofProject
	for i := range needed {
		g := &needed[i]
		if g.resource == "" { // no job is started
			continue
		}
		ofResource, err := api.policy(ctx, g.resource)
		bindings := slices.DeleteFunc(slices.Concat(ofResource, ofProject), r.elsewhere)
		granted, errRole := api.give(ctx, r.facts.Worker.Account, bindings, g)
		if err = cmp.Or(err, errProject, errRole); err != nil && !granted {
			unknown = cmp.Or(unknown, err)
			continue
		}
		g.Given = granted
		r.facts.Grants = append(r.facts.Grants, *g)
	}
	return unknown
}

// databaseName matches the databases of a condition, or how their names begin.
var databaseName = regexp.MustCompile(`/databases/([^/'"]+)`)

// elsewhere reports whether the condition of a binding names other databases alone.
func (r *reader) elsewhere(b *iam.Binding) bool {
	if b.Condition == nil || strings.Contains(b.Condition.Expression, "!") {
		return false
	}
	names := databaseName.FindAllStringSubmatch(b.Condition.Expression, -1)
	ours := func(m []string) bool { return strings.HasPrefix(r.facts.Indexes.Database, m[1]) }
	return len(names) > 0 && !slices.ContainsFunc(names, ours)
}

// policy reads the bindings of a project, a queue, a service, a job or a service account.
func (api google) policy(ctx context.Context, name string) (_ []*iam.Binding, err error) {
	const version = 3 // an earlier one has other names for the roles of bindings with a condition
	var got any
	switch path.Base(path.Dir(name)) {
	case "projects":
		request := &projects.GetIamPolicyRequest{Options: &projects.GetPolicyOptions{RequestedPolicyVersion: version}}
		got, err = api.projects.Projects.GetIamPolicy(path.Base(name), request).Context(ctx).Do()
	case "queues":
		request := &cloudtasks.GetIamPolicyRequest{
			Options: &cloudtasks.GetPolicyOptions{RequestedPolicyVersion: version},
		}
		got, err = api.tasks.Projects.Locations.Queues.GetIamPolicy(name, request).Context(ctx).Do()
	case "services":
		call := api.run.Projects.Locations.Services.GetIamPolicy(name).OptionsRequestedPolicyVersion(version)
		got, err = call.Context(ctx).Do()
	case "jobs":
		call := api.run.Projects.Locations.Jobs.GetIamPolicy(name).OptionsRequestedPolicyVersion(version)
		got, err = call.Context(ctx).Do()
	case "serviceAccounts":
		call := api.iam.Projects.ServiceAccounts.GetIamPolicy(name).OptionsRequestedPolicyVersion(version)
		got, err = call.Context(ctx).Do()
	}
	if err != nil {
		return nil, fmt.Errorf("the IAM policy of %s: %w", name, err)
	}

	p := iam.Policy{Bindings: []*iam.Binding{}} // never nil
	text, err := json.Marshal(got)
	err = errors.Join(err, json.Unmarshal(text, &p))
	return p.Bindings, err
}

// give reports whether bindings may give an account the permissions of g. A condition and the
// members of a group are unknown, so such a binding counts. It reads custom roles.
func (api google) give(ctx context.Context, account string, bindings []*iam.Binding, g *Grant) (bool, error) {
	missing := slices.Clone(g.permissions)
	for _, b := range bindings {
		if !slices.ContainsFunc(b.Members, func(m string) bool { return mayBe(m, account) }) {
			continue
		}
		if slices.Contains(g.roles, b.Role) {
			return true, nil
		}
		if strings.HasPrefix(b.Role, "roles/") {
			continue
		}

		custom, err := api.iam.Roles.Get(b.Role).Context(ctx).Do() // a role of a project or an organization
		if err != nil {
			return false, err
		}
		effective := !custom.Deleted && custom.Stage != "DISABLED"
		missing = slices.DeleteFunc(missing, func(p string) bool {
			return effective && slices.Contains(custom.IncludedPermissions, p)
		})
	}
	return len(missing) == 0, nil
}
