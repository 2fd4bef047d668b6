package lifecycle_test

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/internal/lifecycle"
)

func TestDrainWaitsOnlyForWhatBeganBeforeIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := lifecycle.New(t.Context(), slog.New(slog.DiscardHandler))
		if err := l.Begin(0); err != nil {
			t.Fatal(err)
		}
		before := l.Track()
		time.AfterFunc(time.Second, l.End)
		time.AfterFunc(2*time.Second, before)
		for i := range 20 { // requests without end, each of a second
			time.AfterFunc(time.Duration(i+1)*time.Second/2, func() { time.AfterFunc(time.Second, l.Track()) })
		}
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
		defer cancel()
		if left := l.Drain(ctx); left != 0 || time.Since(began) != 2*time.Second {
			t.Errorf("%d left after %v; want none after 2 s", left, time.Since(began))
		}
		time.Sleep(20 * time.Second)
	})
}
