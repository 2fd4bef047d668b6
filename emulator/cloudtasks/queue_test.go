package cloudtasks_test

import (
	"errors"
	"math"
	"strings"
	"testing"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/api/iterator"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"taskguard/emulator/cloudtasks"
)

func defaults() *cloudtaskspb.Queue {
	return &cloudtaskspb.Queue{
		Name:  queue,
		State: cloudtaskspb.Queue_RUNNING,
		RateLimits: &cloudtaskspb.RateLimits{
			MaxDispatchesPerSecond: 500, MaxBurstSize: 100, MaxConcurrentDispatches: 1000,
		},
		RetryConfig: &cloudtaskspb.RetryConfig{
			MaxAttempts: 100, MinBackoff: seconds(0.1), MaxBackoff: seconds(3600), MaxDoublings: 16,
		},
	}
}

func (c *cloud) wantQueue(want *cloudtaskspb.Queue) {
	c.t.Helper()
	got, err := c.client.GetQueue(c.t.Context(), &cloudtaskspb.GetQueueRequest{Name: queue})
	if err != nil {
		c.t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		c.t.Fatalf("queue (-want +got):\n%s", diff)
	}
}

func TestANewQueueHasTheDocumentedDefaults(t *testing.T) {
	c := openQueue(t, cloudtasks.Options{}, nil)
	c.wantQueue(defaults())
}

func TestAnUpdateCreatesAMissingQueue(t *testing.T) {
	c := open(t, cloudtasks.Options{})
	_, err := c.client.UpdateQueue(t.Context(), &cloudtaskspb.UpdateQueueRequest{Queue: &cloudtaskspb.Queue{Name: queue}})
	wantCode(t, err, codes.OK)
	c.wantQueue(defaults())
}

func TestAnUpdateChangesWhatItsMaskNames(t *testing.T) {
	c := openQueue(t, cloudtasks.Options{}, nil)
	c.pause()
	want := defaults()
	want.State = cloudtaskspb.Queue_PAUSED
	update := func(pb *cloudtaskspb.Queue, paths ...string) {
		t.Helper()
		pb.Name = queue
		_, err := c.client.UpdateQueue(t.Context(), &cloudtaskspb.UpdateQueueRequest{
			Queue: pb, UpdateMask: &fieldmaskpb.FieldMask{Paths: paths},
		})
		wantCode(t, err, codes.OK)
	}
	update(&cloudtaskspb.Queue{
		State:       cloudtaskspb.Queue_RUNNING, // output only: ignored
		RateLimits:  &cloudtaskspb.RateLimits{MaxConcurrentDispatches: 5, MaxDispatchesPerSecond: 2.5},
		RetryConfig: &cloudtaskspb.RetryConfig{MaxAttempts: 7},
	}, "rate_limits.max_concurrent_dispatches", "state")
	want.RateLimits.MaxConcurrentDispatches = 5
	c.wantQueue(want)

	// Zero doublings are kept when they are named, and by later updates of others.
	update(&cloudtaskspb.Queue{}, "retry_config.max_doublings")
	update(&cloudtaskspb.Queue{RateLimits: &cloudtaskspb.RateLimits{MaxDispatchesPerSecond: 2.5}}, "rate_limits.max_dispatches_per_second")
	want.RetryConfig.MaxDoublings = 0
	want.RateLimits.MaxDispatchesPerSecond, want.RateLimits.MaxBurstSize = 2.5, 3
	c.wantQueue(want)

	// Without a mask everything is replaced, and what is unset is the default.
	update(&cloudtaskspb.Queue{RetryConfig: &cloudtaskspb.RetryConfig{MaxAttempts: 7}})
	want = defaults()
	want.State = cloudtaskspb.Queue_PAUSED
	want.RetryConfig.MaxAttempts = 7
	c.wantQueue(want)
}

func TestAnUpdateOfAnUnknownFieldIsRefused(t *testing.T) {
	c := openQueue(t, cloudtasks.Options{}, nil)
	for _, path := range []string{"colour", "rate_limits.colour", "name.first"} {
		_, err := c.client.UpdateQueue(t.Context(), &cloudtaskspb.UpdateQueueRequest{
			Queue: &cloudtaskspb.Queue{Name: queue}, UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{path}},
		})
		wantCode(t, err, codes.InvalidArgument)
	}
}

