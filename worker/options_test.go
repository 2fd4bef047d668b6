package worker_test

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/api/option"

	"taskguard/internal/testing/emulatortest"
	"taskguard/internal/testing/must"
	"taskguard/lease"
	"taskguard/worker"
)

// someQueue is a queue whose tasks have a token.
var someQueue = worker.Queue{
	Name: "projects/p/locations/l/queues/q", TargetURL: "https://a.example", Caller: "a@b.c",
}

// lookup returns an environment of settings such as PORT=1.
func lookup(words ...string) func(string) (string, bool) {
	env := map[string]string{}
	for _, w := range words {
		name, value, _ := strings.Cut(w, "=")
		env[name] = value
	}
	return func(name string) (string, bool) { v, ok := env[name]; return v, ok }
}

// An error names the field and the variable. FromEnv shares the check; cmd/internal/workerservice tests it.
func TestOptions_Refused(t *testing.T) {
	const ns, target = time.Nanosecond, "https://a.example"
	noURL, badEmulator := someQueue, someQueue
	noURL.TargetURL, badEmulator.EmulatorHost = "", "h"
	for _, tc := range []struct {
		want string
		o    worker.Options
	}{
		{"Project, GOOGLE_CLOUD_PROJECT: ", worker.Options{Project: "a/b"}},
		{"Database, FIRESTORE_DATABASE: ", worker.Options{Database: "a/b"}},
		{"Emulator, FIRESTORE_EMULATOR_HOST: ", worker.Options{Emulator: "http://h:1"}},
		{"Collection, ANALYSES_COLLECTION: ", worker.Options{Collection: "a/b"}},
		{"Lock, LOCK_TTL, LOCK_HEARTBEAT: ", worker.Options{Lock: lease.Policy{TTL: time.Millisecond}}},
		{"RunTimeout, RUN_TIMEOUT: ", worker.Options{RunTimeout: -1}},
		{"RunTimeout, RUN_TIMEOUT: ", worker.Options{RunTimeout: 24*time.Hour + ns, MaxRunTime: 48 * time.Hour}},
		{"RunTimeout, RUN_TIMEOUT: ", worker.Options{RunTimeout: 30*time.Minute + ns, Queue: someQueue}},
		{"CheckpointInterval, CHECKPOINT_INTERVAL: ", worker.Options{CheckpointInterval: time.Second - ns}},
		{"StallTimeout, STALL_TIMEOUT: ", worker.Options{StallTimeout: -1}},
		{"StallTimeout, STALL_TIMEOUT: ", worker.Options{StallTimeout: 25 * time.Minute}},
		{"MaxRunTime, MAX_RUN_TIME: ", worker.Options{RunTimeout: time.Minute, MaxRunTime: time.Minute - ns}},
		{"MaxRuns, MAX_RUNS: ", worker.Options{MaxRuns: -1}},
		{"RetryMin, RETRY_MIN: ", worker.Options{RetryMin: -1}},
		{"RetryMin, RETRY_MIN: ", worker.Options{RetryMin: 30 * time.Second, RetryMax: 30*time.Second - ns}},
		{"RetryMax, RETRY_MAX: ", worker.Options{RetryMax: 12*time.Hour + ns}},
		{"KeyLimit, CONCURRENCY_LIMIT: ", worker.Options{KeyField: "a", KeyLimit: -1, Queue: someQueue}},
		{"Keep, KEEP_FINISHED: ", worker.Options{Keep: -1}},
		{"Keep, KEEP_FINISHED: ", worker.Options{Keep: 768*time.Hour - ns, Queue: someQueue}},
		{"Queue, TASK_TARGET_URL: ", worker.Options{Queue: noURL}},
		{"Queue, CLOUD_TASKS_EMULATOR_HOST: ", worker.Options{Queue: badEmulator}},
		{"Auth, TASK_CALLER: ", worker.Options{Queue: someQueue, Auth: worker.OIDC(target, "other@b.c")}},
		{"Auth, TASK_AUDIENCE: ", worker.Options{Queue: someQueue, Auth: worker.OIDC(target+"/", "a@b.c")}},
		{"", worker.Options{
			Project: "example.com:p", RunTimeout: 30 * time.Minute, MaxRunTime: 30 * time.Minute,
			CheckpointInterval: time.Second, StallTimeout: 30*time.Minute - ns, RetryMin: 12 * time.Hour,
			RetryMax: 12 * time.Hour, Keep: 768 * time.Hour, Queue: someQueue,
			Auth: worker.OIDC(target, "other@b.c", "a@b.c"),
		}},
		{"", worker.Options{RunTimeout: 24 * time.Hour, Keep: time.Hour}},
	} {
		tc.o.Project = cmp.Or(tc.o.Project, "p")
		_, err := worker.Filled(tc.o)
		if tc.want == "" && err == nil {
			continue
		}
		if tc.want == "" || !strings.HasPrefix(fmt.Sprint(err), tc.want) {
			t.Errorf("%+v: %v, want a problem of %q", tc.o, err, tc.want)
		}
	}

	none := []option.ClientOption{option.WithAuthCredentialsFile(option.ServiceAccount, "/none")}
	for want, o := range map[string]worker.Options{
		"Collection": {Collection: "a/b"},
		"taskqueue":  {QueueOptions: none, Queue: someQueue},
		"repo":       {FirestoreOptions: append(none, option.WithoutAuthentication())},
		"taskauth":   {Auth: worker.OIDC("https://a.example")},
	} {
		o.Project, o.Emulator = "p", "127.0.0.1:1" // no credentials are needed
		if g, err := worker.Open(t.Context(), o); g != nil || !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("Open: %v, want a problem of %s", err, want)
		}
	}
}

