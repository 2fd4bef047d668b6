package deploy

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var shellBlock = regexp.MustCompile("(?s)\n```sh\n(.*?\n)```")

// follow runs the commands of sections of deploy's pages, and returns the words of each call.
func (c *cloud) follow(sections ...string) (calls [][]string) {
	c.t.Helper()
	script := "set -euo pipefail\n"
	for _, name := range sections {
		commands := ""
		for _, path := range files(c.t, "*.md") {
			_, section, _ := strings.Cut(read(c.t, path), "\n## "+name+"\n")
			section, _, _ = strings.Cut(section, "\n## ")
			for _, b := range shellBlock.FindAllStringSubmatch(section, -1) {
				commands += b[1]
			}
		}
		if commands == "" {
			c.t.Fatalf("the pages have no commands under %q", name)
		}
		script += commands
	}
	if !c.bash("", "-c", script) {
		c.t.Fatal(c.output)
	}
	for line := range strings.Lines(c.read("calls")) {
		calls = append(calls, strings.Split(strings.TrimRight(line, "\n"), "\t"))
	}
	return calls
}

// The project had a database and Cloud Build's bucket before.
func TestTheRemovalLeavesWhatThePageHasNotMade(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	const before = "+firestore databases:(default)\n+storage buckets:my-project_cloudbuild\n"
	c.write("cloud", before)
	_, removal, _ := strings.Cut(read(t, "remove.md"), "\n## Remove it\n")
	removal, _, _ = strings.Cut(removal, "\n### The database, if nothing else uses it\n")
	script := "PROJECT=my-project REGION=r CHANNEL=7 SERVICES='taskguard-worker taskguard-doclock'\n"
	for _, block := range shellBlock.FindAllStringSubmatch(removal, -1) {
		script += block[1]
	}
	c.bash("", "-c", script)
	if calls := c.calls(); c.read("cloud") != before || !strings.Contains(calls, "gcloud run services delete taskguard-worker") || !strings.Contains(calls, "gcloud storage rm") {
		t.Errorf("it deletes %q by\n%s", c.read("cloud"), calls)
	}
}

var databaseCondition = regexp.MustCompile(`resource\.name == '([^']*)'`)

// granted returns the grants of gcloud's calls, one of a line: role, member, resource.
func granted(t *testing.T, calls [][]string) (all []string) {
	t.Helper()
	short := strings.NewReplacer("serviceAccount:taskguard-", "", "@my-project.iam.gserviceaccount.com", "", "projects/my-project/databases/", "", "roles/", "", "taskguard-", "")
	for _, words := range calls {
		at := slices.Index(words, "add-iam-policy-binding")
		if at < 0 {
			continue
		}
		flags := map[string]string{}
		for _, w := range words[at+2:] {
			name, value, _ := strings.Cut(w, "=")
			flags[name] = value
		}
		on := words[at-1] + " " + strings.TrimPrefix(words[at+1], "gs://")
		if condition := databaseCondition.FindStringSubmatch(flags["--condition"]); condition != nil {
			on = "database " + condition[1]
		}
		all = append(all, short.Replace(flags["--role"]+" "+flags["--member"]+" "+on))
	}
	return slices.Sorted(slices.Values(all))
}

