package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
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
)

// emulated is the embedded part of Google's cloud. The zero value runs nothing.
type emulated struct {
	firestore *firestore.Server
	tasks     *cloudtasks.Server
	serving   sync.WaitGroup
}

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

// startTasks starts the queue server with one queue, suited to short runs.
func (e *emulated) startTasks(ctx context.Context, queue string, o cloudtasks.Options) (err error) {
	e.tasks = cloudtasks.NewServer(o)
	conn, err := e.tasks.Dial()
	if err != nil {
		return err
	}
	client, err := apiv2.NewClient(ctx, option.WithGRPCConn(conn))
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	parent, _, _ := strings.Cut(queue, "/queues/")
	_, err = client.CreateQueue(ctx, &cloudtaskspb.CreateQueueRequest{Parent: parent, Queue: &cloudtaskspb.Queue{
		Name:       queue,
		RateLimits: &cloudtaskspb.RateLimits{MaxConcurrentDispatches: 100},
		RetryConfig: &cloudtaskspb.RetryConfig{
			MaxAttempts: -1, MaxDoublings: 2,
			MinBackoff: durationpb.New(500 * time.Millisecond), MaxBackoff: durationpb.New(2 * time.Second),
		},
	}})
	return err
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
	"LOCK_TTL", "LOCK_HEARTBEAT", "MAX_ATTEMPTS", "RUN_TIMEOUT", "ANALYZER",
	"TASK_AUTH", "TASK_AUDIENCE", "TASK_SERVICE_ACCOUNTS", "TASK_JWKS_URL", "TASK_QUEUE", "TASK_TARGET_URL", "TASK_CALLER",
	"CLOUD_TASKS_EMULATOR_HOST", "LOG_FORMAT", "LOG_LEVEL", "K_REVISION",
}

// workerCommand starts this very program as a worker on p. Its own directory
// comes first on the worker's PATH, so that an exec: analyzer can name it
// although exec: splits at spaces.
func workerCommand(p place, more map[string]string) (c fleet.Command, self string, err error) {
	path, err := os.Executable()
	if err != nil {
		return c, "", fmt.Errorf("find this program: %w", err)
	}
	vars := map[string]string{
		"PORT": "0", "GOOGLE_CLOUD_PROJECT": p.project, "FIRESTORE_DATABASE": p.database, "FIRESTORE_EMULATOR_HOST": p.emulator,
		"ANALYSES_COLLECTION": p.collection, "TASK_AUTH": "none",
		"PATH": filepath.Dir(path) + string(os.PathListSeparator) + os.Getenv("PATH"),
	}
	if p.emulator == "" {
		vars["TASK_AUTH"] = "iam" // the loopback interface is what stands in front
	}
	for name, value := range more {
		vars[name] = value
	}
	return fleet.Command{
		Path: path, Args: []string{"worker", "--until-stdin-closes"}, Env: environ(os.Environ(), vars),
	}, filepath.Base(path), nil
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
