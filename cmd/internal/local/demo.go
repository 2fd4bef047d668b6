package local

import (
	"context"
	"embed"
	"errors"
	"io/fs"
	"log/slog"
	"path"
	"sync"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

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
)

// redeliveries are the delays of the duplicates of a task: one during the run, one after it.
var redeliveries = []time.Duration{400 * time.Millisecond, 2 * time.Second}

// demo is one demo. mu guards the fields after it.
type demo struct {
	workerCloud
	router

	c        *cli.Call
	docs     []operate.Document
	work     *worker.Work
	analyses worker.Documents
	runs     chan run      // the runs that have begun; dropped if the channel is full
	over     chan struct{} // closed when all files are finished and have had all deliveries

	mu     sync.Mutex
	rows   map[string]*row // the key is the analysis's id
	killed *killedRun
}

// run is the start of one run of an analysis.
type run struct {
	worker *process
	*record
}

// killedRun is the run whose worker was killed.
type killedRun struct {
	Worker    int       `json:"worker"`
	ID        string    `json:"analysis_id"`
	Token     int64     `json:"lock_token"`
	ExpiresAt time.Time `json:"lock_expired_at"`
	Percent   int       `json:"committed_percent"` // how much work the killed worker had committed
	TakenOver int       `json:"taken_over_by"`     // the number of the other worker
	Continued int       `json:"continued_percent"` // how much work was done where the other worker began

	checkpoint bool // it had committed one
}

// Demo analyses files on worker processes, delivers each task several times, kills one
// worker in the middle of a run, and shows that another continues this run from its
// checkpoint, and that each file is finished once.
func Demo(lookup cli.Lookup) *cobra.Command {
	var workers command
	cmd := &cobra.Command{
		Use: "demo [FILE…]", GroupID: cli.TryIt, ValidArgsFunction: cli.Files,
		Short:   "Analyse files, kill a worker, and see another resume its run",
		Long:    "Everything runs on this machine, and nothing stays. Without files it analyses its own texts.",
		Example: "taskguard demo",
		RunE: func(cmd *cobra.Command, files []string) error {
			if err := workers.checkLogs(cmd.Flags()); err != nil {
				return err
			}
			return runDemo(cmd.Context(), cli.NewCall(cmd, lookup), workers, files)
		},
	}
	workers.takesLogs(cmd)
	cli.TakesJSON(cmd, "print one JSON document at the end; progress goes to standard error")
	return cmd
}

func runDemo(ctx context.Context, c *cli.Call, workers command, files []string) error {
	docs, err := demoDocuments(files)
	if err != nil {
		return err
	}
	d := &demo{
		c: c, docs: docs, rows: map[string]*row{}, runs: make(chan run, 100), over: make(chan struct{}),
	}
	for _, doc := range docs {
		d.rows[doc.ID] = &row{Name: doc.Name, ID: doc.ID}
	}
	d.show, d.observe, d.command = c.Progress(), d.delivered, workers
	d.show.Print("%s", cli.Count(len(docs), "document"))

	limit := demoTimeout + time.Duration(len(docs))*demoRun
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errors.New("the demo did not end in time"))
	defer cancel()
	if err := d.run(ctx); err != nil {
		return err
	}
	return d.report()
}

//go:embed samples
var samples embed.FS

// demoDocuments returns the files or, if none is named, texts of this program.
func demoDocuments(files []string) ([]operate.Document, error) {
	if len(files) > 0 {
		return operate.ReadDocuments(files, operate.ReadFile)
	}
	files, _ = fs.Glob(samples, "samples/*")                  // the pattern is valid
	docs, _ := operate.ReadDocuments(files, samples.ReadFile) // the files are texts
	for i := range docs {
		docs[i].Name = path.Base(docs[i].Name)
	}
	return docs, nil
}

// run runs the demo and leaves nothing running.
func (d *demo) run(ctx context.Context) error {
	defer d.close()
	addressOf := func(int) string { return address("127.0.0.1", 0, 0) } // any free port
	duplicates := func(*cloudtaskspb.Task) []time.Duration { return redeliveries }
	err := d.start(addressOf, &d.router, 100, cloudtasks.Options{Extra: duplicates})
	if err == nil {
		err = d.open(ctx)
	}
	if err != nil {
		return err
	}

	defer d.stopWorkers()
	if err := d.startWorkers(ctx, demoWorkers); err != nil {
		return err
	}
	if err := d.runFiles(ctx); err != nil {
		return err
	}
	for _, doc := range d.docs {
		a, err := d.analyses.Get(ctx, doc.ID)
		if err != nil {
			return err
		}
		row := d.rows[doc.ID]
		row.Status, row.Runs = a.Status, a.Lock.Token
	}
	return nil
}

