package worker_test

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"google.golang.org/api/option"

	"taskguard/internal/testing/emulatortest"
	"taskguard/lease"
	"taskguard/worker"
)

// Open and FromEnv share the check; cmd/internal/workerservice tests FromEnv.
func TestOptionsThatCannotWorkAreRefused(t *testing.T) {
	queue := worker.Queue{Name: "projects/p/locations/l/queues/q", TargetURL: "https://a.example", Caller: "a@b.c"}
	for want, o := range map[string]worker.Options{
		`Project, GOOGLE_CLOUD_PROJECT: "a/b" is not a name`:                     {Project: "a/b"},
		`Database, FIRESTORE_DATABASE: "a/b" is not a name`:                      {Database: "a/b"},
		`Emulator, FIRESTORE_EMULATOR_HOST: "http://h:1" is not host:port`:       {Emulator: "http://h:1"},
		`Collection, ANALYSES_COLLECTION: "a/b" is not the path of a collection`: {Collection: "a/b"},
		"Lock, LOCK_TTL, LOCK_HEARTBEAT: TTL 1ms is under 1s":                    {Lock: lease.Policy{TTL: time.Millisecond}},
		"RunTimeout, RUN_TIMEOUT: -1ns is not positive":                          {RunTimeout: -1},
		"RunTimeout, RUN_TIMEOUT: 24h0m0.000000001s is over 24h0m0s":             {RunTimeout: 24*time.Hour + 1, MaxRunTime: 48 * time.Hour},
		"RunTimeout, RUN_TIMEOUT: 30m0.000000001s is over 30m0s":                 {RunTimeout: 30*time.Minute + 1, Queue: queue},
		"CheckpointInterval, CHECKPOINT_INTERVAL: 999.999999ms is under 1s":      {CheckpointInterval: time.Second - 1},
		"StallTimeout, STALL_TIMEOUT: -1ns is negative":                          {StallTimeout: -1},
		"StallTimeout, STALL_TIMEOUT: 25m0s is not under RUN_TIMEOUT, 25m0s":     {StallTimeout: 25 * time.Minute},
		"MaxRunTime, MAX_RUN_TIME: 24m59.999999999s is under RUN_TIMEOUT, 25m0s": {RunTimeout: 25 * time.Minute, MaxRunTime: 25*time.Minute - 1},
		"MaxRuns, MAX_RUNS: -1 is negative":                                      {MaxRuns: -1},
		"RetryMin, RETRY_MIN: -1ns is negative":                                  {RetryMin: -1},
		"RetryMin, RETRY_MIN: 30s is over RETRY_MAX, 29.999999999s":              {RetryMin: 30 * time.Second, RetryMax: 30*time.Second - 1},
		"RetryMax, RETRY_MAX: 12h0m0.000000001s is over 12h":                     {RetryMax: 12*time.Hour + 1},
		"KeyLimit, CONCURRENCY_LIMIT: -1 is negative":                            {KeyField: "a", KeyLimit: -1, Queue: queue},
		"Keep, KEEP_FINISHED: -1ns is negative":                                  {Keep: -1},
		"Keep, KEEP_FINISHED: 767h59m59.999999999s is under 768h":                {Keep: 768*time.Hour - 1, Queue: queue},
		"Queue, TASK_QUEUE: ":                                        {Queue: worker.Queue{Name: "q"}},
		"Queue, CLOUD_TASKS_EMULATOR_HOST: ":                         {Queue: worker.Queue{Name: queue.Name, TargetURL: queue.TargetURL, EmulatorHost: "h"}},
		`Auth, TASK_CALLER: "a@b.c" is not in TASK_SERVICE_ACCOUNTS`: {Queue: queue, Auth: worker.OIDC("https://a.example", "other@b.c")},
		`Auth, TASK_AUDIENCE: "https://other.example" differs`:       {Queue: queue, Auth: worker.OIDC("https://other.example", "a@b.c")},
		"taskqueue: open":                                            {QueueOptions: []option.ClientOption{option.WithAuthCredentialsFile(option.ServiceAccount, "/none")}, Queue: queue},
		"repo: ":                                                     {FirestoreOptions: []option.ClientOption{option.WithAuthCredentialsFile(option.ServiceAccount, "/none"), option.WithoutAuthentication()}},
		"worker: options: taskauth":                                  {Auth: worker.OIDC("https://a.example")},
		"": {Project: "example.com:p", RunTimeout: 30 * time.Minute, MaxRunTime: 30 * time.Minute, CheckpointInterval: time.Second, StallTimeout: 30*time.Minute - 1,
			RetryMin: 12 * time.Hour, RetryMax: 12 * time.Hour, Keep: 768 * time.Hour, Queue: queue, Auth: worker.OIDC("https://a.example", "other@b.c", "a@b.c")},
		"no queue": {RunTimeout: 24 * time.Hour, Keep: time.Hour},
	} {
		o.Project, o.Emulator = cmp.Or(o.Project, "p"), cmp.Or(o.Emulator, "127.0.0.1:1") // no credentials are needed
		o.QueueOptions = append(o.QueueOptions, option.WithoutAuthentication())
		g, err := worker.Open(t.Context(), o)
		if valid := want == "" || want == "no queue"; valid != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v", want, err)
		}
		if g != nil {
			_ = g.Shutdown(t.Context())
		}
	}
}

