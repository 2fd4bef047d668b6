package main

import (
	"context"
	"sync"
	"testing"

	tasksapi "cloud.google.com/go/cloudtasks/apiv2"
	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/api/option"

	"taskguard/emulator/cloudtasks"
)

// testQueue is a store, and a queue whose deliveries all fail, so that booked tasks stay.
type testQueue struct {
	env    vars
	client *tasksapi.Client
	seen   map[string]bool // by booked
}

func newQueue(t *testing.T) *testQueue {
	t.Helper()
	server, l := cloudtasks.NewServer(cloudtasks.Options{Token: func(string, string) (string, error) { return "token", nil }}), listen(t)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(l) })
	t.Cleanup(func() { server.Close(); serving.Wait() })
	conn := must(server.Dial())(t)
	client, err := tasksapi.NewClient(context.Background(), option.WithGRPCConn(conn))
	check(t, err)
	t.Cleanup(func() { _ = client.Close() })
	_, err = client.CreateQueue(t.Context(), &cloudtaskspb.CreateQueueRequest{
		Parent: "projects/demo-taskguard/locations/local", Queue: &cloudtaskspb.Queue{Name: queueName},
	})
	check(t, err)
	env := store(t)
	env["TASK_QUEUE"], env["TASK_TARGET_URL"], env["CLOUD_TASKS_EMULATOR_HOST"] = queueName, "http://"+closedPort(t), l.Addr().String()
	return &testQueue{env, client, map[string]bool{}}
}

// tasks returns the tasks in the queue.
func (q *testQueue) tasks(t *testing.T) (all []*cloudtaskspb.Task) {
	t.Helper()
	request := &cloudtaskspb.ListTasksRequest{Parent: queueName, ResponseView: cloudtaskspb.Task_FULL}
	for task, err := range q.client.ListTasks(t.Context(), request).All() {
		check(t, err)
		all = append(all, task)
	}
	return all
}

func (q *testQueue) wantTasks(t *testing.T, want int) {
	t.Helper()
	if n := len(q.tasks(t)); n != want {
		t.Errorf("%d tasks, want %d", n, want)
	}
}
