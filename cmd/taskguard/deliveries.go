package main

import (
	"time"

	"taskguard/cmd/taskguard/fleet"
	"taskguard/emulator/cloudtasks"
)

// runBegins is told of each run by the worker itself.
func (d *demonstration) runBegins(r fleet.Run) {
	d.mu.Lock()
	row, chosen := d.rows[r.AnalysisID], d.chosen == r.AnalysisID
	takeOver := d.killed != nil && d.killed.ID == r.AnalysisID
	if takeOver {
		d.killed.TakenOver = r.Worker.Number
	}
	d.mu.Unlock()
	if takeOver {
		d.show.note(strong, "%v takes %s over, token %d", r.Worker, row.Name, r.Token)
	}
	d.show.set(row.index, time.Time{}, "runs on %v, token %d", r.Worker, r.Token)
	if chosen && !takeOver {
		d.router.Running()
		d.begun <- r
	}
}

// delivered is told of each delivery by the router. What comes when all is over
// does not count.
func (d *demonstration) delivered(v fleet.Delivery) {
	d.mu.Lock()
	if d.isOver {
		d.mu.Unlock()
		return
	}
	row := d.rows[v.AnalysisID]
	row.count(v)
	d.mu.Unlock()
	what := "delivered to %v too"
	if v.Task != row.task {
		what = "follow-up delivered to %v"
	}
	switch {
	case v.Status == 0:
		if !d.show.live { // on a terminal the item's own state says more
			d.show.note(plain, "%s no answer from %v: the queue will try again", row.Name, v.Worker)
		}
	case v.Skip():
		if !d.show.live {
			d.show.note(plain, "%s "+what+": %s", row.Name, v.Worker, skipped(v))
		}
	case v.Result != "":
		d.show.set(row.index, time.Time{}, "%s, by %v", v.Result, v.Worker)
	default:
		d.show.set(row.index, time.Time{}, "%v answered %d %s", v.Worker, v.Status, v.Reason)
	}
}

// skipped says what a skip means for the analysis's deliveries.
func skipped(v fleet.Delivery) string {
	switch {
	case v.FollowedUp():
		return "locked, skipped; a follow-up is booked"
	case v.Reason == "locked":
		return "locked, skipped; the queue will try again"
	}
	return v.Reason + ", skipped"
}

// observed is told of each delivery by the queue, which knows whether it is the
// task's own or one more; the router has told of it before.
func (d *demonstration) observed(v cloudtasks.Delivery) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, r := range d.rows {
		switch {
		case r.task != v.Task:
		case v.Duplicate:
			r.duplicates++
		case v.Status/100 == 2:
			r.acknowledged = true
		}
	}
	d.settle()
}

// settle ends the wait when every file is finished and every task that was
// submitted has had all its deliveries. A follow-up of a finished file, which
// comes when a lock would have expired, is not waited for. It needs d.mu.
func (d *demonstration) settle() {
	if d.isOver {
		return
	}
	for _, r := range d.rows {
		if !r.finished || !r.acknowledged || r.duplicates < len(again) {
			return
		}
	}
	d.isOver = true
	close(d.over)
}