func TestCreateQueueChecksWhatItIsGiven(t *testing.T) {
	rate := func(r *cloudtaskspb.RateLimits) *cloudtaskspb.Queue {
		return &cloudtaskspb.Queue{Name: queue, RateLimits: r}
	}
	retry := func(r *cloudtaskspb.RetryConfig) *cloudtaskspb.Queue {
		return &cloudtaskspb.Queue{Name: queue, RetryConfig: r}
	}
	for name, c := range map[string]struct {
		queue *cloudtaskspb.Queue
		want  codes.Code
	}{
		"no queue":           {nil, codes.InvalidArgument},
		"no name":            {&cloudtaskspb.Queue{}, codes.InvalidArgument},
		"underscore":         {&cloudtaskspb.Queue{Name: parent + "/queues/a_b"}, codes.InvalidArgument},
		"101 letters":        {&cloudtaskspb.Queue{Name: parent + "/queues/" + strings.Repeat("a", 101)}, codes.InvalidArgument},
		"100 letters":        {&cloudtaskspb.Queue{Name: parent + "/queues/" + strings.Repeat("a", 100)}, codes.OK},
		"another location":   {&cloudtaskspb.Queue{Name: "projects/p/locations/m/queues/q"}, codes.InvalidArgument},
		"rate above 500":     {rate(&cloudtaskspb.RateLimits{MaxDispatchesPerSecond: 501}), codes.InvalidArgument},
		"rate negative":      {rate(&cloudtaskspb.RateLimits{MaxDispatchesPerSecond: -1}), codes.InvalidArgument},
		"rate not a number":  {rate(&cloudtaskspb.RateLimits{MaxDispatchesPerSecond: math.NaN()}), codes.InvalidArgument},
		"rate tiny":          {rate(&cloudtaskspb.RateLimits{MaxDispatchesPerSecond: 1e-300}), codes.OK},
		"5001 at once":       {rate(&cloudtaskspb.RateLimits{MaxConcurrentDispatches: 5001}), codes.InvalidArgument},
		"-1 at once":         {rate(&cloudtaskspb.RateLimits{MaxConcurrentDispatches: -1}), codes.InvalidArgument},
		"attempts below -1":  {retry(&cloudtaskspb.RetryConfig{MaxAttempts: -2}), codes.InvalidArgument},
		"doublings negative": {retry(&cloudtaskspb.RetryConfig{MaxDoublings: -1}), codes.InvalidArgument},
		"backoff negative":   {retry(&cloudtaskspb.RetryConfig{MinBackoff: seconds(-1)}), codes.InvalidArgument},
		"min above max":      {retry(&cloudtaskspb.RetryConfig{MinBackoff: seconds(2), MaxBackoff: seconds(1)}), codes.InvalidArgument},
		"max below default":  {retry(&cloudtaskspb.RetryConfig{MaxBackoff: seconds(0.01)}), codes.OK},
		"http_target":        {&cloudtaskspb.Queue{Name: queue, HttpTarget: &cloudtaskspb.HttpTarget{}}, codes.Unimplemented},
	} {
		t.Run(name, func(t *testing.T) {
			cloud := open(t, cloudtasks.Options{})
			_, err := cloud.client.CreateQueue(t.Context(), &cloudtaskspb.CreateQueueRequest{Parent: parent, Queue: c.queue})
			wantCode(t, err, c.want)
		})
	}
}

func TestAQueueIsCreatedOnce(t *testing.T) {
	c := openQueue(t, cloudtasks.Options{}, nil)
	_, err := c.client.CreateQueue(t.Context(), &cloudtaskspb.CreateQueueRequest{Parent: parent, Queue: defaults()})
	wantCode(t, err, codes.AlreadyExists)
}

func TestOperationsOnAMissingQueueAreNotFound(t *testing.T) {
	c := open(t, cloudtasks.Options{})
	ctx := t.Context()
	_, err := c.client.GetQueue(ctx, &cloudtaskspb.GetQueueRequest{Name: queue})
	wantCode(t, err, codes.NotFound)
	_, err = c.client.PauseQueue(ctx, &cloudtaskspb.PauseQueueRequest{Name: queue})
	wantCode(t, err, codes.NotFound)
	_, err = c.client.ResumeQueue(ctx, &cloudtaskspb.ResumeQueueRequest{Name: queue})
	wantCode(t, err, codes.NotFound)
	_, err = c.client.PurgeQueue(ctx, &cloudtaskspb.PurgeQueueRequest{Name: queue})
	wantCode(t, err, codes.NotFound)
	wantCode(t, c.client.DeleteQueue(ctx, &cloudtaskspb.DeleteQueueRequest{Name: queue}), codes.NotFound)
	_, err = c.client.ListTasks(ctx, &cloudtaskspb.ListTasksRequest{Parent: queue}).Next()
	wantCode(t, err, codes.NotFound)
}

func TestListQueuesIsInOrderAndOfOneLocation(t *testing.T) {
	c := open(t, cloudtasks.Options{})
	for _, name := range []string{"b", "a", "d", "c", "e"} {
		_, err := c.client.CreateQueue(t.Context(), &cloudtaskspb.CreateQueueRequest{
			Parent: parent, Queue: &cloudtaskspb.Queue{Name: parent + "/queues/" + name},
		})
		wantCode(t, err, codes.OK)
	}
	_, err := c.client.CreateQueue(t.Context(), &cloudtaskspb.CreateQueueRequest{
		Parent: "projects/p/locations/m", Queue: &cloudtaskspb.Queue{Name: "projects/p/locations/m/queues/z"},
	})
	wantCode(t, err, codes.OK)
	var got []string
	it := c.client.ListQueues(t.Context(), &cloudtaskspb.ListQueuesRequest{Parent: parent, PageSize: 2})
	for {
		q, err := it.Next()
		if errors.Is(err, iterator.Done) {
			break
		}
		wantCode(t, err, codes.OK)
		got = append(got, q.Name[len(q.Name)-1:])
	}
	if diff := cmp.Diff([]string{"a", "b", "c", "d", "e"}, got); diff != "" {
		t.Fatalf("queues (-want +got):\n%s", diff)
	}
}
