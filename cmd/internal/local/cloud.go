// Package local has demo and local: an emulated cloud on this machine, and the worker
// processes that they start on it.
package local

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	apiv2 "cloud.google.com/go/cloudtasks/apiv2"
	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/api/option"
	"google.golang.org/protobuf/types/known/durationpb"

	"taskguard/cmd/internal/cli"
	"taskguard/cmd/internal/workerservice"
	"taskguard/emulator/cloudtasks"
	"taskguard/emulator/firestore"
	"taskguard/emulator/oidc"
	"taskguard/repo"
	"taskguard/worker"
)

const (
	project  = "demo-taskguard"
	location = "projects/demo-taskguard/locations/local"
	queue    = location + "/queues/analyses"
	caller   = "tasks@demo-taskguard.iam.gserviceaccount.com" // whose tokens the deliveries carry
	loopback = "127.0.0.1:0"

	pingTimeout = 5 * time.Second
)

// cloud is the emulated part of Google's cloud. The zero value runs nothing.
type cloud struct {
	place   cli.Place
	target  string // base URL of the workers, and the audience of the tokens
	queueAt string // host:port of the queue
	keysURL string // of the tokens' keys

	guard    *worker.Guard
	analyses *repo.Analyses
	issuer   *oidc.Issuer
	tasks    *cloudtasks.Server
	limit    int // of the deliveries at once
	stops    []func()
	serving  sync.WaitGroup
}

// adviceEmbedded is an advice for cli.Reach.
const adviceEmbedded = "unset %s to use the embedded Firestore"

// usePlace reads the place of the analyses: the emulator that the environment names, or
// else the embedded Firestore, which has no address yet.
func (c *cloud) usePlace(ctx context.Context, call *cli.Call, show *cli.Progress) error {
	e := call.Environment()
	c.place.Firestore = e.Firestore()
	c.place.Collection = e.Checked("ANALYSES_COLLECTION", "analyses", repo.CheckCollection)
	c.place.Project = cmp.Or(c.place.Project, project)
	if err := cli.Check(e); err != nil {
		return err
	}
	if c.place.Emulator == "" {
		c.place.Project, c.place.Database = project, "(default)"
		return nil
	}
	show.Print("using the emulator at %s, from %s", c.place.Emulator, cli.FirestoreEmulator)
	return cli.Reach(ctx, cli.FirestoreEmulator, c.place.Emulator, adviceEmbedded)
}

// start starts Firestore, unless an emulator is named, then the page of the tokens' keys and
// the queue. address returns the address of the server with the number i.
func (c *cloud) start(ctx context.Context, address func(i int) string, o cloudtasks.Options) (err error) {
	if c.place.Emulator == "" {
		l, err := cli.Listen("the embedded Firestore", address(0))
		if err != nil {
			return err
		}
		server := firestore.NewServer(firestore.Options{})
		c.place.Emulator = l.Addr().String()
		c.run(func() { _ = server.Serve(l) }, server.Close)
	}

	if c.issuer, err = oidc.NewIssuer(); err != nil {
		return err
	}
	l, err := cli.Listen("the page of the tokens' keys", address(3))
	if err != nil {
		return err
	}
	c.serveHTTP(l, c.issuer)
	c.keysURL = "http://" + l.Addr().String() + "/oauth2/v3/certs"

	if l, err = cli.Listen("the embedded Cloud Tasks", address(1)); err != nil {
		return err
	}
	o.Token = c.issuer.Token
	c.tasks = cloudtasks.NewServer(o)
	c.queueAt = l.Addr().String()
	c.run(func() { _ = c.tasks.Serve(l) }, c.tasks.Close)
	if err := c.createQueue(ctx); err != nil {
		return err
	}
	return c.open(ctx)
}

