package cloudtasks_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"

	apiv2 "cloud.google.com/go/cloudtasks/apiv2"
	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/api/option"

	"taskguard/emulator/cloudtasks"
)

// Google's client in the same process, and a worker that needs a second attempt.
func Example() {
	if err := deliverTwice(context.Background()); err != nil {
		fmt.Println(err)
	}
	// Output:
	// a 0 409
	// a 1 200
}

func deliverTwice(ctx context.Context) error {
	worker := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-CloudTasks-TaskRetryCount") == "0" {
			w.WriteHeader(http.StatusConflict)
		}
	}))
	defer worker.Close()

	server := cloudtasks.NewServer(cloudtasks.Options{
		Observe: func(d cloudtasks.Delivery) { fmt.Println(d.Task, d.Attempt, d.Status) },
	})
	defer server.Close()
	conn, err := server.Dial()
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	client, err := apiv2.NewClient(ctx, option.WithGRPCConn(conn))
	if err != nil {
		return err
	}

	const queue = "projects/p/locations/l/queues/analyses"
	if err := server.CreateQueue(&cloudtaskspb.Queue{Name: queue}); err != nil {
		return err
	}
	_, err = client.CreateTask(ctx, &cloudtaskspb.CreateTaskRequest{
		Parent: queue,
		Task: &cloudtaskspb.Task{
			Name:        queue + "/tasks/a",
			MessageType: &cloudtaskspb.Task_HttpRequest{HttpRequest: &cloudtaskspb.HttpRequest{Url: worker.URL}},
		},
	})
	if err != nil {
		return err
	}
	return server.Idle(ctx)
}