// The module's roles are those of TestTheModuleGrantsTheseRolesAndNoOthers, and telemetry's pairs
// of an account and a role are in accounts.tf.
func TestTheREADMEsCommandsGrantWhatTheModuleGrants(t *testing.T) {
	const api, oncall = "serviceAccount:api", "group:oncall@example.com"
	want := []string{
		"artifactregistry.writer build repositories taskguard",
		"storage.objectViewer build buckets my-project-build",
		"logging.logWriter build projects my-project", "monitoring.viewer build projects my-project", "projects/my-project/taskguardOperations build projects my-project", "projects/my-project/taskguardOperations " + oncall + " projects my-project",
		"logging.logWriter test projects my-project", "storage.objectViewer test buckets my-project-build",
		"run.developer build services worker", "run.developer build services doclock",
		"iam.serviceAccountUser build service-accounts worker", "iam.serviceAccountUser build service-accounts doclock",
		"iam.serviceAccountOpenIdTokenCreator build service-accounts caller",
		"run.invoker caller services worker",
		"secretmanager.secretAccessor doclock secrets session",
		"datastore.user worker database (default)", "datastore.user doclock database doclock", "datastore.user " + oncall + " database doclock",
		"datastore.user " + api + " database (default)", "datastore.user " + oncall + " database (default)",
		"cloudscheduler.viewer " + oncall + " projects my-project", "logging.viewer " + oncall + " projects my-project",
		"monitoring.viewer " + oncall + " projects my-project", "serviceusage.serviceUsageConsumer " + oncall + " projects my-project",
		"projects/my-project/taskguardTaskFinder worker queues analyses", "projects/my-project/taskguardExporter backup database (default)",
		"cloudtasks.viewer " + oncall + " queues analyses", "cloudtasks.taskDeleter " + oncall + " queues analyses",
		"run.viewer " + oncall + " services worker", "run.viewer " + oncall + " services doclock",
	}
	for _, member := range []string{"worker", api, oncall} {
		want = append(want, "cloudtasks.enqueuer "+member+" queues analyses", "iam.serviceAccountUser "+member+" service-accounts caller")
	}
	for _, pair := range []string{
		"worker serviceusage.serviceUsageConsumer", "worker telemetry.metricsWriter", "worker telemetry.tracesWriter",
		"doclock serviceusage.serviceUsageConsumer", "doclock telemetry.tracesWriter",
	} {
		account, role, _ := strings.Cut(pair, " ")
		want = append(want, role+" "+account+" projects my-project")
		if !strings.Contains(read(t, moduleFolder+"/accounts.tf"), `["`+account+`", "`+role+`"]`) {
			t.Errorf("the module lacks %s", pair)
		}
	}
	calls := newCloud(t).follow("First, on either path", "With gcloud alone", "Traces and metrics")
	if diff := cmp.Diff(slices.Sorted(slices.Values(want)), granted(t, calls)); diff != "" {
		t.Errorf("-want +pages:\n%s", diff)
	}
}

func TestTheREADMEsStepsCallTheModule(t *testing.T) {
	c := newCloud(t)
	calls := c.follow("First, on either path", "With Terraform", "With Cloud Build")
	given := callsModule(t, filepath.Join(c.folder, "production", "main.tf"))
	for variable, want := range map[string]string{
		"notification_channels": "projects/my-project/notificationChannels/7", "session_secret": "taskguard-session", "build_source_bucket": "my-project-taskguard-build",
		"backup_bucket": "my-project-taskguard-backup",
		"submitters":    "serviceAccount:api@my-project", "operators": "group:oncall@example.com",
	} {
		if !strings.Contains(given[variable], want) {
			t.Errorf("production/main.tf has %s = %s, want %s", variable, given[variable], want)
		}
	}
	if all := granted(t, calls); len(all) > 0 {
		t.Errorf("granted beside the module: %q", all)
	}
	var enabled []string
	for _, words := range calls {
		if len(words) > 3 && words[1] == "services" && words[2] == "enable" {
			for _, api := range words[3:] {
				enabled = append(enabled, strings.TrimSuffix(api, ".googleapis.com"))
			}
		}
	}
	s := evaluated(t, "everything")
	if diff := cmp.Diff(slices.Sorted(slices.Values(s.APIs)), slices.Sorted(slices.Values(enabled))); diff != "" {
		t.Errorf("-module +pages:\n%s", diff)
	}
}

// The names in the files are those of all other tests, so these are others.
func TestTheREADMEPutsItsNamesIntoTheFilesAndKeepsTheOriginals(t *testing.T) {
	c := newCloud(t)
	script := "set -eu; PROJECT=theirs NUMBER=7 REGION=us-east1 WORKER_IMAGE=us/w@sha256:1 DOCLOCK_IMAGE=us/d@sha256:2\n" +
		strings.Join(regexp.MustCompile(`(?m)^(sed -i.* deploy/|rm deploy/).*\n`).FindAllString(pages(t), -1), "")
	if !c.bash("", "-c", script) {
		t.Fatal(c.output)
	}
	for _, path := range files(t, c.folder+"/deploy/monitoring/*/*.json") {
		if text := read(t, path); strings.Contains(text, "my-project") || strings.Contains(text, "europe-west1") {
			t.Errorf("%s:\n%s", path, text)
		}
	}
	for name, image := range map[string]string{"service.yaml": "image: us/w@sha256:1\n", "doclock.yaml": "image: us/d@sha256:2\n", "queue.yaml": ""} {
		now := c.read("deploy/" + name)
		if !strings.Contains(now, image) || strings.Contains(now, "my-project") || strings.Contains(now, "123456789012") || strings.Contains(now, "europe-west1") {
			t.Errorf("%s:\n%s", name, now)
		}
		if c.read("deploy/"+name+".orig") != read(t, name) {
			t.Errorf("%s.orig is not the original %s", name, name)
		}
	}
}
