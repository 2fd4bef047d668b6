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
	w := d.Worker
	refusals := []codes.Code{codes.InvalidArgument, codes.Unauthenticated, codes.PermissionDenied, codes.Unimplemented} // NotFound: the analysis may be deleted
	all := []rule{
		d.tasks("task-url", func(t Task) bool { return !d.owns(t.URL) },
			"go to no address of "+w.Name, "Correct TASK_TARGET_URL where they are created."),
		d.tasks("task-audience", func(t Task) bool {
			return t.Audience == "" || t.Audience != d.worker.Options.Queue.Audience &&
				(w.value("TASK_AUTH") == "oidc" || !d.owns(t.Audience) || strings.HasSuffix(t.Audience, "/"))
		}, "have a token that "+w.Name+" refuses, or none", "Correct TASK_CALLER and TASK_AUDIENCE where they are created."),
		d.tasks("task-deadline", func(t Task) bool { return t.Deadline < d.deadline() },
			fmt.Sprintf("have a dispatch deadline below %v, which is RUN_TIMEOUT + 1 min: a longer run is delivered again while it runs", d.deadline()),
			"Correct dispatchDeadline, or RUN_TIMEOUT, where they are created."),
		d.tasks("task-refused", func(t Task) bool { return slices.Contains(refusals, t.Last) },
			"were refused at the last attempt, and never run", "Compare their URL, account and audience with the service and its callers."),
		{"database-mode", []Part{DatabaseKind}, d.databases(func(b Database) []Finding {
			return findIf(b.Mode != "FIRESTORE_NATIVE", Problem, fmt.Sprintf("The type of %s is %s and not FIRESTORE_NATIVE: each call of its service fails.", b.Name, b.Mode),
				"Create another (gcloud firestore databases create --type=firestore-native), and set FIRESTORE_DATABASE.")
		})},
		{"database-edition", []Part{DatabaseKind}, d.databases(func(b Database) []Finding {
			return findIf(b.Edition != "STANDARD", Advice, fmt.Sprintf("The edition of %s is %s: it indexes no field by itself, so queries read the whole collection.", b.Name, b.Edition),
				"Create another (gcloud firestore databases create --edition=standard), and set FIRESTORE_DATABASE.")
		})},
		{"you-cannot-book", []Part{OwnRights}, func() []Finding {
			return findIf(len(d.Lacking) > 0, Advice, fmt.Sprintf("You lack %s: your submit, requeue and recover cannot book deliveries.", strings.Join(d.Lacking, " and ")),
				"If you use them, ask for roles/cloudtasks.enqueuer on the queue and roles/iam.serviceAccountUser on TASK_CALLER.")
		}},
		{"quota-project", []Part{QuotaSetting}, func() []Finding {
			return findIf(d.QuotaProject == "", Advice, "Your credentials have no quota project: some of Google's APIs refuse your calls.",
				"Set it (gcloud auth application-default set-quota-project).")
		}},
		{"alerts", []Part{AlertPolicies}, func() []Finding {
			return findIf(d.Alerts == 0 || d.Unsent > 0, Advice,
				fmt.Sprintf("Of %d alert policies about %s, %d are disabled or have no notification channel, and send no notification.", d.Alerts, w.Name, d.Unsent),
				"Create the policies of deploy, and add a channel (gcloud monitoring policies update --add-notification-channels).")
		}},
	}
	for _, p := range permissions() {
		all = append(all, rule{p.rule, []Part{p.part}, func() []Finding { return d.notGranted(p) }})
	}
	return all
}

// databases returns the check of every database.
func (d deployment) databases(check func(Database) []Finding) func() []Finding {
	return func() (found []Finding) {
		for _, b := range d.Databases {
			found = append(found, check(b)...)
		}
		return found
	}
}

// tasks returns a rule with one finding for all tasks that are wrong.
func (d deployment) tasks(name string, wrong func(Task) bool, problem, fix string) rule {
	return rule{name, []Part{WorkerSettings, QueueTasks}, func() []Finding {
		found := slices.DeleteFunc(slices.Clone(d.Tasks), func(t Task) bool { return !wrong(t) })
		if len(found) == 0 {
			return nil
		}
		t := found[0]
		return findIf(true, Problem,
			fmt.Sprintf("%d of %d tasks %s. One is %s, to %s, with the audience %q, the dispatch deadline %v and the last answer %v.", len(found), len(d.Tasks), problem, t.Name, t.URL, t.Audience, t.Deadline, t.Last),
			fix+" Then book each unfinished analysis again (taskguard requeue ID; recovery books only those that are QUEUED or PROCESSING), and delete these tasks (gcloud tasks delete).")
	}}
}

// owns reports whether a URL has the host of TASK_TARGET_URL, or one of Cloud Run's for the worker.
func (d deployment) owns(address string) bool {
	u, err := url.Parse(address)
	target, err2 := url.Parse(d.worker.Options.Queue.TargetURL)
	return err == nil && err2 == nil && u.Scheme == "https" &&
		(u.Host == target.Host || strings.HasPrefix(u.Host, d.Worker.Name+"-") && strings.HasSuffix(u.Host, ".run.app"))
}

func (d deployment) notGranted(p permission) (found []Finding) {
	for _, g := range d.Grants[p.part] {
		on, parent := path.Base(g.Resource), path.Base(path.Dir(path.Dir(g.Resource)))
		switch p.part {
		case CreateTasks:
			on += " --location=" + parent
		case UseDatabase: // it has no policy of its own
			on = fmt.Sprintf(`%s --condition="title=%s,expression=resource.name == '%s'"`, parent, on, g.Resource)
		}
		found = append(found, findIf(!g.Given, Problem,
			fmt.Sprintf("%s has no role with %s on %s or on the project: unless a folder or the organisation gives one, %s.", g.Account, p.name, g.Resource, p.effect),
			fmt.Sprintf("Grant it (gcloud %s add-iam-policy-binding %s --member=serviceAccount:%s --role=%s).", p.command, on, g.Account, p.roles[0]))...)
	}
	return found
}

// permission describes what the grants of a part need.
type permission struct {
	part                        Part
	rule, name, effect, command string
	roles                       []string // that contain it, the narrowest first
}

func permissions() []permission {
	return []permission{
		{CreateTasks, "account-cannot-book", "cloudtasks.tasks.create", "the next attempts and recovered analyses are not booked", "tasks queues",
			[]string{"roles/cloudtasks.enqueuer", "roles/cloudtasks.admin", "roles/cloudtasks.editor", "roles/editor", "roles/owner"}},
		{ActAsCaller, "account-cannot-sign", "iam.serviceAccounts.actAs", "it cannot create tasks with this account's token", "iam service-accounts",
			[]string{"roles/iam.serviceAccountUser", "roles/editor", "roles/owner"}},
		{UseDatabase, "account-cannot-use-database", "datastore.entities.update", "each of its calls fails", "projects",
			[]string{"roles/datastore.user", "roles/datastore.owner", "roles/firebase.admin", "roles/firebase.developAdmin", "roles/editor", "roles/owner"}},
		{ReadSecrets, "account-cannot-read-secret", "secretmanager.versions.access", "no new instance starts", "secrets",
			[]string{"roles/secretmanager.secretAccessor", "roles/secretmanager.admin", "roles/owner"}},
	}
}