// No default, and no unset variable, forbids a value that is valid alone.
func TestFromEnv_Changed(t *testing.T) {
	queue := []string{
		"TASK_AUTH=iam", "TASK_QUEUE=" + someQueue.Name, "TASK_TARGET_URL=https://a.example/", "TASK_CALLER=a@b.c",
	}
	for name, env := range map[string][]string{
		"an emulator": {"GOOGLE_CLOUD_PROJECT=p", "FIRESTORE_EMULATOR_HOST=h:1", "TASK_AUTH=none"},
		"a queue":     append(queue, "GOOGLE_CLOUD_PROJECT=p"),
	} {
		for i, change := range []func(*worker.Options){
			func(o *worker.Options) { o.Lock.TTL = time.Second },
			func(o *worker.Options) { o.Lock.Heartbeat = 135 * time.Second },
			func(o *worker.Options) { o.RunTimeout = 30 * time.Minute },
			func(o *worker.Options) { o.MaxRunTime = time.Minute },
			func(o *worker.Options) { o.RetryMin = 12 * time.Hour },
			func(o *worker.Options) { o.RetryMax = time.Millisecond },
			func(o *worker.Options) { o.StallTimeout = 25*time.Minute - 1 },
			func(o *worker.Options) { o.Queue = worker.Queue{} },
			func(o *worker.Options) { o.Queue = worker.Queue{Name: someQueue.Name, TargetURL: "https://b.example"} },
		} {
			o := must.Get(worker.FromEnv(lookup(env...)))(t)
			change(&o)
			if _, err := worker.Filled(o); err != nil {
				t.Errorf("%s, change %d: %v", name, i, err)
			}
		}
	}

	o := must.Get(worker.FromEnv(lookup(queue...)))(t)
	o.Queue.TargetURL, o.Lock.TTL = "https://b.example/", time.Minute
	if got := o.Filled(); got.Queue.Audience != "https://b.example" || got.Lock.Heartbeat != 20*time.Second {
		t.Errorf("of another target and TTL: %+v", got)
	}
}

