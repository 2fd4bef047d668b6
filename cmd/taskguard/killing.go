package main

import (
	"context"
	"fmt"
	"time"

	"taskguard/cmd/taskguard/fleet"
	"taskguard/lease/analysislock"
)

// killing is what was done to a worker.
type killing struct {
	Worker    int       `json:"worker"`
	PID       int       `json:"pid"`
	ID        string    `json:"analysis_id"`
	ExpiresAt time.Time `json:"lock_expired_at"`
	TakenOver int       `json:"taken_over_by"` // worker
}

// choose names the document whose worker is to be killed.
func (d *demonstration) choose(id string) {
	d.mu.Lock()
	d.chosen = id
	d.mu.Unlock()
	d.router.Isolate(id)
}

// killOne waits for the chosen document's run and kills its worker in the
// middle of it. Should the run have ended first, the next document is chosen.
func (d *demonstration) killOne(ctx context.Context) error {
	for {
		var r fleet.Run
		select {
		case <-ctx.Done():
			return nil // all is over; the verdict will miss a killed worker
		case r = <-d.begun:
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(demoRun / 2):
		}
		if has, alone := d.router.InFlight(r.Worker, r.AnalysisID); has && alone {
			return d.kill(ctx, r)
		}
		d.chooseNext()
	}
}

func (d *demonstration) kill(ctx context.Context, r fleet.Run) error {
	k := &killing{Worker: r.Worker.Number, PID: r.Worker.PID, ID: r.AnalysisID}
	d.mu.Lock()
	d.killed = k
	row := d.rows[r.AnalysisID]
	d.mu.Unlock()
	if err := r.Worker.Kill(); err != nil {
		return fmt.Errorf("kill %v: %w", r.Worker, err)
	}
	d.show.note(bad, "killed %v, process %d, with SIGKILL in the middle of its run of %s", r.Worker, r.Worker.PID, row.Name)
	d.router.Release()
	a, err := d.analyses.Get(ctx, r.AnalysisID)
	if err != nil {
		return unlessEnded(ctx, err)
	}
	d.tellExpiry(k, r, a)
	return d.replace(ctx, r.Worker)
}

// tellExpiry shows until when a dead worker's lock stands in the way.
func (d *demonstration) tellExpiry(k *killing, r fleet.Run, a analysislock.Analysis) {
	left := a.Lock.ExpiresAt.Sub(a.ReadAt)
	d.mu.Lock()
	k.ExpiresAt = a.Lock.ExpiresAt
	row := d.rows[r.AnalysisID]
	d.mu.Unlock()
	d.show.note(strong, "the dead worker's lock on %s lasts %.1f s more, until %s", row.Name, left.Seconds(), a.Lock.ExpiresAt.UTC().Format("15:04:05.000Z"))
	d.show.set(row.index, time.Now().Add(left), "%v is dead, its lock expires", r.Worker)
}

// replace starts a worker in the place of a dead one, a moment later.
func (d *demonstration) replace(ctx context.Context, old *fleet.Worker) error {
	select {
	case <-ctx.Done():
		return nil
	case <-time.After(replaceAfter):
	}
	w, err := d.fleet.Add(ctx)
	if err != nil {
		return unlessEnded(ctx, err)
	}
	d.router.Replace(old, w)
	d.show.note(plain, "%v serves on %s, process %d, in the place of %v", w, w.Address, w.PID, old)
	return nil
}

// unlessEnded forgives an error that the end of ctx has brought about.
func unlessEnded(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	return nil
}

// chooseNext chooses a document that has not been delivered yet; none, if there
// is none left.
func (d *demonstration) chooseNext() {
	next := ""
	d.mu.Lock()
	for _, doc := range d.docs {
		if d.rows[doc.id].Deliveries == 0 {
			next = doc.id
			break
		}
	}
	d.mu.Unlock()
	d.choose(next)
}
