package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	apiv2 "cloud.google.com/go/cloudtasks/apiv2"
	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/api/option"
	"google.golang.org/protobuf/types/known/durationpb"

	"taskguard/cmd/taskguard/fleet"
	"taskguard/emulator/cloudtasks"
	"taskguard/emulator/firestore"
	"taskguard/emulator/oidc"
)

// emulated is the embedded part of Google's cloud. The zero value runs nothing.
type emulated struct {
	firestore *firestore.Server
	issuer    *oidc.Issuer
	keys      *http.Server // of the issuer's page
	tasks     *cloudtasks.Server
	serving   sync.WaitGroup
}

// loopback is any free port that only this machine reaches.
const loopback = "127.0.0.1:0"

// listen names what is to listen in its error.
func listen(what, address string) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("%s: %s is taken; choose others with --port", what, address)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return l, nil
}

// serveFirestore answers at the address, host:port, that it returns.
func (e *emulated) serveFirestore(address string) (string, error) {
	l, err := listen("the embedded Firestore", address)
	if err != nil {
		return "", err
	}
	e.firestore = firestore.NewServer(firestore.Options{})
	e.serving.Go(func() { _ = e.firestore.Serve(l) }) // returns with Close
	return l.Addr().String(), nil
}

// startTasks starts the queue server with one queue, suited to short runs. Its
// deliveries carry tokens of the issuer.
func (e *emulated) startTasks(ctx context.Context, o cloudtasks.Options) (err error) {
	o.Token = e.issuer.Token
	e.tasks = cloudtasks.NewServer(o)
	client, err := e.tasksClient(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	parent, _, _ := strings.Cut(demoQueue, "/queues/")
	_, err = client.CreateQueue(ctx, &cloudtaskspb.CreateQueueRequest{Parent: parent, Queue: &cloudtaskspb.Queue{
		Name:       demoQueue,
		RateLimits: &cloudtaskspb.RateLimits{MaxConcurrentDispatches: 100},
		RetryConfig: &cloudtaskspb.RetryConfig{
			MaxAttempts: -1, MaxDoublings: 2,
			MinBackoff: durationpb.New(500 * time.Millisecond), MaxBackoff: durationpb.New(2 * time.Second),
		},
	}})
	return err
}

// pending is how many tasks the queue holds: what it has still to deliver.
func (e *emulated) pending(ctx context.Context) (n int, err error) {
	client, err := e.tasksClient(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	for _, err := range client.ListTasks(ctx, &cloudtaskspb.ListTasksRequest{Parent: demoQueue}).All() {
		if err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}

func (e *emulated) tasksClient(ctx context.Context) (*apiv2.Client, error) {
	conn, err := e.tasks.Dial()
	if err != nil {
		return nil, err
	}
	client, err := apiv2.NewClient(ctx, option.WithGRPCConn(conn)) // closing it closes conn
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return client, nil
}

// serveTasks makes the queue server answer on a port, too.
func (e *emulated) serveTasks(address string) (string, error) {
	l, err := listen("the embedded Cloud Tasks", address)
	if err != nil {
		return "", err
	}
	e.serving.Go(func() { _ = e.tasks.Serve(l) }) // returns with Close
	return l.Addr().String(), nil
}

// close ends everything and waits for it.
func (e *emulated) close() {
	if e.keys != nil {
		_ = e.keys.Close() // the listener's error is of no use any more
	}
	if e.tasks != nil {
		e.tasks.Close()
	}
	if e.firestore != nil {
		e.firestore.Close()
	}
	e.serving.Wait()
}

// newCollection is the name of a collection that nobody else uses.
func newCollection() string { return "taskguard-demo-" + strings.ToLower(rand.Text()[:8]) }

// ours are the variables that configure a worker; of the environment that it
// inherits none of them is to count.
var ours = []string{
	"PORT", "GOOGLE_CLOUD_PROJECT", "FIRESTORE_DATABASE", "FIRESTORE_EMULATOR_HOST", "ANALYSES_COLLECTION",
	"LOCK_TTL", "LOCK_HEARTBEAT", "MAX_ATTEMPTS", "MAX_RUNS", "RUN_TIMEOUT", "ANALYZER", "ANALYZER_OUTPUT", "FIRESTORE_TRANSACTIONS",
	"TASK_AUTH", "TASK_AUDIENCE", "TASK_SERVICE_ACCOUNTS", "TASK_JWKS_URL", "TASK_QUEUE", "TASK_TARGET_URL", "TASK_CALLER",
	"CLOUD_TASKS_EMULATOR_HOST", "LOG_FORMAT", "LOG_LEVEL", "K_REVISION", "K_SERVICE",
}

// workerCommand starts this very program as a worker on p, with the deliveries
// of r. Its own directory comes first on the worker's PATH, so that an exec:
// analyzer can name it although exec: splits at spaces.
func workerCommand(p place, r route, more map[string]string) (c fleet.Command, self string, err error) {
	path, err := os.Executable()
	if err != nil {
		return c, "", fmt.Errorf("find this program: %w", err)
	}
	vars := map[string]string{
		"PORT": "0", "GOOGLE_CLOUD_PROJECT": p.project, "FIRESTORE_DATABASE": p.database, "FIRESTORE_EMULATOR_HOST": p.emulator,
		"ANALYSES_COLLECTION": p.collection,
		"PATH":                filepath.Dir(path) + string(os.PathListSeparator) + os.Getenv("PATH"),
	}
	maps.Copy(vars, r.variables())
	maps.Copy(vars, more)
	return fleet.Command{
		Path: path, Args: []string{"worker", "--until-stdin-closes"}, Env: environ(os.Environ(), vars),
	}, filepath.Base(path), nil
}

// valueIn looks a variable up in the environment of a process to be started.
func valueIn(env []string, name string) (value string, ok bool) {
	for _, entry := range env {
		if v, found := strings.CutPrefix(entry, name+"="); found {
			value, ok = v, true // the last one counts
		}
	}
	return value, ok
}

// environ is base without our own variables, and with vars.
func environ(base []string, vars map[string]string) []string {
	var env []string
	for _, entry := range base {
		name, _, _ := strings.Cut(entry, "=")
		if _, replaced := vars[name]; !replaced && !slices.Contains(ours, name) {
			env = append(env, entry)
		}
	}
	for name, value := range vars {
		if value != "" {
			env = append(env, name+"="+value)
		}
	}
	return env
}
