package cloudtasks_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"taskguard/emulator/cloudtasks"
)

func (c *cloud) delete(name string) error {
	return c.client.DeleteTask(c.t.Context(), &cloudtaskspb.DeleteTaskRequest{Name: name})
}

func TestADeletedTaskIsNotDispatchedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen seen
		slow := worker(func(*http.Request) (*http.Response, error) { time.Sleep(time.Minute); return answer(503), nil })
		extra := func(*cloudtaskspb.Task) []time.Duration { return []time.Duration{time.Hour} }
		c := openQueue(t, cloudtasks.Options{Transport: slow, Observe: seen.observe, Extra: extra}, nil)
		start := time.Now()
		waiting, inFlight := c.create(at("waiting", start.Add(time.Hour))), c.create(post("in-flight"))
		time.Sleep(time.Second)
		for _, name := range []string{waiting.Name, inFlight.Name} {
			wantCode(t, c.delete(name), codes.OK)
			c.wantGone(name)
			wantCode(t, c.delete(name), codes.NotFound)
			_, err := c.client.CreateTask(t.Context(), &cloudtaskspb.CreateTaskRequest{Parent: queue, Task: &cloudtaskspb.Task{Name: name, MessageType: post("").MessageType}})
			wantCode(t, err, codes.AlreadyExists)
		}
		c.idle()
		if got, ended := fmt.Sprint(seen.offsets(start)), time.Since(start); got != "[0]" || ended != time.Minute {
			t.Errorf("deliveries at %s, idle after %v; want one, and idle at its end", got, ended)
		}
	})
}

func TestAQueueCanBePausedAndPurged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen seen
		ctx, name := t.Context(), queue
		c := openQueue(t, cloudtasks.Options{Transport: always(200), Observe: seen.observe}, nil)
		start := time.Now()
		wantState := func(pb *cloudtaskspb.Queue, err error, want cloudtaskspb.Queue_State) {
			t.Helper()
			if err != nil || pb.State != want {
				t.Errorf("%v, %v, want %v", pb, err, want)
			}
		}
		pb, err := c.client.PauseQueue(ctx, &cloudtaskspb.PauseQueueRequest{Name: name})
		wantState(pb, err, cloudtaskspb.Queue_PAUSED)
		c.create(post("purged"))
		idle := make(chan error)
		go func() { idle <- c.Idle(ctx) }()
		synctest.Wait()
		pb, err = c.client.PurgeQueue(ctx, &cloudtaskspb.PurgeQueueRequest{Name: name})
		wantState(pb, err, cloudtaskspb.Queue_PAUSED)
		if err := <-idle; err != nil {
			t.Error(err)
		}
		c.create(post("later"))
		time.Sleep(time.Hour)
		pb, err = c.client.ResumeQueue(ctx, &cloudtaskspb.ResumeQueueRequest{Name: name})
		wantState(pb, err, cloudtaskspb.Queue_RUNNING)
		c.idle()
		if all := seen.deliveries(); len(all) != 1 || all[0].Task != "later" || all[0].Started.Sub(start) != time.Hour {
			t.Errorf("%+v, want one delivery after the pause", all)
		}
		pb, err = c.client.GetQueue(ctx, &cloudtaskspb.GetQueueRequest{Name: name})
		wantState(pb, err, cloudtaskspb.Queue_RUNNING)
	})
}

func TestListQueuesReturnsThoseOfALocation(t *testing.T) {
	c := open(t, cloudtasks.Options{})
	for _, name := range []string{parent + "/queues/b", parent + "/queues/a", parent + "2/queues/c"} {
		if err := c.CreateQueue(&cloudtaskspb.Queue{Name: name}); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	for q, err := range c.client.ListQueues(t.Context(), &cloudtaskspb.ListQueuesRequest{Parent: parent}).All() {
		wantCode(t, err, codes.OK)
		got = append(got, q.Name)
	}
	equal(t, "queues", []string{parent + "/queues/a", parent + "/queues/b"}, got)
	_, err := c.client.ListQueues(t.Context(), &cloudtaskspb.ListQueuesRequest{Parent: parent, Filter: "state: PAUSED"}).Next()
	wantCode(t, err, codes.Unimplemented)
}

func TestOtherCallsAreUnimplementedAndNamed(t *testing.T) {
	conn, err := open(t, cloudtasks.Options{}).Dial()
	wantCode(t, err, codes.OK)
	defer func() { _ = conn.Close() }()
	var others []string
	for _, m := range cloudtaskspb.CloudTasks_ServiceDesc.Methods {
		err := conn.Invoke(t.Context(), "/google.cloud.tasks.v2.CloudTasks/"+m.MethodName, &emptypb.Empty{}, &emptypb.Empty{})
		if status.Code(err) == codes.Unimplemented && strings.Contains(err.Error(), "method "+m.MethodName+" ") {
			others = append(others, m.MethodName)
		} else if code := status.Code(err); code != codes.InvalidArgument && m.MethodName != "ListQueues" {
			t.Errorf("%s: %v", m.MethodName, err)
		}
	}
	equal(t, "calls", []string{"UpdateQueue", "DeleteQueue", "GetIamPolicy", "SetIamPolicy", "TestIamPermissions", "BatchCreateTasks", "BatchDeleteTasks", "RunTask", "UpdateCmekConfig", "GetCmekConfig"}, others)
}
