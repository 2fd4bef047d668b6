package cloudtasks_test

import (
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"

	"taskguard/emulator/cloudtasks"
)

func TestRunTaskDispatchesAPausedAndScheduledTaskNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen seen
		c := openQueue(t, cloudtasks.Options{Transport: always(200), Observe: seen.observe}, nil)
		c.pause()
		start := time.Now()
		name := c.create(at("later", start.Add(time.Hour))).Name
		ran := c.run(name)
		if ran.DispatchCount != 1 || ran.ResponseCount != 0 {
			t.Fatalf("got counts %d and %d, want the task as dispatched", ran.DispatchCount, ran.ResponseCount)
		}
		c.idle()
		c.resume()
		time.Sleep(2 * time.Hour) // its own schedule has gone with it
		if diff := cmp.Diff([]float64{0}, seen.offsets(start)); diff != "" {
			t.Fatalf("starts (-want +got):\n%s", diff)
		}
		_, err := c.client.RunTask(t.Context(), &cloudtaskspb.RunTaskRequest{Name: name})
		wantCode(t, err, codes.NotFound)
	})
}

func TestRunTaskDispatchesATaskThatIsRunningBeyondTheLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g gauge
		c := openQueue(t, cloudtasks.Options{Transport: lasting(&g, time.Minute)}, &cloudtaskspb.Queue{
			RateLimits: &cloudtaskspb.RateLimits{MaxConcurrentDispatches: 1, MaxDispatchesPerSecond: 0.001},
		})
		name := c.create(post("busy")).Name
		synctest.Wait()
		if got := c.run(name).DispatchCount; got != 2 {
			t.Fatalf("got dispatch count %d, want 2", got)
		}
		c.idle()
		if most, runs := g.read(); most != 2 || runs != 2 {
			t.Fatalf("got %d runs, %d at once, want 2 and 2", runs, most)
		}
	})
}

func TestAFailedRunTaskIsRetriedOneBackoffAfterItsCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen seen
		slow := worker(func(*http.Request) (*http.Response, error) {
			time.Sleep(4 * time.Second)
			return answer(500), nil
		})
		c := openQueue(t, cloudtasks.Options{Transport: slow, Observe: seen.observe}, &cloudtaskspb.Queue{
			RetryConfig: &cloudtaskspb.RetryConfig{MaxAttempts: 2, MinBackoff: seconds(10)},
		})
		start := time.Now()
		c.run(c.create(at("", start.Add(time.Hour))).Name)
		c.idle()
		if diff := cmp.Diff([]float64{0, 10}, seen.offsets(start)); diff != "" {
			t.Fatalf("starts (-want +got):\n%s", diff)
		}
	})
}

func TestOverlappingAttemptsLeadToOneRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen seen
		attempts := make(chan time.Duration, 3)
		attempts <- 60 * time.Second
		attempts <- time.Second
		w := worker(func(*http.Request) (*http.Response, error) {
			select {
			case d := <-attempts:
				time.Sleep(d)
				return answer(500), nil
			default:
				return answer(200), nil
			}
		})
		c := openQueue(t, cloudtasks.Options{Transport: w, Observe: seen.observe},
			&cloudtaskspb.Queue{RetryConfig: &cloudtaskspb.RetryConfig{MinBackoff: seconds(10)}})
		start := time.Now()
		name := c.create(post("")).Name
		synctest.Wait()
		c.run(name)
		c.idle()
		// The short one ends first; the long one ends at 60 and decides: 60 + 20.
		if diff := cmp.Diff([]float64{0, 0, 80}, seen.offsets(start)); diff != "" {
			t.Fatalf("starts (-want +got):\n%s", diff)
		}
	})
}

