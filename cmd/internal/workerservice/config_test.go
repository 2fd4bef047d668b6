package workerservice

import (
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"testing"
	"time"

	"taskguard/internal/env"
	"taskguard/internal/taskauth"
	"taskguard/internal/testing/must"
	"taskguard/lease"
	"taskguard/worker"
)

func TestParseConfig_Defaults(t *testing.T) {
	c, err := parse("TASK_AUTH=iam")
	want := worker.Options{
		Database: "(default)", Collection: "analyses", Auth: worker.CheckedByProxy(),
		Lock:       lease.Policy{TTL: 300 * time.Second, Heartbeat: 100 * time.Second, MaxAttempts: 10},
		RunTimeout: 25 * time.Minute, MaxRunTime: 24 * time.Hour, CheckpointInterval: 10 * time.Second,
		RetryMin: 30 * time.Second, RetryMax: 10 * time.Minute, MaxRuns: 100,
	}
	if err != nil || !reflect.DeepEqual(c.Options, want) {
		t.Errorf("options = %+v, %v, want %+v", c.Options, err, want)
	}
	got := fmt.Sprint(c.Port, c.Database, c.AnalyzerSpec, c.LogFormat, c.LogLevel)
	if want := fmt.Sprint(8080, "(default)", "builtin:document", "json", slog.LevelInfo); got != want {
		t.Errorf("config = %s, want %s", got, want)
	}
}

func TestParseConfig_Variables(t *testing.T) {
	c, err := parse("PORT=65535", "LOG_FORMAT=text", "LOG_LEVEL=warn", "GOOGLE_CLOUD_PROJECT=p", "FIRESTORE_DATABASE=d",
		"FIRESTORE_EMULATOR_HOST=h:1", "ANALYSES_COLLECTION=a/b/c", "LOCK_TTL=60s", "LOCK_HEARTBEAT=19s",
		"MAX_ATTEMPTS=3", "MAX_RUNS=7", "RUN_TIMEOUT=20m", "CHECKPOINT_INTERVAL=2s", "STALL_TIMEOUT=3s",
		"MAX_RUN_TIME=21h", "RETRY_MIN=4s", "RETRY_MAX=5s", "KEEP_FINISHED=2160h", "SMOKE_INPUT={}",
		"CONCURRENCY_KEY=input.tenant", "CONCURRENCY_LIMIT=8",
		"TASK_AUTH=oidc", "TASK_AUDIENCE=https://a.example", "TASK_SERVICE_ACCOUNTS=a@b.c, d@e.f,",
		"TASK_JWKS_URL=http://k.example", "TASK_QUEUE=projects/p/locations/l/queues/q",
		"TASK_TARGET_URL=https://worker.example", "TASK_CALLER=d@e.f", "CLOUD_TASKS_EMULATOR_HOST=h:2",
		"ANALYZER=http://127.0.0.1:1/s3cret?key=s3cret")
	must.OK(t, err)
	token := taskauth.Options{
		Audience: "https://a.example", Accounts: []string{"a@b.c", "d@e.f"},
		KeySource: taskauth.KeySource{KeysURL: "http://k.example"},
	}
	queue := worker.Queue{
		Name: "projects/p/locations/l/queues/q", TargetURL: "https://worker.example", Caller: "d@e.f",
		Audience: "https://a.example", EmulatorHost: "h:2",
	}
	o := c.Options
	for _, tc := range []struct{ got, want any }{
		{o.Queue, queue}, {fmt.Sprint(o.Auth), fmt.Sprint(token)}, {c.Auth, env.TaskAuth{Mode: "oidc", Token: token}},
		{c.Firestore, env.Firestore{Project: "p", Database: "d", Emulator: "h:1"}},
		{[]string{o.Project, o.Database, o.Emulator}, []string{"p", "d", "h:1"}},
		{string(o.SelfTest), "{}"}, {c.Port, 65535}, {c.LogFormat, "text"}, {c.LogLevel, slog.LevelWarn},
		{c.AnalyzerSpec, "http://127.0.0.1:1/s3cret?key=s3cret"},
	} {
		if !reflect.DeepEqual(tc.got, tc.want) {
			t.Errorf("%+v, want %+v", tc.got, tc.want)
		}
	}
	// The rest is in the log, without what may be secret.
	const logged = `[task_auth=oidc task_keys=http://k.example task_queue=projects/p/locations/l/queues/q project=p database=d
		collection=a/b/c emulator=h:1 analyzer=http://127.0.0.1:1 analyzer_env_withheld= lock_ttl=1m0s lock_heartbeat=19s
		max_attempts=3 run_timeout=20m0s checkpoint_interval=2s stall_timeout=3s max_run_time=21h0m0s retry_min=4s
		retry_max=5s max_runs=7 concurrency_key=input.tenant concurrency_limit=8 keep_finished=2160h0m0s otlp=]`
	if got, want := fmt.Sprint(c.attrs()), strings.Join(strings.Fields(logged), " "); got != want {
		t.Errorf("logged %s, want %s", got, want)
	}
}

