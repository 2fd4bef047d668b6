package doctor_test

import (
	"encoding/json"
	"maps"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"taskguard/cmd/internal/doclockservice"
	"taskguard/cmd/internal/workerservice"
	"taskguard/internal/testing/must"
)

// leftUnset holds the variables that the files and the Terraform module leave out, and
// why; "worker NAME" is about the worker alone.
var leftUnset = map[string]string{
	"PORT": "Cloud Run sets it", "K_SERVICE": "Cloud Run sets it", "K_REVISION": "Cloud Run sets it",
	"FIRESTORE_EMULATOR_HOST": "for tests", "CLOUD_TASKS_EMULATOR_HOST": "for tests", "TASK_JWKS_URL": "for tests",
	"TASK_AUDIENCE": "of TASK_AUTH=oidc", "TASK_SERVICE_ACCOUNTS": "of TASK_AUTH=oidc",
	"CHECKPOINT_INTERVAL": "its default fits", "MAX_RUN_TIME": "its default fits",
	"STALL_TIMEOUT": "only for analyzers that report", "KEEP_FINISHED": "off unless finished analyses may be deleted",
	"CONCURRENCY_KEY": "off unless the work of one customer must be limited", "CONCURRENCY_LIMIT": "of CONCURRENCY_KEY",
	"CONCURRENCY_RETRY": "of CONCURRENCY_KEY",
	"SMOKE_INPUT":       "of the module's smoke_env", "ANALYZER_ENV": "only for programs",

	"doclock SESSION_AUDIENCE": "of SESSION_AUTH=oidc", "doclock SESSION_NAME_CLAIM": "of SESSION_AUTH=oidc",
	"doclock SESSION_USER_CLAIM": "of SESSION_AUTH=oidc", "doclock AUTHORIZE_URL": "the application's own",
	"doclock PUSHER_APP_KEY": "only for Laravel Echo", "doclock PUSHER_APP_SECRET": "with PUSHER_APP_KEY",
	"doclock PUSHER_CHANNEL": "its default fits", "doclock PUSHER_EVENT_NAMESPACE": "its default fits",
	"doclock LOCKS_PER_SESSION": "its default fits", "doclock SOCKETS_PER_SESSION": "its default fits",
	"doclock ALLOWED_ORIGINS": "only for pages of other origins",
}

// reads returns the variables that a service looks up in an environment, without those that
// OpenTelemetry's SDK reads, and the error of the service.
func reads(service string, env map[string]string) (names map[string]bool, err error) {
	names = map[string]bool{}
	lookup := func(name string) (string, bool) {
		names[name] = !strings.HasPrefix(name, "OTEL_")
		v, ok := env[name]
		return v, ok
	}
	if service == "worker" {
		_, err = workerservice.ParseConfig(lookup)
	} else {
		_, err = doclockservice.ParseConfig(lookup)
	}
	maps.DeleteFunc(names, func(_ string, ours bool) bool { return !ours })
	return names, err
}

// acceptEnvironment fails if a service refuses the environment, does not read one of
// its variables, or reads one that is neither set nor in a reason.
func acceptEnvironment(t *testing.T, file, name string, env map[string]string, reasons ...map[string]string) {
	t.Helper()
	read, err := reads(name, env)
	if err != nil {
		t.Errorf("%s: the service would not start: %v", file, err)
	}
	for key := range env {
		if !read[key] && !strings.HasPrefix(key, "OTEL_") {
			t.Errorf("%s sets %s, which %s does not read", file, key, name)
		}
	}
	for key := range read {
		_, known := env[key]
		for _, reason := range append(reasons, leftUnset) {
			known = known || reason[key]+reason[name+" "+key] != ""
		}
		if !known {
			t.Errorf("%s lacks %s", file, key)
		}
	}
}

func TestShipped_ServiceFiles(t *testing.T) {
	shipped := files(t)
	acceptEnvironment(t, "service.yaml", "worker", shipped.Worker.Environment)
	acceptEnvironment(t, "doclock.yaml", "doclock", shipped.Doclock.Environment)
}

// moduleEnvironments returns the services' variables in a case of the module's settings,
// whose file has of each case what differs from the smallest.
func moduleEnvironments(t *testing.T, name string) (worker, doclock map[string]string) {
	t.Helper()
	var all map[string]struct {
		Worker  map[string]string `json:"worker_env"`
		Doclock map[string]string `json:"doclock_env"`
	}
	data := []byte(read(t, deploy+"terraform/testdata/settings.json"))
	must.OK(t, json.Unmarshal(data, &all))

	worker, doclock = maps.Clone(all["smallest"].Worker), all[name].Doclock
	maps.Copy(worker, all[name].Worker)
	if doclock == nil {
		doclock = all["smallest"].Doclock
	}
	return worker, doclock
}

func TestShipped_Module(t *testing.T) {
	mayBeSet := map[string]string{
		"LOG_LEVEL": "worker_env, doclock_env",
		"RETRY_MIN": "worker_env", "RETRY_MAX": "worker_env",
		"doclock DOCUMENT_LOCK_TTL": "doclock_env", "doclock DOCUMENT_LOCKS_COLLECTION": "doclock_env",
	}
	for _, name := range []string{"everything", "smallest", "application", "theirs", "platform"} {
		worker, doclock := moduleEnvironments(t, name)
		acceptEnvironment(t, "the module", "worker", worker, mayBeSet)
		doclock["SESSION_SECRET"] = strings.Repeat("secret", 8)
		acceptEnvironment(t, "the module", "doclock", doclock, mayBeSet)
	}
}

var variableOfRow = regexp.MustCompile(`(?m)^\| [^|]*\|`)

// TestShipped_Reference compares both ways.
func TestShipped_Reference(t *testing.T) {
	for _, name := range []string{"worker", "doclock"} {
		code := map[string]bool{} // one variable decides which others are read
		for _, env := range []map[string]string{
			nil, {"TASK_AUTH": "oidc", "SESSION_AUTH": "oidc"}, {"TASK_AUTH": "iam", "TASK_QUEUE": queueName},
		} {
			read, _ := reads(name, env)
			maps.Copy(code, read)
		}

		_, section, _ := strings.Cut(read(t, "../../../docs/reference.md"), "\n### `"+name+"`\n")
		section, _, _ = strings.Cut(section, "\n#")
		page := map[string]bool{}
		for _, cell := range variableOfRow.FindAllString(section, -1) {
			for _, variable := range quotedName.FindAllStringSubmatch(cell, -1) {
				if !strings.HasPrefix(variable[1], "OTEL_") {
					page[variable[1]] = true
				}
			}
		}
		if diff := cmp.Diff(page, code); diff != "" || len(code) < 3 {
			t.Errorf("%s: -reference.md +read:\n%s", name, diff)
		}
	}
}

var quotedName = regexp.MustCompile("`([^`]+)`")
