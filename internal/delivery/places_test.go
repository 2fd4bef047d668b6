package delivery

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		places := NewPlaces(2)
		enter := func(want bool) *Place {
			t.Helper()
			place, ok := places.Enter()
			if ok != want {
				t.Fatalf("entered %t, want %t", ok, want)
			}
			return place
		}
		for range 2 { // the second time shows that all are free again
			first, second := enter(true), enter(true)
			enter(false)
			if first.Alone(t.Context(), time.Second) {
				t.Fatal("alone beside another")
			}
			second.Leave()
			if !first.Alone(t.Context(), time.Second) {
				t.Fatal("not alone")
			}
			enter(false)
			first.Leave()
		}

		stopping, stop := context.WithCancel(t.Context())
		stop()
		first, second := enter(true), enter(true)
		if first.Alone(stopping, time.Second) {
			t.Error("alone beside another")
		}
		first.Leave()
		second.Leave()
		one := NewPlaces(1)
		only, _ := one.Enter()
		if !only.Alone(t.Context(), time.Second) {
			t.Error("not alone in the only place")
		}
	})
}
