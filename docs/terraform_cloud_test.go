package docs

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/zclconf/go-cty/cty"
	"sigs.k8s.io/yaml"

	doclock "taskguard/cmd/doclock/service"
	workerservice "taskguard/cmd/worker/service"
	"taskguard/worker"
)

// environmentOf is what a service's first container is given.
func environmentOf(t *testing.T, service cty.Value) map[string]string {
	t.Helper()
	return environmentIn(t, containerOf(service))
}

// environmentIn is what a container is given; a secret's name stands for it, three
// times to be long enough.
func environmentIn(t *testing.T, container cty.Value) map[string]string {
	t.Helper()
	env := map[string]string{}
	for _, v := range container.GetAttr("env").Elements() {
		name := text(t, v.GetAttr("name"))
		if _, twice := env[name]; twice {
			t.Errorf("%s is set twice", name)
		}
		if v.Type().HasAttribute("value") {
			env[name] = text(t, v.GetAttr("value"))
		} else {
			env[name] = strings.Repeat(text(t, v.GetAttr("value_source").Index(cty.Zero).GetAttr("secret_key_ref").Index(cty.Zero).GetAttr("secret")), 3)
		}
	}
	return env
}

func templateOf(service cty.Value) cty.Value { return service.GetAttr("template").Index(cty.Zero) }
func containerOf(service cty.Value) cty.Value {
	return templateOf(service).GetAttr("containers").Index(cty.Zero)
}

// leftUnset says why the module sets no such variable; OTEL_… beside the endpoint are
// for worker_env and doclock_env.
var leftUnset = map[string]string{
	"PORT":                              "Cloud Run's",
	"K_REVISION":                        "Cloud Run's",
	"K_SERVICE":                         "Cloud Run's",
	"FIRESTORE_EMULATOR_HOST":           "not in production",
	"CLOUD_TASKS_EMULATOR_HOST":         "not in production",
	"TASK_JWKS_URL":                     "for tests: Google's keys",
	"LOG_LEVEL":                         "worker_env, doclock_env",
	"worker TASK_AUDIENCE":              "of TASK_AUTH=oidc",
	"worker TASK_SERVICE_ACCOUNTS":      "of TASK_AUTH=oidc",
	"doclock SESSION_AUDIENCE":          "of SESSION_AUTH=oidc",
	"doclock DOCUMENT_LOCK_TTL":         "doclock_env",
	"doclock DOCUMENT_LOCKS_COLLECTION": "doclock_env",
}

func TestTheModuleSetsWhatTheServicesReadAndTheyAcceptIt(t *testing.T) {
	m := planned(t, everything)
	parse := map[string]func(func(string) (string, bool)) error{
		"worker":  func(f func(string) (string, bool)) error { _, err := workerservice.ParseConfig(f); return err },
		"doclock": func(f func(string) (string, bool)) error { _, err := doclock.ParseConfig(f); return err },
	}
	for name, path := range map[string][]any{"worker": nil, "doclock": {0}} {
		env := environmentOf(t, m.of(t, "google_cloud_run_v2_service."+name, path...))
		if err := parse[name](func(key string) (string, bool) { v, ok := env[key]; return v, ok }); err != nil {
			t.Errorf("%s would not start: %v", name, err)
		}
		read := map[string]bool{}
		for _, others := range []map[string]string{env, {"TASK_AUTH": "oidc", "SESSION_AUTH": "oidc"}} {
			_ = parse[name](func(key string) (string, bool) { read[key] = true; v, ok := others[key]; return v, ok }) // they need not please
		}
		for _, key := range slices.Sorted(maps.Keys(env)) {
			if !read[key] {
				t.Errorf("%s is given %s, which it does not read", name, key)
			}
		}
		for _, key := range slices.Sorted(maps.Keys(read)) {
			_, set := env[key]
			reason := leftUnset[key] + leftUnset[name+" "+key]
			if set == (reason != "") && !strings.HasPrefix(key, "OTEL_") {
				t.Errorf("%s reads %s: set by the module is %t, and the reason why it is not %q", name, key, set, reason)
			}
		}
	}
}

