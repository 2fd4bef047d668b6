package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"

	cloudresourcemanager "google.golang.org/api/cloudresourcemanager/v1"
	cloudtasks "google.golang.org/api/cloudtasks/v2"
	"google.golang.org/api/googleapi"
	iam "google.golang.org/api/iam/v1"
)

// Access is who may do what, by the policies of the project, of the queue and of
// the account TASK_CALLER. Those of folders and of the organisation are not read.
type Access struct{ Project, Queue, Caller Part[Policy] }

// Policy is an IAM policy. Its conditions are taken to hold.
type Policy struct {
	Project  string    `json:"-"` // of what it belongs to
	Bindings []Binding `json:"bindings"`
}

// Binding lets members have a role.
type Binding struct {
	Role    string   `json:"role"`
	Members []string `json:"members"`
}

// grants reports whether the policy may give an account one of the roles: also by a
// group, whose members are unknown, by a role of the project's own, whose
// permissions are, or by one that holds nearly all of them.
func (p Policy) grants(account string, roles ...string) bool {
	for _, b := range p.Bindings {
		exact := slices.Contains(roles, b.Role)
		broad := b.Role == "roles/owner" || b.Role == "roles/editor" || !strings.HasPrefix(b.Role, "roles/")
		if broad && slices.Contains(b.Members, "serviceAccount:"+account) || exact && among(account, b.Members) {
			return true
		}
	}
	return false
}

// among reports whether an account may be one of the members.
func among(account string, members []string) bool {
	return slices.ContainsFunc(members, func(m string) bool {
		kind, _, _ := strings.Cut(m, ":")
		return m == "serviceAccount:"+account || everybody(m) || slices.Contains([]string{"group", "domain", "principalSet"}, kind)
	})
}

// invoker reports whether an account may invoke a service; sure: nothing else that
// was not read could let it, but for a folder or the organisation.
func (f Facts) invoker(s Service, account string) (may, sure bool) {
	project := f.Access.Project
	return among(account, s.Callers.Value) || project.Value.grants(account, invokingRoles()...), project.Known()
}

// weight is of what is wrong, surely or perhaps.
func weight(sure bool) Severity {
	if sure {
		return Problem
	}
	return Advice
}

// callerAccount is the e-mail address of a service account of a project.
var callerAccount = regexp.MustCompile(`^[a-z0-9-]+@([a-z0-9-]+)\.iam\.gserviceaccount\.com$`)

// access reads the policies that concern a deployed worker or doclock.
func (r *reader) access(ctx context.Context, f Facts) Access {
	why := r.offline
	if why == "" && !f.Worker.Settings.Live && !f.Doclock.Settings.Live {
		why = "it is read for a service that Google has, and none was read"
	}
	if why != "" {
		return Access{unread[Policy](why), unread[Policy](why), unread[Policy](why)}
	}
	a := Access{
		unread[Policy]("GOOGLE_CLOUD_PROJECT names no project"), unread[Policy]("TASK_QUEUE names no queue"),
		unread[Policy]("TASK_CALLER names no account of a project"),
	}
	if project := r.project(); project != "" {
		a.Project = r.google.projectPolicy(ctx, project)
	}
	if name := r.env.value("TASK_QUEUE"); longQueue.MatchString(name) {
		a.Queue = r.google.queuePolicy(ctx, name)
	}
	if m := callerAccount.FindStringSubmatch(r.env.value("TASK_CALLER")); m != nil {
		a.Caller = r.google.accountPolicy(ctx, m[1], m[0])
	}
	return a
}

// policy asks for one with call, whose answer is a policy of any of Google's
// packages. That it may not be seen is no failure: what runs needs no such
// permission, nor does who looks after it.
func policy[T any](ctx context.Context, project, what string, call func(context.Context) (T, error)) Part[Policy] {
	refused := false
	p := ask(ctx, "the IAM policy of "+what, func(ctx context.Context) (Policy, error) {
		got, err := call(ctx)
		if err != nil {
			var api *googleapi.Error
			refused = errors.As(err, &api) && api.Code == http.StatusForbidden
			return Policy{}, err
		}
		text, err := json.Marshal(got)
		if err != nil {
			return Policy{}, err
		}
		p := Policy{Project: project}
		err = json.Unmarshal(text, &p)
		return p, err
	})
	p.Failed = p.Failed && !refused
	return p
}

func (g google) projectPolicy(ctx context.Context, project string) Part[Policy] {
	return policy(ctx, project, "projects/"+project, func(ctx context.Context) (*cloudresourcemanager.Policy, error) {
		api, err := cloudresourcemanager.NewService(ctx, g.options...)
		if err != nil {
			return nil, err
		}
		return api.Projects.GetIamPolicy(project, &cloudresourcemanager.GetIamPolicyRequest{
			Options: &cloudresourcemanager.GetPolicyOptions{RequestedPolicyVersion: 3},
		}).Context(ctx).Do()
	})
}

func (g google) queuePolicy(ctx context.Context, name string) Part[Policy] {
	project, _, _ := queueParts(name)
	return policy(ctx, project, name, func(ctx context.Context) (*cloudtasks.Policy, error) {
		api, err := cloudtasks.NewService(ctx, g.options...)
		if err != nil {
			return nil, err
		}
		return api.Projects.Locations.Queues.GetIamPolicy(name, &cloudtasks.GetIamPolicyRequest{
			Options: &cloudtasks.GetPolicyOptions{RequestedPolicyVersion: 3},
		}).Context(ctx).Do()
	})
}

func (g google) accountPolicy(ctx context.Context, project, account string) Part[Policy] {
	name := fmt.Sprintf("projects/%s/serviceAccounts/%s", project, account)
	return policy(ctx, project, name, func(ctx context.Context) (*iam.Policy, error) {
		api, err := iam.NewService(ctx, g.options...)
		if err != nil {
			return nil, err
		}
		return api.Projects.ServiceAccounts.GetIamPolicy(name).OptionsRequestedPolicyVersion(3).Context(ctx).Do()
	})
}
