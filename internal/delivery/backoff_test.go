package delivery

import (
	"testing"
	"time"
)

func TestBackoff(t *testing.T) {
	const s = time.Second
	t.Run("it doubles from 30 s to 10 min, and jitter adds a quarter", func(t *testing.T) {
		var least time.Duration
		for n, seconds := range []int{30, 60, 120, 240, 480, 600, 600, 600, 600} {
			want := time.Duration(seconds) * s
			got := backoff(n+1, DefaultMinRetry, DefaultMaxRetry, 0)
			longest := backoff(n+1, DefaultMinRetry, DefaultMaxRetry, 1)
			if got != want || longest != want*5/4 {
				t.Errorf("after attempt %d: %v to %v, want from %v to a quarter more", n+1, got, longest, want)
			}
			least += got
		}
		if least < 55*time.Minute {
			t.Errorf("ten attempts span %v, want at least 55m", least)
		}
	})
	t.Run("it stays within its bounds", func(t *testing.T) {
		for _, tc := range []struct {
			attempt                 int
			shortest, longest, want time.Duration
		}{
			{1 << 40, s, 12 * time.Hour, 12 * time.Hour},
			{0, s, s, s},
			{2, time.Hour, time.Minute, time.Minute},
			{3, 0, 0, 0},
		} {
			if got := backoff(tc.attempt, tc.shortest, tc.longest, 0); got != tc.want {
				t.Errorf("%+v: %v", tc, got)
			}
		}
	})
	t.Run("its jitter differs for each attempt of each analysis, and is the same when asked again", func(t *testing.T) {
		seen := map[float64]bool{}
		for _, id := range []string{"a", "b"} {
			for token := range int64(50) {
				n := spread(id, token)
				seen[n] = true
				if n < 0 || n > 1 {
					t.Errorf("%s, %d: %v is not from 0 to 1", id, token, n)
				}
				if again := spread(id, token); again != n {
					t.Errorf("%s, %d: %v, then %v", id, token, n, again)
				}
			}
		}
		if len(seen) != 100 {
			t.Errorf("%d spreads of 100 attempts", len(seen))
		}
	})
}
