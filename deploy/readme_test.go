package deploy

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"taskguard/internal/testing/must"
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
func TestRemoval(t *testing.T) {
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
	if c.read("cloud") != before || !strings.Contains(c.calls(), "gcloud storage rm") {
		t.Errorf("it deletes %q by\n%s", c.read("cloud"), c.calls())
	}
}

var databaseCondition = regexp.MustCompile(`resource\.name == '([^']*)'`)

// granted returns the grants of gcloud's calls, one of a line: role, member, resource.
func granted(t *testing.T, calls [][]string) (all []string) {
	t.Helper()
	short := strings.NewReplacer("serviceAccount:taskguard-", "", "@my-project.iam.gserviceaccount.com", "",
		"projects/my-project/databases/", "", "roles/", "", "taskguard-", "")
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

// The module's roles are those of TestModule_Roles, and telemetry's pairs of an account and a role are in accounts.tf.
func TestPages_Grants(t *testing.T) {
	const api, oncall, taskguard = "serviceAccount:api", "group:oncall@example.com", "projects/my-project/taskguard"
	want := []string{}
	grant := func(member, on string, roles ...string) {
		for _, role := range roles {
			want = append(want, role+" "+member+" "+on)
		}
	}
	grant("build", "repositories taskguard", "artifactregistry.writer")
	grant("build", "buckets my-project-build", "storage.objectViewer")
	grant("build", "projects my-project", "logging.logWriter", "monitoring.viewer", taskguard+"Operations")
	grant("build", "service-accounts caller", "iam.serviceAccountOpenIdTokenCreator")
	grant("test", "projects my-project", "logging.logWriter")
	grant("test", "buckets my-project-build", "storage.objectViewer")
	for _, service := range []string{"worker", "doclock"} {
		grant("build", "services "+service, "run.developer")
		grant("build", "service-accounts "+service, "iam.serviceAccountUser")
		grant(oncall, "services "+service, "run.viewer")
	}
	grant("caller", "services worker", "run.invoker")
	grant("doclock", "secrets session", "secretmanager.secretAccessor")
	grant("doclock", "database doclock", "datastore.user")
	grant("worker", "queues analyses", taskguard+"TaskFinder")
	grant("backup", "database (default)", taskguard+"Exporter")
	grant(oncall, "database doclock", "datastore.user")
	grant(oncall, "projects my-project", "cloudscheduler.viewer", "logging.viewer", "monitoring.viewer",
		"serviceusage.serviceUsageConsumer", taskguard+"Operations")
	grant(oncall, "queues analyses", "cloudtasks.viewer", "cloudtasks.taskDeleter")
	for _, member := range []string{"worker", api, oncall} {
		grant(member, "database (default)", "datastore.user")
		grant(member, "queues analyses", "cloudtasks.enqueuer")
		grant(member, "service-accounts caller", "iam.serviceAccountUser")
	}
	for account, roles := range map[string][]string{
		"worker":  {"serviceusage.serviceUsageConsumer", "telemetry.metricsWriter", "telemetry.tracesWriter"},
		"doclock": {"serviceusage.serviceUsageConsumer", "telemetry.tracesWriter"},
	} {
		grant(account, "projects my-project", roles...)
		for _, role := range roles {
			if !strings.Contains(read(t, moduleFolder+"/accounts.tf"), `["`+account+`", "`+role+`"]`) {
				t.Errorf("the module lacks %s %s", account, role)
			}
		}
	}

	c := newCloud(t)
	calls := c.follow("First, on either path", "With gcloud alone", "Traces and metrics")
	if diff := cmp.Diff(slices.Sorted(slices.Values(want)), granted(t, calls)); diff != "" {
		t.Errorf("-want +pages:\n%s", diff)
	}
	c.wantDatabase()
}

// wantDatabase checks that the calls have made the databases, and the indexes that are declared for Firebase's tool.
func (c *cloud) wantDatabase() {
	c.t.Helper()
	var declared struct {
		Indexes []struct {
			Fields []struct{ FieldPath, Order string }
		}
		FieldOverrides []struct{ CollectionGroup, FieldPath string }
	}
	must.OK(c.t, json.Unmarshal([]byte(read(c.t, "firestore.indexes.json")), &declared))
	want := []string{
		"--type=firestore-native --enable-pitr --delete-protection", "--public-access-prevention",
		"set-cleanup-policies taskguard --location=europe-west1 --policy=deploy/cleanup.json --no-dry-run",
	}
	for _, index := range declared.Indexes {
		fields := ""
		for _, f := range index.Fields {
			fields += fmt.Sprintf(" --field-config=field-path=%s,order=%s", f.FieldPath, strings.ToLower(f.Order))
		}
		want = append(want, "--collection-group=analyses"+fields)
	}
	for _, f := range declared.FieldOverrides {
		exempt := fmt.Sprintf("fields update %s --collection-group=%s --disable-indexes",
			f.FieldPath, f.CollectionGroup)
		want = append(want, exempt)
	}
	for _, call := range want {
		if !strings.Contains(c.calls(), call) {
			c.t.Errorf("there is no call %s", call)
		}
	}
}

func TestPages_Module(t *testing.T) {
	c := newCloud(t)
	calls := c.follow("First, on either path", "With Terraform", "With Cloud Build")
	given := callsModule(t, filepath.Join(c.folder, "production", "main.tf"))
	for variable, want := range map[string]string{
		"notification_channels": "projects/my-project/notificationChannels/7",
		"session_secret":        "taskguard-session",
		"build_source_bucket":   "my-project-taskguard-build",
		"backup_bucket":         "my-project-taskguard-backup",
		"submitters":            "serviceAccount:api@my-project",
		"operators":             "group:oncall@example.com",
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
		all, ok := strings.CutPrefix(strings.Join(words, " "), "gcloud services enable ")
		if ok {
			enabled = append(enabled, strings.Fields(strings.ReplaceAll(all, ".googleapis.com", ""))...)
		}
	}
	s := evaluated(t, "everything")
	if diff := cmp.Diff(slices.Sorted(slices.Values(s.APIs)), slices.Sorted(slices.Values(enabled))); diff != "" {
		t.Errorf("-module +pages:\n%s", diff)
	}
}

// The names in the files are those of all other tests, so these are others.
func TestPages_Substitution(t *testing.T) {
	c := newCloud(t)
	edits := regexp.MustCompile(`(?m)^(sed -i.* deploy/|rm deploy/).*\n`).FindAllString(pages(t), -1)
	script := "set -eu; PROJECT=theirs NUMBER=7 REGION=us-east1 WORKER_IMAGE=us/w@sha256:1 DOCLOCK_IMAGE=us/d@sha256:2\n"
	if !c.bash("", "-c", script+strings.Join(edits, "")) {
		t.Fatal(c.output)
	}
	changed := files(t, c.folder+"/deploy/monitoring/*/*.json")
	for name, image := range map[string]string{
		"service.yaml": "image: us/w@sha256:1\n", "doclock.yaml": "image: us/d@sha256:2\n", "queue.yaml": "",
	} {
		changed = append(changed, c.folder+"/deploy/"+name)
		if !strings.Contains(c.read("deploy/"+name), image) {
			t.Errorf("%s has no %s", name, image)
		}
		if c.read("deploy/"+name+".orig") != read(t, name) {
			t.Errorf("%s.orig is not the original", name)
		}
	}
	for _, path := range changed {
		for _, ours := range []string{"my-project", "123456789012", "europe-west1"} {
			if strings.Contains(read(t, path), ours) {
				t.Errorf("%s still has %s", path, ours)
			}
		}
	}
}
