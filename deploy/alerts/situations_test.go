package alerts

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
)

// begins is when each situation begins: an analysis is just created, also at ten a day.
const begins = 3 * 144

// situation is what happens to a deployment. Times are in minutes; zero: it does not happen.
type situation struct {
	ends                 func(id int, at float64, attempt int) end // how an attempt that begins at a time ends
	busy                 bool                                      // the instances are never empty
	paused, resumed      float64                                   // the queue
	refused              float64                                   // Cloud Run refuses the caller from then on
	release              float64                                   // a new revision serves
	abandoned, uncertain float64
	uncounted            [2]float64 // no line of recovery is counted from the first time to the second, but one

	must   map[string]int // the minutes after which an alert is open at the latest
	may    []string       // alerts that also open
	silent float64        // no alert opens from then on
}

func allReady(int, float64, int) end { return ready }

// during returns the ends of attempts that begin in the first so many minutes of a situation; others are ready.
func during(minutes float64, e func(id, attempt int) end) func(int, float64, int) end {
	return func(id int, at float64, attempt int) end {
		if at >= begins && at < begins+minutes {
			return e(id, attempt)
		}
		return ready
	}
}

// healthy returns how the attempts of a usual day end: one in 200 is retried, one in 1000 fails.
func healthy(id int, _ float64, attempt int) end {
	switch {
	case id%200 == 7 && attempt == 1:
		return end{outcome: "retry", after: 0.5}
	case id%1000 == 8:
		return end{outcome: "failed", after: 0.5}
	case id%5000 == 9 && attempt == 1:
		return end{outcome: "retry", after: 25, code: "run_timeout"}
	}
	return ready
}

// killer returns the ends of an analysis that kills its worker, and of nine that run beside it.
func killer(perDay int) func(int, float64, int) end {
	perMinute := float64(perDay) / 1440
	id := int(begins * perMinute)
	return func(i int, _ float64, attempt int) end {
		// beside its first crash, or beside the second, five minutes later
		beside := i < id && i >= id-9 || i > id+370 && i < id+380
		if perDay <= 1000 || attempt > 1 {
			beside = false
		}
		if i == id || beside {
			return end{outcome: "crash", after: 0.3}
		}
		return ready
	}
}

// situations returns what happens at so many analyses a day.
func situations(perDay int) map[string]situation {
	many := perDay > 1000
	either := func(few, much int) int {
		if many {
			return much
		}
		return few
	}
	crashes, standstill := map[string]int{"the worker dies or is cut off": 120}, 60
	if perDay == 10 {
		crashes, standstill = nil, 190 // the next analysis is created after 144 minutes
	}
	hang := end{outcome: "retry", after: 25, code: "run_timeout"}
	all := map[string]situation{
		"a usual day":      {ends: healthy, busy: many},
		"a new deployment": {ends: allReady, release: begins + 0.4},
		"a dependency is down for two hours": {
			ends: during(120, func(int, int) end { return end{outcome: "retry", after: 0.2} }),
			must: map[string]int{"attempts are retried": either(20, 13)},
			may: []string{"attempts are exhausted", "analyses fail",
				"the backlog grows", "an analysis is not finished"},
		},
		"a dependency is down for three minutes": {
			ends: during(3, func(int, int) end { return end{outcome: "retry", after: 0.2} }),
		},
		"deliveries are refused at the door": {
			ends: allReady, refused: begins,
			must: map[string]int{"the queue sees errors": either(20, 13)},
			may:  []string{"tasks do not arrive", "the backlog grows", "an analysis is not finished"},
		},
		"runs time out": {
			ends: during(120, func(id, _ int) end {
				if many && id%20 != 0 {
					return ready
				}
				return hang
			}),
			must: map[string]int{"runs time out": either(60, 45)},
			may:  []string{"an analysis is not finished", "attempts are exhausted"},
		},
		"an input kills its worker": {
			ends: killer(perDay), busy: many,
			must: map[string]int{"analyses crash": 15, "attempts are exhausted": 40},
		},
		"recovery stops": {
			ends: allReady, uncounted: [2]float64{begins, 10_000},
			must: map[string]int{"recovery has stopped": 25},
		},
		"four lines of recovery are lost": {ends: allReady, uncounted: [2]float64{begins, begins + 4}},
		"an act is abandoned": {
			ends: allReady, abandoned: begins, must: map[string]int{"records are abandoned": 2},
		},
		"an act is uncertain": {
			ends: allReady, uncertain: begins, must: map[string]int{"an act is uncertain": 2},
		},
		"an analyzer asks for a wait of hours": {
			ends: during(300, func(int, int) end { return end{outcome: "retry", after: 0.2, wait: 240} }),
			may:  []string{"an analysis is not finished"}, // on the next working day
		},
		"one input in twenty kills its worker": {
			ends: during(300, func(id, _ int) end {
				if id%20 == 0 && perDay > 10 {
					return end{outcome: "crash", after: 0.3}
				}
				return ready
			}),
			must: crashes,
			may: []string{
				"analyses crash", "analyses fail", "attempts are exhausted", "the queue sees errors",
				"an analysis is not finished",
			},
		},
		"the queue stands still after waits of 40 minutes": {
			ends:   during(240, func(int, int) end { return end{outcome: "retry", after: 0.2, wait: 40} }),
			paused: begins + 300, resumed: 10_000,
			must: map[string]int{"tasks are not sent": 300 + standstill},
			may:  []string{"an analysis is not finished", "the backlog grows"},
		},
		"the queue stands still after waits of three hours": {
			ends:   during(60, func(int, int) end { return end{outcome: "retry", after: 0.2, wait: 180} }),
			paused: begins + 300, resumed: 10_000,
			must: map[string]int{"tasks are not sent": 300 + standstill},
			may:  []string{"an analysis is not finished", "the backlog grows"},
		},
		"the queue is paused for an hour": {
			ends: allReady, paused: begins, resumed: begins + 60, silent: begins + 60,
			may: []string{"tasks are not sent", "the backlog grows"},
		},
		"the queue stands still": {
			ends: allReady, paused: begins, resumed: 10_000,
			must: map[string]int{"tasks are not sent": 47},
			may:  []string{"the backlog grows", "an analysis is not finished"},
		},
	}
	return all
}

