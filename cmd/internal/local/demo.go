package local

import (
	"context"
	"crypto/rand"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"sync"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"

	"taskguard/cmd/internal/cli"
	"taskguard/cmd/internal/operate"
	"taskguard/emulator/cloudtasks"
	"taskguard/worker"
)

// The demo's figures. A run is long enough to be killed after its first checkpoint, and
// the lock short enough to see it expire.
const (
	demoWorkers   = 3
	demoRun       = 2 * time.Second
	demoTTL       = "3s"
	demoHeartbeat = "900ms"
	demoInterval  = "1s"
	demoTimeout   = 2 * time.Minute        // plus the runs of the files
	demoPause     = 600 * time.Millisecond // between two tasks
	demoSpan      = 5 * time.Second        // between the first and the last task, at most
	stopGrace     = 3 * time.Second
)

// redeliveries are the delays of the duplicates of a task: one during the run, one after it.
var redeliveries = []time.Duration{400 * time.Millisecond, 2 * time.Second}

// demo is one demo. mu guards the fields after it.
type demo struct {
	cloud

	c       *cli.Call
	show    *cli.Progress
	docs    []operate.Document
	command command
	router  *router
	workers []*process
	runs    chan run      // the runs that have begun; dropped if the channel is full
	over    chan struct{} // closed when all files are finished and have had all deliveries

	mu     sync.Mutex
	rows   map[string]*row // by the analysis's id
	total  row             // of all deliveries
	killed *killedRun
	ended  bool
}

// killedRun is the run whose worker was killed.
type killedRun struct {
	Worker    int       `json:"worker"`
	PID       int       `json:"pid"`
	ID        string    `json:"analysis_id"`
	ExpiresAt time.Time `json:"lock_expired_at"`
	TakenOver int       `json:"taken_over_by"` // number of the worker

	// Percentages of the work: the killed run had done Done and committed Committed. The run
	// that took over began at Continued.
	Done      int `json:"done_percent"`
	Committed int `json:"committed_percent"`
	Continued int `json:"continued_percent"`

	checkpoint bool // the killed run had committed one
	begun      bool // the run that took over has reported
}

// Demo analyses files on worker processes, delivers each task several times, kills one
// worker in the middle of a run, and shows that another continues this run from its
// checkpoint, and that each file is finished once.
func Demo(ctx context.Context, c *cli.Call) error {
	c.TakesJSON("print one JSON document at the end; progress goes to standard error")
	files, err := c.Parse(0, -1)
	if err != nil {
		return err
	}
	docs, source, err := demoDocuments(files)
	if err != nil {
		return err
	}
	d := &demo{
		c: c, show: c.Progress(), docs: docs, rows: map[string]*row{},
		runs: make(chan run, 100), over: make(chan struct{}),
	}
	if err := d.usePlace(ctx, c, d.show); err != nil {
		return err
	}
	d.place.Collection = "taskguard-demo-" + strings.ToLower(rand.Text()[:8]) // of its own
	for _, doc := range docs {
		input, _ := doc.Input.(map[string]any)
		text, _ := input["text"].(string)
		d.rows[doc.ID] = &row{Name: doc.Name, ID: doc.ID, parts: strings.Count(text, "\n") > 1}
	}

	where := "the embedded Firestore, which ended with the demo"
	if p := d.place; p.Emulator != "" {
		where = fmt.Sprintf("collection %s of project %s, at the emulator %s, where they stay",
			p.Collection, p.Project, p.Emulator)
	}
	d.show.Print("%s: %s", cli.Count(len(docs), "document"), source)
	limit := demoTimeout + time.Duration(len(docs))*demoRun
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errors.New("the demo did not end in time"))
	defer cancel()
	if err := d.run(ctx); err != nil {
		return err
	}
	return d.report(where)
}

//go:embed samples
var samples embed.FS