func lookup(words ...string) func(string) (string, bool) {
	env := map[string]string{}
	for _, w := range words {
		name, value, _ := strings.Cut(w, "=")
		env[name] = value
	}
	return func(name string) (string, bool) { v, ok := env[name]; return v, ok }
}

// No default, and no unset variable, forbids a value that is valid alone.
func TestEachFieldOfFromEnvCanBeChangedAlone(t *testing.T) {
	const address = "projects/p/locations/l/queues/q"
	for name, env := range map[string][]string{
		"an emulator": {"GOOGLE_CLOUD_PROJECT=p", "FIRESTORE_EMULATOR_HOST=h:1", "TASK_AUTH=none"},
		"a queue":     {"GOOGLE_CLOUD_PROJECT=p", "TASK_AUTH=iam", "TASK_QUEUE=" + address, "TASK_TARGET_URL=https://a.example", "TASK_CALLER=a@b.c"},
	} {
		for i, change := range []func(*worker.Options){
			func(*worker.Options) {},
			func(o *worker.Options) { o.Lock.TTL = time.Second }, func(o *worker.Options) { o.Lock.TTL = 12 * time.Hour },
			func(o *worker.Options) { o.Lock.Heartbeat = time.Second }, func(o *worker.Options) { o.Lock.Heartbeat = 135 * time.Second },
			func(o *worker.Options) { o.Lock = lease.Policy{TTL: time.Minute} },
			func(o *worker.Options) { o.RunTimeout = time.Second }, func(o *worker.Options) { o.RunTimeout = 30 * time.Minute },
			func(o *worker.Options) { o.MaxRunTime = time.Minute }, func(o *worker.Options) { o.MaxRunTime = 900 * time.Hour },
			func(o *worker.Options) { o.RetryMin = time.Millisecond }, func(o *worker.Options) { o.RetryMin = 12 * time.Hour },
			func(o *worker.Options) { o.RetryMax = time.Millisecond }, func(o *worker.Options) { o.RetryMax = 12 * time.Hour },
			func(o *worker.Options) { o.CheckpointInterval = time.Second }, func(o *worker.Options) { o.CheckpointInterval = time.Hour },
			func(o *worker.Options) { o.StallTimeout = 25*time.Minute - 1 }, func(o *worker.Options) { o.MaxRuns = 1 },
			func(o *worker.Options) { o.Keep = 768 * time.Hour }, func(o *worker.Options) { o.Auth = worker.CheckedByProxy() },
			func(o *worker.Options) { o.Queue = worker.Queue{} }, func(o *worker.Options) { o.Queue = worker.Queue{Name: address, TargetURL: "https://b.example"} },
		} {
			o, err := worker.FromEnv(lookup(env...))
			if err != nil {
				t.Fatal(err)
			}
			change(&o)
			if _, err := worker.Filled(o); err != nil {
				t.Errorf("%s, change %d: %v", name, i, err)
			}
		}
	}

	o, err := worker.FromEnv(lookup("TASK_AUTH=iam", "TASK_QUEUE="+address, "TASK_TARGET_URL=https://a.example/", "TASK_CALLER=a@b.c"))
	o.Queue.TargetURL, o.Lock.TTL = "https://b.example/", time.Minute
	if got := o.Filled(); err != nil || got.Queue.Audience != "https://b.example" || got.Lock.Heartbeat != 20*time.Second {
		t.Errorf("of another target and TTL: %+v, %v", got, err)
	}
}

