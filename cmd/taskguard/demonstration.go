package main

import (
	"context"
	"errors"
	"fmt"
	"path"
	"sync"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/api/option"

	"taskguard/cmd/taskguard/fleet"
	"taskguard/emulator/cloudtasks"
	"taskguard/repo"
	"taskguard/worker"
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
	route    route
	analyses *repo.Analyses
	fleet    *fleet.Fleet
	router   *fleet.Router
	begun    chan fleet.Run // of the chosen document; has room for more than there can be
	over     chan struct{}  // closed when there is nothing more to wait for

	mu     sync.Mutex
	chosen string
	killed *killing
	rows   map[string]*row
	isOver bool
	left   int // tasks that were still to be delivered in the end
}

// run goes through the whole of it and leaves nothing running.
func (d *demonstration) run(ctx context.Context) (err error) {
	defer d.cloud.close()
	if err := d.place.answers(ctx); err != nil {
		return err
	}
	if d.place.emulator == "" && !d.real() {
		if d.place.emulator, err = d.cloud.serveFirestore(loopback); err != nil {
			return err
		}
	}
	if d.analyses, err = d.place.open(ctx, repo.Options{}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.analyses.Close()) }()
	if err := d.analyses.Ping(ctx); err != nil {
		return fmt.Errorf("no answer from Firestore: %w", err)
	}
	if err := d.startTasks(ctx); err != nil {
		return err
	}
	err = d.startWorkers(ctx)
	defer d.fleet.Stop(stopGrace)
	if err != nil {
		return err
	}
	if err := d.submit(ctx); err != nil {
		return err
	}
	if err := d.await(ctx); err != nil {
		return err
	}
	return d.collect(ctx)
}

// await kills a worker, and waits until all is over.
func (d *demonstration) await(ctx context.Context) error {
	killCtx, cancel := context.WithCancel(ctx)
	killer := make(chan error, 1)
	go func() { killer <- d.killOne(killCtx) }()
	select {
	case <-d.over:
	case <-ctx.Done():
		d.mu.Lock()
		d.isOver = true // what the end brings about is no news
		d.mu.Unlock()
	}
	cancel()
	err := <-killer
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// real reports whether the documents are in Google's cloud.
func (d *demonstration) real() bool { return d.c.flags.Lookup("cloud").Value.String() == "true" }

// startTasks starts the queue, which delivers to the workers by way of the
// router, and listens for the workers' own bookings.
func (d *demonstration) startTasks(ctx context.Context) (err error) {
	d.route.target = "http://workers.localhost"
	if d.route.keys, err = d.cloud.serveKeys(loopback); err != nil {
		return err
	}
	d.router = fleet.NewRouter(nil, d.delivered)
	err = d.cloud.startTasks(ctx, cloudtasks.Options{
		Transport: d.router, Observe: d.observed, Extra: d.repeats,
	})
	if err != nil {
		return err
	}
	d.route.tasks, err = d.cloud.serveTasks(loopback)
	return err
}

// repeats is when a task is delivered again: none that a worker has booked.
func (d *demonstration) repeats(t *cloudtaskspb.Task) []time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, r := range d.rows {
		if r.task == path.Base(t.GetName()) {
			return again
		}
	}
	return nil
}

func (d *demonstration) startWorkers(ctx context.Context) error {
	d.fleet = &fleet.Fleet{Observe: d.runBegins}
	more := map[string]string{"LOCK_TTL": demoTTL, "LOCK_HEARTBEAT": demoHeartbeat}
	command, self, err := workerCommand(d.place, d.route, more)
	if err != nil {
		return err
	}
	command.Env = append(command.Env, fmt.Sprintf("ANALYZER=exec:%s analyze --wait %s", self, demoRun))
	d.fleet.Command = command
	workers, err := d.fleet.AddAll(ctx, demoWorkers)
	if err != nil {
		return err
	}
	for _, w := range workers {
		d.show.note(plain, "%v serves on %s, process %d", w, w.Address, w.PID)
	}
	d.router.Add(workers...)
	return nil
}

// submit creates the documents and books their tasks, one after another.
func (d *demonstration) submit(ctx context.Context) (err error) {
	d.choose(d.docs[0].id)
	conn, err := d.cloud.tasks.Dial()
	if err != nil {
		return err
	}
	cfg := taskqueue.Config{Queue: demoQueue, TargetURL: d.route.target, Caller: demoCaller}
	queue, err := taskqueue.Open(ctx, cfg, option.WithGRPCConn(conn))
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	defer func() { err = errors.Join(err, queue.Close()) }()
	pause := min(demoPause, time.Duration(shownAtMost)*demoPause/time.Duration(len(d.docs)))
	start := time.Now()
	for i, doc := range d.docs {
		if err := d.analyses.Create(ctx, doc.id, doc.input); err != nil {
			return fmt.Errorf("%s: %w", doc.name, err)
		}
		task := taskqueue.Task{
			Name: d.rows[doc.id].task, AnalysisID: doc.id, At: start.Add(time.Duration(i) * pause),
			Deadline: worker.DispatchDeadline(worker.DefaultRunTimeout),
		}
		if _, err := queue.Book(ctx, task); err != nil {
			return err
		}
	}
	return nil
}
