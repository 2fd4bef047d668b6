package explore

import "path"

// start is a sequence of steps that costs no depth, no stray and nothing of
// the budgets: what only many steps lead to is searched from there.
type start struct {
	name  string
	fewer int      // strays that the search has less: much can be done from here
	steps []string // each the first enabled one that path.Match finds
}

var (
	// booked: a run is live, its duplicate has booked a follow-up, and the first
	// task is gone.
	booked = []string{
		"task first to one that is idle", "delivery 0 at w0: swap",
		"task first to one that is idle", "delivery 1 at w1: book",
	}
	// broken: and an operator has unlocked, which the run does not know.
	broken = append(booked[:4:4], "the operator unlocks", "the operator: swap")
	// stopped: and the run was stopped, and has booked what comes in its place.
	stopped = append(booked[:4:4], "w0 gets SIGTERM", "delivery 0 at w0: the run obeys its cancellation",
		"delivery 0 at w0: swap", "delivery 0 at w0: book")
	// overtaken: a run whose lock was broken is live, the follow-up has come early
	// and run elsewhere, and was stopped, and has booked what comes in its place.
	overtaken = append(broken[:6:6], "task * to one that is idle", "delivery 3 at w1: swap",
		"w1 gets SIGTERM", "delivery 3 at w1: the run obeys its cancellation",
		"delivery 3 at w1: swap", "delivery 3 at w1: book")
)

var starts = []start{{"booked", 0, booked}, {"broken", 0, broken}, {"stopped", 1, stopped}, {"overtaken", 1, overtaken}}

func (s start) String() string {
	if s.name == "" {
		return "from the beginning"
	}
	return "from " + s.name
}

// make takes the steps.
func (s start) make(w *world) {
	left, traced := w.left, w.traced
	w.left = budget{deliveries: 4, unlocks: 1, stops: 1, hasty: 1}
	w.traced = true // so that steps have names
	for _, step := range s.steps {
		if !w.step(step) {
			w.violated("from %q: no step %q", s.name, step)
			break
		}
	}
	w.left, w.traced = left, traced
	if !traced {
		w.trace = nil
	}
}

func (w *world) step(pattern string) bool {
	for _, a := range w.actions() {
		if ok, err := path.Match(pattern, a.name); ok && err == nil {
			w.note("(%s)", a.name)
			a.do()
			return w.bad == ""
		}
	}
	return false
}
