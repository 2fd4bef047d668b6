package docs

import (
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/hcl/v2/hclwrite"
	"github.com/zclconf/go-cty/cty"
	"google.golang.org/api/option"

	"taskguard/cmd/taskguard/doctor"
)

// fakeProgram stands for each program that deploy/README.md calls: it notes its
// arguments, a line each call, and prints what is used of its answer.
const fakeProgram = `#!/usr/bin/env bash
IFS=$'\t'
echo "${0##*/}	$*" >>"$CALLS"
IFS=' '
case "${0##*/} $*" in
"gcloud projects describe "*) echo 123456789012 ;;
"go run "*) echo "europe-west1-docker.pkg.dev/my-project/taskguard/${*##*/}@sha256:0000000000000000000000000000000000000000000000000000000000000000" ;;
"openssl "*) echo secret ;;
"gcloud secrets create "*) cat >/dev/null ;;
"gcloud beta monitoring channels create "*) echo projects/my-project/notificationChannels/7 ;;
esac
`

var shellBlock = regexp.MustCompile("(?s)\n```sh\n(.*?\n)```")

// follow does what sections of deploy/README.md say, in a copy of the folder, and
// returns that copy's parent and each call's words.
func follow(t *testing.T, sections ...string) (folder string, calls [][]string) {
	t.Helper()
	folder = t.TempDir()
	bin, log := filepath.Join(folder, "bin"), filepath.Join(folder, "calls")
	if err := os.CopyFS(filepath.Join(folder, "deploy"), os.DirFS("../deploy")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"gcloud", "go", "terraform", "taskguard", "curl", "openssl"} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte(fakeProgram), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	script := "set -euo pipefail\n"
	for _, name := range sections {
		_, section, found := strings.Cut(string(readDeploy(t, "README.md")), "\n## "+name+"\n")
		section, _, _ = strings.Cut(section, "\n## ")
		blocks := shellBlock.FindAllStringSubmatch(section, -1)
		if !found || len(blocks) == 0 {
			t.Fatalf("README.md has no commands under %q", name)
		}
		for _, b := range blocks {
			script += b[1]
		}
	}
	cmd := exec.CommandContext(t.Context(), "bash", "-c", script)
	cmd.Dir, cmd.Env = folder, []string{"PATH=" + bin + ":" + os.Getenv("PATH"), "CALLS=" + log, "HOME=" + folder}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for line := range strings.Lines(read(t, log)) {
		calls = append(calls, strings.Split(strings.TrimRight(line, "\n"), "\t"))
	}
	return folder, calls
}

const stepsForAll = "First, on either path"

var databaseCondition = regexp.MustCompile(`resource\.name == '([^']*)'`)

// granted are the grants of gcloud's calls, in the words of grants.
func granted(t *testing.T, calls [][]string) (all []string) {
	t.Helper()
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
		on := map[string]string{
			"projects": "the project", "tasks queues": "queue ", "run services": "service ", "secrets": "secret ", "storage buckets": "bucket ",
			"artifacts repositories": "repository ", "iam service-accounts": "account projects/my-project/serviceAccounts/",
		}[strings.Join(words[1:at], " ")]
		switch condition := databaseCondition.FindStringSubmatch(flags["--condition"]); {
		case on == "":
			t.Fatalf("what is %q on?", words)
		case condition != nil:
			on = "database " + condition[1]
		case on != "the project":
			on += strings.TrimPrefix(words[at+1], "gs://")
		}
		all = append(all, flags["--role"]+" for "+flags["--member"]+" on "+on)
	}
	return sortedTexts(all)
}

// What one may after the one path, one may after the other.
func TestTheReadmesCommandsGrantWhatTheModuleGrants(t *testing.T) {
	_, calls := follow(t, stepsForAll, "With gcloud alone")
	if diff := cmp.Diff(grants(t, everything), granted(t, calls)); diff != "" {
		t.Errorf("-module +README.md:\n%s", diff)
	}
}

