package alerts

import (
	"fmt"
	"math"
)

// world counts what the deployment's metrics count, by the minute. All times are in minutes.
type world struct {
	situation
	minutes  int
	counters map[string][]float64 // what each minute adds, by series
	depth    []float64            // what each minute adds to the tasks in the queue
	oldest   []float64            // age of the oldest unfinished analysis
	free     float64              // when the queue that catches up can send the next task
}

// end is how an attempt ends.
type end struct {
	outcome string  // of the log line; crash: there is none
	after   float64 // how long it ran
	wait    float64 // what the analyzer asked for
	code    string
}

var ready = end{outcome: "ready", after: 0.5}

// simulate returns the series of a situation at so many analyses a day.
func simulate(s situation, perDay, minutes int) samples {
	w := &world{
		situation: s, minutes: minutes, counters: map[string][]float64{},
		depth: make([]float64, minutes+1), oldest: make([]float64, minutes+1), free: s.resumed,
	}
	between := 1440 / float64(perDay)
	for id := 0; float64(id)*between < float64(minutes); id++ {
		w.analyze(id, float64(id)*between+min(between, 1)/4)
	}
	for m := range minutes {
		w.recovery(m)
	}
	w.exported(60)
	return w.samples()
}

// analyze delivers an analysis until it is finished.
func (w *world) analyze(id int, created float64) {
	due, attempt, crashes := created, 1, 0
	done := math.Inf(1)
	for started := false; due < float64(w.minutes); started = true {
		at := w.admitted(w.sent(due))
		e := w.ends(id, at, attempt)
		suspect := crashes == 2 && w.busy
		if e.outcome == "crash" && suspect {
			for range 3 { // the suspect waits until its instance is empty
				w.delivery(at, 0, end{outcome: "suspect"}, 200)
				at += 0.5
			}
		}
		if at < w.release && w.release < at+e.after {
			e = end{outcome: "shutting_down", after: w.release - at}
		}
		over := at + e.after
		if !started && e.outcome != "crash" {
			w.start(created, at, over)
		}

		switch e.outcome {
		case "crash":
			w.crash(over, due, at)
			due = over + 5
			if crashes++; crashes == 4 {
				e.outcome = "failed"
				w.delivery(due, due, e, 200)
				w.logged(due, "exhausted", "")
				done = due
			}
		case "shutting_down":
			status, next := 200, over
			if id%10 == 0 { // no delivery could be booked
				status, next = 500, over+0.5
			}
			w.delivery(over, at-due, e, status)
			due = next
		case "retry":
			w.retry(over, at, due, e)
			if due = over + backoff(attempt); e.wait > 0 {
				due = over + e.wait
			} else if attempt++; attempt > 10 {
				w.logged(over, "exhausted", "")
				done = over
			}
		default:
			w.delivery(over, at-due, e, 200)
			if crashes > 0 {
				w.logged(over, "steals", "")
			}
			done = over
		}
		if !math.IsInf(done, 1) {
			break
		}
	}
	w.unfinished(created, done)
}

// sent returns when the queue sends a task that is due: later if it is paused, or catches up.
func (w *world) sent(due float64) float64 {
	if w.resumed == 0 || due < w.paused {
		return due
	}
	at := max(due, w.free)
	w.free = at + 1.0/150
	return at
}

// admitted returns when a task comes through Cloud Run's door.
func (w *world) admitted(at float64) float64 {
	for try := 1; w.refused > 0 && at >= w.refused; try++ {
		w.attempt(at, 0, "permission_denied")
		w.request(at, 403)
		at += backoff(try)
		if at > float64(w.minutes) {
			break
		}
	}
	return at
}

// backoff is the wait after an attempt: of the queue and of the worker.
func backoff(n int) float64 { return min(0.5*math.Pow(2, float64(n-1)), 10) * 1.1 }

func (w *world) retry(over, at, due float64, e end) {
	w.delivery(over, at-due, e, 200)
	if e.code == "run_timeout" || e.code == "stalled" {
		w.logged(over, "timeouts", "")
	}
	for minutes, metric := range map[float64]string{30: "long_waits", 60: "waits_over_1h", 240: "waits_over_4h"} {
		if e.wait > minutes {
			w.logged(over, metric, "")
		}
	}
}

// crash counts a delivery whose worker dies, and the next one, which finds the lock held.
func (w *world) crash(over, due, at float64) {
	w.attempt(over, at-due, "unavailable")
	w.request(over, 503)
	w.delivery(over+0.5, 0, end{outcome: "locked"}, 200)
}

