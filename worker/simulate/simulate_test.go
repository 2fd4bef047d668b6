package simulate

import (
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
)

// TestManySeedsLoseNothingAndFinishEachOnce is the simulation. SIMULATE_SEEDS
// says how many seeds, and SIMULATE_FAILURES after how many failing ones no more
// are begun; SIMULATE_SEED=n replays one, with its history until something is
// wrong.
func TestManySeedsLoseNothingAndFinishEachOnce(t *testing.T) {
	if one := os.Getenv("SIMULATE_SEED"); one != "" {
		replay(t, one)
		return
	}
	seeds, enough := number(t, "SIMULATE_SEEDS", 600), number(t, "SIMULATE_FAILURES", 3)
	var failing atomic.Int64
	var mu sync.Mutex
	all := figures{}
	t.Run("seed", func(t *testing.T) {
		for seed := range uint64(seeds) {
			t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
				t.Parallel()
				if failing.Load() >= int64(enough) {
					t.Skip("enough seeds have failed")
				}
				p := dice(seed).profile()
				w := run(t, seed, p, nil)
				report(t, w)
				if len(w.wrong) > 0 {
					failing.Add(1)
				}
				mu.Lock()
				defer mu.Unlock()
				all.add(w.figures)
				all["seeds"]++
				all.most("largest clock skew", max(p.storeSkew, -p.storeSkew, p.queueSkew, -p.queueSkew))
			})
		}
	})
	if os.Getenv("SIMULATE_SEEDS") != "" {
		fmt.Printf("figures:\n%s", all) // -v would show each seed as well
	}
	if n := failing.Load(); n > 0 {
		t.Fatalf("%d seeds failed of the %d that were run", n, all["seeds"])
	}
	if names := all.missing(); names != nil {
		t.Errorf("never happened, so nothing is proved: %q", names)
	}
}

// number is an environment variable's, or its default.
func number(t *testing.T, name string, unset int) int {
	t.Helper()
	s := os.Getenv(name)
	if s == "" {
		return unset
	}
	n, err := strconv.Atoi(s)
	if err != nil || n <= 0 {
		t.Fatalf("%s=%q is no number of seeds", name, s)
	}
	return n
}

func replay(t *testing.T, one string) {
	t.Helper()
	seed, err := strconv.ParseUint(one, 10, 64)
	if err != nil {
		t.Fatalf("SIMULATE_SEED=%q is no seed", one)
	}
	w := run(t, seed, dice(seed).profile(), nil)
	fmt.Printf("%+v\n%s%s", w.p, w.transcript(), w.figures)
	report(t, w)
}

func report(t *testing.T, w *world) {
	t.Helper()
	for _, wrong := range w.wrong {
		t.Errorf("%s", wrong)
	}
}
