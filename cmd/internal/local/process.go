package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"taskguard/cmd/internal/cli"
	"taskguard/cmd/internal/workerservice"
	"taskguard/internal/clock"
	"taskguard/internal/telemetry"
	"taskguard/orchestrator"
)

// command starts workers.
type command struct {
	env    []string
	slow   time.Duration           // how long a run takes; 0: no longer than its analyzer
	stderr io.Writer               // gets the standard error of the workers
	log    func(*process, *record) // called for each line of a worker's log
	logs   string                  // the directory of the workers' log files; empty: there are none
}

// takesLogs declares --logs.
func (cmd *command) takesLogs(c *cobra.Command) {
	c.Flags().StringVar(&cmd.logs, "logs", "",
		"append the workers' log, as Cloud Logging gets it, to files in `directory`")
	_ = c.MarkFlagDirname("logs") // it is declared
}

// checkLogs makes the directory of --logs, and fails if no log can be written there.
func (cmd *command) checkLogs(c *cli.Call) error {
	switch {
	case !c.Flags.Changed("logs"):
		return nil
	case cmd.logs == "":
		return cli.UsageError("--logs must name a directory")
	}
	if err := os.MkdirAll(cmd.logs, 0o700); err != nil {
		return fmt.Errorf("--logs: %w", err)
	}
	file, err := os.OpenFile(cmd.logFile(1), logMode, 0o600)
	if err != nil {
		return fmt.Errorf("--logs: %w", err)
	}
	return file.Close()
}

// logMode is how a log file is opened.
const logMode = os.O_APPEND | os.O_CREATE | os.O_WRONLY

// logFile returns the path of a worker's log file.
func (cmd *command) logFile(number int) string {
	return filepath.Join(cmd.logs, fmt.Sprintf("worker-%d.jsonl", number))
}

// process is a worker. Its standard input is a pipe, which the kernel closes when its parent
// ends. Then the worker ends too.
type process struct {
	number  int
	address string // host:port on which it serves

	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended and its log is read

	deliveries atomic.Int32 // under way
}

// String names the worker for people.
func (w *process) String() string { return fmt.Sprintf("worker %d", w.number) }

// record is the part of a worker's log line that the parent reads.
type record struct {
	Message    string `json:"msg"`
	Address    string `json:"address"`
	AnalysisID string `json:"analysis_id"`
	Token      int64  `json:"lock_token"`
	Stderr     bool   `json:"stderr"`    // Message was written by an analyzer
	Continues  bool   `json:"continues"` // the run continues from a checkpoint
	Problem    string `json:"problem"`   // why a report was ignored, or an output is doubtful
}

// Messages of a worker's log that the parent reads.
const (
	servingMessage = "serving"
	runMessage     = "run begins"
)

// startProcess starts a worker and waits until it serves.
func startProcess(ctx context.Context, number int, c command) (*process, error) {
	w := &process{number: number, done: make(chan struct{})}
	path, pathErr := os.Executable()
	w.cmd = exec.Command(path, "worker", "--until-stdin-closes", "--slow", c.slow.String())
	if c.logs != "" {
		w.cmd.Args = append(w.cmd.Args, "--log-file", c.logFile(number))
	}
	w.cmd.Env, w.cmd.Stderr = c.env, c.stderr
	w.cmd.WaitDelay = time.Second // an analyzer may outlive the worker and keep standard error open

	_, err := w.cmd.StdinPipe() // closed by Wait
	out, outErr := w.cmd.StdoutPipe()
	if err = errors.Join(pathErr, err, outErr); err == nil {
		err = w.cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("%v: %w", w, err)
	}

	serves := make(chan struct{})
	go w.follow(out, serves, c.log)
	select {
	case <-serves:
		return w, nil
	case <-w.done:
		return nil, fmt.Errorf("%v ended at once: %v", w, w.cmd.ProcessState)
	case <-ctx.Done():
		w.stop(0)
		return nil, context.Cause(ctx)
	}
}

// follow reads the worker's log to its end, then waits for the process.
func (w *process) follow(out io.Reader, serves chan<- struct{}, log func(*process, *record)) {
	defer close(w.done)
	defer func() { _ = w.cmd.Wait() }() // the exit code is not needed
	for lines := json.NewDecoder(out); ; {
		var r record
		if err := lines.Decode(&r); err != nil { // usually the end
			return
		}
		if r.Message == servingMessage && !r.Stderr {
			w.address = r.Address
			close(serves)
		} else {
			log(w, &r)
		}
	}
}

// kill sends SIGKILL and waits until the process has ended.
func (w *process) kill() {
	_ = w.cmd.Process.Kill() // fails if it has ended
	<-w.done
}

// stop asks the worker to end, which releases its locks, and kills it after grace. It
// waits until the process has ended.
func (w *process) stop(grace time.Duration) {
	_ = w.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-w.done:
	case <-time.After(grace):
		w.kill()
	}
}

func (w *process) pid() int { return w.cmd.Process.Pid }

// orphanGrace is how long a worker may take to end its runs after the death of its parent,
// with which the embedded Firestore has died too.
const orphanGrace = time.Second

// Worker runs cmd/worker on the loopback interface, and reports each run that begins.
func Worker(lookup cli.Lookup) *cobra.Command {
	var o workerOptions
	cmd := &cobra.Command{
		Use: "worker", Hidden: true, Args: cli.Args(0, 0),
		Short:       "Run one worker on a loopback port, as demo and local do",
		Annotations: cli.Reads("the worker's, see docs/reference.md"),
		RunE:        cli.Bind(lookup, o.serve),
	}
	flags := cmd.Flags()
	flags.BoolVar(&o.until, "until-stdin-closes", false, "end when standard input closes, as when the parent dies")
	flags.StringVar(&o.file, "log-file", "", "also append the log to this `file`, as Cloud Logging gets it")
	flags.DurationVar(&o.slow, "slow", 0, "how long a run of builtin:document takes, as in the demo")
	return cmd
}