func TestFromEnv_Tokens(t *testing.T) {
	o := must.Get(worker.FromEnv(lookup("TASK_AUTH=oidc", "TASK_AUDIENCE=a", "TASK_SERVICE_ACCOUNTS=a@b.c, d@e.f")))(t)
	if want := worker.OIDC("a", "a@b.c", "d@e.f"); !reflect.DeepEqual(o.Auth, want) {
		t.Errorf("%+v, want %+v", o.Auth, want)
	}
}

func TestOptions_Defaults(t *testing.T) {
	defaults := worker.Options{
		Project: "p", Lock: lease.Policy{TTL: 300 * time.Second, Heartbeat: 100 * time.Second, MaxAttempts: 10},
		RunTimeout: 25 * time.Minute, MaxRunTime: 24 * time.Hour, CheckpointInterval: 10 * time.Second,
		RetryMin: 30 * time.Second, RetryMax: 10 * time.Minute, MaxRuns: 100, Log: slog.Default(),
	}
	audience := someQueue
	audience.Audience = "https://b.example"
	for _, tc := range []struct {
		o        worker.Options
		audience string
		auth     worker.Authenticator
	}{
		{worker.Options{}, "", nil},
		{worker.Options{Queue: someQueue}, "https://a.example", worker.OIDC("https://a.example", "a@b.c")},
		{worker.Options{Queue: audience}, "https://b.example", worker.OIDC("https://b.example", "a@b.c")},
		{worker.Options{Queue: someQueue, Auth: refuse{}}, "https://a.example", refuse{}},
		{worker.Options{Queue: someQueue, Emulator: "h:1"}, "https://a.example", nil},
	} {
		tc.o.Project = "p"
		want := defaults
		want.Queue, want.Emulator = tc.o.Queue, tc.o.Emulator
		want.Queue.Audience, want.Auth = tc.audience, tc.auth
		if got, err := worker.Filled(tc.o); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%+v, %v; want %+v", got, err, want)
		}
	}
	if err := worker.OIDC("https://a.example", "a@b.c").Check(nil); !errors.Is(err, worker.ErrNoKeys) {
		t.Errorf("a check before Open: %v", err)
	}

	t.Run("a project is named by the options, or else by the environment", func(t *testing.T) {
		_, err := worker.Open(t.Context(), worker.Options{Emulator: "h:1"})
		if err == nil || !strings.Contains(err.Error(), "GOOGLE_CLOUD_PROJECT") {
			t.Errorf("without a project: %v", err)
		}
		t.Setenv("GOOGLE_CLOUD_PROJECT", "environment")
		t.Setenv("FIRESTORE_EMULATOR_HOST", "h:2") // as for Google's library
		for project, want := range map[string]string{"": "environment", "own": "own"} {
			got, _ := worker.Filled(worker.Options{Project: project, Emulator: "h:1"})
			if got.Project != want || got.Emulator != "h:2" {
				t.Errorf("%q: the project %s, the emulator %s", project, got.Project, got.Emulator)
			}
		}
	})
	emulated := worker.Queue{Name: someQueue.Name, TargetURL: someQueue.TargetURL, EmulatorHost: "127.0.0.1:1"}
	t.Run("an emulated queue does not let anybody change Google's documents", func(t *testing.T) {
		b := emulatortest.Embedded(t)
		g := open(t, b, func(o *worker.Options) { o.Auth, o.Queue = nil, emulated })
		if _, err := g.Register(jobs(succeed)); err == nil {
			t.Error("a kind is registered, whose callers nothing checks")
		}
		checkPost(t, g.Recovery(), "/", "", http.StatusUnauthorized, "")
	})
	t.Run("no emulator is used on Cloud Run", func(t *testing.T) {
		t.Setenv("K_SERVICE", "s")
		for _, o := range []worker.Options{{Project: "p", Emulator: "h:1"}, {Project: "p", Queue: emulated}} {
			if _, err := worker.Filled(o); !strings.Contains(fmt.Sprint(err), "K_SERVICE") {
				t.Errorf("%+v: %v", o, err)
			}
		}
	})
}
