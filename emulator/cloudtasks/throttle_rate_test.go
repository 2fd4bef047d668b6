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
		for at := rate.Take(now); at != now; at = rate.Take(now) {
			now = at
		}
		rate.Answered(now, 200)
	}
	if got := 20_000 / now.Sub(half).Seconds(); got < 499 || got > 501 {
		t.Errorf("%.1f dispatches per second after %v, want 500", got, half.Sub(start))
	}
}

func TestTheAnswersOfASecondChangeTheRateOnce(t *testing.T) {
	for _, c := range []struct {
		seconds int
		answers map[int]int // of each status, in each second
		want    float64
	}{
		{1, nil, 5},
		{1, map[int]int{200: 20}, 6},
		{1, map[int]int{200: 20, 503: 1}, 2.5},
		{1, map[int]int{200: 20, 429: 3}, 2.5},
		{1, map[int]int{409: 10}, 5},
		{1, map[int]int{409: 11}, 2.5},
		{1, map[int]int{0: 6, 404: 5}, 2.5},
		{1, map[int]int{200: 80, 500: 20}, 2.5},
		{1, map[int]int{200: 200, 500: 15}, 15},
		{1, map[int]int{500: 6}, 5},
		{2, map[int]int{500: 6}, 2.5}, // the answers of the second before count
	} {
		var rate Throttle
		now := time.Now()
		for !rate.Take(now).After(now) {
		}
		for range c.seconds {
			for status, n := range c.answers {
				for range n {
					rate.Answered(now, status)
				}
			}
			now = now.Add(time.Second)
			rate.Take(now)
		}
		if rate.rate != c.want {
			t.Errorf("%v in %d s: got %v per second, want %v", c.answers, c.seconds, rate.rate, c.want)
		}
	}
}
