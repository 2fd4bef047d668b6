package doctor

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/auth"
	"cloud.google.com/go/auth/credentials"
	projects "google.golang.org/api/cloudresourcemanager/v1"
	cloudtasks "google.golang.org/api/cloudtasks/v2"
	firestore "google.golang.org/api/firestore/v1"
	iam "google.golang.org/api/iam/v1"
	monitoring "google.golang.org/api/monitoring/v3"
	run "google.golang.org/api/run/v1"
	secretmanager "google.golang.org/api/secretmanager/v1"
	"google.golang.org/grpc/codes"
)

// Live holds what only a project has, and no file. Not each operator may read all of it, so
// a part that could not be read counts as not tried.
type Live struct {
	Tasks          []Task     // of the queue
	Databases      []Database // of the services
	Grants         map[Part][]Grant
	Lacking        []string // permissions that booking needs and doctor's user lacks
	QuotaProject   string   // of a user's credentials
	Alerts, Unsent int      // the alert policies about the worker; those without a channel, or disabled
}

// Task holds a task's settings, without its body.
type Task struct {
	Name, URL, Audience string // the audience is empty if there is no token
	Deadline            time.Duration
	Last                codes.Code // of its last attempt; OK: there was none
}

// Database holds a database's settings.
type Database struct{ Name, Mode, Edition string }

// Grant is a permission that a service's account needs on a resource.
type Grant struct {
	Account, Resource string
	Given             bool
}

// The parts of Live.
const (
	QueueTasks    Part = "the queue's tasks"
	DatabaseKind  Part = "the databases"
	CreateTasks   Part = "whether the worker may create tasks"
	FindTasks     Part = "whether the worker may find its tasks"
	ActAsCaller   Part = "whether the worker may act as TASK_CALLER"
	UseDatabase   Part = "whether the accounts may use the database"
	ReadSecrets   Part = "whether the accounts may read their secrets"
	OwnRights     Part = "whether you may book deliveries"
	QuotaSetting  Part = "your quota project"
	AlertPolicies Part = "the alert policies"
)

func liveParts() []Part {
	return []Part{
		QueueTasks, DatabaseKind, CreateTasks, FindTasks, ActAsCaller, UseDatabase, ReadSecrets,
		OwnRights, QuotaSetting, AlertPolicies,
	}
}

// live reads Live by clients of Google's APIs.
type live struct {
	*reader
	queue, project, caller string // full names

	tasks     *cloudtasks.Service
	firestore *firestore.Service
	projects  *projects.Service
	iam       *iam.Service
	secrets   *secretmanager.Service
	alerts    *monitoring.Service
}

// connect makes the clients.
func (l *live) connect(ctx context.Context) error {
	var errs [6]error
	l.tasks, errs[0] = cloudtasks.NewService(ctx, l.Google...)
	l.firestore, errs[1] = firestore.NewService(ctx, l.Google...)
	l.projects, errs[2] = projects.NewService(ctx, l.Google...)
	l.iam, errs[3] = iam.NewService(ctx, l.Google...)
	l.secrets, errs[4] = secretmanager.NewService(ctx, l.Google...)
	l.alerts, errs[5] = monitoring.NewService(ctx, l.Google...)
	return errors.Join(errs[:]...)
}

// askLive reads Live, for a service of Cloud Run with an account.
func (r *reader) askLive(ctx context.Context, queue, project string) {
	l := live{reader: r, queue: queue, project: "projects/" + project}
	l.caller = "projects/-/serviceAccounts/" + r.env("TASK_CALLER")
	unconnected := l.connect(ctx)
	r.facts.Grants = l.neededGrants()

	calls := map[Part]func(context.Context) error{
		QueueTasks: l.askTasks, DatabaseKind: l.askDatabase, OwnRights: l.askOwnRights,
		QuotaSetting: l.readQuotaProject, AlertPolicies: l.askAlerts,
	}
	for _, p := range permissions() {
		calls[p.part] = func(ctx context.Context) error { return l.askGrants(ctx, p) }
	}

	const unnamed = "no --service is the name of a service with an account and TASK_QUEUE"
	for _, p := range liveParts() {
		if !r.online(p, queue != "" && r.facts.Worker.Account != "", unnamed) {
			continue
		}
		r.ask(ctx, p, l.project, func(ctx context.Context) error {
			if unconnected != nil {
				return unconnected
			}
			return calls[p](ctx)
		})
	}
}

// neededGrants returns what the accounts need, not yet given.
func (l *live) neededGrants() map[Part][]Grant {
	account := l.facts.Worker.Account
	needed := map[Part][]Grant{
		CreateTasks: {{Account: account, Resource: l.queue}},
		FindTasks:   {{Account: account, Resource: l.queue}},
		ActAsCaller: {{Account: account, Resource: l.caller}},
	}
	need := func(p Part, account, resource string) {
		needed[p] = append(needed[p], Grant{Account: account, Resource: resource})
	}
	for _, s := range []*Service{&l.facts.Worker, &l.facts.Doclock} {
		if s.Account == "" {
			continue
		}
		need(UseDatabase, s.Account, l.database(*s))
		for _, name := range s.Secrets {
			need(ReadSecrets, s.Account, l.project+"/secrets/"+name)
		}
	}
	return needed
}