// open opens the Guard of the analyses, and checks that the emulator is a Firestore.
func (c *cloud) open(ctx context.Context) (err error) {
	c.guard, err = worker.Open(ctx, worker.Options{
		Project: c.place.Project, Database: c.place.Database,
		Emulator: c.place.Emulator, Collection: c.place.Collection,
		Queue: worker.Queue{Name: queue, TargetURL: c.target, Caller: caller, EmulatorHost: c.queueAt},
		Auth:  worker.CheckedByProxy(), Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	c.stops = append(c.stops, func() { _ = c.guard.Shutdown(context.WithoutCancel(ctx)) })
	operator, err := c.guard.Operator(worker.Kind{})
	if err != nil {
		return err
	}
	c.analyses = operator.Analyses

	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	if err := c.analyses.Ping(ctx); err != nil {
		advice := fmt.Sprintf(adviceEmbedded, cli.FirestoreEmulator)
		return fmt.Errorf("no Firestore answers at %s: %w; %s", c.place.Emulator, err, advice)
	}
	return nil
}

// run runs serve until close calls stop.
func (c *cloud) run(serve, stop func()) {
	c.serving.Go(serve)
	c.stops = append(c.stops, stop)
}

func (c *cloud) serveHTTP(l net.Listener, handler http.Handler) {
	server := &http.Server{
		Handler: handler, ReadHeaderTimeout: 10 * time.Second,
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug),
	}
	c.run(func() { _ = server.Serve(l) }, func() { _ = server.Close() })
}

// createQueue creates a queue with short delays of retries, for short runs. It delivers at
// most limit tasks at once.
func (c *cloud) createQueue(ctx context.Context) error {
	conn, err := c.tasks.Dial()
	if err != nil {
		return err
	}
	client, err := apiv2.NewClient(ctx, option.WithGRPCConn(conn)) // closing it closes conn
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	_, err = client.CreateQueue(ctx, &cloudtaskspb.CreateQueueRequest{Parent: location, Queue: &cloudtaskspb.Queue{
		Name:       queue,
		RateLimits: &cloudtaskspb.RateLimits{MaxConcurrentDispatches: int32(c.limit)},
		RetryConfig: &cloudtaskspb.RetryConfig{
			MaxAttempts: -1, MaxDoublings: 2,
			MinBackoff: durationpb.New(500 * time.Millisecond), MaxBackoff: durationpb.New(2 * time.Second),
		},
	}})
	return errors.Join(err, client.Close())
}

// close stops all servers, the last first, and waits for them.
func (c *cloud) close() {
	for _, stop := range slices.Backward(c.stops) {
		stop()
	}
	c.serving.Wait()
}

// clientVariables returns the environment of a program that uses the cloud, such as taskguard
// in another terminal.
func (c *cloud) clientVariables() map[string]string {
	return map[string]string{
		"GOOGLE_CLOUD_PROJECT": c.place.Project, cli.FirestoreEmulator: c.place.Emulator,
		"TASK_QUEUE": queue, "TASK_TARGET_URL": c.target, "TASK_CALLER": caller, cli.TasksEmulator: c.queueAt,
	}
}

// passedOn are variables that local passes on to its workers.
var passedOn = []string{
	"ANALYZER", "ANALYZER_ENV", "ANALYZER_OUTPUT", "LOCK_TTL", "LOCK_HEARTBEAT", "MAX_ATTEMPTS", "MAX_RUNS",
	"RUN_TIMEOUT", "CHECKPOINT_INTERVAL", "STALL_TIMEOUT", "MAX_RUN_TIME", "RETRY_MIN", "RETRY_MAX",
	"KEEP_FINISHED", "FIRESTORE_TRANSACTIONS", "LOG_LEVEL",
}

// workerVariables are all variables of a worker. The worker does not inherit them.
var workerVariables = append(slices.Clone(passedOn),
	"PORT", "GOOGLE_CLOUD_PROJECT", "FIRESTORE_DATABASE", "FIRESTORE_EMULATOR_HOST", "ANALYSES_COLLECTION",
	"TASK_AUTH", "TASK_AUDIENCE", "TASK_SERVICE_ACCOUNTS", "TASK_JWKS_URL", "TASK_QUEUE", "TASK_TARGET_URL",
	"TASK_CALLER", "CLOUD_TASKS_EMULATOR_HOST", "LOG_FORMAT", "K_REVISION", "K_SERVICE",
)

// lookup returns a Lookup of vars.
func lookup(vars map[string]string) cli.Lookup {
	return func(name string) (string, bool) { value, ok := vars[name]; return value, ok }
}

// workerCommand returns the command that starts this program as a worker, with more
// variables. This program's directory is the first of the worker's PATH: exec: splits its
// command at spaces, so it can name this program only without its directory.
func (c *cloud) workerCommand(more map[string]string) (command, error) {
	path, err := os.Executable()
	if err != nil {
		return command{}, fmt.Errorf("find this program: %w", err)
	}
	vars := c.clientVariables()
	maps.Copy(vars, map[string]string{
		"PORT": "0", "FIRESTORE_DATABASE": c.place.Database, "ANALYSES_COLLECTION": c.place.Collection,
		"TASK_AUTH": "oidc", "TASK_AUDIENCE": c.target, "TASK_SERVICE_ACCOUNTS": caller, "TASK_JWKS_URL": c.keysURL,
	})
	maps.Copy(vars, more)

	// The defaults are as short as the queue's delays.
	shortest, longest := vars["RETRY_MIN"], vars["RETRY_MAX"]
	vars["RETRY_MIN"], vars["RETRY_MAX"] = cmp.Or(shortest, longest, "500ms"), cmp.Or(longest, shortest, "2s")
	if _, err := workerservice.ParseConfig(lookup(vars)); err != nil {
		return command{}, cli.EnvironmentError{Err: err}
	}

	env := append(os.Environ(), "PATH="+filepath.Dir(path)+string(os.PathListSeparator)+os.Getenv("PATH"))
	for _, name := range workerVariables {
		env = append(env, name+"="+vars[name]) // replaces an inherited value; a worker ignores an empty one
	}
	return command{path: path, env: env}, nil
}