func TestATaskDeletedWhileItRunsIsOverWhateverIsAnswered(t *testing.T) {
	for _, code := range []int{200, 500} {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var seen seen
				slow := worker(func(*http.Request) (*http.Response, error) {
					time.Sleep(time.Minute)
					return answer(code), nil
				})
				c := openQueue(t, cloudtasks.Options{Transport: slow, Observe: seen.observe}, nil)
				name := c.create(post("x")).Name
				synctest.Wait()
				c.delete(name)
				c.wantGone(name)
				err := c.client.DeleteTask(t.Context(), &cloudtaskspb.DeleteTaskRequest{Name: name})
				wantCode(t, err, codes.NotFound)
				c.idle()
				time.Sleep(time.Hour)
				if got := len(seen.deliveries()); got != 1 {
					t.Fatalf("got %d deliveries, want the one in flight", got)
				}
			})
		})
	}
}

func TestATaskOfAPausedQueueEndsWithItsRetention(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := openQueue(t, cloudtasks.Options{Transport: always(200)}, nil)
		c.pause()
		start := time.Now()
		task := c.create(post("old"))
		time.Sleep(time.Hour)
		c.create(post("younger"))
		c.idle()
		c.wantGone(task.Name)
		if got, want := time.Since(start), 31*24*time.Hour+time.Hour; got != want {
			t.Fatalf("got idle after %v, want %v", got, want)
		}
	})
}

func TestPurgeRemovesTasksAndPendingDuplicates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen seen
		extra := func(*cloudtaskspb.Task) []time.Duration { return []time.Duration{time.Hour} }
		c := openQueue(t, cloudtasks.Options{Transport: always(200), Observe: seen.observe, Extra: extra}, nil)
		c.create(post("done"))
		name := c.create(at("waiting", time.Now().Add(time.Minute))).Name
		synctest.Wait()
		q, err := c.client.PurgeQueue(t.Context(), &cloudtaskspb.PurgeQueueRequest{Name: queue})
		if err != nil {
			t.Fatal(err)
		}
		if got, want := q.PurgeTime.AsTime(), time.Now(); !got.Equal(want) {
			t.Fatalf("got purge time %v, want %v", got, want)
		}
		c.wantGone(name)
		c.idle()
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		if got := len(seen.deliveries()); got != 1 {
			t.Fatalf("got %d deliveries, want the one before the purge", got)
		}
	})
}

func TestADeletedQueueEndsWithItsTasks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen seen
		extra := func(*cloudtaskspb.Task) []time.Duration { return []time.Duration{time.Hour} }
		slow := worker(func(*http.Request) (*http.Response, error) {
			time.Sleep(time.Second)
			return answer(500), nil
		})
		c := openQueue(t, cloudtasks.Options{Transport: slow, Observe: seen.observe, Extra: extra}, nil)
		name := c.create(post("running")).Name
		c.create(at("waiting", time.Now().Add(time.Minute)))
		synctest.Wait()
		if err := c.client.DeleteQueue(t.Context(), &cloudtaskspb.DeleteQueueRequest{Name: queue}); err != nil {
			t.Fatal(err)
		}
		c.wantGone(name)
		_, err := c.client.CreateTask(t.Context(), &cloudtaskspb.CreateTaskRequest{Parent: queue, Task: post("")})
		wantCode(t, err, codes.NotFound)
		c.idle()
		if got := len(seen.deliveries()); got != 1 {
			t.Fatalf("got %d deliveries, want the one in flight", got)
		}
		// The name is free at once, and so are the names of its tasks.
		_, err = c.client.CreateQueue(t.Context(), &cloudtaskspb.CreateQueueRequest{
			Parent: parent, Queue: &cloudtaskspb.Queue{Name: queue, State: cloudtaskspb.Queue_PAUSED},
		})
		wantCode(t, err, codes.OK)
		c.pause()
		c.create(post("running"))
	})
}

func TestExtraOfADeletedQueueLeavesTheServerIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		extra := func(*cloudtaskspb.Task) []time.Duration {
			time.Sleep(time.Second) // the queue is deleted meanwhile
			return []time.Duration{0, time.Hour}
		}
		c := openQueue(t, cloudtasks.Options{Transport: always(500), Extra: extra}, nil)
		c.create(post(""))
		synctest.Wait()
		if err := c.client.DeleteQueue(t.Context(), &cloudtaskspb.DeleteQueueRequest{Name: queue}); err != nil {
			t.Fatal(err)
		}
		c.idle()
	})
}
