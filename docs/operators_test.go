package docs

import (
	"regexp"
	"strings"
	"testing"
)

// rightsOf is the role that a command of docs/operations.md takes, by how the command
// begins.
var rightsOf = map[string]string{
	"beta iap web add-iam-policy-binding": "an owner",
	"beta run deploy":                     "an owner",
	"firestore databases describe":        "roles/datastore.user",
	"firestore databases update":          "an owner",
	"firestore export":                    "roles/datastore.importExportAdmin",
	"firestore import":                    "roles/datastore.importExportAdmin",
	"logging read":                        "roles/logging.viewer",
	"run revisions describe":              "roles/run.developer",
	"run revisions list":                  "roles/run.developer",
	"run services add-iam-policy-binding": "an owner",
	"run services update":                 "roles/run.developer",
	"run services update-traffic":         "roles/run.developer",
	"scheduler jobs describe":             "roles/cloudscheduler.viewer",
	"scheduler jobs resume":               "roles/cloudscheduler.admin",
	"services enable":                     "an owner",
	"tasks delete":                        "roles/cloudtasks.taskDeleter",
	"tasks list":                          "roles/cloudtasks.viewer",
	"tasks queues describe":               "roles/cloudtasks.viewer",
	"tasks queues pause":                  "roles/cloudtasks.queueAdmin",
	"tasks queues resume":                 "roles/cloudtasks.queueAdmin",
	"tasks queues update":                 "roles/cloudtasks.queueAdmin",
}

var gcloudCommand = regexp.MustCompile("(^|`|\\()gcloud ((?:[a-z][a-z-]* )*[a-z-]*)")

// In an emergency a refusal comes too late: what operators may not do names who may,
// in the line of the cure, or in its section where it is in a block of commands.
func TestACureThatTakesMoreThanOperatorsHaveSaysWhoMayDoIt(t *testing.T) {
	held := ""
	for _, g := range grants(t, everything) {
		if strings.Contains(g, " for group:oncall@") {
			held += g + "\n"
		}
	}
	seen := map[string]bool{}
	for _, part := range regexp.MustCompile(`\n##+ `).Split(read(t, "operations.md"), -1) {
		heading, _, _ := strings.Cut(part, "\n")
		for line := range strings.Lines(part) {
			for _, c := range gcloudCommand.FindAllStringSubmatch(line, -1) {
				where := part
				if c[1] == "`" {
					where = line
				}
				begins := longest(c[2])
				if seen[begins] = true; begins == "" {
					t.Errorf("what does gcloud %s take?", c[2])
				} else if role := rightsOf[begins]; !strings.Contains(held, role+" ") && !strings.Contains(where, role) {
					t.Errorf("%s: gcloud %s takes %s, which operators lack, and it does not say so", heading, begins, role)
				}
			}
			changes := strings.Contains(line, "`terraform apply`") || strings.HasPrefix(heading, "Taskguard") && (variableNamed.MatchString(line) || strings.Contains(line, "(#roll-back)"))
			if changes && !strings.Contains(line, "n owner") {
				t.Errorf("%s: it does not say who may apply: %s", heading, line)
			}
		}
	}
	for begins := range rightsOf {
		if !seen[begins] {
			t.Errorf("no gcloud %s: does this test still see?", begins)
		}
	}
}

// longest is the longest beginning of a command that rightsOf has.
func longest(command string) (best string) {
	for begins := range rightsOf {
		if strings.HasPrefix(command+" ", begins+" ") && len(begins) > len(best) {
			best = begins
		}
	}
	return best
}

// Who upgrades finds each command there that one gives oneself, and each flag that the page names exists.
func TestTheChangelogHasEachCommandAndTheirFlagsExist(t *testing.T) {
	changes := read(t, "../CHANGELOG.md")
	for _, c := range commandDeclared.FindAllStringSubmatch(read(t, "../cmd/taskguard/main.go"), -1) {
		if name := c[1]; name != "worker" && name != "analyze" && !regexp.MustCompile("`(taskguard )?"+name+"[ `]").MatchString(changes) {
			t.Errorf("CHANGELOG.md lacks taskguard %s", name)
		}
	}
	for _, f := range regexp.MustCompile("`taskguard ([a-z]+) --([a-z-]+)").FindAllStringSubmatch(read(t, "operations.md"), -1) {
		if source := read(t, "../cmd/taskguard/operate/"+f[1]+".go"); !strings.Contains(source, `"`+f[2]+`", `) {
			t.Errorf("taskguard %s has no --%s", f[1], f[2])
		}
	}
}
