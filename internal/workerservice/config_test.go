package workerservice

import (
	"strings"
	"testing"
	"time"

	"taskguard/lease"
)

// parse reads an environment of settings such as PORT=1.
func parse(words ...string) (Config, error) {
	env := map[string]string{}
	for _, w := range words {
		k, v, _ := strings.Cut(w, "=")
		env[k] = v
	}
	return ParseConfig(func(k string) (string, bool) { v, ok := env[k]; return v, ok })
}

func TestTheDefaultsAreTheContracts(t *testing.T) {
	c, err := parse("TASK_AUTH=iam")
	if err != nil {
		t.Fatal(err)
	}
	want := lease.Policy{TTL: 300 * time.Second, Heartbeat: 100 * time.Second, MaxAttempts: 10}
	if c.Options.Lock != want {
		t.Errorf("policy = %+v, want %+v", c.Options.Lock, want)
	}
	if o := c.Options; c.Port != 8080 || c.Database != "(default)" || o.Collection != "analyses" || o.RunTimeout != 25*time.Minute || o.CheckpointInterval != 10*time.Second || o.StallTimeout != 0 || o.MaxRunTime != 24*time.Hour || o.RetryMin != 30*time.Second || o.RetryMax != 10*time.Minute || c.AnalyzerSpec != "builtin:document" || o.MaxRuns != 100 || o.Pessimistic || c.LogFormat != "json" {
		t.Errorf("config = %+v", c)
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
		"only oidc":             {[]string{"TASK_AUTH=oidc"}, []string{"TASK_AUDIENCE: must be set", "TASK_SERVICE_ACCOUNTS: must be set"}},
		"a file of keys":        {append(oidc, "TASK_JWKS_URL=/keys.json"), []string{"TASK_JWKS_URL: "}},
		"oidc's variables":      {[]string{"TASK_AUTH=iam", "TASK_AUDIENCE=x"}, []string{"TASK_AUDIENCE: belongs to"}},
		"only a queue":          {[]string{"TASK_AUTH=iam", queue}, []string{"TASK_TARGET_URL: must be set", "TASK_CALLER: must be set"}},
		"a queue's short name":  {[]string{"TASK_AUTH=iam", "TASK_QUEUE=q", target, "TASK_CALLER=a@b.c"}, []string{`TASK_QUEUE: "q"`}},
		"no queue":              {[]string{"TASK_AUTH=iam", target, "TASK_CALLER=a@b.c", "CLOUD_TASKS_EMULATOR_HOST=h:1"}, []string{"TASK_TARGET_URL: belongs to", "TASK_CALLER: belongs to", "CLOUD_TASKS_EMULATOR_HOST: belongs to"}},
		"a caller not let in":   {append(oidc, queue, target, "TASK_CALLER=b@b.c"), []string{`TASK_CALLER: "b@b.c" is not in TASK_SERVICE_ACCOUNTS`}},
		"no accounts":           {[]string{"TASK_AUTH=oidc", "TASK_AUDIENCE=https://worker.example", queue, target, "TASK_CALLER=a@b.c"}, []string{"TASK_SERVICE_ACCOUNTS: must be set"}},
		"a whole oidc":          {append(oidc, queue, target, "TASK_CALLER=a@b.c"), nil},
		"a whole iam":           {[]string{"TASK_AUTH=iam", queue, target, "TASK_CALLER=a@b.c"}, nil},
		"a whole none":          {[]string{"TASK_AUTH=none", "FIRESTORE_EMULATOR_HOST=h:1", queue, target, "CLOUD_TASKS_EMULATOR_HOST=h:1"}, nil},
		"port":                  {[]string{"TASK_AUTH=iam", "PORT=http"}, []string{`PORT: "http" is not a number`}},
		"a bare number":         {[]string{"TASK_AUTH=iam", "LOCK_TTL=300"}, []string{`LOCK_TTL: "300" is not a positive duration`}},
		"a heartbeat too long":  {[]string{"TASK_AUTH=iam", "LOCK_TTL=60s", "LOCK_HEARTBEAT=30s"}, []string{"LOCK_TTL, LOCK_HEARTBEAT: "}},
		"no attempts":           {[]string{"TASK_AUTH=iam", "MAX_ATTEMPTS=0"}, []string{"MAX_ATTEMPTS: "}},
		"a document's path":     {[]string{"TASK_AUTH=iam", "ANALYSES_COLLECTION=a/b"}, []string{"ANALYSES_COLLECTION: "}},
		"an unknown analyzer":   {[]string{"TASK_AUTH=iam", "ANALYZER=python main.py"}, []string{"ANALYZER: "}},
		"a missing program":     {[]string{"TASK_AUTH=iam", "ANALYZER=exec:no-such-program"}, []string{"ANALYZER: "}},
		"log format":            {[]string{"TASK_AUTH=iam", "LOG_FORMAT=xml"}, []string{"LOG_FORMAT: "}},
		"a project's path":      {[]string{"TASK_AUTH=iam", "GOOGLE_CLOUD_PROJECT=a/b"}, []string{"GOOGLE_CLOUD_PROJECT: "}},
		"an emulator's URL":     {[]string{"TASK_AUTH=none", "FIRESTORE_EMULATOR_HOST=http://127.0.0.1:1"}, []string{"FIRESTORE_EMULATOR_HOST: "}},
		"a TTL of half a day":   {[]string{"TASK_AUTH=iam", "LOCK_TTL=12h"}, nil},
		"a TTL beyond it":       {[]string{"TASK_AUTH=iam", "LOCK_TTL=12h0m1s"}, []string{"LOCK_TTL, LOCK_HEARTBEAT: TTL 12h0m1s is over 12h0m0s"}},
		"no runs":               {[]string{"TASK_AUTH=iam", "MAX_RUNS=0"}, []string{`MAX_RUNS: "0" is not a number from 1`}},
		"transactions":          {[]string{"TASK_AUTH=iam", "FIRESTORE_TRANSACTIONS=both"}, []string{`FIRESTORE_TRANSACTIONS: "both" is not one of optimistic, pessimistic`}},
		"output":                {[]string{"TASK_AUTH=iam", "ANALYZER_OUTPUT=text"}, []string{`ANALYZER_OUTPUT: "text" is not one of any, json`}},
		"an endpoint's env":     {[]string{"TASK_AUTH=iam", "ANALYZER=http://127.0.0.1:1", "ANALYZER_ENV=A"}, []string{"ANALYZER_ENV: belongs to ANALYZER=exec:"}},
		"a program's env":       {[]string{"TASK_AUTH=iam", "ANALYZER=exec:true", "ANALYZER_ENV=A, B_*,*"}, nil},
		"no variables":          {[]string{"TASK_AUTH=iam", "ANALYZER=exec:true", "ANALYZER_ENV=A=1,,B-C,*D"}, []string{`ANALYZER_ENV: "A=1"`, `ANALYZER_ENV: "" is not `, `ANALYZER_ENV: "B-C"`, `ANALYZER_ENV: "*D"`}},
		"an emulator deployed":  {[]string{"K_SERVICE=w", "TASK_AUTH=iam", "FIRESTORE_EMULATOR_HOST=h:1"}, []string{"FIRESTORE_EMULATOR_HOST: is for emulators and tests, and K_SERVICE"}},
		"keys deployed":         {append(oidc, "K_SERVICE=w", "TASK_JWKS_URL=https://k.example"), []string{"TASK_JWKS_URL: is for emulators and tests, and K_SERVICE"}},
		"none deployed":         {[]string{"K_SERVICE=w", "TASK_AUTH=none"}, []string{"TASK_AUTH: none is for emulators"}},
		"a whole iam deployed":  {[]string{"K_SERVICE=w", "TASK_AUTH=iam", queue, target, "TASK_CALLER=a@b.c"}, nil},
		"a stall below zero":    {[]string{"TASK_AUTH=iam", "STALL_TIMEOUT=-1s"}, []string{"STALL_TIMEOUT: "}},
		"limits, all wrong":     {[]string{"TASK_AUTH=iam", "CHECKPOINT_INTERVAL=1ms", "STALL_TIMEOUT=1h", "MAX_RUN_TIME=1m"}, []string{"CHECKPOINT_INTERVAL: ", "STALL_TIMEOUT: ", "MAX_RUN_TIME: "}},
		"retries, no queue":     {[]string{"TASK_AUTH=iam", "RETRY_MIN=1m", "RETRY_MAX=1h"}, []string{"RETRY_MIN: belongs to TASK_QUEUE", "RETRY_MAX: belongs to TASK_QUEUE"}},
		"retries in reverse":    {[]string{"TASK_AUTH=iam", queue, target, "TASK_CALLER=a@b.c", "RETRY_MAX=29s"}, []string{"RETRY_MIN: 30s is over RETRY_MAX, 29s"}},
		"kept below zero":       {[]string{"TASK_AUTH=iam", "KEEP_FINISHED=-1h"}, []string{"KEEP_FINISHED: "}},
		"several at once":       {[]string{"PORT=x", "RUN_TIMEOUT=0s"}, []string{"RUN_TIMEOUT: ", "TASK_AUTH: ", "PORT: "}},
		"an empty one is unset": {[]string{"TASK_AUTH=iam", "PORT="}, nil},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := parse(tc.env...)
			if tc.want == nil {
				if err != nil {
					t.Errorf("error = %v", err)
				}
				return
			}
			if err == nil {
				t.Fatal("it was accepted")
			}
			lines := strings.Split(err.Error(), "\n")
			if len(lines) != len(tc.want) {
				t.Fatalf("%d lines, want %d:\n%v", len(lines), len(tc.want), err)
			}
			for i, want := range tc.want {
				if !strings.HasPrefix(lines[i], want) {
					t.Errorf("line %d = %q, want %q…", i, lines[i], want)
				}
			}
		})
	}
}