func TestARunEndsBeforeItsRequestAndARequestBeforeItsDispatch(t *testing.T) {
	for _, minutes := range []int64{1, 25, 29} {
		m := planned(t, with(required, map[string]cty.Value{"run_timeout_minutes": cty.NumberIntVal(minutes)}))
		service := m.of(t, "google_cloud_run_v2_service.worker")
		request, err := time.ParseDuration(text(t, templateOf(service).GetAttr("timeout")))
		if err != nil {
			t.Fatal(err)
		}
		c, err := workerservice.ParseConfig(func(key string) (string, bool) { v, ok := environmentOf(t, service)[key]; return v, ok })
		if err != nil {
			t.Fatal(err)
		}
		if dispatch := worker.DispatchDeadline(c.RunTimeout); c.RunTimeout >= request || request > dispatch || dispatch > 30*time.Minute {
			t.Errorf("run %v, request %v, dispatch %v", c.RunTimeout, request, dispatch)
		}
		if refused := m.refusals(t); len(refused) > 0 {
			t.Errorf("%d minutes: %q", minutes, refused)
		}
	}
}

func TestTheModulesQueueAndDatabaseAreThoseOfTheFiles(t *testing.T) {
	m := planned(t, required)
	queue := m.of(t, "google_cloud_tasks_queue.analyses")
	var flags map[string]any
	if err := yaml.Unmarshal(readDeploy(t, "queue.yaml"), &flags); err != nil {
		t.Fatal(err)
	}
	for _, block := range []string{"rate_limits", "retry_config"} {
		for field, v := range queue.GetAttr(block).Index(cty.Zero).AsValueMap() {
			flag := "--" + strings.ReplaceAll(field, "_", "-")
			if got, want := text(t, v), fmt.Sprint(flags[flag]); got != want {
				t.Errorf("%s is %s, queue.yaml has %s", field, got, want)
			}
			delete(flags, flag)
		}
	}
	if delete(flags, "--location"); len(flags) > 0 {
		t.Errorf("the module lacks %v", flags)
	}
	declared := readIndexes(t)
	if got := m.instances(t, "google_firestore_index"); len(got) != len(declared.Indexes) {
		t.Errorf("%d indexes, want %d", len(got), len(declared.Indexes))
	}
	for address, v := range m.instances(t, "google_firestore_index") {
		var got index
		got.CollectionGroup, got.QueryScope = text(t, v.GetAttr("collection")), text(t, v.GetAttr("query_scope"))
		for _, f := range v.GetAttr("fields").Elements() {
			got.Fields = append(got.Fields, indexField{text(t, f.GetAttr("field_path")), text(t, f.GetAttr("order"))})
		}
		if diff := cmp.Diff(declared.Indexes, []index{got}); diff != "" {
			t.Errorf("%s: %s", address, diff)
		}
	}
	exempt := m.instances(t, "google_firestore_field")
	for _, o := range declared.FieldOverrides {
		v, ok := exempt[fmt.Sprintf("google_firestore_field.exempt[%#v]", cty.StringVal(o.FieldPath))]
		if !ok || v.GetAttr("index_config").Index(cty.Zero).Type().HasAttribute("indexes") {
			t.Errorf("%s is not exempt: %#v", o.FieldPath, v)
		}
	}
}

func TestTheModuleMakesADatabaseThatIsHardToDeleteOrNone(t *testing.T) {
	db := planned(t, required).of(t, "google_firestore_database.this", 0)
	for field, want := range map[string]string{"type": "FIRESTORE_NATIVE", "delete_protection_state": "DELETE_PROTECTION_ENABLED", "deletion_policy": "ABANDON"} {
		if got := text(t, db.GetAttr(field)); got != want {
			t.Errorf("%s is %s, want %s", field, got, want)
		}
	}
	// What is left behind stops the next apply, which would make it.
	if again := "after a `terraform destroy`"; !strings.Contains(string(readDeploy(t, "README.md")), again) {
		t.Errorf("README.md does not say what to do %s", again)
	}
	m := planned(t, oneDatabase)
	if n := len(m.instances(t, "google_firestore_database")); n != 0 {
		t.Errorf("%d databases beside their own", n)
	}
	for _, kind := range []string{"google_firestore_index", "google_firestore_field"} {
		for address, v := range m.instances(t, kind) {
			if got := text(t, v.GetAttr("database")); got != "theirs" {
				t.Errorf("%s is in %s", address, got)
			}
		}
	}
}

