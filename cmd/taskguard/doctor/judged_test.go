package doctor_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/api/option"

	"taskguard/cmd/taskguard/doctor"
)

// exported is what `terraform output -raw environment` sets, for the shipped names.
func exported(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile(deploy + "terraform/outputs.tf")
	if err != nil {
		t.Fatal(err)
	}
	_, text2, _ := strings.Cut(string(text), `output "environment" {`)
	block, _, _ := strings.Cut(text2, "\n}\n")
	set, known := map[string]string{}, files(t).Worker.Environment.Value
	for _, m := range regexp.MustCompile(`"([A-Z][A-Z_]+)"|export ([A-Z_]+)=`).FindAllStringSubmatch(block, -1) {
		name := m[1] + m[2]
		set[name] = known[name].Value
	}
	for name, value := range map[string]string{"TASK_AUDIENCE": workerURL, "CLOUDSDK_RUN_REGION": "europe-west1", "CLOUDSDK_CORE_PROJECT": "my-project"} {
		if _, there := set[name]; there {
			set[name] = value
		}
	}
	for name, value := range set {
		if value == "" {
			t.Errorf("the output sets %s, of which this test knows no value", name)
		}
	}
	return set
}

// What an operator has at hand is no worker's environment, but says where things are.
func TestNothingIsWrongWithTheEnvironmentThatTerraformPutsOut(t *testing.T) {
	c, env := newCloud(t), exported(t)
	env["TASK_AUDIENCE"] = workerURL // as who submits may have it
	if env["TASK_QUEUE"] == "" || env["GOOGLE_CLOUD_PROJECT"] == "" {
		t.Fatalf("%v", env)
	}
	for service, part := range map[string]string{"": "the indexes", "taskguard-worker": "the worker's settings"} {
		f, err := doctor.Read(t.Context(), doctor.Options{
			Service: service, Lookup: func(name string) (string, bool) { v, ok := env[name]; return v, ok },
			Google: []option.ClientOption{option.WithEndpoint(c.URL), option.WithoutAuthentication()},
		})
		if err != nil {
			t.Fatal(err)
		}
		found, unchecked := doctor.Check(f)
		for _, u := range unchecked {
			if u.Failed || slices.Contains(u.Parts, part) || slices.Contains(u.Parts, "the queue") {
				t.Errorf("--service %q: %+v", service, u)
			}
		}
		if len(found) > 0 || !f.Queue.Known() || !f.Indexes.Known() || !f.Database.Known() || !f.Jobs.Known() {
			t.Errorf("--service %q: %+v\n%+v", service, found, f)
		}
	}
}

