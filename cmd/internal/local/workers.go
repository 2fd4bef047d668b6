package local

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/protobuf/types/known/durationpb"

	"taskguard/cmd/internal/cli"
	"taskguard/cmd/internal/workerservice"
	"taskguard/emulator/cloudtasks"
	"taskguard/internal/env"
	"taskguard/lease/iso8601"
)

const (
	project = "demo-taskguard"
	queue   = "projects/demo-taskguard/locations/local/queues/analyses"
	caller  = "tasks@demo-taskguard.iam.gserviceaccount.com" // whose tokens the deliveries carry
)

// workerCloud is a cloud with workers.
type workerCloud struct {
	cloud
	target string // base URL of the workers, and the audience of the tokens
}

// start starts the cloud and serves front, which is in front of the workers. The queue delivers
// at most limit tasks at once. addressOf returns the address of the server with the number i.
func (c *workerCloud) start(addressOf func(i int) string, front http.Handler, limit int, o cloudtasks.Options) error {
	// Google's client prefers the Firestore that this variable names, such as another local's.
	_ = os.Unsetenv(cli.FirestoreEmulator) // fails only for an empty name
	if err := c.cloud.start(addressOf(0), addressOf(1), addressOf(3), quickQueue(limit), o); err != nil {
		return err
	}
	address, err := c.serveHTTP("the workers' address", addressOf(2), front)
	c.target = "http://" + address
	return err
}

// quickQueue returns a queue with short delays of retries, for short runs. It delivers at most
// limit tasks at once.
func quickQueue(limit int) *cloudtaskspb.Queue {
	return &cloudtaskspb.Queue{
		Name:       queue,
		RateLimits: &cloudtaskspb.RateLimits{MaxConcurrentDispatches: int32(limit)},
		RetryConfig: &cloudtaskspb.RetryConfig{
			MaxAttempts: -1, MaxDoublings: 2,
			MinBackoff: durationpb.New(500 * time.Millisecond), MaxBackoff: durationpb.New(2 * time.Second),
		},
	}
}

// clientVariables returns the environment of a program that uses the cloud, such as taskguard
// in another terminal.
func (c *workerCloud) clientVariables() map[string]string {
	return map[string]string{
		"GOOGLE_CLOUD_PROJECT": project, cli.FirestoreEmulator: c.firestore,
		"TASK_QUEUE": queue, "TASK_TARGET_URL": c.target, "TASK_CALLER": caller, cli.TasksEmulator: c.tasks,
	}
}

// settings are variables of the work, which programs in another terminal need too.
var settings = []string{
	"ANALYSES_COLLECTION", "LOCK_TTL", "LOCK_HEARTBEAT", "MAX_ATTEMPTS", "MAX_RUNS", "RUN_TIMEOUT", "CHECKPOINT_INTERVAL",
	"STALL_TIMEOUT", "MAX_RUN_TIME", "RETRY_MIN", "RETRY_MAX", "CONCURRENCY_KEY", "CONCURRENCY_LIMIT",
	"CONCURRENCY_RETRY", "KEEP_FINISHED",
}

// passedOn are variables that local passes on to its workers.
var passedOn = slices.Concat(settings, []string{"ANALYZER", "ANALYZER_ENV", "ANALYZER_OUTPUT", "LOG_LEVEL"})

// warnOfMisspelt reports variables whose names are similar to a name that local reads.
func warnOfMisspelt(c *cli.Call) {
	variables := slices.Concat(passedOn, lockVariables)
	for _, variable := range os.Environ() {
		name, _, _ := strings.Cut(variable, "=")
		if meant := env.Misspelt(name, variables); meant != "" {
			c.Notice("the variable %s is not read: its name may be misspelt; did you mean %s?", name, meant)
		}
	}
}

// workerEnvironment returns the environment of a worker on the cloud. It is this process's
// environment, in which c and then the overrides replace the variables of a worker.
func (c *workerCloud) workerEnvironment(overrides map[string]string) ([]string, error) {
	vars := map[string]string{"K_REVISION": "", "K_SERVICE": "", "LOG_FORMAT": ""} // an empty one counts as unset
	for _, name := range passedOn {
		vars[name] = ""
	}
	maps.Copy(vars, c.clientVariables())
	maps.Copy(vars, map[string]string{
		"PORT": "0", "FIRESTORE_DATABASE": "(default)", "TASK_AUTH": "oidc", "TASK_AUDIENCE": c.target,
		"TASK_SERVICE_ACCOUNTS": caller, "TASK_JWKS_URL": "http://" + c.page + "/oauth2/v3/certs",
	})
	maps.Copy(vars, overrides)

	// The defaults are as short as the queue's delays.
	shortest, longest := vars["RETRY_MIN"], vars["RETRY_MAX"]
	vars["RETRY_MIN"], vars["RETRY_MAX"] = cmp.Or(shortest, longest, "500ms"), cmp.Or(longest, shortest, "2s")
	cfg, err := workerservice.ParseConfig(lookup(vars))
	if err == nil && cfg.Job != "" {
		err = errors.New("ANALYZER: local cannot start Cloud Run jobs: set it to the analyzer itself")
	}
	if err != nil {
		return nil, cli.EnvironmentError{Err: err}
	}

	all := os.Environ()
	for name, value := range vars {
		all = append(all, name+"="+value) // the last value of a name counts
	}
	return all, nil
}