func TestParseConfig_Program(t *testing.T) {
	t.Setenv("MY_KEY", "s3cret")
	for output, result := range map[string]any{"any": "s3cret", "json": nil, "": nil} {
		c := must.Get(parse("TASK_AUTH=iam", "ANALYZER=exec:echo s3cret", "ANALYZER_OUTPUT="+output))(t)
		got := fmt.Sprint(c.attrs())
		if !strings.Contains(got, "analyzer=exec:echo ") || !strings.Contains(got, "MY_KEY") {
			t.Errorf("logged %s, want the program, and the name of what it does not get", got)
		}
		if strings.Contains(got, "s3cret") {
			t.Errorf("logged %s: an argument or a value", got)
		}
		r, err := c.Analyzer.Analyze(t.Context(), worker.Job{Input: []byte("{}")})
		if r != result || (err == nil) != (result != nil) {
			t.Errorf("ANALYZER_OUTPUT=%s: result %q, %v", output, r, err)
		}
	}
}

// A variable that the analyzer's program gets may be its own.
func TestConfig_Misspelt(t *testing.T) {
	t.Setenv("LOCK_TLT", "s3cret")
	for env, want := range map[string]bool{
		"ANALYZER=builtin:document": true, "ANALYZER=exec:true": true, "ANALYZER=exec:true;ANALYZER_ENV=LOCK_*": false,
	} {
		var log strings.Builder
		c, err := parse(append(strings.Split(env, ";"), "TASK_AUTH=iam")...)
		must.OK(t, err)
		c.warnOfMisspelt(t.Context(), slog.New(slog.NewTextHandler(&log, nil)))
		if got := strings.Contains(log.String(), "variable=LOCK_TLT meant=LOCK_TTL"); got != want {
			t.Errorf("%s: a warning %v, want %v: %s", env, got, want, &log)
		}
	}
}

// Google and the worker compare the audience as a whole.
func TestParseConfig_TargetSlash(t *testing.T) {
	c, err := parse("TASK_AUTH=iam", "TASK_QUEUE=projects/p/locations/l/queues/q",
		"TASK_TARGET_URL=https://worker.example/base//", "TASK_CALLER=a@b.c")
	must.OK(t, err)
	const want = "https://worker.example/base"
	if q := c.Options.Queue; q.TargetURL != want || q.Audience != want {
		t.Errorf("%+v, want the target and audience %s", q, want)
	}
}

// refused returns the variables of the problems, in their order.
func refused(env ...string) string {
	_, err := parse(env...)
	if err == nil {
		return ""
	}
	var names []string
	for line := range strings.Lines(err.Error()) {
		name, _, _ := strings.Cut(line, ": ")
		names = append(names, name)
	}
	return strings.Join(names, " ")
}

// Each is wrong alone, beside TASK_AUTH=iam.
func TestParseConfig_WrongVariable(t *testing.T) {
	for _, setting := range []string{
		"PORT=http", "PORT=65536", "LOG_LEVEL=loud", "LOG_FORMAT=xml", "SMOKE_INPUT={",
		"FIRESTORE_DATABASE=a b", "FIRESTORE_DATABASE=ä", "FIRESTORE_EMULATOR_HOST=http://127.0.0.1:1",
		"FIRESTORE_EMULATOR_HOST=:1", "FIRESTORE_EMULATOR_HOST=h:0", "FIRESTORE_EMULATOR_HOST=h:65536",
		"LOCK_TTL=-1s", "LOCK_TTL=300", "CHECKPOINT_INTERVAL=1ms", "STALL_TIMEOUT=1h", "MAX_RUN_TIME=1m",
		"MAX_ATTEMPTS=0", "MAX_ATTEMPTS=1000001", "MAX_RUNS=0", "MAX_RUNS=1000001",
		"ANALYZER=python main.py", "ANALYZER=exec:no-such-program", "ANALYZER_OUTPUT=text",

		// They belong to a variable that is not set, or has another value.
		"ANALYZER_ENV=A", "TASK_AUDIENCE=x", "TASK_SERVICE_ACCOUNTS=a@b.c", "TASK_JWKS_URL=https://k.example",
		"TASK_TARGET_URL=https://worker.example", "TASK_CALLER=a@b.c", "CLOUD_TASKS_EMULATOR_HOST=h:1",
		"RETRY_MIN=1m", "RETRY_MAX=1h", "CONCURRENCY_KEY=tenant", "CONCURRENCY_LIMIT=3", "CONCURRENCY_RETRY=hold",
	} {
		want, _, _ := strings.Cut(setting, "=")
		if got := refused("TASK_AUTH=iam", setting); got != want {
			t.Errorf("%s: problems of %q, want %s alone", setting, got, want)
		}
	}
}

