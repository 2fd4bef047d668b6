package cloudtasks

import (
	"testing"
	"time"
)

func TestTheRateEndsAt500PerSecond(t *testing.T) {
	var rate Throttle
	start := time.Now()
	now, half := start, start
	for i := range 40_000 {
		if i == 20_000 {
			half = now
		}
		for at := rate.Take(now); at.After(now); at = rate.Take(now) {
			now = at
		}
		rate.Answered(now, 200)
	}
	if got := 20_000 / now.Sub(half).Seconds(); got < 499 || got > 501 {
		t.Errorf("%.1f dispatches per second after %v, want 500", got, half.Sub(start))
	}
}

func TestTheAnswersOfOneSecondChangeTheRateOnce(t *testing.T) {
	for _, c := range []struct {
		answers map[int]int // of each status
		want    float64
	}{
		{nil, 5},
		{map[int]int{200: 20}, 6},
		{map[int]int{200: 20, 503: 1}, 2.5},
		{map[int]int{200: 20, 429: 3}, 2.5},
		{map[int]int{409: 10}, 5},
		{map[int]int{409: 11}, 2.5},
		{map[int]int{0: 6, 404: 5}, 2.5},
		{map[int]int{200: 80, 500: 20}, 2.5},
		{map[int]int{200: 200, 500: 15}, 15},
	} {
		var rate Throttle
		now := time.Now()
		for !rate.Take(now).After(now) {
		}
		for status, n := range c.answers {
			for range n {
				rate.Answered(now, status)
			}
		}
		rate.Take(now.Add(time.Second))
		if rate.rate != c.want {
			t.Errorf("%v: got %v per second, want %v", c.answers, rate.rate, c.want)
		}
	}
}
