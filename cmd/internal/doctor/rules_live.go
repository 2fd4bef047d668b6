package doctor

import (
	"fmt"
	"net/url"
	"path"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
)

func (d deployment) liveRules() []rule {
	early := fmt.Sprintf("have a dispatch deadline below %v: a run of RUN_TIMEOUT is delivered twice", d.deadline())
	all := []rule{
		d.tasks("task-url", d.misaddressed, "go to no address of the worker", "Correct TASK_TARGET_URL"),
		d.tasks("task-audience", d.unaccepted, "have no valid token", "Correct TASK_CALLER and TASK_AUDIENCE"),
		d.tasks("task-deadline", d.impatient, early, "Correct dispatchDeadline, or RUN_TIMEOUT,"),
		d.tasks("task-refused", refused, "were refused at the last attempt", "Correct the URL, account and audience"),
		{"database-mode", []Part{DatabaseKind}, d.databaseMode},
		{"database-edition", []Part{DatabaseKind}, d.databaseEdition},
		{"you-cannot-book", []Part{OwnRights}, d.youCannotBook},
		{"quota-project", []Part{QuotaSetting}, d.quotaProject},
		{"alerts", []Part{AlertPolicies}, d.alerts},
	}
	for _, p := range permissions() {
		all = append(all, rule{p.rule, []Part{p.part}, func() findings { return d.notGranted(p) }})
	}
	return all
}

// tasks returns a rule with one finding for all tasks that are wrong. The tasks have the problem;
// the fix applies where they are created.
func (d deployment) tasks(name string, wrong func(Task) bool, problem, fix string) rule {
	return rule{name, []Part{WorkerSettings, QueueTasks}, func() findings {
		i := slices.IndexFunc(d.Tasks, wrong)
		if i < 0 {
			return nil
		}
		n := len(slices.DeleteFunc(slices.Clone(d.Tasks), func(t Task) bool { return !wrong(t) }))
		t := d.Tasks[i]
		return findIf(true, Problem,
			"%d of %d tasks %s. One is %s, to %s, with the audience %q, the deadline %v and the last answer %v.",
			n, len(d.Tasks), problem, t.Name, t.URL, t.Audience, t.Deadline, t.Last).
			fix("%s where they are created. Then book each unfinished analysis again (taskguard requeue ID; "+
				"recovery books only those that are QUEUED or PROCESSING), and delete the tasks (gcloud tasks delete).",
				fix)
	}}
}

func (d deployment) misaddressed(t Task) bool { return !d.owns(t.URL) }

// unaccepted reports whether the worker refuses the token of t. Cloud Run's own check accepts
// the audience of each address of the service, without a slash.
func (d deployment) unaccepted(t Task) bool {
	switch t.Audience {
	case "":
		return true
	case d.worker.Options.Queue.Audience:
		return false
	}
	return d.Worker.value("TASK_AUTH") == "oidc" || !d.owns(t.Audience) || strings.HasSuffix(t.Audience, "/")
}

func (d deployment) impatient(t Task) bool { return t.Deadline < d.deadline() }

// refused reports whether the last answer to t was that of Cloud Run or of the worker's check. After
// NotFound, the analysis may have been deleted.
func refused(t Task) bool {
	refusals := []codes.Code{codes.InvalidArgument, codes.Unauthenticated, codes.PermissionDenied, codes.Unimplemented}
	return slices.Contains(refusals, t.Last)
}

// owns reports whether a URL has the host of TASK_TARGET_URL, or one of Cloud Run's for the worker.
func (d deployment) owns(address string) bool {
	u, err := url.Parse(address)
	target, err2 := url.Parse(d.worker.Options.Queue.TargetURL)
	if err != nil || err2 != nil || u.Scheme != "https" {
		return false
	}
	ours := strings.HasPrefix(u.Host, d.Worker.Name+"-") && strings.HasSuffix(u.Host, ".run.app")
	return ours || u.Host == target.Host
}

func (d deployment) databaseMode() (found findings) {
	for _, b := range d.Databases {
		found = append(found, findIf(b.Mode != "FIRESTORE_NATIVE", Problem,
			"The type of %s is %s and not FIRESTORE_NATIVE: each call of its service fails.", b.Name, b.Mode).
			fix("Create one (gcloud firestore databases create --type=firestore-native); set FIRESTORE_DATABASE.")...)
	}
	return found
}