func TestWhereNothingIsNamedThatIsSaid(t *testing.T) {
	for name, named := range map[string]bool{"": false, "ANALYSES_COLLECTION": false, "TASK_AUTH": true, "GOOGLE_CLOUD_PROJECT": true} {
		_, err := doctor.Read(t.Context(), doctor.Options{
			Lookup: func(n string) (string, bool) { return map[string]string{name: "iam"}[n], n == name },
			Google: []option.ClientOption{option.WithEndpoint("http://127.0.0.1:1"), option.WithoutAuthentication()},
		})
		if (err == nil) != named || err != nil && !strings.Contains(err.Error(), "--service") {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// fix is that of the only finding.
func fix(t *testing.T, f doctor.Facts) string {
	t.Helper()
	found, _ := doctor.Check(f)
	if len(found) != 1 {
		t.Fatalf("want one finding, got %+v", found)
	}
	return found[0].Fix
}

func TestAFixOfAServiceWhoseTrafficIsPinnedSaysHowItComesToServe(t *testing.T) {
	const then = "gcloud run services update-traffic taskguard-worker --region=europe-west1 --to-latest"
	for _, change := range []func(*doctor.Facts){
		worker(func(s *doctor.Settings) { s.Timeout = 300 * 1e9 }), set("RUN_TIMEOUT", "1h"), set("FIRESTORE_EMULATOR_HOST", "localhost:1"),
		set("TASK_TARGET_URL", doclockURL), set("TASK_QUEUE", "projects/my-project/locations/europe-west1/queues/others"),
	} {
		for _, pinned := range []bool{true, false} {
			f := shipped(t)
			f.Worker.Settings.Live, f.Worker.Environment.Live, f.Worker.Settings.Value.Revisions.Pinned = true, true, pinned
			change(&f)
			found, _ := doctor.Check(f)
			for _, one := range found {
				if !strings.Contains(one.Fix, "gcloud run services update taskguard-worker ") || strings.Contains(one.Fix, then) != pinned {
					t.Errorf("pinned %v: %+v", pinned, one)
				}
			}
			if len(found) == 0 {
				t.Error("nothing is found")
			}
		}
	}
}

// A path may look like one of Google's names.
func TestAFileIsMendedByALineWhateverItsPath(t *testing.T) {
	data, err := os.ReadFile(deploy + "service.yaml")
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	file := filepath.Join("projects", "service.yaml")
	if err := os.Mkdir("projects", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(strings.Replace(string(data), "1560", "300", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := doctor.Read(t.Context(), doctor.Options{Service: file, Lookup: nothing})
	if err != nil {
		t.Fatal(err)
	}
	if got := fix(t, f); !strings.HasPrefix(got, "timeoutSeconds: 1560 in "+file) {
		t.Error(got)
	}
}

// A job may be in another region; the command has the names that are known.
func TestAJobThatIsNotSeenMayBeElsewhere(t *testing.T) {
	f := shipped(t)
	f.Jobs.Value.List = f.Jobs.Value.List[1:]
	found, _ := doctor.Check(f)
	got := fix(t, f)
	if !strings.Contains(found[0].Problem, "in europe-west1, the only region that was read") || strings.Contains(got, "LOCATION") ||
		!strings.Contains(got, "--location=europe-west1 ") || !strings.Contains(got, "--oidc-service-account-email="+caller+" ") {
		t.Errorf("%+v", found)
	}
}

// Who is in a group is unknown.
func TestACallerMayBeLetInByAGroup(t *testing.T) {
	for member, found := range map[string]int{"group:callers@example.com": 0, "domain:example.com": 0, "principalSet://iam.googleapis.com/locations/global/workforcePools/p/*": 0, "user:somebody@example.com": 1} {
		f := shipped(t)
		f.Worker.Callers.Value = []string{member}
		if all, _ := doctor.Check(f); len(all) != found {
			t.Errorf("%s: want %d findings, got %+v", member, found, all)
		}
	}
}

func TestWhatIsUnknownOfASecretIsNotJudged(t *testing.T) {
	for _, name := range []string{"TASK_QUEUE", "LOG_LEVEL", "LOG_FORMAT"} {
		f := shipped(t)
		f.Worker.Environment.Value[name] = doctor.Variable{Secret: true}
		f.Queue = doctor.Part[doctor.Queue]{}
		if found, _ := doctor.Check(f); len(found) > 0 {
			t.Errorf("%s: %+v", name, found)
		}
	}
}

// An analyzer that is a function in Go reads variables of its own.
func TestVariablesOfOthersAreNoneOfDoctorsBusiness(t *testing.T) {
	f := shipped(t)
	set("MY_MODEL", "x", "MAX_TOKENS", "x", "PORTS", "x", "GOMEMLIMIT", "x", "OTEL_SERVICE_NAME", "x", "OTEL_BLRP_SCHEDULE_DELAY", "5000")(&f)
	if found, _ := doctor.Check(f); len(found) > 0 {
		t.Errorf("%+v", found)
	}
}

func TestAFixFitsWhatIsRead(t *testing.T) {
	for want, change := range map[string]func(*doctor.Facts){
		"timeoutSeconds: 1560 in " + deploy + "service.yaml, which is RUN_TIMEOUT + 1 min":    worker(func(s *doctor.Settings) { s.Timeout = 300 * time.Second }),
		"timeoutSeconds: 1800 in " + deploy + "service.yaml, which is as long as Cloud Tasks": set("RUN_TIMEOUT", "30m"),
		"--location: europe-west1 in " + deploy + "queue.yaml":                                queue(func(q *doctor.Queue) { q.Name, q.Location = "", "us-central1" }),
	} {
		f := shipped(t)
		change(&f)
		found, _ := doctor.Check(f)
		if !slices.ContainsFunc(found, func(o doctor.Finding) bool { return strings.Contains(o.Problem+" "+o.Fix, want) }) {
			t.Errorf("nothing says %q: %+v", want, found)
		}
	}
}

func TestWhereTheQueuesFileNamesNoneThatIsSaidOnce(t *testing.T) {
	_, unchecked := doctor.Check(files(t))
	said := 0
	for _, u := range unchecked {
		if slices.Contains(u.Rules, "queue-other") {
			said++
		}
	}
	if _, all := doctor.Check(shipped(t)); said != 1 || len(all) > 0 {
		t.Errorf("%+v\n%+v", unchecked, all)
	}
}

func TestNothingIsWrongWithTheShippedSidecar(t *testing.T) {
	f, err := doctor.Read(t.Context(), doctor.Options{Service: deploy + "sidecar/service.yaml", Queue: deploy + "queue.yaml", Lookup: nothing})
	if err != nil {
		t.Fatal(err)
	}
	if found, _ := doctor.Check(f); len(found) > 0 || !f.Worker.Settings.Known() {
		t.Errorf("%+v", found)
	}
}