func (w *world) start(created, at, over float64) {
	w.logged(over, "time_to_start_ms_count", "")
	if at-created > 5 {
		w.logged(over, "late_starts", "")
	}
}

func (w *world) delivery(at, delay float64, e end, status int) {
	w.logged(at, "deliveries", fmt.Sprintf(`outcome=%q,status="%d"`, e.outcome, status))
	w.request(at, status)
	w.attempt(at, delay, map[int]string{200: "ok", 500: "internal"}[status])
}

func (w *world) recovery(m int) {
	at := float64(m)
	missing := at >= w.uncounted[0] && at < w.uncounted[1]
	if late := at == w.uncounted[0]+9; missing && !late {
		return
	}
	w.logged(at, "recoveries", `outcome="recovered",status="200"`)
	w.request(at, 200)
	if w.oldest[m] > 0 {
		w.logged(at, "oldest_ms_count", "")
		w.add(at, "oldest_ms_sum", "", w.oldest[m]*60_000)
	}
	if w.abandoned > 0 && at >= w.abandoned {
		w.logged(at, "abandoned_count", "")
	}
	if w.uncertain > 0 && m == int(w.uncertain) {
		w.logged(at, "uncertain", "")
	}
}

// exported counts a call of the job that exports the database.
func (w *world) exported(at float64) {
	w.count(at, `logging_googleapis_com:user_taskguard_exports{monitored_resource="cloud_scheduler_job"}`, 1)
}

// unfinished counts the task and the age of an analysis until it is done.
func (w *world) unfinished(created, done float64) {
	first, last := int(math.Ceil(created)), int(min(math.Ceil(done), float64(w.minutes+1)))
	if first >= last {
		return
	}
	w.depth[first]++
	if last <= w.minutes {
		w.depth[last]--
	}
	for m := first; m < last; m++ {
		w.oldest[m] = max(w.oldest[m], float64(m)-created)
	}
}

// attempt counts an attempt of the queue.
func (w *world) attempt(at, delay float64, code string) {
	const queue = `{monitored_resource="cloud_tasks_queue",queue_id="analyses",`
	w.count(at, `cloudtasks_googleapis_com:queue_task_attempt_count`+queue+`response_code="`+code+`"}`, 1)
	for _, le := range []float64{1, 60, 600, 1200, 3600, 7200, math.Inf(1)} {
		n := 0.0
		if delay*60 <= le {
			n = 1
		}
		bound := fmt.Sprintf("%.0f", le*1000)
		w.count(at, `cloudtasks_googleapis_com:queue_task_attempt_delays_bucket`+queue+`le="`+bound+`"}`, n)
	}
}

func (w *world) request(at float64, status int) {
	w.count(at, fmt.Sprintf(`run_googleapis_com:request_count{monitored_resource="cloud_run_revision",%s`+
		`service_name="taskguard-worker",response_code="%d",response_code_class="%dxx"}`,
		w.revision(at), status, status/100), 1)
}

func (w *world) logged(at float64, metric, fields string) { w.add(at, metric, fields, 1) }

// add adds to a log metric.
func (w *world) add(at float64, metric, fields string, n float64) {
	w.count(at, `logging_googleapis_com:user_taskguard_`+metric+
		`{monitored_resource="cloud_run_revision",service_name="taskguard-worker",`+w.revision(at)+fields+`}`, n)
}

func (w *world) revision(at float64) string {
	if w.release > 0 && at > w.release {
		return `revision_name="b",`
	}
	return `revision_name="a",`
}

func (w *world) count(at float64, series string, n float64) {
	m := int(math.Ceil(at))
	if m > w.minutes {
		return
	}
	if w.counters[series] == nil {
		w.counters[series] = make([]float64, w.minutes+1)
	}
	w.counters[series][m] += n
}

// samples returns the counters and the depth of the queue, a sample a minute. A counter begins a minute before its
// first event: there is no series of what has never happened.
func (w *world) samples() samples {
	all := samples{}
	for series, adds := range w.counters {
		value, begun := 0.0, false
		for m, n := range adds {
			value += n
			next := adds[min(m+1, len(adds)-1)]
			if begun = begun || max(next, n) > 0; begun {
				all[series] = append(all[series], sample{at: minute(m), value: value})
			}
		}
	}
	depth := 0.0
	for m, n := range w.depth {
		depth += n
		const series = `cloudtasks_googleapis_com:queue_depth{monitored_resource="cloud_tasks_queue",queue_id="analyses"}`
		all[series] = append(all[series], sample{at: minute(m), value: depth})
	}
	return all
}