// demoDocuments returns the files or, if none is named, texts of this program.
func demoDocuments(files []string) (docs []operate.Document, source string, err error) {
	if len(files) > 0 {
		docs, err = operate.ReadDocuments(files, operate.ReadFile)
		return docs, "the named files", err
	}
	if files, err = fs.Glob(samples, "samples/*"); err != nil {
		return nil, "", err
	}
	docs, err = operate.ReadDocuments(files, samples.ReadFile)
	for i := range docs {
		docs[i].Name = path.Base(docs[i].Name)
	}
	return docs, "texts of this program", err
}

// run runs the demo and leaves nothing running.
func (d *demo) run(ctx context.Context) error {
	defer d.close()
	d.target, d.limit = "http://workers.localhost", 100
	d.router = &router{observe: d.delivered}
	options := cloudtasks.Options{Transport: d.router, Extra: d.redeliver}
	if err := d.start(ctx, func(int) string { return loopback }, options); err != nil {
		return err
	}

	defer func() {
		for _, w := range d.workers {
			w.stop(stopGrace)
		}
	}()
	if err := d.startWorkers(ctx); err != nil {
		return err
	}
	if err := d.runFiles(ctx); err != nil {
		return err
	}
	return d.readResults(ctx)
}

func (d *demo) startWorkers(ctx context.Context) (err error) {
	d.command, err = d.workerCommand(map[string]string{
		"LOCK_TTL": demoTTL, "LOCK_HEARTBEAT": demoHeartbeat, "CHECKPOINT_INTERVAL": demoInterval,
	})
	if err != nil {
		return err
	}
	analyzer := fmt.Sprintf("ANALYZER=exec:%s analyze --wait %s", path.Base(d.command.path), demoRun)
	d.command.env = append(d.command.env, analyzer)
	d.command.runs, d.command.stderr = d.runBegins, d.reported
	d.workers, err = startProcesses(ctx, demoWorkers, d.command, d.show)
	d.router.add(d.workers...)
	return err
}

// redeliver returns when the task of a file is delivered again. A follow-up is not.
func (d *demo) redeliver(task *cloudtaskspb.Task) []time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	row := d.rows[analysisOf(task.GetHttpRequest().GetBody())]
	if row.booked {
		return nil
	}
	row.booked = true
	return redeliveries
}

// runFiles submits the files, kills a worker, and waits until the demo is over.
func (d *demo) runFiles(ctx context.Context) error {
	killing, cancel := context.WithCancel(ctx)
	var killer sync.WaitGroup
	killer.Go(func() {
		if err := d.killOne(killing); err != nil && killing.Err() == nil {
			d.show.Print("%v", err) // the report then shows that promises are broken
		}
	})
	err := d.submit(ctx)
	if err == nil {
		select {
		case <-d.over:
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}

	cancel()
	killer.Wait()
	d.mu.Lock()
	d.ended = true // a delivery that the end interrupts is not counted
	d.mu.Unlock()
	return err
}

// submit submits the documents, one after another.
func (d *demo) submit(ctx context.Context) error {
	pause := min(demoPause, demoSpan/time.Duration(len(d.docs)))
	for _, doc := range d.docs {
		if _, err := worker.Submit(ctx, d.guard, worker.Kind{}, doc.ID, doc.Input); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(pause):
		}
	}
	return nil
}

// killOne waits for the middle of a run and kills its worker. If the run ends before, it
// takes the next run.
func (d *demo) killOne(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil // the report then shows that no worker was killed
		case r := <-d.runs:
			if d.middle(ctx, r) {
				return d.kill(ctx, r)
			}
		}
	}
}

// middle waits for the middle of a run: a part of the work is committed, and a further part
// is done. A file of few lines has only one part; its middle is half of the time. middle
// returns false if the run has ended.
func (d *demo) middle(ctx context.Context, r run) bool {
	for began := time.Now(); ; {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(demoRun / 40):
		}
		a, err := d.analyses.Summary(ctx, r.AnalysisID)
		d.mu.Lock()
		row := *d.rows[r.AnalysisID]
		d.mu.Unlock()
		switch committed := a.Progress.Percent(); {
		case err != nil || row.finished || row.percent == 100:
			return false
		case committed > 0 && row.percent > committed:
			return true
		case !row.parts && time.Since(began) > demoRun/2:
			return true
		}
	}
}