// open opens the Guard that submits the files, and configures the workers.
func (d *demo) open(ctx context.Context) (err error) {
	guard, err := worker.Open(ctx, worker.Options{
		Project: project, Emulator: d.firestore,
		Queue: worker.Queue{Name: queue, TargetURL: d.target, Caller: caller, EmulatorHost: d.tasks},
		Auth:  worker.CheckedByProxy(), Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	d.stops = append(d.stops, func() { _ = guard.Shutdown(context.WithoutCancel(ctx)) })
	if d.work, err = guard.Register(worker.Kind{}); err != nil {
		return err
	}
	d.analyses = d.work.Operator()

	d.command.slow, d.command.stderr, d.command.log = demoRun, d.c.Err, d.runBegins
	d.command.env, err = d.workerEnvironment(map[string]string{
		"LOCK_TTL": demoTTL, "LOCK_HEARTBEAT": demoHeartbeat, "CHECKPOINT_INTERVAL": demoInterval,
	})
	return err
}

// runFiles submits the files, kills a worker, and waits until the demo is over.
func (d *demo) runFiles(ctx context.Context) error {
	all, ctx := errgroup.WithContext(ctx)
	all.Go(func() error { return d.killOne(ctx) })
	all.Go(func() error { return d.submit(ctx) })
	return all.Wait()
}

// submit submits the documents, one after another, and waits until the demo is over.
func (d *demo) submit(ctx context.Context) error {
	pause := min(demoPause, demoSpan/time.Duration(len(d.docs)))
	for _, doc := range d.docs {
		if _, err := d.work.Submit(ctx, doc.ID, doc.Input); err != nil {
			return err
		}
		time.Sleep(pause)
	}
	select {
	case <-d.over:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// killOne waits for the middle of a run and kills its worker. If the run ends before, it
// takes the next run. The report shows whether a worker was killed.
func (d *demo) killOne(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-d.over:
			return nil
		case r := <-d.runs:
			if d.middle(ctx, r) {
				return d.kill(ctx, r)
			}
		}
	}
}

// middle waits until a part of a run's work is committed. A file of few lines has only one part:
// for such a file it waits for most of the run's time. It returns false if the run has ended.
func (d *demo) middle(ctx context.Context, r run) bool {
	for range 25 {
		a, err := d.analyses.Summary(ctx, r.AnalysisID)
		if err != nil || a.Lock.Token != r.Token || a.Lock.Finished {
			return false
		}
		if a.Progress.Percent() > 0 {
			break
		}
		time.Sleep(demoRun / 40)
	}
	return true
}

// kill kills the worker of a run. It prints when the lock expires, and the progress from which
// another run can continue.
func (d *demo) kill(ctx context.Context, r run) error {
	r.worker.kill()
	a, err := d.analyses.Get(ctx, r.AnalysisID)
	if err != nil {
		return err
	}

	d.mu.Lock()
	defer d.mu.Unlock()
	d.killed = &killedRun{
		Worker: r.worker.number, ID: r.AnalysisID, Token: r.Token, ExpiresAt: a.Lock.ExpiresAt,
		Percent: max(0, a.Progress.Percent()), checkpoint: a.Checkpoint != nil,
	}
	name := d.rows[r.AnalysisID].Name
	d.show.Print("killed %v, process %d, with SIGKILL in the middle of its run of %s: %d %% of the work is committed",
		r.worker, r.worker.pid(), name, d.killed.Percent)
	d.show.Print("the dead worker's lock on %s expires in %.1f s, at %s", name,
		a.Lock.ExpiresAt.Sub(a.ReadAt).Seconds(), a.Lock.ExpiresAt.UTC().Format("15:04:05.000Z"))
	return nil
}

// runBegins handles a line of a worker's log.
func (d *demo) runBegins(w *process, r *record) {
	if r.Message != runMessage {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	name, k := d.rows[r.AnalysisID].Name, d.killed
	if k == nil || k.ID != r.AnalysisID || k.Token == r.Token {
		d.show.Print("%s runs on %v, token %d", name, w, r.Token)
	} else {
		k.TakenOver, k.Continued = w.number, 0
		if r.Continues {
			k.Continued = k.Percent
		}
		d.show.Print("%v takes %s over, token %d, and continues at %d %%", w, name, r.Token, k.Continued)
	}
	select {
	case d.runs <- run{w, r}:
	default:
	}
}

// delivered counts a delivery. The demo is over when every file is finished and has had all
// its deliveries. The follow-ups of a finished file are due when its lock would have expired;
// the demo does not wait for them.
func (d *demo) delivered(e *delivery) {
	d.mu.Lock()
	defer d.mu.Unlock()
	select {
	case <-d.over: // the end may have interrupted this delivery
		return
	default:
	}
	row := d.rows[e.analysisID]
	row.count(e)
	e.analysisID = row.Name // the line shows the file's name
	d.show.Print("%v", e)

	for _, r := range d.rows {
		if r.Finishes == 0 || r.Deliveries <= len(redeliveries) {
			return
		}
	}
	close(d.over)
}