// lookup returns a Lookup of vars.
func lookup(vars map[string]string) cli.Lookup {
	return func(name string) (string, bool) { value, ok := vars[name]; return value, ok }
}

// delivery is one request to a worker, and its answer.
type delivery struct {
	worker     *process
	analysisID string
	status     int // 0: no answer
	answer     answer
}

// answer is the part of a worker's answer that local and demo read.
type answer struct {
	Acquired bool   `json:"acquired"`
	Result   string `json:"status"` // READY or FAILED
	Reason   string `json:"reason"` // why it was skipped or failed
	Error    string `json:"error"`
	RetryAt  string `json:"retry_at"`
	Rejected bool   `json:"rejected"`
}

// String describes the delivery.
func (d *delivery) String() string {
	name := cmp.Or(d.analysisID, "a task without an analysis_id")
	if d.status == 0 {
		return fmt.Sprintf("%s: %v did not answer; the queue will try again", name, d.worker)
	}

	text := fmt.Sprintf("%s: %v answered %d %s", name, d.worker, d.status, cmp.Or(d.answer.Reason, d.answer.Result))
	if d.answer.Error != "" {
		text += ": " + cli.Shorten(d.answer.Error, 500)
	}
	if at, ok := iso8601.Parse(d.answer.RetryAt); ok {
		text += "; next delivery " + cmp.Or(cli.Duration(max(0, time.Until(at)), "in %s"), "at "+d.answer.RetryAt)
	}
	if d.answer.Rejected {
		text += "; the task is deleted"
	}
	return text
}

// router is an http.Handler in front of worker processes. It sends each request to the next one
// that is not full. It also sends requests to a dead worker, as Cloud Run may: then the queue tries
// again.
type router struct {
	show    *cli.Progress
	command command
	observe func(*delivery) // called after each delivery
	limit   int             // how many deliveries one worker gets at once; 0: any number

	mu      sync.Mutex
	workers []*process
	last    int // index of the last request's worker, modulo the number of workers
}

// startWorkers starts n workers, numbered from 1. The caller stops them, also after an error.
func (r *router) startWorkers(ctx context.Context, n int) error {
	for number := 1; number <= n; number++ {
		w, err := startProcess(ctx, number, r.command)
		if err != nil {
			return err
		}
		r.mu.Lock()
		r.workers = append(r.workers, w)
		r.mu.Unlock()
	}
	return nil
}

// showWorkers prints the workers' addresses and processes.
func (r *router) showWorkers() {
	for _, w := range r.workers {
		r.show.Print("%v serves on %s, process %d", w, w.address, w.pid())
	}
}

// stopGrace covers a worker's own 8 s for releasing its locks.
const stopGrace = 9 * time.Second

// stopWorkers stops all workers at the same time.
func (r *router) stopWorkers() {
	var stopping sync.WaitGroup
	for _, w := range r.workers {
		stopping.Go(func() { w.stop(stopGrace) })
	}
	stopping.Wait()
}

// replace puts the worker next in the place of ended.
func (r *router) replace(ended, next *process) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.workers[slices.Index(r.workers, ended)] = next
}

// pick returns the next worker that has room for n more deliveries, or a full one; nil: none has
// started.
func (r *router) pick(n int32) (w *process) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for range r.workers {
		r.last++
		w = r.workers[r.last%len(r.workers)]
		if r.limit == 0 || int(w.deliveries.Load()+n) <= r.limit {
			break
		}
	}
	if w != nil {
		w.deliveries.Add(n)
	}
	return w
}

var toWorkers = &http.Transport{Proxy: nil, DisableKeepAlives: true}

// ServeHTTP implements http.Handler.
func (r *router) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	body, err := io.ReadAll(request.Body)
	if err != nil {
		return // the caller has gone
	}
	request.Body = io.NopCloser(bytes.NewReader(body))
	var task struct {
		AnalysisID string `json:"analysis_id"`
	}
	_ = json.Unmarshal(body, &task) // a worker refuses a task without id

	n := int32(min(len(body), 1)) // a call of recovery has no body, and does not count towards MAX_RUNS
	d := &delivery{worker: r.pick(n), analysisID: task.AnalysisID}
	if d.worker == nil {
		http.Error(w, "no worker serves yet", http.StatusServiceUnavailable)
		return
	}
	defer d.worker.deliveries.Add(-n)
	proxy := httputil.ReverseProxy{
		Transport:      toWorkers,
		Rewrite:        func(p *httputil.ProxyRequest) { p.SetURL(&url.URL{Scheme: "http", Host: d.worker.address}) },
		ModifyResponse: d.read,
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			http.Error(w, err.Error(), http.StatusBadGateway)
		},
	}
	proxy.ServeHTTP(w, request)
	if n > 0 {
		r.observe(d)
	}
}

// read reads the worker's answer, and then restores its body for the queue.
func (d *delivery) read(response *http.Response) error {
	text, err := io.ReadAll(response.Body)
	if err = cmp.Or(err, response.Body.Close()); err != nil {
		return err
	}
	d.status = response.StatusCode
	_ = json.Unmarshal(text, &d.answer) // without JSON only the status is shown
	response.Body = io.NopCloser(bytes.NewReader(text))
	return nil
}
