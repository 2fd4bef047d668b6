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

	"taskguard/internal/testing/examplestest"
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
	main, err := json.Marshal(vars{"module": modules, "output": outputs})
	check(t, err)
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
		check(t, os.MkdirAll(filepath.Dir(path), 0o700))
		check(t, os.WriteFile(path, []byte(content), 0o600))
	}
	if out, err := terraform(t, folder, "init", "-backend=false", "-no-color"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return folder
}

func text(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	check(t, err)
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

// env is the environment of the worker, or of another part.
type env = map[string]string

const digest = "@sha256:0000000000000000000000000000000000000000000000000000000000000000"

// application is a value of the variable app with one field changed.
func application(field string, value any) vars {
	app := vars{"image": "app" + digest, "env": env{"APP_PORT": "9000"}}
	app[field] = value
	return vars{"app": app}
}

// evaluated holds the module's outputs by case.
type evaluated map[string]struct {
	Value struct {
		Settings      map[string]json.RawMessage
		Files         json.RawMessage
		Notifications map[string]string
	}
}

func TestSettings(t *testing.T) {
	t.Parallel()
	folder := calls(t, map[string]vars{
		"smallest":    {},
		"application": application("port", 9000),
		"everything": {
			"doclock_image": "doclock" + digest, "session_secret": "taskguard-session", "session_secret_version": "1",
			"otlp_endpoint": "http://collector:4318", "backup_bucket": "my-project-taskguard-exports",
		},
		"theirs": {
			"name": "their-guard", "project": "theirs", "region": "us-east1", "queue": "work", "backlog_tasks": 7,
			"run_timeout_minutes": 29, "keep_finished_days": 90,
			"otlp_endpoint": "https://telemetry.googleapis.com/",
			"worker_env":    env{"LOG_LEVEL": "DEBUG", "RETRY_MAX": "1h30m"},

			"notification_channels":             []string{"mail"},
			"notification_channels_by_severity": map[string][]string{"CRITICAL": {"pager"}, "WARNING": {}},
			"renotify_minutes":                  120,
			"alert_overrides": vars{
				"runs time out": vars{"threshold": 7.5}, "tasks wait": vars{"disabled": true},
			},
		},
		"program": {
			"analyzer":   "exec:/usr/bin/analyze",
			"worker_env": env{"MODEL": "large", "OTEL_TRACES_SAMPLER": "always_off"},
			"worker_secrets": vars{
				"MODEL_KEY":                  env{"secret": "key", "version": "1"},
				"OTEL_EXPORTER_OTLP_HEADERS": env{"secret": "otlp", "version": "1"},
			},
		},
		"long": {
			"long_jobs": vars{
				"image": "long" + digest, "analyzer": "exec:/app/transcribe", "run_timeout_minutes": 600,
				"env": env{"MODEL": "large"},
			},
			"worker_env": env{"RETRY_MAX": "1h"},
		},
		"own_list": {"analyzer": "exec:/usr/bin/analyze", "worker_env": env{"MODEL": "large", "ANALYZER_ENV": "*"}},
		"platform": {
			"session_secret": "s", "session_secret_version": "7", "doclock_image": "doclock" + digest,
			"doclock_database": "(default)", "doclock_invoker_check": true, "backup_bucket": "my-backups",
			"max_dispatches_per_second": 200, "queue_backoff": vars{"min": "1s", "max": "60s", "doublings": 3},
			"recovery_service": true, "worker_gpu": "nvidia-l4", "worker_cpu": "4", "worker_memory": "16Gi",
			"worker_vpc": vars{"subnetwork": "ours"},

			"cloud_sql_instances": []string{"my-project:europe-west1:a", "theirs:europe-west1:b"},
			"worker_volumes": vars{
				"models":  vars{"path": "/models", "bucket": "my-models"},
				"share":   vars{"path": "/share", "nfs": "10.0.0.2:/share", "read_only": false},
				"keys":    vars{"path": "/keys", "secret": "key", "secret_version": "3"},
				"scratch": vars{"path": "/scratch", "memory": "1Gi"},
			},
		},
	})
	var all evaluated
	outputs(t, folder, &all)
	got := map[string]map[string]json.RawMessage{}
	for name, one := range all {
		got[name] = one.Value.Settings
	}
	data, err := json.MarshalIndent(got, "", " ")
	check(t, err)
	if *update {
		check(t, os.WriteFile(golden, append(data, '\n'), 0o600))
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

// refusal is a value of a variable and what Terraform says to it.
type refusal struct {
	given vars
	want  string
}

func TestModule_Refusals(t *testing.T) {
	t.Parallel()
	const gpu, ours = "nvidia-l4", "c@my-project.iam.gserviceaccount.com"
	t.Run("a wrong value", func(t *testing.T) {
		t.Parallel()
		refused(t, map[string]refusal{
			"image_by_tag": {vars{"worker_image": "worker:latest"}, "digest"},
			"run_longer_than_a_job": {
				vars{"long_jobs": vars{"image": "long" + digest, "analyzer": "exec:a", "run_timeout_minutes": 1436}},
				"1435",
			},
			"run_longer_than_a_dispatch": {vars{"run_timeout_minutes": 29.5}, "29 at most"},
			"start_in_no_time":           {vars{"start_seconds": 0}, "at least 1"},
			"start_always_in_time":       {vars{"start_percent": 100}, "94 to below 100"},
			"answers_half_of_errors":     {vars{"answer_percent": 50}, "94 to below 100"},
			"again_after_no_time":        {vars{"renotify_minutes": 29}, "30 to 1440"},
			"unknown_severity": {
				vars{"notification_channels_by_severity": map[string][]string{"FATAL": {}}},
				"CRITICAL",
			},
			"logs_of_no_share": {vars{"queue_log_ratio": 2}, "0 to 1"},
			"unknown_alert":    {vars{"alert_overrides": vars{"runs": vars{"disabled": true}}}, "another name"},
			"threshold_of_a_variable": {
				vars{"alert_overrides": vars{"the backlog grows": vars{"threshold": 5}}},
				"of their own",
			},
			"threshold_of_half_a_minute": {
				vars{"alert_overrides": vars{"tasks are not sent": vars{"threshold": 0.5}}},
				"whole number",
			},
			"threshold_of_no_minute": {
				vars{"alert_overrides": vars{"tasks wait": vars{"threshold": 0}}},
				"whole number",
			},
			"threshold_below_zero": {
				vars{"alert_overrides": vars{"runs time out": vars{"threshold": -1}}},
				"negative",
			},
			"oldest_of_no_age": {vars{"oldest_minutes": 0}, "positive"},
			"kept_too_short":   {vars{"keep_finished_days": 31}, "at least 32"},
			"file_of_a_moving_secret": {
				vars{"worker_volumes": vars{"v": vars{"path": "/v", "secret": "s"}}},
				"needs secret_version",
			},
			"one_account_of_two_parts": {
				vars{"service_accounts": env{"caller": ours, "worker": ours}},
				"roles of both",
			},
			"secret_that_moves": {
				vars{"worker_secrets": vars{"KEY": env{"secret": "s", "version": "latest"}}},
				"version is a number",
			},
			"apps_secret_that_moves": {
				application("secrets", vars{"KEY": env{"secret": "s", "version": "latest"}}),
				"version is a number",
			},
			"dispatches_of_no_rate":      {vars{"max_dispatches_per_second": 501}, "at most 500"},
			"backoff_without_a_unit":     {vars{"queue_backoff": vars{"min": "30"}}, "number of seconds"},
			"backup_kept_too_long":       {vars{"backup_days": 99}, "at most 98"},
			"half_an_attempt":            {vars{"max_attempts": 1.5}, "whole number"},
			"emulator":                   {vars{"worker_env": env{"FIRESTORE_EMULATOR_HOST": "h:1"}}, "Not in production"},
			"log_level_above_info":       {vars{"worker_env": env{"LOG_LEVEL": "Warn"}}, "info or debug"},
			"application_too_slow":       {application("startup_seconds", 241), "240"},
			"application_on_our_port":    {application("port", 8080), "not the worker's"},
			"member_without_a_kind":      {vars{"operators": []string{"a@b.c"}}, "member"},
			"name_too_long_for_accounts": {vars{"name": "taskguard-in-production"}, "4 to 22"},
			"vpc_without_a_name":         {vars{"worker_vpc": vars{"tags": []string{"a"}}}, "network or subnetwork"},
			"volume_of_two_kinds": {
				vars{"worker_volumes": vars{"v": vars{"path": "/v", "bucket": "b", "memory": "1Gi"}}},
				"one of",
			},
			"instance_without_a_region": {
				vars{"cloud_sql_instances": []string{"my-project:db"}},
				"PROJECT:REGION:INSTANCE",
			},
			"full_name_of_a_queue": {vars{"queue": "projects/p/locations/l/queues/q"}, "queue's name"},
		})
	})
	t.Run("values that do not fit together", func(t *testing.T) {
		t.Parallel()
		refused(t, map[string]refusal{
			"long_jobs_and_an_analyzer": {
				vars{"long_jobs": vars{"image": "long" + digest, "analyzer": "exec:a"}, "analyzer": "exec:a"},
				"leave app and analyzer null",
			},
			"secret_without_an_image": {
				vars{"doclock_image": nil, "session_secret": "s", "session_secret_version": "1"},
				"needs doclock_image",
			},
			"session_secret_that_moves": {
				vars{"doclock_image": "doclock" + digest, "session_secret": "s", "session_secret_version": "latest"},
				"a number",
			},
			"pusher_secret_that_moves": {vars{"pusher_secret": "s", "pusher_secret_version": "latest"}, "a number"},
			"account_of_another_project": {
				vars{"service_accounts": env{"caller": "c@theirs.iam.gserviceaccount.com"}},
				"in the project",
			},
			"heartbeat_too_slow":           {vars{"lock_ttl_seconds": 300, "lock_heartbeat_seconds": 140}, "two heartbeats"},
			"too_few_instances":            {vars{"max_concurrent_dispatches": 90, "worker_max_instances": 9}, "429"},
			"too_many_dispatches":          {vars{"max_concurrent_dispatches": 100}, "429"},
			"more_idle_instances_than_all": {vars{"worker_min_instances": 11}, "idle"},
			"kept_without_a_ttl_policy": {
				vars{"worker_env": env{"KEEP_FINISHED": "2160h"}},
				"sets this variable itself",
			},
			"variable_set_twice": {vars{"worker_env": env{"LOCK_TTL": "1s"}}, "sets this variable itself"},
			"doclocks_variable_set_twice": {
				vars{"doclock_env": env{"TASK_AUTH": "none"}},
				"sets this variable itself",
			},
			"responder_who_operates_not": {vars{"responders": []string{"group:a@b.c"}}, "operator too"},
			"no_indexes":                 {vars{"create_indexes": false}, "new database"},
			"gpu_with_little_cpu":        {vars{"worker_gpu": gpu, "worker_memory": "16Gi"}, "4 CPUs"},
			"gpu_with_little_memory": {
				vars{"worker_gpu": gpu, "worker_cpu": "4000m", "worker_memory": "16000Mi"},
				"16Gi",
			},
			"gpu_of_a_small_application": {
				vars{"worker_gpu": gpu, "worker_cpu": "4", "worker_memory": "16Gi", "app": vars{"image": "app" + digest}},
				"4 CPUs",
			},
			"nfs_without_a_vpc": {
				vars{"worker_volumes": vars{"v": vars{"path": "/v", "nfs": "h:/v"}}},
				"needs worker_vpc",
			},
			"account_of_no_part": {
				vars{"service_accounts": env{"console": "c@my-project.iam.gserviceaccount.com"}},
				"backup.",
			},
			"value_and_secret": {
				vars{"worker_secrets": vars{"ANALYZER": env{"secret": "s", "version": "1"}}},
				"plain value",
			},
		})
	})
}

// refused plans all cases at once. Terraform checks a variable alone before it compares
// it with others, so one call holds cases of one of the two kinds.
func refused(t *testing.T, cases map[string]refusal) {
	t.Helper()
	given := map[string]vars{}
	for name, c := range cases {
		given[name] = c.given
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
		if !strings.Contains(details[name], c.want) {
			t.Errorf("%s: got %q, want %q", name, details[name], c.want)
		}
	}
}

// check fails the test on an error.
func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
