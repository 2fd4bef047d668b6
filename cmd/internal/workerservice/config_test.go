package workerservice

import (
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"taskguard/internal/env"
	"taskguard/internal/taskauth"
	"taskguard/lease"
	"taskguard/worker"
)

// environ returns an environment of settings such as PORT=1.
func environ(words ...string) func(string) (string, bool) {
	env := map[string]string{}
	for _, w := range words {
		k, v, _ := strings.Cut(w, "=")
		env[k] = v
	}
	return func(k string) (string, bool) { v, ok := env[k]; return v, ok }
}

func parse(words ...string) (Config, error) { return ParseConfig(environ(words...)) }

func TestTheDefaultsAreTheContracts(t *testing.T) {
	c, err := parse("TASK_AUTH=iam")
	want := worker.Options{
		Database: "(default)", Collection: "analyses", Auth: worker.CheckedByProxy(), Lock: lease.Policy{TTL: 300 * time.Second, Heartbeat: 100 * time.Second, MaxAttempts: 10},
		RunTimeout: 25 * time.Minute, MaxRunTime: 24 * time.Hour, CheckpointInterval: 10 * time.Second, RetryMin: 30 * time.Second, RetryMax: 10 * time.Minute, MaxRuns: 100,
	}
	if err != nil || !reflect.DeepEqual(c.Options, want) || c.Port != 8080 || c.Database != "(default)" || c.AnalyzerSpec != "builtin:document" || c.LogFormat != "json" || c.LogLevel != slog.LevelInfo {
		t.Errorf("config = %+v, %v", c, err)
	}
}

func TestEachVariableSetsItsOption(t *testing.T) {
	c, err := parse("PORT=65535", "GOOGLE_CLOUD_PROJECT=p", "FIRESTORE_DATABASE=d", "FIRESTORE_EMULATOR_HOST=h:1", "ANALYSES_COLLECTION=a/b/c", "LOCK_TTL=60s", "LOCK_HEARTBEAT=19s",
		"MAX_ATTEMPTS=3", "MAX_RUNS=7", "RUN_TIMEOUT=20m", "CHECKPOINT_INTERVAL=2s", "STALL_TIMEOUT=3s", "MAX_RUN_TIME=21h", "RETRY_MIN=4s", "RETRY_MAX=5s",
		"KEEP_FINISHED=2160h", "SMOKE_INPUT={}", "TASK_AUTH=oidc", "TASK_AUDIENCE=https://a.example", "TASK_SERVICE_ACCOUNTS=a@b.c, d@e.f,",
		"TASK_JWKS_URL=http://k.example", "TASK_QUEUE=projects/p/locations/l/queues/q", "TASK_TARGET_URL=https://worker.example", "TASK_CALLER=d@e.f",
		"CLOUD_TASKS_EMULATOR_HOST=h:2", "LOG_FORMAT=text", "LOG_LEVEL=warn", "ANALYZER=http://127.0.0.1:1/s3cret?key=s3cret")
	if err != nil {
		t.Fatal(err)
	}
	token := taskauth.Options{Audience: "https://a.example", Accounts: []string{"a@b.c", "d@e.f"}, KeySource: taskauth.KeySource{KeysURL: "http://k.example"}}
	want := worker.Options{
		Project: "p", Database: "d", Emulator: "h:1", Collection: "a/b/c", Auth: c.Options.Auth, Lock: lease.Policy{TTL: 60 * time.Second, Heartbeat: 19 * time.Second, MaxAttempts: 3},
		RunTimeout: 20 * time.Minute, MaxRunTime: 21 * time.Hour, CheckpointInterval: 2 * time.Second, StallTimeout: 3 * time.Second,
		RetryMin: 4 * time.Second, RetryMax: 5 * time.Second, MaxRuns: 7, Keep: 90 * 24 * time.Hour, SelfTest: []byte("{}"),
		Queue: worker.Queue{Name: "projects/p/locations/l/queues/q", TargetURL: "https://worker.example", Caller: "d@e.f", Audience: "https://a.example", EmulatorHost: "h:2"},
	}
	if !reflect.DeepEqual(c.Options, want) || fmt.Sprint(c.Options.Auth) != fmt.Sprint(token) {
		t.Errorf("options = %+v, want %+v", c.Options, want)
	}
	if !reflect.DeepEqual(c.Auth, env.TaskAuth{Mode: "oidc", Token: token}) || c.Port != 65535 || c.Firestore != (env.Firestore{Project: "p", Database: "d", Emulator: "h:1"}) ||
		c.LogFormat != "text" || c.LogLevel != slog.LevelWarn || c.AnalyzerSpec != "http://127.0.0.1:1/s3cret?key=s3cret" {
		t.Errorf("config = %+v", c)
	}
	const logged = "[task_auth=oidc task_keys=http://k.example task_queue=projects/p/locations/l/queues/q project=p database=d collection=a/b/c emulator=h:1 " +
		"analyzer=http://127.0.0.1:1 analyzer_env_withheld= lock_ttl=1m0s lock_heartbeat=19s max_attempts=3 run_timeout=20m0s checkpoint_interval=2s " +
		"stall_timeout=3s max_run_time=21h0m0s retry_min=4s retry_max=5s max_runs=7 keep_finished=2160h0m0s otlp=]"
	if got := fmt.Sprint(c.attrs()); got != logged {
		t.Errorf("logged %s, want %s", got, logged)
	}
}