// workerOptions are the flags of worker.
type workerOptions struct {
	until bool
	file  string
	slow  time.Duration
}

// serve serves one worker until ctx ends.
func (o *workerOptions) serve(ctx context.Context, c *cli.Call, _ []string) error {
	cfg, err := workerservice.ParseConfig(c.Lookup)
	if err != nil {
		return cli.EnvironmentError{Err: err}
	}

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if o.until {
		// A terminal sends Ctrl-C to the worker too, whose parent then stops it by SIGTERM. The signal is not ignored,
		// since the analyzer's programs would inherit that.
		signal.Reset(os.Interrupt)
		signal.Notify(make(chan os.Signal, 1), os.Interrupt)
		go func() { // runs until the process ends: a read of standard input cannot be interrupted
			_, _ = io.Copy(io.Discard, c.In)
			cancel()
			time.Sleep(orphanGrace)
			os.Exit(cli.ExitFailed)
		}()
	}

	parents := slog.New(slog.NewJSONHandler(c.Out, &slog.HandlerOptions{Level: cfg.LogLevel}))
	log, err := logTo(c, parents, o.file, cfg.LogLevel)
	if err != nil {
		return err
	}
	if o.slow > 0 {
		cfg.Analyzer = slowed(cfg.Analyzer, o.slow)
	}
	cfg.Analyzer = logged(cfg.Analyzer, parents)
	l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(cfg.Port))
	if err != nil {
		return fmt.Errorf("%w; PORT chooses another port", err)
	}
	return workerservice.Serve(ctx, cfg, l, log)
}

// logTo returns a logger for the parent that also appends Cloud Logging's lines to file, unless that is empty.
// The process keeps the file open.
func logTo(c *cli.Call, parents *slog.Logger, file string, level slog.Level) (*slog.Logger, error) {
	if file == "" {
		return parents, nil
	}
	opened, err := os.OpenFile(file, logMode, 0o600)
	if err != nil {
		return nil, err
	}
	to := &watched{to: opened, report: func(err error) { c.Notice("--logs: lines are missing: %v", err) }}
	return slog.New(slog.NewMultiHandler(parents.Handler(), telemetry.NewLogger(to, "json", level).Handler())), nil
}

// watched reports the first error of a Writer, such as a full disk, as slog drops it.
type watched struct {
	to     io.Writer
	report func(error)
	once   sync.Once
}

// Write implements io.Writer.
func (w *watched) Write(line []byte) (int, error) {
	n, err := w.to.Write(line)
	if err != nil {
		w.once.Do(func() { w.report(err) })
	}
	return n, err
}

// logged returns an analyzer that logs the begin and the standard error of each run, for the parent alone: a
// worker in production logs neither.
func logged(analyzer orchestrator.Analyzer, log *slog.Logger) orchestrator.AnalyzerFunc {
	return func(ctx context.Context, job orchestrator.Job) (orchestrator.Result, error) {
		log := log.With("analysis_id", job.AnalysisID)
		log.InfoContext(ctx, runMessage, "lock_token", job.LockToken, "continues", job.Resume != nil)
		relay := slog.NewLogLogger(log.With("stderr", true).Handler(), slog.LevelInfo).Writer()
		job.Stderr = &bounded{to: relay, limit: maxStderr}
		return analyzer.Analyze(ctx, job)
	}
}

// maxStderr is how many bytes of its standard error are shown of a run.
const maxStderr = 64 << 10

// bounded passes on the first bytes that are written, and then a note that the rest is cut.
type bounded struct {
	to    io.Writer
	limit int
}

// Write implements io.Writer.
func (b *bounded) Write(text []byte) (int, error) {
	if len(text) <= b.limit {
		b.limit -= len(text)
		return b.to.Write(text)
	}

	_, err := fmt.Fprintf(b.to, "%s\n… cut: a run shows at most 64 KiB of standard error\n", text[:b.limit])
	b.to, b.limit = io.Discard, math.MaxInt
	return len(text), err
}

// slowed returns builtin:document with runs that take as long as run.
func slowed(document orchestrator.Analyzer, run time.Duration) orchestrator.AnalyzerFunc {
	return func(ctx context.Context, job orchestrator.Job) (orchestrator.Result, error) {
		r := &slowReporter{Reporter: job.Reporter, ctx: ctx, run: run}
		job.Reporter = r
		result, err := document.Analyze(ctx, job)
		if err == nil {
			err = r.reach(1) // all of a run without reports
		}
		return result, err
	}
}

// slowReporter delays each report by a part of run, in proportion to its progress. It has only the methods of
// Reporter, which are all that builtin:document uses. An analyzer with acts also needs those that an
// orchestrator.Marker, Batcher, Outlaster, Admitter and Warner have.
type slowReporter struct {
	orchestrator.Reporter

	ctx  context.Context
	run  time.Duration
	done float64 // the part of the work that is done
}

// Report implements orchestrator.Reporter.
func (r *slowReporter) Report(report orchestrator.Report) {
	if r.reach(*report.Progress) == nil { // otherwise the part has not been finished
		r.Reporter.Report(report)
	}
}

// reach waits for the time of the work up to progress, or returns the error of ctx.
func (r *slowReporter) reach(progress float64) error {
	if !clock.Sleep(r.ctx, time.Duration(float64(r.run)*(progress-r.done))) {
		return context.Cause(r.ctx)
	}
	r.done = progress
	return nil
}
