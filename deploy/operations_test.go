package deploy

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"taskguard/internal/delivery"
)

func TestRunbook_Alerts(t *testing.T) {
	_, runbook, _ := strings.Cut(read(t, "../docs/operations.md"), "\n## Runbook\n")
	runbook, _, _ = strings.Cut(runbook, "\n## ")
	var sections []string
	for _, section := range strings.Split(runbook, "\n### ")[1:] {
		heading, _, _ := strings.Cut(section, "\n")
		sections = append(sections, heading)
	}
	slices.Sort(sections)
	if diff := cmp.Diff(slices.Sorted(maps.Keys(readMonitoring(t).Alerts)), sections); diff != "" {
		t.Errorf("-alerts +runbook:\n%s", diff)
	}
}

var (
	variableNamed = regexp.MustCompile("`(worker_[a-z_]+|max_[a-z_]+|run_timeout_minutes|operators|create_database)")
	payloadField  = regexp.MustCompile(`jsonPayload\.(\w+)`)
	gcloudCalled  = regexp.MustCompile("(?m)(?:^|`|\\()gcloud ([^`\n]*)")
)

// gcloudNeeds has the permission that a command needs; empty: an owner's.
var gcloudNeeds = map[string]string{
	"firestore backups list":      "datastore.backups.list",
	"firestore operations list":   "datastore.operations.list",
	"logging read":                "logging.logEntries.list",
	"monitoring policies list":    "monitoring.alertPolicies.list",
	"monitoring snoozes create":   "monitoring.snoozes.create",
	"run jobs executions list":    "run.executions.list",
	"run revisions describe":      "run.revisions.get",
	"run revisions list":          "run.revisions.list",
	"run services update ":        "run.services.update",
	"run services update-traffic": "run.services.update",
	"scheduler jobs describe":     "cloudscheduler.jobs.get",
	"scheduler jobs run":          "cloudscheduler.jobs.run",
	"scheduler jobs pause":        "cloudscheduler.jobs.pause",
	"scheduler jobs resume":       "cloudscheduler.jobs.enable",
	"tasks delete":                "cloudtasks.tasks.delete",
	"tasks list":                  "cloudtasks.tasks.list",
	"tasks queues describe":       "cloudtasks.queues.get",
	"tasks queues pause":          "cloudtasks.queues.pause",
	"tasks queues resume":         "cloudtasks.queues.resume",
	"tasks queues update":         "cloudtasks.queues.update",

	"beta iap": "", "beta run": "", "firestore backups schedules": "",
	"firestore databases": "", "firestore export": "",
	"firestore fields": "", "firestore import": "", "iam": "", "run services add-iam-policy-binding": "", "secrets": "",
	"services": "", "storage": "",
}

// rolesGive has what gcloudNeeds asks of Google's own roles.
var rolesGive = map[string]string{
	"cloudscheduler.viewer":   "cloudscheduler.jobs.get",
	"cloudtasks.taskDeleter":  "cloudtasks.tasks.delete",
	"cloudtasks.viewer":       "cloudtasks.queues.get, cloudtasks.tasks.list",
	"logging.viewer":          "logging.logEntries.list",
	"monitoring.viewer":       "monitoring.alertPolicies.list",
	"monitoring.snoozeEditor": "monitoring.snoozes.create",
	"run.developer":           "run.services.update",
	"run.viewer":              "run.services.getIamPolicy", // for doctor
}

// A responder is an operator too.
func TestRunbook_Permissions(t *testing.T) {
	grants, own := moduleGrants(t)
	permissions := maps.Clone(rolesGive)
	for role := range own {
		name, all, _ := strings.Cut(role, ": ")
		permissions[name] = all
	}
	may := map[string]bool{}
	for grant := range grants {
		who, role, _ := strings.Cut(grant, ": ")
		role, _, _ = strings.Cut(role, " on ")
		if who != "operators" && who != "responders" {
			continue
		}
		for _, p := range strings.Fields(strings.ReplaceAll(permissions[role], ",", " ")) {
			may[p] = true
		}
	}

	need := map[string]string{} // command by permission
	for _, of := range []string{
		"resourcemanager.projects.getIamPolicy", "cloudtasks.queues.getIamPolicy", "run.services.getIamPolicy",
		"iam.serviceAccounts.getIamPolicy", "iam.roles.get", "run.revisions.get",
	} {
		need[of] = "taskguard doctor"
	}
	pages := read(t, "../docs/operations.md") + read(t, "../docs/backup.md")
	for _, call := range gcloudCalled.FindAllStringSubmatch(pages, -1) {
		known := false
		for prefix, permission := range gcloudNeeds {
			if strings.HasPrefix(call[1], prefix) {
				need[permission], known = call[1], true
			}
		}
		if !known {
			t.Errorf("which permission does gcloud %s need?", call[1])
		}
	}
	delete(need, "")
	for permission, command := range need {
		if !may[permission] {
			t.Errorf("nobody who is called has %s, for %s", permission, command)
		}
	}
}

var addressNamed = regexp.MustCompile(`module\.taskguard\.(google_\w+\.\w+)`)

// Terraform would go on looking for what it has not forgotten of a lost database.
func TestBackup_Addresses(t *testing.T) {
	named := map[string]bool{}
	for _, address := range addressNamed.FindAllStringSubmatch(read(t, "../docs/backup.md"), -1) {
		named[address[1]] = true
	}
	want := map[string]bool{"google_firestore_database.this": true}
	for name, b := range resources(t) {
		if slices.Contains(references(b.Body), "local.database") {
			want[name] = true
		}
	}
	if diff := cmp.Diff(sorted(want), sorted(named)); diff != "" {
		t.Errorf("-module +page:\n%s", diff)
	}
}

// A page that is read in an emergency names no field or variable that does not exist.
func TestRunbook_Names(t *testing.T) {
	page := read(t, "../docs/operations.md") + read(t, "../docs/backup.md")
	variables := map[string]bool{}
	for _, b := range parseModule(t) {
		variables[b.name()] = true
	}
	for _, v := range variableNamed.FindAllStringSubmatch(page, -1) {
		if !variables["var."+v[1]] {
			t.Errorf("the module has no variable %s", v[1])
		}
	}
	fields := map[string]bool{"message": true}
	for _, f := range delivery.LogFields() {
		fields[f.Name] = true
	}
	for _, f := range payloadField.FindAllStringSubmatch(page, -1) {
		if !fields[f[1]] {
			t.Errorf("the worker writes no %s", f[1])
		}
	}
}
