package simulate

import (
	"fmt"
	"os"
	"time"
)

// accuse takes down what is wrong, and says the first of it at once with the
// seed: the run may last, or be ended from outside. The mutex is held or not
// needed.
func (w *world) accuse(format string, args ...any) {
	what := fmt.Sprintf(format, args...)
	if len(w.wrong) == 0 {
		w.point(what)
	}
	w.wrong = append(w.wrong, what)
}

func (w *world) point(what string) {
	fmt.Fprintf(os.Stderr, "SIMULATE_SEED=%d go test ./worker/simulate -run TestManySeeds -v\n\t%s\n", uint64(w.dice), what)
}

// slow is how long, by the wall's clock, a seed may last unnamed: it takes
// milliseconds.
const slow = 20 * time.Second

// named names the seed where it lasts or ends in a panic. The function that it
// answers ends that, and is to be deferred.
func (w *world) named() func() {
	alarm := time.AfterFunc(slow, func() { w.point("is still going after " + slow.String()) })
	return func() {
		alarm.Stop()
		if p := recover(); p != nil {
			w.point("has panicked")
			panic(p)
		}
	}
}
