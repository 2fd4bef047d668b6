package doctor

import "fmt"

func doclockRules() []rule {
	return append([]rule{
		{"sweep-asleep", []part{doclockEnvironment, doclockSettings}, sweepAsleep},
	}, sweeping().rules()...)
}

// sweepAsleep finds a ticker on an instance that stands still between requests.
func sweepAsleep(v *view) []Finding {
	s := v.Doclock.Settings.Value
	return one(v.doclock.Sweep > 0 && !s.CPUAlways, Advice,
		fmt.Sprintf("SWEEP_INTERVAL is %v, and %s has CPU only while a request is open: it sweeps late, or not at all.", v.doclock.Sweep, s.Name),
		v.Doclock.set("SWEEP_INTERVAL", "0")+" and a job of Cloud Scheduler, as deploy/README.md has it; or "+v.Doclock.mend(`run.googleapis.com/cpu-throttling: "false" among the template's annotations`, "--no-cpu-throttling"))
}
