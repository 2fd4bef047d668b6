package local

import (
	"cmp"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/protobuf/types/known/durationpb"

	"taskguard/cmd/internal/cli"
	"taskguard/cmd/internal/workerservice"
	"taskguard/emulator/cloudtasks"
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
// at most limit tasks at once. at returns the address of the server with the number i.
func (c *workerCloud) start(
	at func(i int) string, front http.Handler, limit int, o cloudtasks.Options,
) error {
	// Google's client prefers the Firestore that this variable names, such as another local's.
	_ = os.Unsetenv(cli.FirestoreEmulator) // fails only for an empty name
	if err := c.cloud.start(at(0), at(1), at(3), quickQueue(limit), o); err != nil {
		return err
	}
	address, err := c.serveHTTP("the workers' address", at(2), front)
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

// passedOn are variables that local passes on to its workers.
var passedOn = []string{
	"ANALYSES_COLLECTION", "ANALYZER", "ANALYZER_ENV", "ANALYZER_OUTPUT", "LOCK_TTL", "LOCK_HEARTBEAT", "MAX_ATTEMPTS",
	"MAX_RUNS", "RUN_TIMEOUT", "CHECKPOINT_INTERVAL", "STALL_TIMEOUT", "MAX_RUN_TIME", "RETRY_MIN", "RETRY_MAX",
	"KEEP_FINISHED", "LOG_LEVEL",
}

// warnOfMisspelt reports variables whose names are similar to those that local reads.
func warnOfMisspelt(c *cli.Call) {
	known := slices.Concat(passedOn, lockVariables)
	for _, variable := range os.Environ() {
		name, _, _ := strings.Cut(variable, "=")
		similar := func(k string) bool { return cli.Similar(k, strings.ToUpper(name)) }
		if i := slices.IndexFunc(known, similar); i >= 0 && !slices.Contains(known, name) {
			c.Notice("the variable %s is not read: did you mean %s?", name, known[i])
		}
	}
}

// workerEnvironment returns the environment of a worker on the cloud: that of this process, with
// the variables of a worker replaced by those of c and by more.
func (c *workerCloud) workerEnvironment(more map[string]string) ([]string, error) {
	vars := map[string]string{"K_REVISION": "", "K_SERVICE": "", "LOG_FORMAT": ""} // an empty one counts as unset
	for _, name := range passedOn {
		vars[name] = ""
	}
	maps.Copy(vars, c.clientVariables())
	maps.Copy(vars, map[string]string{
		"PORT": "0", "FIRESTORE_DATABASE": "(default)", "TASK_AUTH": "oidc", "TASK_AUDIENCE": c.target,
		"TASK_SERVICE_ACCOUNTS": caller, "TASK_JWKS_URL": "http://" + c.page + "/oauth2/v3/certs",
	})
	maps.Copy(vars, more)

	// The defaults are as short as the queue's delays.
	shortest, longest := vars["RETRY_MIN"], vars["RETRY_MAX"]
	vars["RETRY_MIN"], vars["RETRY_MAX"] = cmp.Or(shortest, longest, "500ms"), cmp.Or(longest, shortest, "2s")
	if _, err := workerservice.ParseConfig(lookup(vars)); err != nil {
		return nil, cli.EnvironmentError{Err: err}
	}

	env := os.Environ()
	for name, value := range vars {
		env = append(env, name+"="+value) // the last value of a name counts
	}
	return env, nil
}

// lookup returns a Lookup of vars.
func lookup(vars map[string]string) cli.Lookup {
	return func(name string) (string, bool) { value, ok := vars[name]; return value, ok }
}
