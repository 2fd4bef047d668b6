package delivery

import (
	"testing"
	"time"
)

func TestTheWaitDoublesFromItsLeastToItsLongest(t *testing.T) {
	const s = time.Second
	var least time.Duration
	for n, want := range []time.Duration{30 * s, 60 * s, 120 * s, 240 * s, 480 * s, 600 * s, 600 * s, 600 * s, 600 * s} {
		got := backoff(n+1, DefaultMinRetry, DefaultMaxRetry, 0)
		if longest := backoff(n+1, DefaultMinRetry, DefaultMaxRetry, 1); got != want || longest != want*5/4 {
			t.Errorf("after attempt %d it waits from %v to %v, want from %v to %v", n+1, got, longest, want, want*5/4)
		}
		least += got
	}
	if least < 55*time.Minute {
		t.Errorf("ten attempts span %v, want at least 55m", least)
	}
	spreads := map[float64]bool{}
	for _, id := range []string{"a", "b"} {
		for token := range int64(50) {
			n := spread(id, token)
			if spreads[n] = true; n < 0 || n > 1 || n != spread(id, token) {
				t.Errorf("the spread of %s and %d is %v", id, token, n)
			}
		}
	}
	if len(spreads) != 100 {
		t.Errorf("%d spreads of 100 attempts", len(spreads))
	}
	for _, tc := range []struct {
		attempt              int
		first, longest, want time.Duration
	}{
		{1 << 40, s, 12 * time.Hour, 12 * time.Hour},
		{0, s, s, s},
		{2, time.Hour, time.Minute, time.Minute},
		{3, 0, 0, 0},
	} {
		if got := backoff(tc.attempt, tc.first, tc.longest, 0); got != tc.want {
			t.Errorf("%+v: %v", tc, got)
		}
	}
}
