package clock_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/internal/clock"
)

func TestSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, tc := range []struct {
			timeout, sleep, took time.Duration
			slept                bool
		}{
			{timeout: time.Hour, sleep: time.Minute, took: time.Minute, slept: true},
			{timeout: time.Minute, sleep: time.Hour, took: time.Minute},
			{timeout: time.Minute, sleep: -1, slept: true},
		} {
			began := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), tc.timeout)
			slept := clock.Sleep(ctx, tc.sleep)
			cancel()
			if took := time.Since(began); took != tc.took || slept != tc.slept {
				t.Errorf("%v: slept %v, took %v", tc, slept, took)
			}
		}
	})
}