// askTasks reads a page of tasks, without their bodies.
func (l *live) askTasks(ctx context.Context) error {
	const fields = "tasks(name,dispatchDeadline,httpRequest(url,oidcToken),lastAttempt/responseStatus/code)"
	list := l.tasks.Projects.Locations.Queues.Tasks.List(l.queue).ResponseView("FULL").PageSize(100)
	got, err := list.Fields(fields).Context(ctx).Do()
	if err != nil {
		return err
	}

	for _, t := range got.Tasks {
		request := cmp.Or(t.HttpRequest, &cloudtasks.HttpRequest{})
		last := cmp.Or(cmp.Or(t.LastAttempt, &cloudtasks.Attempt{}).ResponseStatus, &cloudtasks.Status{})
		code := codes.Code(last.Code) //nolint:gosec // small and not negative
		task := Task{Name: path.Base(t.Name), URL: request.Url, Last: code}
		if request.OidcToken != nil {
			task.Audience = cmp.Or(request.OidcToken.Audience, request.Url)
		}
		if task.Deadline, err = time.ParseDuration(cmp.Or(t.DispatchDeadline, "10m")); err != nil {
			return fmt.Errorf("task %s: %w", task.Name, err)
		}
		l.facts.Tasks = append(l.facts.Tasks, task)
	}
	return nil
}

func (l *live) askDatabase(ctx context.Context) error {
	names := []string{l.database(l.facts.Worker)}
	if l.facts.Doclock.Name != "" {
		names = append(names, l.database(l.facts.Doclock))
	}
	for _, name := range slices.Compact(names) {
		got, err := l.firestore.Projects.Databases.Get(name).Context(ctx).Do()
		if err != nil {
			return err
		}
		database := Database{name, got.Type, cmp.Or(got.DatabaseEdition, "STANDARD")}
		l.facts.Databases = append(l.facts.Databases, database)
	}
	return nil
}

func (l *live) database(s Service) string {
	return l.project + "/databases/" + cmp.Or(s.value("FIRESTORE_DATABASE"), "(default)")
}

// readQuotaProject reads the quota project of a user's credentials; others have one.
func (l *live) readQuotaProject(ctx context.Context) error {
	detect := l.Credentials
	if detect == nil {
		detect = func() (*auth.Credentials, error) {
			return credentials.DetectDefault(&credentials.DetectOptions{Scopes: []string{iam.CloudPlatformScope}})
		}
	}
	c, err := detect()
	if err != nil {
		return err
	}
	if l.facts.QuotaProject = "the account's"; bytes.Contains(c.JSON(), []byte(`"authorized_user"`)) {
		l.facts.QuotaProject, err = c.QuotaProjectID(ctx)
	}
	return err
}

// about matches a condition on the worker, its queue or its log metrics. A name that only
// begins with the worker's is another deployment's.
func (l *live) about() *regexp.Regexp {
	const metrics = "deliveries|exhausted|late_starts|losses|oldest_ms|recoveries|rejected|stuck|" +
		"time_to_start_ms|uncertain"
	service, queue := regexp.QuoteMeta(l.facts.Worker.Name), regexp.QuoteMeta(path.Base(l.queue))
	prefix := strings.ReplaceAll(strings.TrimSuffix(service, "-worker"), "-", "_")
	return regexp.MustCompile(`service_name\s*=\s*"` + service + `"|queue_id\s*=\s*"` + queue +
		`"|user[_/]` + prefix + `_(` + metrics + `)(_count|_sum|_bucket)?\b`)
}

// askAlerts counts the alert policies about the worker.
func (l *live) askAlerts(ctx context.Context) error {
	about := l.about()
	list := l.alerts.Projects.AlertPolicies.List(l.project)
	list.Fields("nextPageToken", "alertPolicies(enabled,notificationChannels,conditions)")
	return list.Pages(ctx, func(p *monitoring.ListAlertPoliciesResponse) error {
		for _, a := range p.AlertPolicies {
			conditions, err := json.Marshal(a.Conditions)
			if err != nil || !about.Match(bytes.ReplaceAll(conditions, []byte(`\"`), []byte(`"`))) {
				continue
			}
			if l.facts.Alerts++; !a.Enabled || len(a.NotificationChannels) == 0 {
				l.facts.Unsent++
			}
		}
		return nil
	})
}

