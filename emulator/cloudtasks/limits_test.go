package cloudtasks_test

import (
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"github.com/google/go-cmp/cmp"

	"taskguard/emulator/cloudtasks"
)

func TestNoMoreThanTheConcurrencyLimitIsInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g gauge
		c := openQueue(t, cloudtasks.Options{Transport: lasting(&g, time.Second)},
			&cloudtaskspb.Queue{RateLimits: &cloudtaskspb.RateLimits{MaxConcurrentDispatches: 3}})
		start := time.Now()
		for range 10 {
			c.create(post(""))
		}
		c.idle()
		if most, runs := g.read(); most != 3 || runs != 10 {
			t.Fatalf("got %d runs, %d at once, want 10 and 3", runs, most)
		}
		if got, want := time.Since(start), 4*time.Second; got != want {
			t.Fatalf("got %v, want %v", got, want)
		}
	})
}

func TestTasksDueTogetherGoInOrderOfCreation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen seen
		c := openQueue(t, cloudtasks.Options{Transport: always(200), Observe: seen.observe},
			&cloudtaskspb.Queue{RateLimits: &cloudtaskspb.RateLimits{MaxConcurrentDispatches: 1}})
		want := []string{"e", "a", "d", "b", "c"}
		due := time.Now().Add(time.Minute)
		for _, id := range want {
			c.create(at(id, due))
		}
		c.idle()
		var got []string
		all := seen.deliveries()
		for i := range all {
			got = append(got, all[i].Task)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("order (-want +got):\n%s", diff)
		}
	})
}

func TestDispatchesKeepToTheRateAfterABurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen seen
		c := openQueue(t, cloudtasks.Options{Transport: always(200), Observe: seen.observe},
			&cloudtaskspb.Queue{RateLimits: &cloudtaskspb.RateLimits{MaxDispatchesPerSecond: 2}})
		start := time.Now().Add(time.Minute)
		for range 5 {
			c.create(at("", start))
		}
		c.idle()
		if diff := cmp.Diff([]float64{0, 0, 0.5, 1, 1.5}, seen.offsets(start)); diff != "" {
			t.Fatalf("starts (-want +got):\n%s", diff)
		}
	})
}