func TestAProgramsArgumentsAndVariablesAreNotLogged(t *testing.T) {
	t.Setenv("MY_KEY", "s3cret")
	for output, result := range map[string]any{"any": "s3cret", "json": nil, "": nil} {
		c, err := parse("TASK_AUTH=iam", "ANALYZER=exec:echo s3cret", "ANALYZER_OUTPUT="+output)
		if err != nil {
			t.Fatal(err)
		}
		got := fmt.Sprint(c.attrs())
		if !strings.Contains(got, "analyzer=exec:echo ") || !strings.Contains(got, "MY_KEY") || strings.Contains(got, "s3cret") {
			t.Errorf("logged %s", got)
		}
		if r, err := c.Analyzer.Analyze(t.Context(), worker.Job{Input: []byte("{}")}); r != result || (err == nil) != (result != nil) {
			t.Errorf("%s: result %q, %v", output, r, err)
		}
	}
}

// Google and the worker compare the audience as a whole.
func TestTheSlashAtTheEndOfTheTargetIsNoPartOfTheAudience(t *testing.T) {
	c, err := parse("TASK_AUTH=iam", "TASK_QUEUE=projects/p/locations/l/queues/q", "TASK_TARGET_URL=https://worker.example/base//", "TASK_CALLER=a@b.c")
	if q := c.Options.Queue; err != nil || q.TargetURL != "https://worker.example/base" || q.Audience != q.TargetURL {
		t.Errorf("%+v, %v", q, err)
	}
}