// made are the names of what gcloud's calls create.
func made(calls [][]string) (all []string) {
	for _, words := range calls {
		if at := slices.Index(words, "create"); at > 0 && words[0] == "gcloud" && !strings.HasPrefix(words[at+1], "--") {
			all = append(all, strings.Join(words[1:at], " ")+" "+words[at+1])
		}
	}
	return sortedTexts(all)
}

func TestTheReadmesStepsLeadToTheModuleFromAnEmptyProject(t *testing.T) {
	folder, calls := follow(t, stepsForAll, "With Terraform", "With Cloud Build")
	path := filepath.Join(folder, "production", "main.tf")
	m := used(t, path)
	if src := read(t, path); string(hclwrite.Format([]byte(src))) != src {
		t.Errorf("terraform fmt would change\n%s", src)
	}
	if diff := cmp.Diff(grants(t, everything), grantsOf(t, m)); diff != "" {
		t.Errorf("-everything +production/main.tf:\n%s", diff)
	}
	for name, v := range m.instances(t, "google_monitoring_alert_policy") {
		if got := v.GetAttr("notification_channels"); got.LengthInt() != 1 || text(t, got.Index(cty.Zero)) != "projects/my-project/notificationChannels/7" {
			t.Errorf("%s reaches %#v", name, got)
		}
	}
	// The rest is the module's: what is there already stops an apply.
	want := []string{"artifacts repositories taskguard", "secrets taskguard-session", "storage buckets gs://my-project_cloudbuild"}
	if diff := cmp.Diff(want, made(calls)); diff != "" || len(granted(t, calls)) > 0 {
		t.Errorf("-want +made:\n%s\ngranted: %q", diff, granted(t, calls))
	}
	var enabled []string
	for _, words := range calls {
		if len(words) > 3 && words[1] == "services" && words[2] == "enable" {
			enabled = append(enabled, words[3:]...)
		}
	}
	var apis []string
	for _, v := range m.instances(t, "google_project_service") {
		apis = append(apis, text(t, v.GetAttr("service")))
	}
	if diff := cmp.Diff(sortedTexts(enabled), sortedTexts(apis)); diff != "" {
		t.Errorf("-README.md +module:\n%s", diff)
	}
}

// Without its API a resource is refused in a project that is as empty as it can be.
func TestTheModuleEnablesTheAPIOfEachThingThatItMakes(t *testing.T) {
	apis := map[string]string{
		"artifact": "artifactregistry", "cloud_run": "run", "cloud_scheduler": "cloudscheduler", "cloud_tasks": "cloudtasks", "firestore": "firestore",
		"logging": "logging", "monitoring": "monitoring", "project": "cloudresourcemanager", "secret_manager": "secretmanager", "service_account": "iam",
		"storage": "", // always there
	}
	m := planned(t, required)
	need := map[string]bool{"cloudbuild": true, "iamcredentials": true} // of the build, and its smoke test
	for _, b := range m.blocks["resource"] {
		known := false
		for prefix, api := range apis {
			if strings.HasPrefix(b.Labels[0], "google_"+prefix) {
				known, need[api] = true, true
			}
		}
		if !known {
			t.Errorf("which API does %s need?", b.Labels[0])
		}
	}
	delete(need, "")
	var got []string
	for _, v := range m.instances(t, "google_project_service") {
		got = append(got, strings.TrimSuffix(text(t, v.GetAttr("service")), ".googleapis.com"))
	}
	if diff := cmp.Diff(sortedTexts(slices.Collect(maps.Keys(need))), sortedTexts(got)); diff != "" {
		t.Errorf("-needed +enabled:\n%s", diff)
	}
}

