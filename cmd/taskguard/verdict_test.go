package main

import (
	"testing"

	"taskguard/cmd/taskguard/fleet"
)

func TestDeliveriesAddUpToWhatCameOfThem(t *testing.T) {
	r := &row{}
	w := &fleet.Worker{Number: 3}
	for _, v := range []fleet.Delivery{
		{Worker: w}, {Worker: w, Status: 200, Acquired: true, Result: "READY"}, {Worker: w, Status: 409, Reason: "locked"},
		{Worker: w, Status: 200, Reason: "already_finished"}, {Worker: w, Status: 503, Reason: "store_unavailable"},
	} {
		r.count(v)
	}
	if want := (tally{Deliveries: 5, Finishes: 1, Skips: 2, Unanswered: 1, Others: 1}); r.tally != want || r.FinishedBy != 3 {
		t.Errorf("%+v by %d, want %+v by 3", r.tally, r.FinishedBy, want)
	}
	if got, want := r.String(), "5 deliveries: 1 finished a file, 2 skipped, 1 unanswered by a worker that was dead or died, 1 without a result"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