// A deployment by the build is not undone by the next apply.
func TestTheModuleLeavesToTheBuildWhatIsTheBuilds(t *testing.T) {
	m := parseModule(t)
	for _, b := range m.blocks["resource"] {
		if b.Labels[0] != "google_cloud_run_v2_service" {
			continue
		}
		var ignored []string
		for _, in := range b.Body.Blocks {
			if in.Type == "lifecycle" {
				rng := in.Body.Attributes["ignore_changes"].Expr.Range()
				src, err := readFolder(rng.Filename)
				if err != nil {
					t.Fatal(err)
				}
				ignored = strings.Fields(strings.Trim(strings.ReplaceAll(src[rng.Start.Byte:rng.End.Byte], ",", " "), "[]"))
			}
		}
		for _, field := range []string{"template[0].containers[0].image", "traffic", "client", "client_version"} {
			if !slices.Contains(ignored, field) {
				t.Errorf("%s: an apply would set %s back", b.Labels[1], field)
			}
		}
		// A release names its revision, and Cloud Run refuses a second of that name.
		if slices.Contains(ignored, "template[0].revision") {
			t.Errorf("%s: after a release no apply could change it", b.Labels[1])
		}
	}
}

// Each that lacks may be refused in the first minute, and what is refused once stops
// the apply, or wakes somebody.
func TestTheModuleMakesThingsInTheOrderInWhichTheyWork(t *testing.T) {
	m := parseModule(t)
	for address, needs := range map[string][]string{
		"google_cloud_run_v2_service.worker": {
			"google_firestore_index.analyses", "google_project_iam_member.database", "google_project_service.api", "google_secret_manager_secret_iam_member.worker",
		},
		"google_cloud_run_v2_service.doclock": {
			"google_project_iam_member.database", "google_project_service.api", "google_secret_manager_secret_iam_member.session",
		},
		"google_cloud_scheduler_job.recover": {"google_cloud_run_v2_service_iam_member.caller"},
		"google_cloud_scheduler_job.sweep":   {"google_cloud_run_v2_service.doclock"},
	} {
		for _, need := range needs {
			if on := dependsOn(m, address); !slices.Contains(on, need) {
				t.Errorf("%s depends on %q, not on %s", address, on, need)
			}
		}
	}
}

func TestSchedulerCallsEachMinuteAsTheCaller(t *testing.T) {
	jobs := planned(t, everything).instances(t, "google_cloud_scheduler_job")
	uris := map[string]string{}
	for _, v := range jobs {
		target := v.GetAttr("http_target").Index(cty.Zero)
		token := target.GetAttr("oidc_token").Index(cty.Zero)
		uri, audience := text(t, target.GetAttr("uri")), text(t, token.GetAttr("audience"))
		if !strings.HasPrefix(uri, audience+"/internal/") || text(t, v.GetAttr("schedule")) != "* * * * *" || text(t, target.GetAttr("http_method")) != "POST" ||
			text(t, token.GetAttr("service_account_email")) != "taskguard-caller@my-project.iam.gserviceaccount.com" {
			t.Errorf("%#v", v)
		}
		uris[text(t, v.GetAttr("name"))] = uri
	}
	want := map[string]string{
		"taskguard-recover": "https://taskguard-worker-123456789012.europe-west1.run.app/internal/tasks/recover",
		"taskguard-sweep":   "https://taskguard-doclock-123456789012.europe-west1.run.app/internal/sweep",
	}
	if diff := cmp.Diff(want, uris); diff != "" {
		t.Error(diff)
	}
}
