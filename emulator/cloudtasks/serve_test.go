package cloudtasks_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	apiv2 "cloud.google.com/go/cloudtasks/apiv2"
	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"taskguard/emulator/cloudtasks"
)

func TestTheServerWorksOverTCP(t *testing.T) {
	w := listen(t, 200)
	s := cloudtasks.NewServer(cloudtasks.Options{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	client, err := apiv2.NewClient(t.Context(), option.WithEndpoint(l.Addr().String()), option.WithoutAuthentication(),
		option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())))
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.CreateQueue(t.Context(), &cloudtaskspb.CreateQueueRequest{Parent: parent, Queue: &cloudtaskspb.Queue{Name: queue}})
	if err != nil {
		t.Fatal(err)
	}
	task := post("")
	task.GetHttpRequest().Url = w.URL
	if _, err := client.CreateTask(t.Context(), &cloudtaskspb.CreateTaskRequest{Parent: queue, Task: task}); err != nil {
		t.Fatal(err)
	}
	if err := s.Idle(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := len(w.seen()); got != 1 {
		t.Fatalf("got %d requests, want 1", got)
	}
	_ = client.Close()
	s.Close()
	if err := <-served; err != nil {
		t.Fatalf("got %v, want Serve to return nil after Close", err)
	}
}

func TestCloseLeavesNoConnectionBehind(t *testing.T) {
	closed := make(chan struct{}, 1)
	w := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	w.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateClosed {
			closed <- struct{}{}
		}
	}
	w.Start()
	defer w.Close()
	c := openQueue(t, cloudtasks.Options{}, nil)
	task := post("")
	task.GetHttpRequest().Url = w.URL
	c.create(task)
	c.idle()
	c.Close()
	select {
	case <-closed:
	case <-time.After(30 * time.Second): // an idle connection would live for 90 s
		t.Fatal("the connection to the worker is still open")
	}
}

func TestCloseEndsWhatIsInFlight(t *testing.T) {
	var seen seen
	begun := make(chan struct{}, 3)
	blocked := worker(func(r *http.Request) (*http.Response, error) {
		begun <- struct{}{}
		<-r.Context().Done()
		return nil, r.Context().Err()
	})
	c := openQueue(t, cloudtasks.Options{Transport: blocked, Observe: seen.observe}, nil)
	for range 3 {
		c.create(post(""))
	}
	c.create(at("", time.Now().Add(time.Hour)))
	for range 3 {
		<-begun
	}
	waiting := make(chan error, 1)
	go func() { waiting <- c.Idle(context.Background()) }()
	c.Close()
	c.Close()
	if err := <-waiting; !errors.Is(err, cloudtasks.ErrClosed) {
		t.Fatalf("got %v from Idle, want ErrClosed", err)
	}
	if _, err := c.Dial(); !errors.Is(err, cloudtasks.ErrClosed) {
		t.Fatalf("got %v from Dial, want ErrClosed", err)
	}
	all := seen.deliveries()
	if len(all) != 3 {
		t.Fatalf("got %d deliveries, want the 3 in flight, reported before Close returned", len(all))
	}
	for i := range all {
		if all[i].Status != 0 || !errors.Is(all[i].Err, context.Canceled) {
			t.Fatalf("got %+v, want no answer, canceled", all[i])
		}
	}
}
