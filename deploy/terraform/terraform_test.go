package terraform

import (
	"bytes"
	"encoding/json"
	"flag"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"taskguard/internal/testing/examplestest"
	"taskguard/internal/testing/must"
)

const golden = "testdata/settings.json"

var update = flag.Bool("update", false, "write "+golden+", README.md and "+monitoringFolder)

func TestMain(m *testing.M) { os.Exit(examplestest.Main(m, "TERRAFORM")) }

// stub has the values that only Google knows, and outputs the settings.
const stub = `
locals {
  project_number = "123456789012"
  caller         = "taskguard-caller@${var.project}.iam.gserviceaccount.com"
}

output "settings" {
  value = {
    names                     = local.names
    worker_url                = local.worker_url
    doclock_url               = local.doclock_url
    recovery                  = [local.recovery_url, local.recovery]
    request_seconds           = local.request_seconds
    max_concurrent_dispatches = local.max_concurrent_dispatches
    max_dispatches_per_second = local.max_dispatches_per_second
    backoff                   = [local.min_backoff, local.max_backoff, local.max_doublings]
    queue_flags               = local.queue_flags
    collection_group          = local.collection_group
    worker_env                = merge(local.otlp_region, local.analyzer_env, local.worker_env, var.worker_env)
    long_env                  = local.long ? local.long_env : {}
    doclock_env               = merge(local.otlp_region, local.doclock_env, var.doclock_env)
    apis                      = local.apis
    shell_env                 = local.shell_env
    volumes                   = local.volumes
    instances                 = { second_generation = local.second_generation, cpu_idle = local.cpu_idle, gpu_limits = local.gpu_limits }
  }
}

output "notifications" { value = local.notifications }

output "environment" { value = local.shell_env }

output "names" { value = concat(values(local.names), values(local.logged), keys(local.alerts)) }
`

// calls writes a configuration that calls the module once a case with the variables
// given, and initializes it.
func calls(t *testing.T, cases map[string]vars) (folder string) {
	t.Helper()
	modules, outputs := vars{}, vars{}
	for name, given := range cases {
		call := vars{
			"source": "./deploy/terraform", "project": "my-project", "worker_image": "worker" + digest,
			"keep_finished_days": nil,
		}
		maps.Copy(call, given)
		modules[name], outputs[name] = call, vars{"value": "${module." + name + "}"}
	}
	main := must.Get(json.Marshal(vars{"module": modules, "output": outputs}))(t)
	return configuration(t, "main.tf.json", string(main))
}