func TestParseConfig_Relations(t *testing.T) {
	const (
		iam, none, deployed = "TASK_AUTH=iam", "TASK_AUTH=none", "K_SERVICE=w"
		queue, caller       = "TASK_QUEUE=projects/p/locations/l/queues/q", "TASK_CALLER=a@b.c"
		target, keys        = "TASK_TARGET_URL=https://worker.example", "TASK_JWKS_URL="
		oidc, audience      = "TASK_AUTH=oidc", "TASK_AUDIENCE=https://worker.example"
		accounts            = "TASK_SERVICE_ACCOUNTS=a@b.c"
		firestore, tasks    = "FIRESTORE_EMULATOR_HOST=h:1", "CLOUD_TASKS_EMULATOR_HOST=h:1"
		job                 = "ANALYZER=job:projects/p/locations/l/jobs/j-1"
	)
	for name, tc := range map[string]struct {
		env      []string
		problems string
	}{
		"nothing set":     {nil, "TASK_AUTH"},
		"unknown mode":    {[]string{"TASK_AUTH=OIDC"}, "TASK_AUTH"},
		"several at once": {[]string{"PORT=x", "RUN_TIMEOUT=0s"}, "RUN_TIMEOUT TASK_AUTH PORT"},
		"empty is unset":  {[]string{iam, "PORT=", "ANALYSES_COLLECTION=", "LOG_FORMAT=", "ANALYZER="}, ""},
		"limits":          {[]string{iam, "PORT=0", "MAX_RUNS=1", "MAX_ATTEMPTS=1000000", "KEEP_FINISHED=0"}, ""},

		"oidc alone":            {[]string{oidc}, "TASK_AUDIENCE TASK_SERVICE_ACCOUNTS"},
		"oidc, file of keys":    {[]string{oidc, audience, accounts, keys + "/keys.json"}, "TASK_JWKS_URL"},
		"oidc, keys' password":  {[]string{oidc, audience, accounts, keys + "https://u:p@k.example"}, "TASK_JWKS_URL"},
		"oidc, keys, no host":   {[]string{oidc, audience, accounts, keys + "https:///keys"}, "TASK_JWKS_URL"},
		"oidc, no account":      {[]string{oidc, audience, accounts + ",b"}, "TASK_SERVICE_ACCOUNTS"},
		"oidc, another caller":  {[]string{oidc, audience, accounts, queue, target, caller + "x"}, "TASK_CALLER"},
		"oidc without caller":   {[]string{oidc, audience, accounts, queue, target}, "TASK_CALLER"},
		"oidc without audience": {[]string{oidc, accounts, queue, target, caller}, "TASK_AUDIENCE"},
		"oidc without accounts": {[]string{oidc, audience, queue, target, caller}, "TASK_SERVICE_ACCOUNTS"},
		"oidc, complete":        {[]string{oidc, audience, accounts, queue, target, caller}, ""},

		"iam, queue alone":      {[]string{iam, queue}, "TASK_TARGET_URL TASK_CALLER"},
		"iam, queue's nickname": {[]string{iam, "TASK_QUEUE=q", target, caller}, "TASK_QUEUE"},
		"iam, limit, no key": {
			[]string{iam, queue, target, caller, "CONCURRENCY_LIMIT=1", "CONCURRENCY_RETRY=hold"},
			"CONCURRENCY_LIMIT CONCURRENCY_RETRY",
		},
		"iam, deployed": {[]string{deployed, iam, queue, target, caller}, ""},

		"none without emulators": {[]string{none}, "TASK_AUTH"},
		"none, only tasks":       {[]string{none, queue, target, tasks}, "TASK_AUTH FIRESTORE_EMULATOR_HOST"},
		"none, only documents":   {[]string{none, queue, target, firestore}, "CLOUD_TASKS_EMULATOR_HOST"},
		"none, complete":         {[]string{none, queue, target, firestore, tasks}, ""},
		"none, deployed":         {[]string{deployed, none, firestore}, "FIRESTORE_EMULATOR_HOST TASK_AUTH"},

		"documents deployed": {[]string{deployed, iam, firestore}, "FIRESTORE_EMULATOR_HOST"},
		"tasks deployed":     {[]string{deployed, iam, queue, target, caller, tasks}, "CLOUD_TASKS_EMULATOR_HOST"},
		"keys deployed":      {[]string{deployed, oidc, audience, accounts, keys + "https://k.b"}, "TASK_JWKS_URL"},

		"program's variables": {[]string{iam, "ANALYZER=exec:true", "ANALYZER_ENV=A, B_*,*"}, ""},
		"no variables": {
			[]string{iam, "ANALYZER=exec:true", "ANALYZER_ENV=A=1,,B-C,*D"},
			"ANALYZER_ENV ANALYZER_ENV ANALYZER_ENV ANALYZER_ENV",
		},
		"job":               {[]string{iam, queue, target, caller, job}, ""},
		"job without queue": {[]string{iam, job}, "TASK_QUEUE"},
		"job's nickname":    {[]string{iam, queue, target, caller, "ANALYZER=job:j"}, "ANALYZER"},
		"job's self-test":   {[]string{iam, queue, target, caller, job, "SMOKE_INPUT=1"}, "SMOKE_INPUT"},
		"job with a key":    {[]string{iam, queue, target, caller, job, "CONCURRENCY_KEY=tenant"}, "CONCURRENCY_KEY"},
	} {
		if got := refused(tc.env...); got != tc.problems {
			t.Errorf("%s: problems of %q, want %q", name, got, tc.problems)
		}
	}
}
