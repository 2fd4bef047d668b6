package docs

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	run "google.golang.org/api/run/v1"
	"sigs.k8s.io/yaml"

	doclock "taskguard/internal/doclockservice"
	worker "taskguard/internal/workerservice"
)

func readDeploy(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile("../deploy/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// strictly decodes a YAML file and fails on a field that into does not have.
func strictly(t *testing.T, path string, into any) {
	t.Helper()
	if err := yaml.UnmarshalStrict([]byte(read(t, path)), into, yaml.DisallowUnknownFields); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

func service(t *testing.T, file string) (s run.Service, c *run.Container) {
	t.Helper()
	path := "../deploy/" + file
	if file == "sidecar" {
		text, err := exec.CommandContext(t.Context(), "bash", path+"/service.sh").Output()
		if path = filepath.Join(t.TempDir(), file); err != nil || os.WriteFile(path, text, 0o600) != nil {
			t.Fatal(err)
		}
	}
	strictly(t, path, &s)
	return s, s.Spec.Template.Spec.Containers[0]
}

func environmentOf(c *run.Container) map[string]string {
	env := map[string]string{}
	for _, e := range c.Env {
		if env[e.Name] = e.Value; e.ValueFrom != nil {
			env[e.Name] = strings.Repeat("secret", 8)
		}
	}
	return env
}

// leftUnset holds the variables that the files and the Terraform module leave out, and
// why; "worker NAME" is about the worker alone.
var leftUnset = map[string]string{
	"PORT": "Cloud Run sets it", "K_SERVICE": "Cloud Run sets it", "K_REVISION": "Cloud Run sets it",
	"FIRESTORE_EMULATOR_HOST": "for tests", "CLOUD_TASKS_EMULATOR_HOST": "for tests", "TASK_JWKS_URL": "for tests",
	"worker TASK_AUDIENCE": "of TASK_AUTH=oidc", "worker TASK_SERVICE_ACCOUNTS": "of TASK_AUTH=oidc", "doclock TASK_AUDIENCE": "of TASK_AUTH=oidc", "doclock TASK_SERVICE_ACCOUNTS": "of TASK_AUTH=oidc", "doclock SESSION_AUDIENCE": "of SESSION_AUTH=oidc", "doclock SESSION_NAME_CLAIM": "of SESSION_AUTH=oidc",
	"doclock PUSHER_APP_KEY": "only for Laravel Echo", "doclock PUSHER_APP_SECRET": "with PUSHER_APP_KEY", "doclock ALLOWED_ORIGINS": "only for pages of other origins",
	"CHECKPOINT_INTERVAL": "its default fits", "STALL_TIMEOUT": "only for analyzers that report", "MAX_RUN_TIME": "its default fits",
	"SMOKE_INPUT":  "of the module's smoke_env",
	"ANALYZER_ENV": "only for programs", "KEEP_FINISHED": "off unless finished analyses may be deleted",
	"doclock PUSHER_CHANNEL": "its default fits", "doclock PUSHER_EVENT_NAMESPACE": "its default fits",
	"doclock LOCKS_PER_SESSION": "its default fits", "doclock SOCKETS_PER_SESSION": "its default fits",
}

// acceptEnvironment fails if a service refuses the environment, does not read one of
// its variables, or reads one that is neither set nor in a reason.
func acceptEnvironment(t *testing.T, file, name string, env map[string]string, reasons ...map[string]string) {
	t.Helper()
	parse := func(l func(string) (string, bool)) error { _, err := worker.ParseConfig(l); return err }
	if name == "doclock" {
		parse = func(l func(string) (string, bool)) error { _, err := doclock.ParseConfig(l); return err }
	}
	read := map[string]bool{}
	if err := parse(func(key string) (string, bool) { read[key] = true; v, ok := env[key]; return v, ok }); err != nil {
		t.Errorf("%s: the service would not start: %v", file, err)
	}
	for key := range env {
		if !read[key] && !strings.HasPrefix(key, "OTEL_") { // which the SDK reads
			t.Errorf("%s sets %s, which %s does not read", file, key, name)
		}
	}
	for key := range read {
		_, set := env[key]
		known := set || strings.HasPrefix(key, "OTEL_")
		for _, reason := range append(reasons, leftUnset) {
			known = known || reason[key]+reason[name+" "+key] != ""
		}
		if !known {
			t.Errorf("%s lacks %s", file, key)
		}
	}
}

func TestServiceFilesSetTheVariablesThatTheServicesRead(t *testing.T) {
	for file, name := range map[string]string{"service.yaml": "worker", "sidecar": "worker", "doclock.yaml": "doclock"} {
		s, c := service(t, file)
		acceptEnvironment(t, file, name, environmentOf(c))
		if own := s.Spec.Template.Metadata.Annotations["autoscaling.knative.dev/maxScale"]; own != "" || s.Metadata.Annotations["run.googleapis.com/maxScale"] == "" {
			t.Errorf("%s: a change of the instances would wait for the next revision: %q", file, own)
		}
		if c.StartupProbe.HttpGet.Path != "/health/ready" || c.LivenessProbe.HttpGet.Path != "/health/live" {
			t.Errorf("%s: the probes request %s and %s", file, c.StartupProbe.HttpGet.Path, c.LivenessProbe.HttpGet.Path)
		}
	}
}

func TestDeployREADMEHasTheFiguresOfTheFiles(t *testing.T) {
	w, wc := service(t, "service.yaml")
	d, dc := service(t, "doclock.yaml")
	timeout := w.Spec.Template.Spec.TimeoutSeconds
	words := []string{
		fmt.Sprintf("the request timeout (%d s;", timeout), fmt.Sprintf(`"dispatchDeadline": "%ds"`, timeout),
		fmt.Sprintf("`RUN_TIMEOUT` (%s)", environmentOf(wc)["RUN_TIMEOUT"]),
		fmt.Sprintf("one of an instance's %d places", d.Spec.Template.Spec.ContainerConcurrency),
		fmt.Sprintf("the request timeout (%d s)", d.Spec.Template.Spec.TimeoutSeconds),
		"collection-group=" + environmentOf(wc)["ANALYSES_COLLECTION"],
		"\nexport GOOGLE_CLOUD_PROJECT=$PROJECT CLOUDSDK_CORE_PROJECT=$PROJECT CLOUDSDK_RUN_REGION=$REGION\n",
		"\nexport DOCLOCK_DATABASE=" + environmentOf(dc)["FIRESTORE_DATABASE"] + " ",
	}
	declared := readIndexes(t)
	for _, i := range declared.Indexes {
		for _, f := range i.Fields {
			words = append(words, fmt.Sprintf(" --field-config=field-path=%s,order=%s", f.FieldPath, strings.ToLower(f.Order)))
		}
	}
	exempt := "for field in"
	for _, o := range declared.FieldOverrides {
		exempt += " " + o.FieldPath
	}
	readme := string(readDeploy(t, "README.md"))
	words = append(words, "firestore databases create --location=$REGION --type=firestore-native --enable-pitr --delete-protection\n", " --uniform-bucket-level-access\n", "--replication-policy=user-managed --locations=$REGION --data-file=-", "--region=$BUILD_REGION ${POOL:+--worker-pool=$POOL}",
		"  retry gcloud projects add-iam-policy-binding $PROJECT --role=roles/datastore.user", "  retry gcloud iam service-accounts add-iam-policy-binding $CALLER",
		"  retry gcloud storage buckets add-iam-policy-binding", "set-cleanup-policies taskguard --location=$REGION --policy=deploy/cleanup.json --no-dry-run")
	if keep := `"action": { "type": "Keep" }, "condition": { "tagState": "tagged", "tagPrefixes": ["serving"] } }`; !strings.Contains(string(readDeploy(t, "cleanup.json")), keep) {
		t.Errorf("cleanup.json does not keep what release.sh tags: %s", keep)
	}
	for _, w := range append(words, exempt+"; do") {
		if !strings.Contains(readme, w) {
			t.Errorf("README.md lacks %q", w)
		}
	}
}