func newEngine() *promql.Engine {
	return promql.NewEngine(promql.EngineOpts{
		MaxSamples: 1e9, Timeout: time.Minute, LookbackDelta: 5 * time.Minute,
		Parser: parser.NewParser(parser.Options{}),
	})
}

func TestAlerts(t *testing.T) {
	engine := newEngine()
	alerts := policies(t)
	for _, perDay := range []int{10, 1000, 100_000} {
		for name, s := range situations(perDay) {
			t.Run(fmt.Sprintf("%d a day/%s", perDay, name), func(t *testing.T) {
				t.Parallel()
				const minutes = 960
				series := simulate(s, perDay, minutes)
				missing := maps.Clone(s.must)
				for _, p := range alerts {
					s.check(t, p, firing(t, engine, p, series, minutes))
					delete(missing, p.name)
				}
				if len(missing) > 0 {
					t.Errorf("there is no alert %v", missing)
				}
			})
		}
	}
}

// check compares when an alert is open with what the situation says.
func (s situation) check(t *testing.T, p policy, open []bool) {
	t.Helper()
	first := slices.Index(open, true)
	within, must := s.must[p.name]
	switch {
	case must && (first < begins || first > begins+within):
		t.Errorf("%s opens after %d minutes, want within %d", p.name, first-begins, within)
	case !must && first >= 0 && !slices.Contains(s.may, p.name):
		t.Errorf("%s opens after %d minutes", p.name, first-begins)
	}
	if s.silent == 0 {
		return
	}
	for m := int(s.silent) + 1; m < len(open); m++ {
		if open[m] && !open[m-1] {
			t.Errorf("%s opens again after %d minutes", p.name, m-begins)
		}
	}
}

// Cloud Scheduler calls the job each day at the same time, and may need some minutes.
func TestAlerts_Export(t *testing.T) {
	const days = 5
	w := &world{minutes: days * 1440, counters: map[string][]float64{}}
	for day, late := range []float64{0, 4, 2} {
		w.exported(float64(day)*1440 + 30 + late)
	}
	alerts := policies(t)
	i := slices.IndexFunc(alerts, func(p policy) bool { return p.name == "the export has stopped" })
	if i < 0 {
		t.Fatal("there is no alert")
	}

	open := firing(t, newEngine(), alerts[i], w.samples(), w.minutes)
	last := 2*1440 + 32
	if first := slices.Index(open, true) - last; first < 25*60 || first > 27*60 {
		t.Errorf("the alert opens %d minutes after the last export", first)
	}
}
