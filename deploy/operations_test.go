package deploy

import (
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"taskguard/internal/delivery"
)

// runbook returns the sections of operations.md that have an alert's name.
func runbook(t *testing.T) map[string]string {
	t.Helper()
	_, after, _ := strings.Cut(read(t, "../docs/operations.md"), "\n## Runbook\n")
	all, _, _ := strings.Cut(after, "\n## ")
	sections := map[string]string{}
	for _, s := range strings.Split(all, "\n### ")[1:] {
		heading, _, _ := strings.Cut(s, "\n")
		sections[heading] = s
	}
	return sections
}

var (
	anyCommand = regexp.MustCompile("`(?:taskguard|gcloud|terraform) [a-z]")
	// An alert of this form fires if lines are missing.
	absence = regexp.MustCompile(`unless sum\(increase\(logging_[^>]*> 0$|vector\(0\)\) < \d+$`)
)

func TestEveryAlertHasItsSectionInTheRunbook(t *testing.T) {
	alerts, sections := readMonitoring(t).Alerts, runbook(t)
	if diff := cmp.Diff(slices.Sorted(maps.Keys(alerts)), slices.Sorted(maps.Keys(sections))); diff != "" {
		t.Errorf("-alerts +runbook:\n%s", diff)
	}
	for name, s := range sections {
		if absence.MatchString(alerts[name].Query) && !strings.Contains(s, "`LOG_LEVEL` above info, or `LOG_FORMAT=text`") {
			t.Errorf("%s is about missing lines, and does not name the settings that suppress them", name)
		}
		if !strings.Contains(s, "\n1. ") || !anyCommand.MatchString(s) {
			t.Errorf("%s has no cause or no command", name)
		}
	}
}

var (
	invoked         = regexp.MustCompile("(?m)(?:^|`)taskguard ([a-z]+)")
	commandDeclared = regexp.MustCompile(`\n\t\tUse: +"([a-z]+)[ "]`)
	variableNamed   = regexp.MustCompile("`(worker_[a-z_]+|max_[a-z_]+|run_timeout_minutes|operators|create_database)")
	payloadField    = regexp.MustCompile(`jsonPayload\.(\w+)`)
	gcloudCalled    = regexp.MustCompile("(?m)(?:^|`|\\()gcloud ([^`\n]*)")
)

// gcloudNeeds has the permission that a command needs; empty: an owner's.
var gcloudNeeds = map[string]string{
	"firestore backups list": "datastore.backups.list", "firestore operations list": "datastore.operations.list", "logging read": "logging.logEntries.list",
	"monitoring policies list": "monitoring.alertPolicies.list", "monitoring snoozes create": "monitoring.snoozes.create",
	"run jobs executions list": "run.executions.list", "run revisions describe": "run.revisions.get", "run revisions list": "run.revisions.list",
	"run services update ": "run.services.update", "run services update-traffic": "run.services.update",
	"scheduler jobs describe": "cloudscheduler.jobs.get", "scheduler jobs run": "cloudscheduler.jobs.run",
	"scheduler jobs pause": "cloudscheduler.jobs.pause", "scheduler jobs resume": "cloudscheduler.jobs.enable",
	"tasks delete": "cloudtasks.tasks.delete", "tasks list": "cloudtasks.tasks.list", "tasks queues describe": "cloudtasks.queues.get",
	"tasks queues pause": "cloudtasks.queues.pause", "tasks queues resume": "cloudtasks.queues.resume", "tasks queues update": "cloudtasks.queues.update",

	"beta iap": "", "beta run": "", "firestore backups schedules": "", "firestore databases": "", "firestore export": "", "firestore fields": "",
	"firestore import": "", "iam": "", "run services add-iam-policy-binding": "", "secrets": "", "services": "", "storage": "",
}

// rolesGive has what gcloudNeeds asks of Google's own roles; doctor needs run.services.getIamPolicy too.
var rolesGive = map[string]string{
	"cloudscheduler.viewer": "cloudscheduler.jobs.get", "cloudtasks.taskDeleter": "cloudtasks.tasks.delete", "cloudtasks.viewer": "cloudtasks.queues.get cloudtasks.tasks.list",
	"logging.viewer": "logging.logEntries.list", "monitoring.viewer": "monitoring.alertPolicies.list", "monitoring.snoozeEditor": "monitoring.snoozes.create",
	"run.developer": "run.services.update", "run.viewer": "run.services.getIamPolicy",
}