func (d deployment) databaseEdition() (found findings) {
	for _, b := range d.Databases {
		found = append(found, findIf(b.Edition != "STANDARD", Advice,
			"The edition of %s is %s: it has no automatic indexes, so queries read all documents.", b.Name, b.Edition).
			fix("Create one (gcloud firestore databases create --edition=standard); set FIRESTORE_DATABASE.")...)
	}
	return found
}

func (d deployment) youCannotBook() findings {
	return findIf(len(d.Lacking) > 0, Advice,
		"You lack %s: your submit, requeue and recover cannot book deliveries.", strings.Join(d.Lacking, " and ")).
		fix("If you need them: roles/cloudtasks.enqueuer on the queue, roles/iam.serviceAccountUser on TASK_CALLER.")
}

func (d deployment) quotaProject() findings {
	return findIf(d.QuotaProject == "", Advice,
		"Your credentials have no quota project: some of Google's APIs refuse your calls.").
		fix("Set it (gcloud auth application-default set-quota-project).")
}

func (d deployment) alerts() findings {
	return findIf(d.Alerts == 0 || d.Unsent > 0, Advice,
		"Of %d alert policies about %s, %d are disabled or have no notification channel, and send no notification.",
		d.Alerts, d.Worker.Name, d.Unsent).
		fix("Create those of deploy, add a channel (gcloud monitoring policies update --add-notification-channels).")
}

func (d deployment) notGranted(p permission) (found findings) {
	for _, g := range d.Grants[p.part] {
		on, parent := path.Base(g.Resource), path.Base(path.Dir(path.Dir(g.Resource)))
		switch p.part {
		case CreateTasks, FindTasks:
			on += " --location=" + parent
		case UseDatabase: // it has no policy of its own
			on = fmt.Sprintf(`%s --condition="title=%s,expression=resource.name == '%s'"`, parent, on, g.Resource)
		}
		found = append(found, findIf(!g.Given, p.severity,
			"%s has no role with %s on %s or on the project: unless a folder or the organisation gives one, %s.",
			g.Account, p.name, g.Resource, p.effect).
			fix("Grant it (gcloud %s add-iam-policy-binding %s --member=serviceAccount:%s --role=%s).",
				p.command, on, g.Account, p.roles[0])...)
	}
	return found
}

// permission describes what the grants of a part need.
type permission struct {
	part       Part
	rule, name string
	effect     string   // of its absence
	command    string   // of gcloud, for the resource
	roles      []string // that contain it, the narrowest first
	severity   Severity
}

func permissions() []permission {
	const editor, owner = "roles/editor", "roles/owner"

	return []permission{
		{CreateTasks, "account-cannot-book", "cloudtasks.tasks.create",
			"the next attempts and recovered analyses are not booked", "tasks queues",
			[]string{"roles/cloudtasks.enqueuer", "roles/cloudtasks.admin", "roles/cloudtasks.editor", editor, owner}, Problem},
		{ActAsCaller, "account-cannot-sign", "iam.serviceAccounts.actAs",
			"it cannot create tasks with this account's token", "iam service-accounts",
			[]string{"roles/iam.serviceAccountUser", editor, owner}, Problem},
		{UseDatabase, "account-cannot-use-database", "datastore.entities.update", "each of its calls fails", "projects",
			[]string{"roles/datastore.user", "roles/datastore.owner", "roles/firebase.admin",
				"roles/firebase.developAdmin", editor, owner}, Problem},
		{ReadSecrets, "account-cannot-read-secret", "secretmanager.versions.access", "no instance starts", "secrets",
			[]string{"roles/secretmanager.secretAccessor", "roles/secretmanager.admin", owner}, Problem},
		{FindTasks, "account-cannot-find-tasks", "cloudtasks.tasks.get",
			"each analysis that waits in the queue is booked again after each TTL", "tasks queues",
			[]string{"roles/cloudtasks.viewer", "roles/cloudtasks.admin", "roles/cloudtasks.editor",
				"roles/viewer", editor, owner}, Advice},
	}
}
