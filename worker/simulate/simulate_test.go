package simulate

import (
	"fmt"
	"os"
	"strconv"
	"sync"
	"testing"
)

// TestManySeedsLoseNothingAndFinishEachOnce is the simulation. SIMULATE_SEEDS
// says how many seeds; SIMULATE_SEED=n replays one, with its history.
func TestManySeedsLoseNothingAndFinishEachOnce(t *testing.T) {
	if one := os.Getenv("SIMULATE_SEED"); one != "" {
		replay(t, one)
		return
	}
	seeds := 600
	if s := os.Getenv("SIMULATE_SEEDS"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n <= 0 {
			t.Fatalf("SIMULATE_SEEDS=%q is no number of seeds", s)
		}
		seeds = n
	}
	var mu sync.Mutex
	all := figures{}
	t.Run("seed", func(t *testing.T) {
		for seed := range uint64(seeds) {
			t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
				t.Parallel()
				p := dice(seed).profile()
				w := run(t, seed, p, nil)
				report(t, w)
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
	if names := all.missing(); names != nil {
		t.Errorf("never happened, so nothing is proved: %q", names)
	}
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
	if len(w.wrong) > 0 {
		t.Logf("SIMULATE_SEED=%d go test ./worker/simulate -run TestManySeeds -v", uint64(w.dice))
	}
}