// A responder is an operator too.
func TestWhoIsCalledMayRunTheCommandsOfThePage(t *testing.T) {
	grants, own := moduleGrants(t)
	may := map[string]bool{}
	for grant := range grants {
		who, role, _ := strings.Cut(grant, ": ")
		role, _, _ = strings.Cut(role, " on ")
		permissions := rolesGive[role]
		for o := range own {
			if name, all, _ := strings.Cut(o, ": "); name == role {
				permissions = all
			}
		}
		for _, p := range strings.FieldsFunc(permissions, func(r rune) bool { return r == ' ' || r == ',' }) {
			may[p] = may[p] || who == "operators" || who == "responders"
		}
	}
	need := map[string]string{ // of doctor, which the page names in most sections
		"its project's policy": "resourcemanager.projects.getIamPolicy", "its queue's policy": "cloudtasks.queues.getIamPolicy", "its services' policies": "run.services.getIamPolicy",
		"its account's policy": "iam.serviceAccounts.getIamPolicy", "its roles": "iam.roles.get", "its revisions": "run.revisions.get",
	}
	pages := read(t, "../docs/operations.md") + read(t, "../docs/backup.md")
	for _, call := range gcloudCalled.FindAllStringSubmatch(pages, -1) {
		command, permission, known := call[1], "", false
		for prefix, needed := range gcloudNeeds {
			if strings.HasPrefix(command, prefix) {
				permission, known = needed, true
			}
		}
		if !known {
			t.Errorf("which permission does gcloud %s need?", command)
		}
		need[command] = permission
	}
	for command, permission := range need {
		if permission != "" && !may[permission] {
			t.Errorf("nobody who is called has %s, for %s", permission, command)
		}
	}
}

var addressNamed = regexp.MustCompile(`module\.taskguard\.(google_\w+\.\w+)`)

// Terraform would go on looking for what it has not forgotten of a lost database.
func TestTerraformForgetsAllOfALostDatabase(t *testing.T) {
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

// commands returns the commands of taskguard.
func commands(t *testing.T) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	files := must(filepath.Glob("../cmd/internal/*/*.go"))(t)
	for _, file := range files {
		for _, c := range commandDeclared.FindAllStringSubmatch(read(t, file), -1) {
			all[c[1]] = true
		}
	}
	if len(all) < 15 {
		t.Fatalf("%d commands", len(all))
	}
	return all
}

// A page that is read in an emergency names no command, field or variable that does not
// exist.
func TestOperationsNamesWhatExists(t *testing.T) {
	page, has := read(t, "../docs/operations.md")+read(t, "../docs/backup.md"), commands(t)
	for _, c := range invoked.FindAllStringSubmatch(page, -1) {
		if c[1] != "commands" && !has[c[1]] {
			t.Errorf("there is no taskguard %s", c[1])
		}
	}
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

// A setting that needs a new revision has no effect without its traffic.
func TestARunbooksChangeNamesWhoMakesItAndHow(t *testing.T) {
	atOnce := []string{"worker_max_instances", "worker_min_instances", "max_concurrent_dispatches", "worker_env"}
	for name, section := range runbook(t) {
		for line := range strings.Lines(section) {
			variables := variableNamed.FindAllStringSubmatch(line, -1)
			waits := strings.Contains(line, "`LOG_LEVEL` above") || slices.ContainsFunc(variables, func(v []string) bool { return !slices.Contains(atOnce, v[1]) })
			for want, needed := range map[string]bool{
				"n owner":              strings.Contains(line, "`terraform apply`") || len(variables) > 0,
				"a responder":          strings.Contains(line, "(#roll-back)") || strings.Contains(line, " resume "),
				"](#change-a-setting)": waits,
			} {
				if needed && !strings.Contains(line, want) {
					t.Errorf("%s: the line lacks %q: %s", name, want, line)
				}
			}
		}
	}
}

func TestTheChangelogHasEachCommandOfAUser(t *testing.T) {
	changes := read(t, "../CHANGELOG.md")
	for name := range commands(t) {
		if name != "worker" && !regexp.MustCompile("`(taskguard )?"+name+"[ `]").MatchString(changes) {
			t.Errorf("CHANGELOG.md lacks taskguard %s", name)
		}
	}
}

var silence = regexp.MustCompile(`\[(\d+)m\]\)\) or vector\(0\)\) < (\d+)$`)

// There is one call a minute. A log metric counts its line minutes late, now and then, or not at all.
func TestALateLineDoesNotDelayTheAlertThatRecoveryHasStopped(t *testing.T) {
	alert := readMonitoring(t).Alerts["Taskguard: recovery has stopped"]
	m := silence.FindStringSubmatch(alert.Query)
	lasting, err := time.ParseDuration(alert.Lasting)
	if err != nil || m == nil {
		t.Fatalf("%v: %s for %s", err, alert.Query, alert.Lasting)
	}
	window := must(strconv.Atoi(m[1]))(t)
	least := must(strconv.Atoi(m[2]))(t)

	if least < 2 {
		t.Error("a single line that is counted late ends the silence")
	}
	if window-least < 4 {
		t.Errorf("%d of %d lines missing are a silence", window-least+1, window)
	}
	if after := time.Duration(window-least+1)*time.Minute + lasting; after > 25*time.Minute {
		t.Errorf("the alert fires %v after the last call", after)
	}
}

// worker counts the rest of the page's numbers.
func TestTheCostsOfStandingStillAreThoseOfTheModule(t *testing.T) {
	m := readMonitoring(t)
	want := fmt.Sprintf("log metrics: %d, and alert policies with one condition: %d |", len(m.LogMetrics), len(m.Alerts))
	if page := read(t, "../docs/cost.md"); !strings.Contains(page, want) {
		t.Errorf("cost.md lacks %q", want)
	} else if n := strings.Count(page, "\n"); n > 250 {
		t.Errorf("cost.md has %d lines", n)
	}
}