// kill kills the worker of a run. It prints when the lock expires, and the progress from which
// another run can continue.
func (d *demo) kill(ctx context.Context, r run) error {
	d.mu.Lock()
	d.killed = &killedRun{Worker: r.worker.number, PID: r.worker.pid(), ID: r.AnalysisID}
	row := d.rows[r.AnalysisID]
	d.mu.Unlock()

	if err := r.worker.kill(); err != nil {
		return fmt.Errorf("kill %v: %w", r.worker, err)
	}
	a, err := d.analyses.Get(ctx, r.AnalysisID)
	if err != nil {
		return err
	}

	d.mu.Lock()
	defer d.mu.Unlock()
	k := d.killed
	k.ExpiresAt, k.checkpoint = a.Lock.ExpiresAt, a.Checkpoint != nil
	k.Done, k.Committed = row.percent, max(0, a.Progress.Percent())
	d.show.Print("killed %v, process %d, with SIGKILL in the middle of its run of %s, at %d %%; %d %% is committed",
		r.worker, r.worker.pid(), row.Name, k.Done, k.Committed)
	d.show.Print("the dead worker's lock on %s expires in %.1f s, at %s", row.Name,
		a.Lock.ExpiresAt.Sub(a.ReadAt).Seconds(), a.Lock.ExpiresAt.UTC().Format("15:04:05.000Z"))
	return nil
}

// reported reads the progress that an analyzer writes to standard error.
func (d *demo) reported(id, text string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for line := range strings.Lines(text) {
		row, k := d.rows[id], d.killed
		n, _ := fmt.Sscanf(line, "%d%%", &row.percent)
		if n == 1 && k != nil && k.ID == id && k.TakenOver != 0 && !k.begun {
			k.begun, k.Continued = true, row.percent
			if _, message, _ := strings.Cut(strings.TrimSpace(line), " "); k.Continued > 0 {
				d.show.Print("worker %d continues %s at %d %%: %s", k.TakenOver, row.Name, k.Continued, message)
			}
		}
	}
}

// runBegins is called for each run.
func (d *demo) runBegins(r run) {
	d.mu.Lock()
	name := d.rows[r.AnalysisID].Name
	takeOver := d.killed != nil && d.killed.ID == r.AnalysisID
	if takeOver {
		d.killed.TakenOver, d.killed.begun = r.worker.number, false
	}
	d.mu.Unlock()

	if takeOver {
		d.show.Print("%v takes %s over, token %d", r.worker, name, r.Token)
	} else {
		d.show.Print("%s runs on %v, token %d", name, r.worker, r.Token)
	}
	select {
	case d.runs <- r:
	default:
	}
}

// delivered counts a delivery. The demo is over when every file is finished and has had all
// its deliveries. The follow-ups of a finished file are due when its lock would have expired;
// the demo does not wait for them.
func (d *demo) delivered(e exchange) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended {
		return
	}
	row := d.rows[e.analysisID]
	row.count(e)
	d.total.count(e)
	d.show.Print("%s %v", row.Name, e)

	for _, r := range d.rows {
		if !r.finished || r.Deliveries <= len(redeliveries) {
			return
		}
	}
	d.ended = true
	close(d.over)
}

// readResults reads the finished documents.
func (d *demo) readResults(ctx context.Context) error {
	for _, doc := range d.docs {
		a, err := d.analyses.Get(ctx, doc.ID)
		if err != nil {
			return err
		}
		d.mu.Lock()
		r := d.rows[doc.ID]
		r.Status, r.Result, r.Runs = a.Status, a.Result, a.Lock.Token
		d.mu.Unlock()
	}
	return nil
}