// The names in the files are those of all other tests, so these are others.
func TestTheReadmesNamesGoIntoTheFilesAndWhatTheyWereStaysBesideThem(t *testing.T) {
	folder := t.TempDir()
	if err := os.CopyFS(filepath.Join(folder, "deploy"), os.DirFS("../deploy")); err != nil {
		t.Fatal(err)
	}
	script := "set -eu; PROJECT=theirs NUMBER=7 REGION=us-east1 WORKER_IMAGE=us/w@sha256:1 DOCLOCK_IMAGE=us/d@sha256:2\n" +
		strings.Join(regexp.MustCompile(`(?m)^(sed -i|rm deploy).*\n`).FindAllString(string(readDeploy(t, "README.md")), -1), "")
	cmd := exec.CommandContext(t.Context(), "bash", "-c", script)
	cmd.Dir = folder
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for name, image := range map[string]string{"service.yaml": "image: us/w@sha256:1\n", "doclock.yaml": "image: us/d@sha256:2\n", "queue.yaml": ""} {
		path := filepath.Join(folder, "deploy", name)
		now := read(t, path)
		if !strings.Contains(now, image) || strings.Contains(now, "my-project") || strings.Contains(now, "123456789012") || strings.Contains(now, "europe-west1") {
			t.Errorf("%s:\n%s", name, now)
		}
		if read(t, path+".orig") != string(readDeploy(t, name)) {
			t.Errorf("%s.orig is not what %s was", name, name)
		}
	}
	if beside, _ := filepath.Glob(filepath.Join(folder, "deploy", "*.tmp")); len(beside) > 0 {
		t.Errorf("left behind: %q", beside)
	}
}

func TestTheReadmesDatabaseKeepsItsPastAndIsHardToDelete(t *testing.T) {
	_, calls := follow(t, stepsForAll, "With gcloud alone")
	at := slices.IndexFunc(calls, func(words []string) bool { return slices.Contains(words, "databases") })
	if at < 0 || !slices.Contains(calls[at], "--enable-pitr") || !slices.Contains(calls[at], "--delete-protection") {
		t.Errorf("the database is made by %q", calls[max(at, 0)])
	}
	db := planned(t, required).of(t, "google_firestore_database.this", 0)
	if got := text(t, db.GetAttr("point_in_time_recovery_enablement")); got != "POINT_IN_TIME_RECOVERY_ENABLED" {
		t.Errorf("the module's: %s", got)
	}
}

// exported are the output environment's variables.
func exported(t *testing.T, m *terraform) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, b := range m.blocks["output"] {
		if b.Labels[0] != "environment" {
			continue
		}
		v, err := m.evaluate(b.Body.Attributes["value"].Expr, map[string]cty.Value{})
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(text(t, v)) {
			name, value, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "export "), "=")
			all[name] = strings.Trim(value, "'")
		}
	}
	return all
}

// In an emergency one has these variables and the service's name, and no more.
func TestDoctorFindsTheServiceByTheModulesEnvironment(t *testing.T) {
	var asked []string
	google := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, "/v1"), "/v2"))
		http.Error(w, "{}", http.StatusNotFound)
	}))
	defer google.Close()
	env := exported(t, planned(t, with(required, map[string]cty.Value{"region": cty.StringVal("us-east1")})))
	// gcloud reads no GOOGLE_CLOUD_PROJECT: of another configuration's project it would
	// mend what doctor has found in this one.
	if env["CLOUDSDK_RUN_REGION"] != "us-east1" || env["CLOUDSDK_CORE_PROJECT"] != "my-project" {
		t.Errorf("no region or project for gcloud: %q", env)
	}
	if want := "\nexport GOOGLE_CLOUD_PROJECT=$PROJECT CLOUDSDK_CORE_PROJECT=$PROJECT CLOUDSDK_RUN_REGION=$REGION\n"; !strings.Contains(string(readDeploy(t, "README.md")), want) {
		t.Errorf("README.md lacks %q", want)
	}
	for _, name := range []string{"taskguard-worker", ""} {
		f, err := doctor.Read(t.Context(), doctor.Options{
			Service: name, Google: []option.ClientOption{option.WithEndpoint(google.URL), option.WithoutAuthentication()},
			Lookup: func(name string) (string, bool) { v, ok := env[name]; return v, ok },
		})
		if err != nil {
			t.Fatal(err)
		}
		if found, _ := doctor.Check(f); len(found) > 0 {
			t.Errorf("of service %q, which was not read, doctor says %+v", name, found)
		}
	}
	for _, path := range []string{"/projects/my-project/locations/us-east1/services/taskguard-worker", "/projects/my-project/locations/us-east1/queues/analyses"} {
		if !slices.Contains(asked, path) {
			t.Errorf("Google was asked for %q, not for %s", asked, path)
		}
	}
}
