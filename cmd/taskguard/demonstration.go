package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/api/option"

	"taskguard/cmd/taskguard/fleet"
	"taskguard/emulator/cloudtasks"
	"taskguard/repo"
	"taskguard/worker/taskqueue"
)

// demonstration is one demo under way.
type demonstration struct {
	c     *call
	docs  []document
	place place
	where string // for people
	show  *display

	cloud    emulated
	analyses *repo.Analyses
	fleet    *fleet.Fleet
	router   *fleet.Router
	begun    chan fleet.Run // of the chosen document; has room for more than there can be

	mu     sync.Mutex
	chosen string
	killed *killing
	rows   map[string]*row
}

// killing is what was done to a worker.
type killing struct {
	Worker    int       `json:"worker"`
	PID       int       `json:"pid"`
	ID        string    `json:"analysis_id"`
	ExpiresAt time.Time `json:"lock_expired_at"`
	TakenOver int       `json:"taken_over_by"` // worker
}

// run goes through the whole of it and leaves nothing running.
func (d *demonstration) run(ctx context.Context) (err error) {
	defer d.cloud.close()
	if err := d.place.answers(ctx); err != nil {
		return err
	}
	if d.place.emulator == "" && !d.real() {
		if d.place.emulator, err = d.cloud.serveFirestore("127.0.0.1:0"); err != nil {
			return err
		}
	}
	if d.analyses, err = d.place.open(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.analyses.Close()) }()
	if err := d.analyses.Ping(ctx); err != nil {
		return fmt.Errorf("no answer from Firestore: %w", err)
	}
	workers, err := d.startWorkers(ctx)
	defer d.fleet.Stop(stopGrace)
	if err != nil {
		return err
	}
	d.router = fleet.NewRouter(workers, d.delivered)
	if err := d.submit(ctx); err != nil {
		return err
	}
	killCtx, cancel := context.WithCancel(ctx)
	killer := make(chan error, 1)
	go func() { killer <- d.killOne(killCtx) }()
	err = d.cloud.tasks.Idle(ctx)
	cancel()
	err = errors.Join(err, <-killer)
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if err != nil {
		return err
	}
	return d.collect(ctx)
}

// real reports whether the documents are in Google's cloud.
func (d *demonstration) real() bool { return d.c.flags.Lookup("cloud").Value.String() == "true" }

func (d *demonstration) startWorkers(ctx context.Context) ([]*fleet.Worker, error) {
	d.fleet = &fleet.Fleet{Observe: d.runBegins}
	command, self, err := workerCommand(d.place, map[string]string{"LOCK_TTL": demoTTL, "LOCK_HEARTBEAT": demoHeartbeat})
	if err != nil {
		return nil, err
	}
	command.Env = append(command.Env, fmt.Sprintf("ANALYZER=exec:%s analyze --wait %s", self, demoRun))
	d.fleet.Command = command
	workers, err := d.fleet.AddAll(ctx, demoWorkers)
	if err != nil {
		return nil, err
	}
	for _, w := range workers {
		d.show.note(plain, "%v serves on %s, process %d", w, w.Address, w.PID)
	}
	return workers, nil
}

const demoQueue = "projects/demo-taskguard/locations/local/queues/analyses"

// submit creates the documents and books their tasks, one after another.
func (d *demonstration) submit(ctx context.Context) error {
	d.choose(d.docs[min(2, len(d.docs)-1)].id)
	err := d.cloud.startTasks(ctx, demoQueue, cloudtasks.Options{
		Transport: d.router,
		Extra:     func(*cloudtaskspb.Task) []time.Duration { return again },
	})
	if err != nil {
		return err
	}
	conn, err := d.cloud.tasks.Dial()
	if err != nil {
		return err
	}
	queue, err := taskqueue.Open(ctx, taskqueue.Config{Queue: demoQueue, TargetURL: "http://workers.localhost"}, option.WithGRPCConn(conn))
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	pause := min(demoPause, time.Duration(shownAtMost)*demoPause/time.Duration(len(d.docs)))
	start := time.Now()
	for i, doc := range d.docs {
		if err := d.analyses.Create(ctx, doc.id, doc.input); err != nil {
			return errors.Join(fmt.Errorf("%s: %w", doc.name, err), queue.Close())
		}
		task := taskqueue.Task{Name: taskqueue.Name("demo", doc.id), AnalysisID: doc.id, At: start.Add(time.Duration(i) * pause)}
		if _, err := queue.Book(ctx, task); err != nil {
			return errors.Join(err, queue.Close())
		}
	}
	return queue.Close()
}

// choose names the document whose worker is to be killed.
func (d *demonstration) choose(id string) {
	d.mu.Lock()
	d.chosen = id
	d.mu.Unlock()
	d.router.Isolate(id)
}

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

// delivered is told of each delivery by the router.
func (d *demonstration) delivered(v fleet.Delivery) {
	d.mu.Lock()
	row := d.rows[v.AnalysisID]
	row.count(v)
	d.mu.Unlock()
	switch {
	case v.Status == 0:
		if !d.show.live { // on a terminal the item's own state says more
			d.show.note(plain, "%s no answer from %v: the queue will try again", row.Name, v.Worker)
		}
	case v.Skip():
		if !d.show.live {
			d.show.note(plain, "%s delivered to %v too: %s, skipped", row.Name, v.Worker, v.Reason)
		}
	case v.Result != "":
		d.show.set(row.index, time.Time{}, "%s, by %v", v.Result, v.Worker)
	default:
		d.show.set(row.index, time.Time{}, "%v answered %d %s", v.Worker, v.Status, v.Reason)
	}
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
func (d *demonstration) tellExpiry(k *killing, r fleet.Run, a repo.Analysis) {
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
