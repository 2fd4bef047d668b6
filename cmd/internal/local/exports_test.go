package local

import (
	"strings"
	"testing"
)

func TestADeliveryGoesToTheNextWorkerThatIsNotFull(t *testing.T) {
	a, b := &process{number: 1}, &process{number: 2}
	for limit, want := range map[int]string{2: "2 1 2 1 1 2 1 ", 0: "2 1 2 1 2 1 2 "} {
		r, got := &router{limit: limit, workers: []*process{a, b}}, ""
		for i, n := range []int32{1, 1, 1, 1, 1, 0, 0} {
			if i == 4 {
				a.deliveries.Add(-1)
			}
			got += strings.TrimPrefix(r.pick(n).String(), "worker ") + " "
		}
		if got != want {
			t.Errorf("at most %d: %s, want %s", limit, got, want)
		}
		a.deliveries.Store(0)
		b.deliveries.Store(0)
	}
}