func TestTheDefaultsOfOptions(t *testing.T) {
	queue := worker.Queue{Name: "projects/p/locations/l/queues/q", TargetURL: "https://a.example", Caller: "a@b.c"}
	audience, filled := queue, queue
	audience.Audience, filled.Audience = "https://b.example", queue.TargetURL
	defaults := worker.Options{
		Project: "p", Lock: lease.Policy{TTL: 300 * time.Second, Heartbeat: 100 * time.Second, MaxAttempts: 10}, RunTimeout: 25 * time.Minute, MaxRunTime: 24 * time.Hour, CheckpointInterval: 10 * time.Second,
		RetryMin: 30 * time.Second, RetryMax: 10 * time.Minute, MaxRuns: 100, Log: slog.Default(),
	}
	for name, c := range map[string]struct{ o, want worker.Options }{
		"nothing":                 {worker.Options{}, worker.Options{}},
		"a queue":                 {worker.Options{Queue: queue}, worker.Options{Queue: filled, Auth: worker.OIDC("https://a.example", "a@b.c")}},
		"a queue's own audience":  {worker.Options{Queue: audience}, worker.Options{Queue: audience, Auth: worker.OIDC("https://b.example", "a@b.c")}},
		"a check of its own":      {worker.Options{Queue: queue, Auth: refuse{}}, worker.Options{Queue: filled, Auth: refuse{}}},
		"a queue and an emulator": {worker.Options{Queue: queue, Emulator: "h:1"}, worker.Options{Queue: filled, Emulator: "h:1"}},
	} {
		c.o.Project = "p"
		want := defaults
		want.Queue, want.Auth, want.Emulator = c.want.Queue, c.want.Auth, c.want.Emulator
		if got, err := worker.Filled(c.o); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v; want %+v", name, got, err, want)
		}
	}
	if _, err := worker.Open(t.Context(), worker.Options{Emulator: "h:1"}); err == nil || !strings.HasPrefix(err.Error(), "worker: options: Project, GOOGLE_CLOUD_PROJECT: must be set") {
		t.Errorf("without a project: %v", err)
	}
	if err := worker.OIDC("https://a.example", "a@b.c").Check(nil); !errors.Is(err, worker.ErrNoKeys) {
		t.Errorf("a check before Open: %v", err)
	}
	t.Setenv("GOOGLE_CLOUD_PROJECT", "of the environment")
	t.Setenv("FIRESTORE_EMULATOR_HOST", "h:2")
	if got, _ := worker.Filled(worker.Options{Emulator: "h:1"}); got.Project != "of the environment" || got.Emulator != "h:2" {
		t.Errorf("the project %s, the emulator %s", got.Project, got.Emulator)
	}
	if got, _ := worker.Filled(worker.Options{Project: "own"}); got.Project != "own" {
		t.Errorf("the project %s", got.Project)
	}
	t.Setenv("FIRESTORE_EMULATOR_HOST", "")
	b, emulated := emulatortest.Embedded(t), worker.Queue{Name: queue.Name, TargetURL: queue.TargetURL, EmulatorHost: "127.0.0.1:1"}
	g, err := worker.Open(t.Context(), worker.Options{Project: b.Project, Queue: emulated, FirestoreOptions: b.Client(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Shutdown(t.Context()) //nolint:errcheck // nothing runs
	if _, err := g.Register(jobs(succeed)); err == nil || !strings.Contains(err.Error(), "nothing checks the callers") {
		t.Errorf("a kind whose documents are Google's: %v", err)
	}
	if code, answer := post(t, g.Recovery(), "/", ""); code != http.StatusUnauthorized {
		t.Errorf("recovery answers %d %s", code, answer)
	}
	_, err = worker.FromEnv(lookup("TASK_AUTH=none", "TASK_QUEUE="+queue.Name, "TASK_TARGET_URL="+queue.TargetURL, "CLOUD_TASKS_EMULATOR_HOST=h:1"))
	if err == nil || !strings.Contains(err.Error(), "TASK_AUTH: none is for emulators") {
		t.Errorf("an emulated queue, and Google's Firestore: %v", err)
	}
	t.Setenv("FIRESTORE_EMULATOR_HOST", "h:2")
	t.Setenv("K_SERVICE", "s")
	if _, err := worker.Open(t.Context(), worker.Options{Project: "p"}); err == nil || !strings.Contains(err.Error(), "an emulator is named on Cloud Run") {
		t.Errorf("an emulator on Cloud Run: %v", err)
	}
	t.Setenv("FIRESTORE_EMULATOR_HOST", "")
	queue.EmulatorHost = "h:1"
	if _, err := worker.Open(t.Context(), worker.Options{Project: "p", Queue: queue}); err == nil || !strings.Contains(err.Error(), "an emulator is named on Cloud Run") {
		t.Errorf("an emulator of the queue on Cloud Run: %v", err)
	}
}

// Each step would go otherwise with the default of an option.
func TestEachOptionReachesTheRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, q, reader := ahead(t), worker.StartQueue(t), sdkmetric.NewManualReader()
		g := open(t, b, func(o *worker.Options) {
			q.Use(o)
			o.Collection, o.Lock = "mine", lease.Policy{TTL: 100 * time.Second, MaxAttempts: 3}
			o.RunTimeout, o.MaxRunTime, o.StallTimeout, o.CheckpointInterval = 2*time.Minute, time.Hour, 30*time.Second, 5*time.Second
			o.RetryMin, o.RetryMax, o.Keep, o.MaxRuns = time.Minute, 90*time.Second, 900*time.Hour, 1
			o.MeterProvider = sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
		})
		docs := collection(t, b, "mine")
		since := func(id, field string) time.Duration {
			text, _ := fields(t, docs.Doc(id))[field].(string)
			at, err := time.Parse(time.RFC3339, text)
			if err != nil {
				t.Errorf("%s of %s: %v", field, id, err)
			}
			return time.Until(at.Add(-clockAhead)).Round(time.Second)
		}
		var h http.Handler
		run := func(ctx context.Context, job worker.Job) (any, error) {
			switch job.AnalysisID {
			case "fast":
				if left := since("fast", "lockExpiresAt"); left != 100*time.Second {
					t.Errorf("the lock lives for %v", left)
				}
				if code, answer := post(t, h, "/internal/tasks/analysis", `{"analysis_id":"other"}`); code != http.StatusConflict || !strings.Contains(answer, `"busy"`) {
					t.Errorf("a second run at once: %d %s", code, answer)
				}
				return "done", nil
			case "slow":
				for ctx.Err() == nil {
					job.Report(0.5, "on")
					time.Sleep(time.Second)
				}
				if progress, _ := fields(t, docs.Doc("slow"))["progress"].(map[string]any); progress["message"] != "on" {
					t.Errorf("the progress is %v", progress)
				}
			}
			<-ctx.Done()
			return nil, ctx.Err()
		}
		h = routes(t, g, worker.Kind{Run: run}, worker.Kind{Name: "job", Collection: "jobs", Run: run})
		for _, id := range []string{"fast", "slow", "stalls", "old"} {
			set(t, docs.Doc(id), map[string]any{"status": "QUEUED"})
		}
		set(t, docs.Doc("old"), map[string]any{"startedAt": time.Now().Add(clockAhead - 2*time.Hour)})
		for _, c := range []struct {
			id         string
			took, wait time.Duration
			answer     string
		}{
			{"fast", 0, 0, `"status":"READY"`},
			{"stalls", 30 * time.Second, time.Minute, `"reason":"retry"`},
			{"slow", 2 * time.Minute, time.Minute, `"reason":"retry"`},
			{"stalls", 30 * time.Second, 90 * time.Second, `"reason":"retry"`},
			{"slow", 2 * time.Minute, 90 * time.Second, `"reason":"retry"`},
			{"stalls", 30 * time.Second, 0, `"status":"FAILED","error":"attempt 3 was the last`},
			{"old", 0, 0, `"status":"FAILED","error":"the analysis took longer`},
		} {
			began, commits := time.Now(), b.Calls.Count("Commit")
			if _, answer := post(t, h, "/internal/tasks/analysis", `{"analysis_id":"`+c.id+`"}`); !strings.Contains(answer, c.answer) || time.Since(began).Round(3*time.Second) != c.took {
				t.Errorf("%s: %s after %v", c.id, answer, time.Since(began))
			}
			if n := b.Calls.Count("Commit") - commits; c.id == "slow" && (n < 20 || n > 32) { // of two minutes
				t.Errorf("%d commits for reports", n)
			}
			if c.wait > 0 {
				if wait := since(c.id, "nextAttemptAt"); wait < c.wait || wait > c.wait*5/4 {
					t.Errorf("%s: the next attempt is in %v, want %v to %v", c.id, wait, c.wait, c.wait*5/4)
				}
				time.Sleep(c.wait * 5 / 4)
			}
		}
		post(t, h, "/internal/tasks/job", `{"job_id":"none"}`)
		expires, _ := fields(t, docs.Doc("fast"))["expireAt"].(time.Time)
		if left := time.Until(expires.Add(-clockAhead)); left < 899*time.Hour || left > 900*time.Hour {
			t.Errorf("the document is kept for %v", left)
		}
		if got := worker.Counts(t, reader, "taskguard.deliveries"); !strings.HasSuffix(got, " 404 job not_found :1 409 busy :1") {
			t.Errorf("deliveries %q", got)
		}
	})
}