// configuration writes a file beside the module, and initializes it. The module consists
// of the files that need no provider.
func configuration(t *testing.T, name, main string) (folder string) {
	t.Helper()
	folder = t.TempDir()
	files := map[string]string{name: main, "deploy/terraform/stub.tf": stub + monitoringOutput(t)}
	for _, pattern := range []string{
		"settings*.tf", "variables*.tf", "../*.yaml", "../*.json", "../../docs/operations.md", "../../CHANGELOG.md",
	} {
		paths, err := filepath.Glob(pattern)
		if err != nil || len(paths) == 0 {
			t.Fatalf("%s: %q, %v", pattern, paths, err)
		}
		for _, path := range paths {
			files["deploy/terraform/"+path] = text(t, path)
		}
	}
	for name, content := range files {
		path := filepath.Join(folder, name)
		must.OK(t, os.MkdirAll(filepath.Dir(path), 0o700))
		must.OK(t, os.WriteFile(path, []byte(content), 0o600))
	}
	if out, err := terraform(t, folder, "init", "-backend=false", "-no-color"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return folder
}

func text(t *testing.T, path string) string {
	t.Helper()
	data := must.Get(os.ReadFile(path))(t)
	return string(data)
}

// terraform runs a command in the folder and returns its output without colours.
func terraform(t *testing.T, folder string, args ...string) (string, error) {
	t.Helper()
	args = append([]string{"-chdir=" + folder}, args...)
	cmd := exec.CommandContext(t.Context(), "terraform", args...)
	cmd.Env = append(os.Environ(), "CHECKPOINT_DISABLE=1", "TF_CLI_CONFIG_FILE="+os.DevNull)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	return out.String() + errs.String(), err
}

// vars are values of the module's variables, or the attributes of one.
type vars = map[string]any

const digest = "@sha256:0000000000000000000000000000000000000000000000000000000000000000"

// parse decodes cases, in which DIGEST is that of an image.
func parse(t *testing.T, cases string, into any) {
	t.Helper()
	must.OK(t, yaml.UnmarshalStrict([]byte(strings.ReplaceAll(cases, "DIGEST", digest)), into))
}

// evaluated holds the module's outputs by case.
type evaluated map[string]struct {
	Value struct {
		Settings      map[string]json.RawMessage
		Files         json.RawMessage
		Notifications map[string]string
	}
}

// valid has values of the variables, whose settings are in the golden file.
const valid = `
smallest: {}
application: {app: {image: appDIGEST, env: {APP_PORT: "9000"}, port: 9000}}
everything:
  {doclock_image: doclockDIGEST, session_secret: taskguard-session, session_secret_version: "1",
  otlp_endpoint: "http://collector:4318", backup_bucket: my-project-taskguard-exports}
theirs:
  {name: their-guard, project: theirs, region: us-east1, queue: work, backlog_tasks: 7, run_timeout_minutes: 29,
  keep_finished_days: 90, otlp_endpoint: "https://telemetry.googleapis.com/",
  worker_env: {LOG_LEVEL: DEBUG, RETRY_MAX: 1h30m}, notification_channels: [mail], renotify_minutes: 120,
  notification_channels_by_severity: {CRITICAL: [pager], WARNING: []},
  alert_overrides: {runs time out: {threshold: 7.5}, tasks wait: {disabled: true}}}
program:
  {analyzer: "exec:/usr/bin/analyze", worker_env: {MODEL: large, OTEL_TRACES_SAMPLER: always_off},
  worker_secrets: {MODEL_KEY: {secret: key, version: "1"}, OTEL_EXPORTER_OTLP_HEADERS: {secret: otlp, version: "1"}}}
long:
  {long_jobs: {image: longDIGEST, analyzer: "exec:/app/transcribe", run_timeout_minutes: 600, env: {MODEL: large}},
  worker_env: {RETRY_MAX: 1h}}
own_list: {analyzer: "exec:/usr/bin/analyze", worker_env: {MODEL: large, ANALYZER_ENV: "*"}}
platform:
  {session_secret: s, session_secret_version: "7", doclock_image: doclockDIGEST, doclock_database: (default),
  doclock_invoker_check: true, backup_bucket: my-backups, max_dispatches_per_second: 200,
  queue_backoff: {min: 1s, max: 60s, doublings: 3}, recovery_service: true, worker_gpu: nvidia-l4, worker_cpu: "4",
  worker_memory: 16Gi, worker_vpc: {subnetwork: ours},
  cloud_sql_instances: ["my-project:europe-west1:a", "theirs:europe-west1:b"],
  worker_volumes: {models: {path: /models, bucket: my-models}, scratch: {path: /scratch, memory: 1Gi},
    share: {path: /share, nfs: "10.0.0.2:/share", read_only: false},
    keys: {path: /keys, secret: key, secret_version: "3"}}}
`

func TestSettings(t *testing.T) {
	t.Parallel()
	var cases map[string]vars
	parse(t, valid, &cases)
	folder := calls(t, cases)
	var all evaluated
	outputs(t, folder, &all)
	got := map[string]map[string]json.RawMessage{}
	for name, one := range all {
		got[name] = one.Value.Settings
	}
	data := must.Get(json.MarshalIndent(got, "", " "))(t)
	if *update {
		must.OK(t, os.WriteFile(golden, append(data, '\n'), 0o600))
	}
	if diff := cmp.Diff(strings.Split(text(t, golden), "\n"), strings.Split(string(data)+"\n", "\n")); diff != "" {
		t.Errorf("make settings writes %s: -golden +Terraform:\n%s", golden, diff)
	}
	page := inputsAndOutputs(t)
	if *update {
		if err := os.WriteFile("README.md", []byte(page), 0o644); err != nil { //nolint:gosec // as git makes it
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(text(t, "README.md"), page); diff != "" {
		t.Errorf("make settings writes README.md: -page +module:\n%s", diff)
	}
	notificationsHaveTheirNames(t, all["theirs"].Value.Notifications)
	alertsGoWhereTheyShould(t, all["theirs"].Value.Files)
	monitoringFilesAreTheModules(t, all["everything"].Value.Files)
}

// inputsAndOutputs returns README.md: the module's variables and outputs.
func inputsAndOutputs(t *testing.T) string {
	t.Helper()
	page := "# The module's inputs and outputs\n\n" +
		"`make settings` writes this page from the descriptions in the `.tf` files. " +
		"Its use is described in [Deployment](../README.md#with-terraform).\n"
	for _, part := range []struct{ heading, pattern string }{
		{"\n| input | default | |\n|---|---|---|\n", "variables*.tf"},
		{"\n| output | |\n|---|---|\n", "outputs.tf"},
	} {
		paths, err := filepath.Glob(part.pattern)
		if err != nil || len(paths) == 0 {
			t.Fatalf("%s: %q, %v", part.pattern, paths, err)
		}
		page += part.heading
		for _, path := range paths {
			all, src := blocks(t, path)
			for _, b := range all {
				description := strings.Trim(body{b.Body, src}.text("description"), `"`)
				columns := []string{"`" + b.Labels[0] + "`", "required", description}
				if b.Body.Attributes["default"] != nil {
					columns[1] = "`" + body{b.Body, src}.text("default") + "`"
				}
				if b.Type == "output" {
					columns = slices.Delete(columns, 1, 2)
				}
				page += "| " + strings.Join(columns, " | ") + " |\n"
			}
		}
	}
	return page
}

var calledWithGcloud = regexp.MustCompile("`gcloud (tasks|scheduler) [^`]*`")

// notificationsHaveTheirNames checks what an operator reads on a telephone, where no
// page says what a name stands for.
func notificationsHaveTheirNames(t *testing.T, all map[string]string) {
	t.Helper()
	commands := 0
	for name, text := range all {
		for _, wrong := range []string{
			"REGION", "europe-west1", "my-project", "](", "=analyses", " analyses --", "1000", "taskguard-",
			"Taskguard:", "taskguard_",
		} {
			if strings.Contains(text, wrong) {
				t.Errorf("%s contains %q:\n%s", name, wrong, text)
			}
		}
		for _, c := range calledWithGcloud.FindAllStringSubmatch(text, -1) {
			commands++
			theirs := map[string]string{"tasks": "work", "scheduler": " their-guard-"}[c[1]]
			if !strings.Contains(c[0], " --location=us-east1 --project=theirs") || !strings.Contains(c[0], theirs) {
				t.Errorf("%s: %s is about another deployment", name, c[0])
			}
		}
		// RETRY_MAX, a quarter more, and 15 minutes
		if strings.HasSuffix(name, "tasks are not sent") && strings.Count(text, "[128m]") != 2 {
			t.Errorf("%s: the queue may wait longer:\n%s", name, text)
		}
		if n := utf8.RuneCountInString(text); n > 8192 || len(text) > 10240 {
			t.Errorf("%s has %d characters, and Google takes 8192", name, n)
		}
	}
	if commands < 5 {
		t.Errorf("%d commands in %d notifications", commands, len(all))
	}
}

// wrong has values of variables that are refused alone, and what Terraform says to them.
const wrong = `
image_by_tag: {want: digest, given: {worker_image: "worker:latest"}}
run_longer_than_a_job: {want: "1435", given: {long_jobs: {image: longDIGEST, analyzer: "exec:a", run_timeout_minutes: 1436}}}
run_longer_than_a_dispatch: {want: "29 at most", given: {run_timeout_minutes: 29.5}}
start_in_no_time: {want: at least 1, given: {start_seconds: 0}}
start_always_in_time: {want: "94 to below 100", given: {start_percent: 100}}
answers_half_of_errors: {want: "94 to below 100", given: {answer_percent: 50}}
again_after_no_time: {want: "30 to 1440", given: {renotify_minutes: 29}}
unknown_severity: {want: CRITICAL, given: {notification_channels_by_severity: {FATAL: []}}}
logs_of_no_share: {want: "0 to 1", given: {queue_log_ratio: 2}}
unknown_alert: {want: another name, given: {alert_overrides: {runs: {disabled: true}}}}
threshold_of_a_variable: {want: of their own, given: {alert_overrides: {"the backlog grows": {threshold: 5}}}}
threshold_of_half_a_minute: {want: whole number, given: {alert_overrides: {"tasks are not sent": {threshold: 0.5}}}}
threshold_of_no_minute: {want: whole number, given: {alert_overrides: {"tasks wait": {threshold: 0}}}}
threshold_below_zero: {want: negative, given: {alert_overrides: {"runs time out": {threshold: -1}}}}
oldest_of_no_age: {want: positive, given: {oldest_minutes: 0}}
kept_too_short: {want: at least 32, given: {keep_finished_days: 31}}
file_of_a_moving_secret: {want: needs secret_version, given: {worker_volumes: {v: {path: "/v", secret: s}}}}
one_account_of_two_parts: {want: roles of both, given: {service_accounts: {caller: "c@my-project.iam.gserviceaccount.com", worker: "c@my-project.iam.gserviceaccount.com"}}}
secret_that_moves: {want: version is a number, given: {worker_secrets: {KEY: {secret: s, version: latest}}}}
apps_secret_that_moves: {want: version is a number, given: {app: {image: appDIGEST, env: {APP_PORT: "9000"}, secrets: {KEY: {secret: s, version: latest}}}}}
dispatches_of_no_rate: {want: at most 500, given: {max_dispatches_per_second: 501}}
backoff_without_a_unit: {want: number of seconds, given: {queue_backoff: {min: "30"}}}
backup_kept_too_long: {want: at most 98, given: {backup_days: 99}}
half_an_attempt: {want: whole number, given: {max_attempts: 1.5}}
emulator: {want: Not in production, given: {worker_env: {FIRESTORE_EMULATOR_HOST: "h:1"}}}
log_level_above_info: {want: info or debug, given: {worker_env: {LOG_LEVEL: Warn}}}
application_too_slow: {want: "240", given: {app: {image: appDIGEST, env: {APP_PORT: "9000"}, startup_seconds: 241}}}
application_on_our_port: {want: not the worker's, given: {app: {image: appDIGEST, env: {APP_PORT: "9000"}, port: 8080}}}
member_without_a_kind: {want: member, given: {operators: ["a@b.c"]}}
name_too_long_for_accounts: {want: "4 to 22", given: {name: taskguard-in-production}}
vpc_without_a_name: {want: network or subnetwork, given: {worker_vpc: {tags: [a]}}}
volume_of_two_kinds: {want: one of, given: {worker_volumes: {v: {path: "/v", bucket: b, memory: "1Gi"}}}}
instance_without_a_region: {want: "PROJECT:REGION:INSTANCE", given: {cloud_sql_instances: ["my-project:db"]}}
full_name_of_a_queue: {want: queue's name, given: {queue: projects/p/locations/l/queues/q}}
`

// unfit has values that do not fit together.
const unfit = `
long_jobs_and_an_analyzer: {want: leave app and analyzer null, given: {long_jobs: {image: longDIGEST, analyzer: "exec:a"}, analyzer: "exec:a"}}
secret_without_an_image: {want: needs doclock_image, given: {doclock_image: null, session_secret: s, session_secret_version: "1"}}
session_secret_that_moves: {want: a number, given: {doclock_image: doclockDIGEST, session_secret: s, session_secret_version: latest}}
pusher_secret_that_moves: {want: a number, given: {pusher_secret: s, pusher_secret_version: latest}}
account_of_another_project: {want: in the project, given: {service_accounts: {caller: "c@theirs.iam.gserviceaccount.com"}}}
heartbeat_too_slow: {want: two heartbeats, given: {lock_ttl_seconds: 300, lock_heartbeat_seconds: 140}}
too_few_instances: {want: "429", given: {max_concurrent_dispatches: 90, worker_max_instances: 9}}
too_many_dispatches: {want: "429", given: {max_concurrent_dispatches: 100}}
more_idle_instances_than_all: {want: idle, given: {worker_min_instances: 11}}
kept_without_a_ttl_policy: {want: sets this variable itself, given: {worker_env: {KEEP_FINISHED: "2160h"}}}
variable_set_twice: {want: sets this variable itself, given: {worker_env: {LOCK_TTL: "1s"}}}
doclocks_variable_set_twice: {want: sets this variable itself, given: {doclock_env: {TASK_AUTH: none}}}
responder_who_operates_not: {want: operator too, given: {responders: ["group:a@b.c"]}}
no_indexes: {want: new database, given: {create_indexes: false}}
gpu_with_little_cpu: {want: "4 CPUs", given: {worker_gpu: nvidia-l4, worker_memory: "16Gi"}}
gpu_with_little_memory: {want: "16Gi", given: {worker_gpu: nvidia-l4, worker_cpu: "4000m", worker_memory: "16000Mi"}}
gpu_of_a_small_application: {want: "4 CPUs", given: {worker_gpu: nvidia-l4, worker_cpu: "4", worker_memory: "16Gi", app: {image: appDIGEST}}}
nfs_without_a_vpc: {want: needs worker_vpc, given: {worker_volumes: {v: {path: "/v", nfs: "h:/v"}}}}
account_of_no_part: {want: "backup.", given: {service_accounts: {console: "c@my-project.iam.gserviceaccount.com"}}}
value_and_secret: {want: plain value, given: {worker_secrets: {ANALYZER: {secret: s, version: "1"}}}}
`

func TestModule_Refusals(t *testing.T) {
	t.Parallel()
	for name, cases := range map[string]string{"a wrong value": wrong, "values that do not fit together": unfit} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			refused(t, cases)
		})
	}
}

// refused plans all cases at once. Terraform checks a variable alone before it compares
// it with others, so one call holds cases of one of the two kinds.
func refused(t *testing.T, text string) {
	t.Helper()
	var cases map[string]struct {
		Given vars
		Want  string
	}
	parse(t, text, &cases)
	given := map[string]vars{}
	for name, c := range cases {
		given[name] = c.Given
	}
	out, _ := terraform(t, calls(t, given), "plan", "-json") // it fails; each case is checked below
	details := map[string]string{}
	for line := range strings.Lines(out) {
		var message struct {
			Diagnostic struct {
				Detail  string
				Snippet struct{ Context string }
			}
		}
		if err := json.Unmarshal([]byte(line), &message); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		details[strings.TrimPrefix(message.Diagnostic.Snippet.Context, "module.")] += message.Diagnostic.Detail
	}
	for name, c := range cases {
		if !strings.Contains(details[name], c.Want) {
			t.Errorf("%s: got %q, want %q", name, details[name], c.Want)
		}
	}
}