// askOwnRights reads which permissions to book deliveries doctor's user lacks.
func (l *live) askOwnRights(ctx context.Context) error {
	book, sign := []string{permissions()[0].name}, []string{permissions()[1].name}
	queues, accounts := l.tasks.Projects.Locations.Queues, l.iam.Projects.ServiceAccounts
	onQueue := &cloudtasks.TestIamPermissionsRequest{Permissions: book}
	onCaller := &iam.TestIamPermissionsRequest{Permissions: sign}
	ofQueue, err := queues.TestIamPermissions(l.queue, onQueue).Context(ctx).Do()
	if err != nil {
		return err
	}
	ofCaller, err := accounts.TestIamPermissions(l.caller, onCaller).Context(ctx).Do()
	if err != nil {
		return err
	}

	given := slices.Concat(ofQueue.Permissions, ofCaller.Permissions)
	l.facts.Lacking = slices.DeleteFunc(append(book, sign...), func(p string) bool { return slices.Contains(given, p) })
	return nil
}

// askGrants reads whether the accounts have a permission that they need.
func (l *live) askGrants(ctx context.Context, p permission) error {
	ofProject, errProject := l.policy(ctx, l.project)
	for i, g := range l.facts.Grants[p.part] {
		ofResource, err := l.policy(ctx, g.Resource)
		given, unknown := l.grants(ctx, slices.Concat(ofResource, ofProject), g, p)
		if err := errors.Join(err, errProject, unknown); !given && err != nil {
			return err
		}
		l.facts.Grants[p.part][i].Given = given
	}
	return nil
}

// policy reads the bindings of a project, queue, service account or secret; a database has none.
func (l *live) policy(ctx context.Context, name string) (_ []*iam.Binding, err error) {
	const version = 3 // the one with conditions
	var got any
	switch path.Base(path.Dir(name)) {
	case "projects":
		options := &projects.GetPolicyOptions{RequestedPolicyVersion: version}
		request := &projects.GetIamPolicyRequest{Options: options}
		got, err = l.projects.Projects.GetIamPolicy(path.Base(name), request).Context(ctx).Do()
	case "queues":
		options := &cloudtasks.GetPolicyOptions{RequestedPolicyVersion: version}
		request := &cloudtasks.GetIamPolicyRequest{Options: options}
		got, err = l.tasks.Projects.Locations.Queues.GetIamPolicy(name, request).Context(ctx).Do()
	case "serviceAccounts":
		accounts := l.iam.Projects.ServiceAccounts
		got, err = accounts.GetIamPolicy(name).OptionsRequestedPolicyVersion(version).Context(ctx).Do()
	case "secrets":
		secrets := l.secrets.Projects.Secrets
		got, err = secrets.GetIamPolicy(name).OptionsRequestedPolicyVersion(version).Context(ctx).Do()
	}
	if err != nil {
		return nil, fmt.Errorf("the IAM policy of %s: %w", name, err)
	}

	var p iam.Policy
	text, err := json.Marshal(got)
	err = errors.Join(err, json.Unmarshal(text, &p))
	return p.Bindings, err
}

var oneDatabase = regexp.MustCompile(`^\s*resource\.name\s*==\s*["'](projects/[^/"']+/databases/[^/"']+)["']\s*$`)

// grants reports whether bindings give an account a permission on a resource. It returns an error
// if that depends on a group, a condition or a custom role that doctor cannot evaluate.
func (l *live) grants(ctx context.Context, bindings []*iam.Binding, g Grant, p permission) (given bool, err error) {
	for _, b := range bindings {
		condition := cmp.Or(b.Condition, &iam.Expr{}).Expression
		database := oneDatabase.ReplaceAllString(condition, "$1") // or the condition
		if database != condition && database != g.Resource {
			continue
		}

		for _, m := range b.Members {
			several := strings.HasPrefix(m, "group:") || strings.HasPrefix(m, "principalSet:")
			if m != "serviceAccount:"+g.Account && !everybody(m) && !several {
				continue
			}

			included, unknown := l.includes(ctx, b.Role, p)
			switch {
			case !included && unknown == nil:
			case unknown != nil || several || condition != "" && database == condition:
				err = fmt.Errorf("it could not be checked whether %s of %s gives %s a right on %s",
					b.Role, m, g.Account, g.Resource)
			default:
				return true, nil
			}
		}
	}
	return false, err
}

// includes reports whether a role contains a permission. It reads a custom role.
func (l *live) includes(ctx context.Context, role string, p permission) (bool, error) {
	if strings.HasPrefix(role, "roles/") {
		return slices.Contains(p.roles, role), nil
	}
	custom, err := l.iam.Roles.Get(role).Context(ctx).Do() // of a project or an organization
	if err != nil {
		return false, err
	}
	effective := !custom.Deleted && custom.Stage != "DISABLED"
	return effective && slices.Contains(custom.IncludedPermissions, p.name), nil
}

// secrets returns the names of the secrets that a service's containers use.
func secrets(spec *run.RevisionSpec) (all []string) {
	for _, c := range spec.Containers {
		for _, v := range cmp.Or(c, &run.Container{}).Env {
			if v != nil && v.ValueFrom != nil && v.ValueFrom.SecretKeyRef != nil {
				all = append(all, v.ValueFrom.SecretKeyRef.Name)
			}
		}
	}
	for _, v := range spec.Volumes {
		if v != nil && v.Secret != nil {
			all = append(all, v.Secret.SecretName)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}
