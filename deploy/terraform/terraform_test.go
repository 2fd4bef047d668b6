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
func calls(t *testing.T, cases map[string]map[string]any) (folder string) {
	t.Helper()
	modules, outputs := map[string]any{}, map[string]any{}
	for name, given := range cases {
		call := map[string]any{"source": "./deploy/terraform", "project": "my-project", "worker_image": "worker" + digest, "keep_finished_days": nil}
		maps.Copy(call, given)
		modules[name], outputs[name] = call, map[string]any{"value": "${module." + name + "}"}
	}
	main, err := json.Marshal(map[string]any{"module": modules, "output": outputs})
	check(t, err)
	return configuration(t, "main.tf.json", string(main))
}

// configuration writes a file beside the module, and initializes it. The module consists
// of the files that need no provider.
func configuration(t *testing.T, name, main string) (folder string) {
	t.Helper()
	folder = t.TempDir()
	files := map[string]string{name: main, "deploy/terraform/stub.tf": stub + monitoringOutput(t)}
	for _, pattern := range []string{"settings*.tf", "variables*.tf", "../*.yaml", "../*.json", "../../docs/operations.md", "../../CHANGELOG.md"} {
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

const digest = "@sha256:0000000000000000000000000000000000000000000000000000000000000000"

// application is a value of the variable app with one field changed.
func application(field string, value any) map[string]any {
	app := map[string]any{"image": "app" + digest, "env": map[string]string{"APP_PORT": "9000"}}
	app[field] = value
	return map[string]any{"app": app}
}

// evaluated holds the module's outputs by case.
type evaluated map[string]struct {
	Value struct {
		Settings      map[string]json.RawMessage
		Files         json.RawMessage
		Notifications map[string]string
	}
}

func TestSettingsAreThoseOfTheGoldenFile(t *testing.T) {
	t.Parallel()
	folder := calls(t, map[string]map[string]any{
		"smallest":    {},
		"application": application("port", 9000),
		"everything":  {"doclock_image": "doclock" + digest, "session_secret": "taskguard-session", "session_secret_version": "1", "otlp_endpoint": "http://collector:4318", "backup_bucket": "my-project-taskguard-exports"},
		"theirs": {
			"name": "their-guard", "project": "theirs", "region": "us-east1", "queue": "work", "backlog_tasks": 7, "run_timeout_minutes": 29,
			"otlp_endpoint": "https://telemetry.googleapis.com/", "worker_env": map[string]string{"LOG_LEVEL": "DEBUG", "RETRY_MAX": "1h30m"}, "keep_finished_days": 90,
			"notification_channels": []string{"mail"}, "notification_channels_by_severity": map[string][]string{"CRITICAL": {"pager"}, "WARNING": {}}, "renotify_minutes": 120,
			"alert_overrides": map[string]any{"runs time out": map[string]any{"threshold": 7.5}, "tasks wait": map[string]any{"disabled": true}},
		},
		"program": {
			"analyzer": "exec:/usr/bin/analyze", "worker_env": map[string]string{"MODEL": "large", "OTEL_TRACES_SAMPLER": "always_off"},
			"worker_secrets": map[string]any{"MODEL_KEY": map[string]string{"secret": "key", "version": "1"}, "OTEL_EXPORTER_OTLP_HEADERS": map[string]string{"secret": "otlp", "version": "1"}},
		},
		"long": {
			"long_jobs":  map[string]any{"image": "long" + digest, "analyzer": "exec:/app/transcribe", "run_timeout_minutes": 600, "env": map[string]string{"MODEL": "large"}},
			"worker_env": map[string]string{"RETRY_MAX": "1h"},
		},
		"own_list": {"analyzer": "exec:/usr/bin/analyze", "worker_env": map[string]string{"MODEL": "large", "ANALYZER_ENV": "*"}},
		"platform": {
			"session_secret": "s", "session_secret_version": "7", "doclock_image": "doclock" + digest, "doclock_database": "(default)", "max_dispatches_per_second": 200,
			"queue_backoff": map[string]any{"min": "1s", "max": "60s", "doublings": 3}, "backup_bucket": "my-backups", "doclock_invoker_check": true, "recovery_service": true, "worker_gpu": "nvidia-l4", "worker_cpu": "4", "worker_memory": "16Gi", "worker_vpc": map[string]any{"subnetwork": "ours"},
			"cloud_sql_instances": []string{"my-project:europe-west1:a", "theirs:europe-west1:b"},
			"worker_volumes": map[string]any{
				"models": map[string]any{"path": "/models", "bucket": "my-models"}, "share": map[string]any{"path": "/share", "nfs": "10.0.0.2:/share", "read_only": false},
				"keys": map[string]any{"path": "/keys", "secret": "key", "secret_version": "3"}, "scratch": map[string]any{"path": "/scratch", "memory": "1Gi"},
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
	page := "# The module's inputs and outputs\n\n`make settings` writes this page from the descriptions in the `.tf` files. Its use is described in [Deployment](../README.md#with-terraform).\n"
	for _, part := range []struct{ heading, pattern string }{
		{"\n| input | default | |\n|---|---|---|\n", "variables*.tf"}, {"\n| output | |\n|---|---|\n", "outputs.tf"},
	} {
		paths, err := filepath.Glob(part.pattern)
		if err != nil || len(paths) == 0 {
			t.Fatalf("%s: %q, %v", part.pattern, paths, err)
		}
		page += part.heading
		for _, path := range paths {
			all, src := blocks(t, path)
			for _, b := range all {
				columns := []string{"`" + b.Labels[0] + "`", "required", strings.Trim(body{b.Body, src}.text("description"), `"`)}
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

// notificationsHaveTheirNames checks what an operator reads on a telephone, where no
// page says what a name stands for.
func notificationsHaveTheirNames(t *testing.T, all map[string]string) {
	t.Helper()
	commands := 0
	for name, text := range all {
		for _, wrong := range []string{"REGION", "europe-west1", "my-project", "](", "=analyses", " analyses --", "1000", "taskguard-", "Taskguard:", "taskguard_"} {
			if strings.Contains(text, wrong) {
				t.Errorf("%s contains %q:\n%s", name, wrong, text)
			}
		}
		for _, c := range regexp.MustCompile("`gcloud (tasks|scheduler) [^`]*`").FindAllString(text, -1) {
			if commands++; !strings.Contains(c, " --location=us-east1 --project=theirs") || strings.HasPrefix(c, "`gcloud tasks") && !strings.Contains(c, "work") || strings.HasPrefix(c, "`gcloud scheduler") && !strings.Contains(c, " their-guard-") {
				t.Errorf("%s: %s is about another deployment", name, c)
			}
		}
		if strings.HasSuffix(name, "tasks are not sent") && strings.Count(text, "[128m]") != 2 { // RETRY_MAX, a quarter more, and 15 minutes
			t.Errorf("%s: the queue may wait longer:\n%s", name, text)
		}
		if n := utf8.RuneCountInString(text); n > 8192 || len(text) > 10240 || !strings.Contains(text, "```promql\n") {
			t.Errorf("%s has %d characters, and Google takes 8192:\n%s", name, n, text)
		}
	}
	if commands < 5 {
		t.Errorf("%d commands in %d notifications", commands, len(all))
	}
}

// refusal is a value of a variable and what Terraform says to it.
type refusal struct {
	given map[string]any
	want  string
}

func TestModuleRefusesSettingsThatAreWrong(t *testing.T) {
	t.Parallel()
	env := func(name, value string) map[string]any {
		return map[string]any{"worker_env": map[string]string{name: value}}
	}
	refused(t, map[string]refusal{
		"image_by_tag":               {map[string]any{"worker_image": "worker:latest"}, "digest"},
		"run_longer_than_a_job":      {map[string]any{"long_jobs": map[string]any{"image": "long" + digest, "analyzer": "exec:a", "run_timeout_minutes": 1436}}, "1435"},
		"run_longer_than_a_dispatch": {map[string]any{"run_timeout_minutes": 29.5}, "29 at most"},
		"start_in_no_time":           {map[string]any{"start_seconds": 0}, "at least 1"},
		"start_always_in_time":       {map[string]any{"start_percent": 100}, "94 to below 100"},
		"answers_half_of_errors":     {map[string]any{"answer_percent": 50}, "94 to below 100"},
		"again_after_no_time":        {map[string]any{"renotify_minutes": 29}, "30 to 1440"},
		"unknown_severity":           {map[string]any{"notification_channels_by_severity": map[string][]string{"FATAL": {}}}, "CRITICAL"},
		"logs_of_no_share":           {map[string]any{"queue_log_ratio": 2}, "0 to 1"},
		"unknown_alert":              {map[string]any{"alert_overrides": map[string]any{"runs": map[string]any{"disabled": true}}}, "another name"},
		"threshold_of_a_variable":    {map[string]any{"alert_overrides": map[string]any{"the backlog grows": map[string]any{"threshold": 5}}}, "of their own"},
		"threshold_of_half_a_minute": {map[string]any{"alert_overrides": map[string]any{"tasks are not sent": map[string]any{"threshold": 0.5}}}, "whole number"},
		"threshold_of_no_minute":     {map[string]any{"alert_overrides": map[string]any{"tasks wait": map[string]any{"threshold": 0}}}, "whole number"},
		"threshold_below_zero":       {map[string]any{"alert_overrides": map[string]any{"runs time out": map[string]any{"threshold": -1}}}, "negative"},
		"oldest_of_no_age":           {map[string]any{"oldest_minutes": 0}, "positive"},
		"kept_too_short":             {map[string]any{"keep_finished_days": 31}, "at least 32"},
		"file_of_a_moving_secret":    {map[string]any{"worker_volumes": map[string]any{"v": map[string]any{"path": "/v", "secret": "s"}}}, "needs secret_version"},
		"one_account_of_two_parts":   {map[string]any{"service_accounts": map[string]string{"caller": "c@my-project.iam.gserviceaccount.com", "worker": "c@my-project.iam.gserviceaccount.com"}}, "roles of both"},
		"secret_that_moves":          {map[string]any{"worker_secrets": map[string]any{"KEY": map[string]string{"secret": "s", "version": "latest"}}}, "version is a number"},
		"apps_secret_that_moves":     {application("secrets", map[string]any{"KEY": map[string]string{"secret": "s", "version": "latest"}}), "version is a number"},
		"dispatches_of_no_rate":      {map[string]any{"max_dispatches_per_second": 501}, "at most 500"},
		"backoff_without_a_unit":     {map[string]any{"queue_backoff": map[string]any{"min": "30"}}, "number of seconds"},
		"backup_kept_too_long":       {map[string]any{"backup_days": 99}, "at most 98"},
		"half_an_attempt":            {map[string]any{"max_attempts": 1.5}, "whole number"},
		"emulator":                   {env("FIRESTORE_EMULATOR_HOST", "h:1"), "Not in production"},
		"log_level_above_info":       {env("LOG_LEVEL", "Warn"), "info or debug"},
		"application_too_slow":       {application("startup_seconds", 241), "240"},
		"application_on_our_port":    {application("port", 8080), "not the worker's"},
		"member_without_a_kind":      {map[string]any{"operators": []string{"a@b.c"}}, "member"},
		"name_too_long_for_accounts": {map[string]any{"name": "taskguard-in-production"}, "4 to 22"},
		"vpc_without_a_name":         {map[string]any{"worker_vpc": map[string]any{"tags": []string{"a"}}}, "network or subnetwork"},
		"volume_of_two_kinds":        {map[string]any{"worker_volumes": map[string]any{"v": map[string]any{"path": "/v", "bucket": "b", "memory": "1Gi"}}}, "one of"},
		"instance_without_a_region":  {map[string]any{"cloud_sql_instances": []string{"my-project:db"}}, "PROJECT:REGION:INSTANCE"},
		"full_name_of_a_queue":       {map[string]any{"queue": "projects/p/locations/l/queues/q"}, "queue's name"},
	})
}

func TestModuleRefusesSettingsThatDoNotFitTogether(t *testing.T) {
	t.Parallel()
	refused(t, map[string]refusal{
		"long_jobs_and_an_analyzer":    {map[string]any{"long_jobs": map[string]any{"image": "long" + digest, "analyzer": "exec:a"}, "analyzer": "exec:a"}, "leave app and analyzer null"},
		"secret_without_an_image":      {map[string]any{"doclock_image": nil, "session_secret": "s", "session_secret_version": "1"}, "needs doclock_image"},
		"session_secret_that_moves":    {map[string]any{"doclock_image": "doclock" + digest, "session_secret": "s", "session_secret_version": "latest"}, "a number"},
		"pusher_secret_that_moves":     {map[string]any{"pusher_secret": "s", "pusher_secret_version": "latest"}, "a number"},
		"account_of_another_project":   {map[string]any{"service_accounts": map[string]string{"caller": "c@theirs.iam.gserviceaccount.com"}}, "in the project"},
		"heartbeat_too_slow":           {map[string]any{"lock_ttl_seconds": 300, "lock_heartbeat_seconds": 140}, "two heartbeats"},
		"too_few_instances":            {map[string]any{"max_concurrent_dispatches": 90, "worker_max_instances": 9}, "429"},
		"too_many_dispatches":          {map[string]any{"max_concurrent_dispatches": 100}, "429"},
		"more_idle_instances_than_all": {map[string]any{"worker_min_instances": 11}, "idle"},
		"kept_without_a_ttl_policy":    {map[string]any{"worker_env": map[string]string{"KEEP_FINISHED": "2160h"}}, "sets this variable itself"},
		"variable_set_twice":           {map[string]any{"worker_env": map[string]string{"LOCK_TTL": "1s"}}, "sets this variable itself"},
		"doclocks_variable_set_twice":  {map[string]any{"doclock_env": map[string]string{"TASK_AUTH": "none"}}, "sets this variable itself"},
		"responder_who_operates_not":   {map[string]any{"responders": []string{"group:a@b.c"}}, "operator too"},
		"no_indexes":                   {map[string]any{"create_indexes": false}, "new database"},
		"gpu_with_little_cpu":          {map[string]any{"worker_gpu": "nvidia-l4", "worker_memory": "16Gi"}, "4 CPUs"},
		"gpu_with_little_memory":       {map[string]any{"worker_gpu": "nvidia-l4", "worker_cpu": "4000m", "worker_memory": "16000Mi"}, "16Gi"},
		"gpu_of_a_small_application":   {map[string]any{"worker_gpu": "nvidia-l4", "worker_cpu": "4", "worker_memory": "16Gi", "app": map[string]any{"image": "app" + digest}}, "4 CPUs"},
		"nfs_without_a_vpc":            {map[string]any{"worker_volumes": map[string]any{"v": map[string]any{"path": "/v", "nfs": "h:/v"}}}, "needs worker_vpc"},
		"account_of_no_part":           {map[string]any{"service_accounts": map[string]string{"console": "c@my-project.iam.gserviceaccount.com"}}, "backup."},
		"value_and_secret":             {map[string]any{"worker_secrets": map[string]any{"ANALYZER": map[string]string{"secret": "s", "version": "1"}}}, "plain value"},
	})
}

// refused plans all cases at once. Terraform checks a variable alone before it compares
// it with others, so one call holds cases of one of the two kinds.
func refused(t *testing.T, cases map[string]refusal) {
	t.Helper()
	given := map[string]map[string]any{}
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
