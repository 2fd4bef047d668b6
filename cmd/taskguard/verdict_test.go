package main

import (
	"bytes"
	"strings"
	"testing"

	"taskguard/cmd/taskguard/fleet"
	"taskguard/emulator/cloudtasks"
)

func TestASummaryIsACountOrHowAnothersResultBegins(t *testing.T) {
	for _, tc := range []struct {
		result any
		want   string
	}{
		{nil, ""},
		{map[string]any{"lines": int64(2), "bytes": int64(9)}, "2 lines"},
		{map[string]any{"bytes": int64(1)}, "1 byte"},
		{int64(3471), "3471"},
		{map[string]any{"lines": "many"}, `{"lines":"many"}`},
		{strings.Repeat("a", 100), `"` + strings.Repeat("a", 58) + "…"},
	} {
		if got := summary(tc.result); got != tc.want {
			t.Errorf("%v: %q, want %q", tc.result, got, tc.want)
		}
	}
}

func TestDeliveriesAddUpToWhatCameOfThem(t *testing.T) {
	r := &row{task: "t"}
	w := &fleet.Worker{Number: 3}
	for _, v := range []fleet.Delivery{
		{Worker: w}, {Worker: w, Status: 200, Acquired: true, Result: "READY", Task: "f"}, {Worker: w, Status: 409, Reason: "locked"},
		{Worker: w, Status: 200, Reason: "locked"}, {Worker: w, Status: 200, Reason: "already_finished", Result: "READY"},
		{Worker: w, Status: 503, Reason: "unavailable"}, {Worker: w, Status: 409, Acquired: true, Reason: "lock_lost"},
	} {
		r.count(v)
	}
	if want := (tally{Deliveries: 7, Finishes: 1, Skips: 3, Unanswered: 1, Others: 2}); r.tally != want || r.FinishedBy != 3 {
		t.Errorf("%+v by %d, want %+v by 3", r.tally, r.FinishedBy, want)
	}
	if got, want := r.String(), "7 deliveries: 1 finished a file, 3 skipped, 1 unanswered by a worker that was dead or died, 2 without a result"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if r.cut != 1 || !r.finished || !r.followedUp {
		t.Errorf("%+v, want one run cut, and a follow-up that finished it", *r)
	}
}

func TestASkipSaysWhatComesAfterIt(t *testing.T) {
	for want, v := range map[string]fleet.Delivery{
		"locked, skipped; a follow-up is booked":    {Status: 200, Reason: "locked"},
		"locked, skipped; the queue will try again": {Status: 409, Reason: "locked"},
		"already_finished, skipped":                 {Status: 200, Reason: "already_finished"},
	} {
		if got := skipped(v); got != want {
			t.Errorf("%+v: %q, want %q", v, got, want)
		}
	}
}

// The demo waits for the deliveries of what it has submitted and for each file's
// end, but not for follow-ups of what is finished.
func TestTheDemoIsOverWhenFilesAreFinishedAndTheirTasksDelivered(t *testing.T) {
	var out bytes.Buffer
	d := &demonstration{over: make(chan struct{}), show: newDisplay(&out, vars{}.lookup, []string{"a", "b"}), rows: map[string]*row{
		"a": {index: 0, task: "ta"}, "b": {index: 1, task: "tb"},
	}}
	w := &fleet.Worker{Number: 1}
	run := func(id, task string) {
		d.delivered(fleet.Delivery{Worker: w, AnalysisID: id, Task: task, Status: 200, Acquired: true, Result: "READY"})
	}
	locked := func(id, task string) {
		d.delivered(fleet.Delivery{Worker: w, AnalysisID: id, Task: task, Status: 200, Reason: "locked"})
	}
	steps := []func(){
		func() { run("a", "ta"); d.observed(cloudtasks.Delivery{Task: "ta", Status: 200}) },
		func() { locked("a", "ta"); d.observed(cloudtasks.Delivery{Task: "ta", Status: 200, Duplicate: true}) },
		func() { d.observed(cloudtasks.Delivery{Task: "ta", Duplicate: true}) }, // unanswered
		func() { d.observed(cloudtasks.Delivery{Task: "tb"}) },                  // killed
		func() { locked("b", "tb"); d.observed(cloudtasks.Delivery{Task: "tb", Status: 200, Attempt: 1}) },
		func() { d.observed(cloudtasks.Delivery{Task: "tb", Status: 200, Duplicate: true}) },
		func() { d.observed(cloudtasks.Delivery{Task: "follow-up of a", Status: 200}) },
		func() {
			run("b", "follow-up of b")
			d.observed(cloudtasks.Delivery{Task: "follow-up of b", Status: 200})
		},
		func() { d.observed(cloudtasks.Delivery{Task: "tb", Status: 200, Duplicate: true}) },
	}
	for i, step := range steps {
		step()
		over := false
		select {
		case <-d.over:
			over = true
		default:
		}
		if last := i == len(steps)-1; over != last {
			t.Fatalf("after step %d over = %v, want %v", i, over, last)
		}
	}
	locked("a", "late")
	if d.rows["a"].Deliveries != 2 || !d.rows["b"].followedUp {
		t.Errorf("%+v, %+v, want what came late left out, and b finished by a follow-up", d.rows["a"], d.rows["b"])
	}
}