func TestABadEnvironmentIsNamed(t *testing.T) {
	const queue, target = "TASK_QUEUE=projects/p/locations/l/queues/q", "TASK_TARGET_URL=https://worker.example"
	oidc := []string{"TASK_AUTH=oidc", "TASK_AUDIENCE=https://worker.example", "TASK_SERVICE_ACCOUNTS=a@b.c"}
	oidc = oidc[:len(oidc):len(oidc)]
	cases := map[string]struct {
		env  []string
		want []string // one line each, in this order
	}{
		"nothing set":           {nil, []string{"TASK_AUTH: must be set"}},
		"no emulator":           {[]string{"TASK_AUTH=none"}, []string{"TASK_AUTH: none is for emulators"}},
		"an emulated queue":     {[]string{"TASK_AUTH=none", queue, target, "CLOUD_TASKS_EMULATOR_HOST=h:1"}, []string{"TASK_AUTH: none is for emulators", "FIRESTORE_EMULATOR_HOST: must be set too"}},
		"emulated documents":    {[]string{"TASK_AUTH=none", queue, target, "FIRESTORE_EMULATOR_HOST=h:1"}, []string{"CLOUD_TASKS_EMULATOR_HOST: must be set too"}},
		"only oidc":             {[]string{"TASK_AUTH=oidc"}, []string{"TASK_AUDIENCE: must be set", "TASK_SERVICE_ACCOUNTS: must be set"}},
		"a file of keys":        {append(oidc, "TASK_JWKS_URL=/keys.json"), []string{"TASK_JWKS_URL: "}},
		"oidc's variables":      {[]string{"TASK_AUTH=iam", "TASK_AUDIENCE=x", "TASK_SERVICE_ACCOUNTS=a@b.c", "TASK_JWKS_URL=https://k.example"}, []string{"TASK_AUDIENCE: belongs to", "TASK_SERVICE_ACCOUNTS: belongs to", "TASK_JWKS_URL: belongs to"}},
		"an unknown mode":       {[]string{"TASK_AUTH=OIDC"}, []string{`TASK_AUTH: "OIDC" is not one of oidc, iam, none`}},
		"no account":            {[]string{"TASK_AUTH=oidc", "TASK_AUDIENCE=x", "TASK_SERVICE_ACCOUNTS=a@b.c,b"}, []string{`TASK_SERVICE_ACCOUNTS: "b" is not`}},
		"keys with a password":  {append(oidc, "TASK_JWKS_URL=https://u:p@k.example"), []string{"TASK_JWKS_URL: has a user or a password"}},
		"keys without a host":   {append(oidc, "TASK_JWKS_URL=https:///keys"), []string{"TASK_JWKS_URL: is not an http"}},
		"only a queue":          {[]string{"TASK_AUTH=iam", queue}, []string{"TASK_TARGET_URL: must be set", "TASK_CALLER: must be set"}},
		"a queue's short name":  {[]string{"TASK_AUTH=iam", "TASK_QUEUE=q", target, "TASK_CALLER=a@b.c"}, []string{`TASK_QUEUE: "q"`}},
		"no queue":              {[]string{"TASK_AUTH=iam", target, "TASK_CALLER=a@b.c", "CLOUD_TASKS_EMULATOR_HOST=h:1"}, []string{"TASK_TARGET_URL: belongs to", "TASK_CALLER: belongs to", "CLOUD_TASKS_EMULATOR_HOST: belongs to"}},
		"a caller not let in":   {append(oidc, queue, target, "TASK_CALLER=b@b.c"), []string{`TASK_CALLER: "b@b.c" is not in TASK_SERVICE_ACCOUNTS`}},
		"no caller":             {append(oidc, queue, target), []string{"TASK_CALLER: must be set"}},
		"no audience":           {[]string{"TASK_AUTH=oidc", "TASK_SERVICE_ACCOUNTS=a@b.c", queue, target, "TASK_CALLER=a@b.c"}, []string{"TASK_AUDIENCE: must be set"}},
		"no accounts":           {[]string{"TASK_AUTH=oidc", "TASK_AUDIENCE=https://worker.example", queue, target, "TASK_CALLER=a@b.c"}, []string{"TASK_SERVICE_ACCOUNTS: must be set"}},
		"a whole oidc":          {append(oidc, queue, target, "TASK_CALLER=a@b.c"), nil},
		"a whole iam":           {[]string{"TASK_AUTH=iam", queue, target, "TASK_CALLER=a@b.c"}, nil},
		"a whole none":          {[]string{"TASK_AUTH=none", "FIRESTORE_EMULATOR_HOST=h:1", queue, target, "CLOUD_TASKS_EMULATOR_HOST=h:1"}, nil},
		"port":                  {[]string{"TASK_AUTH=iam", "PORT=http"}, []string{`PORT: "http" is not a number`}},
		"a port too high":       {[]string{"TASK_AUTH=iam", "PORT=65536"}, []string{`PORT: "65536" is not a number`}},
		"any port":              {[]string{"TASK_AUTH=iam", "PORT=0", "MAX_RUNS=1", "MAX_ATTEMPTS=1000000", "KEEP_FINISHED=0"}, nil},
		"too many attempts":     {[]string{"TASK_AUTH=iam", "MAX_ATTEMPTS=1000001", "MAX_RUNS=1000001"}, []string{"MAX_ATTEMPTS: ", "MAX_RUNS: "}},
		"log level":             {[]string{"TASK_AUTH=iam", "LOG_LEVEL=loud"}, []string{`LOG_LEVEL: "loud" is not one of`}},
		"a database with space": {[]string{"TASK_AUTH=iam", "FIRESTORE_DATABASE=a b"}, []string{"FIRESTORE_DATABASE: "}},
		"a database's umlaut":   {[]string{"TASK_AUTH=iam", "FIRESTORE_DATABASE=ä"}, []string{"FIRESTORE_DATABASE: "}},
		"a negative duration":   {[]string{"TASK_AUTH=iam", "LOCK_TTL=-1s"}, []string{`LOCK_TTL: "-1s" is not a positive duration`}},
		"no host":               {[]string{"TASK_AUTH=iam", "FIRESTORE_EMULATOR_HOST=:1"}, []string{`FIRESTORE_EMULATOR_HOST: ":1" is not host:port`}},
		"port 0":                {[]string{"TASK_AUTH=iam", "FIRESTORE_EMULATOR_HOST=h:0"}, []string{"FIRESTORE_EMULATOR_HOST: "}},
		"port 65536":            {[]string{"TASK_AUTH=iam", "FIRESTORE_EMULATOR_HOST=h:65536"}, []string{"FIRESTORE_EMULATOR_HOST: "}},
		"a bare number":         {[]string{"TASK_AUTH=iam", "LOCK_TTL=300"}, []string{`LOCK_TTL: "300" is not a positive duration`}},
		"no attempts":           {[]string{"TASK_AUTH=iam", "MAX_ATTEMPTS=0"}, []string{"MAX_ATTEMPTS: "}},
		"an unknown analyzer":   {[]string{"TASK_AUTH=iam", "ANALYZER=python main.py"}, []string{"ANALYZER: "}},
		"a missing program":     {[]string{"TASK_AUTH=iam", "ANALYZER=exec:no-such-program"}, []string{"ANALYZER: "}},
		"log format":            {[]string{"TASK_AUTH=iam", "LOG_FORMAT=xml"}, []string{"LOG_FORMAT: "}},
		"an emulator's URL":     {[]string{"TASK_AUTH=none", "FIRESTORE_EMULATOR_HOST=http://127.0.0.1:1"}, []string{"FIRESTORE_EMULATOR_HOST: "}},
		"no runs":               {[]string{"TASK_AUTH=iam", "MAX_RUNS=0"}, []string{`MAX_RUNS: "0" is not a number from 1`}},
		"output":                {[]string{"TASK_AUTH=iam", "ANALYZER_OUTPUT=text"}, []string{`ANALYZER_OUTPUT: "text" is not one of json, any`}},
		"an endpoint's env":     {[]string{"TASK_AUTH=iam", "ANALYZER=http://127.0.0.1:1", "ANALYZER_ENV=A"}, []string{"ANALYZER_ENV: belongs to ANALYZER=exec:"}},
		"a job":                 {[]string{"TASK_AUTH=iam", queue, target, "TASK_CALLER=a@b.c", "ANALYZER=job:projects/p/locations/l/jobs/j-1"}, nil},
		"a job without a queue": {[]string{"TASK_AUTH=iam", "ANALYZER=job:projects/p/locations/l/jobs/j-1"}, []string{"TASK_QUEUE: missing"}},
		"another job":           {[]string{"TASK_AUTH=iam", queue, target, "TASK_CALLER=a@b.c", "ANALYZER=job:long", "SMOKE_INPUT=1"}, []string{`ANALYZER: "job:long" is not job:projects/P`, "SMOKE_INPUT: needs an analyzer that runs here"}},
		"a job with keys":       {[]string{"TASK_AUTH=iam", queue, target, "TASK_CALLER=a@b.c", "ANALYZER=job:projects/p/locations/l/jobs/j-1", "CONCURRENCY_KEY=tenant"}, []string{"CONCURRENCY_KEY: cannot be used with ANALYZER=job:"}},
		"keys, no queue":        {[]string{"TASK_AUTH=iam", "CONCURRENCY_KEY=tenant", "CONCURRENCY_LIMIT=3"}, []string{"CONCURRENCY_KEY: belongs to TASK_QUEUE", "CONCURRENCY_LIMIT: belongs to TASK_QUEUE"}},
		"a program's env":       {[]string{"TASK_AUTH=iam", "ANALYZER=exec:true", "ANALYZER_ENV=A, B_*,*"}, nil},
		"no variables":          {[]string{"TASK_AUTH=iam", "ANALYZER=exec:true", "ANALYZER_ENV=A=1,,B-C,*D"}, []string{`ANALYZER_ENV: "A=1"`, `ANALYZER_ENV: "" is not `, `ANALYZER_ENV: "B-C"`, `ANALYZER_ENV: "*D"`}},
		"an emulator deployed":  {[]string{"K_SERVICE=w", "TASK_AUTH=iam", "FIRESTORE_EMULATOR_HOST=h:1"}, []string{"FIRESTORE_EMULATOR_HOST: is for emulators and tests, and K_SERVICE"}},
		"keys deployed":         {append(oidc, "K_SERVICE=w", "TASK_JWKS_URL=https://k.example"), []string{"TASK_JWKS_URL: is for emulators and tests, and K_SERVICE"}},
		"none deployed":         {[]string{"K_SERVICE=w", "TASK_AUTH=none", "FIRESTORE_EMULATOR_HOST=h:1"}, []string{"FIRESTORE_EMULATOR_HOST: is for emulators", "TASK_AUTH: none is for emulators"}},
		"tasks deployed":        {[]string{"K_SERVICE=w", "TASK_AUTH=iam", queue, target, "TASK_CALLER=a@b.c", "CLOUD_TASKS_EMULATOR_HOST=h:1"}, []string{"CLOUD_TASKS_EMULATOR_HOST: is for emulators and tests, and K_SERVICE"}},
		"a whole iam deployed":  {[]string{"K_SERVICE=w", "TASK_AUTH=iam", queue, target, "TASK_CALLER=a@b.c"}, nil},
		"limits, all wrong":     {[]string{"TASK_AUTH=iam", "CHECKPOINT_INTERVAL=1ms", "STALL_TIMEOUT=1h", "MAX_RUN_TIME=1m"}, []string{"CHECKPOINT_INTERVAL: ", "STALL_TIMEOUT: ", "MAX_RUN_TIME: "}},
		"a limit, no key":       {[]string{"TASK_AUTH=iam", queue, target, "TASK_CALLER=a@b.c", "CONCURRENCY_LIMIT=1", "CONCURRENCY_RETRY=hold"}, []string{"CONCURRENCY_LIMIT: belongs to CONCURRENCY_KEY, which is not set", "CONCURRENCY_RETRY: belongs to CONCURRENCY_KEY"}},
		"retries, no queue":     {[]string{"TASK_AUTH=iam", "RETRY_MIN=1m", "RETRY_MAX=1h"}, []string{"RETRY_MIN: belongs to TASK_QUEUE", "RETRY_MAX: belongs to TASK_QUEUE"}},
		"no JSON":               {[]string{"TASK_AUTH=iam", "SMOKE_INPUT={"}, []string{"SMOKE_INPUT: it is not JSON"}},
		"several at once":       {[]string{"PORT=x", "RUN_TIMEOUT=0s"}, []string{"RUN_TIMEOUT: ", "TASK_AUTH: ", "PORT: "}},
		"empty ones are unset":  {[]string{"TASK_AUTH=iam", "PORT=", "ANALYSES_COLLECTION=", "LOG_FORMAT=", "ANALYZER="}, nil},
	}
	for name, tc := range cases {
		var lines []string
		if _, err := parse(tc.env...); err != nil {
			lines = strings.Split(err.Error(), "\n")
		}
		if !slices.EqualFunc(lines, tc.want, strings.HasPrefix) {
			t.Errorf("%s: got %q, want %q…", name, lines, tc.want)
		}
	}
}
