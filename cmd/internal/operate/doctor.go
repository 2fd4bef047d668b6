package operate

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"taskguard/cmd/internal/cli"
	"taskguard/cmd/internal/doctor"
	"taskguard/cmd/internal/printable"
	"taskguard/lease/analysislock"
)

// diagnosis is the output of doctor --json.
type diagnosis struct {
	Read      []doctor.Reading `json:"read"`
	Findings  []doctor.Finding `json:"findings"`
	Unchecked []doctor.Reading `json:"unchecked"`
}

// Env prints the variables that the commands need for a deployment, as lines for a shell. After an error the
// lines empty the variables and end with false: a shell that evaluates them must neither succeed nor keep the
// variables of another deployment.
func Env(lookup cli.Lookup) *cobra.Command {
	o := doctor.Options{Lookup: lookup, Alone: true}
	checkArgs := cli.Args(0, 0)
	cmd := &cobra.Command{
		Use: "env --service NAME", GroupID: cli.Deploy,
		Args:  func(cmd *cobra.Command, args []string) error { return emptied(cmd, checkArgs(cmd, args)) },
		Short: "Print a deployed service's settings as exports for your shell",
		Long: "The other commands need these variables. " +
			"After an error the exports empty them, so that no command uses another deployment's.",
		Example: `eval "$(taskguard env --service worker.yaml)"`,
		Annotations: cli.Reads("for short names GOOGLE_CLOUD_PROJECT, " +
			"and CLOUDSDK_RUN_REGION or the region of TASK_QUEUE"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return emptied(cmd, printExports(cmd.Context(), cli.NewCall(cmd, lookup), o))
		},
	}
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return emptied(cmd, cli.FlagError(cmd, err)) })
	cmd.Flags().StringVar(&o.Service, "service", "", "the worker: a service's `NAME`, or a file as for doctor")
	cmd.Flags().StringVar(&o.Doclock, "doclock", "", "the document lock: a service's `NAME`, or a file")
	cli.TakesJSON(cmd, "print the variables as one JSON object")
	return cmd
}

// emptied prints the lines that follow an error of env, and returns the error.
func emptied(cmd *cobra.Command, err error) error {
	if c := cli.NewCall(cmd, nil); err != nil && !c.JSON && !errors.Is(err, pflag.ErrHelp) {
		none := doctor.Facts{Status: map[doctor.Part]doctor.Status{doctor.DoclockSettings: {From: "nothing"}}}
		cli.Print(c.Out, "%sfalse\n", cli.Exports(none.Exports()))
	}
	return err
}

func printExports(ctx context.Context, c *cli.Call, o doctor.Options) error {
	if o.Service == "" {
		return cli.UsageError("--service is missing")
	}

	facts, err := doctor.Read(ctx, o)
	if err != nil {
		return cli.UsageError(err.Error())
	}
	for _, part := range []doctor.Part{doctor.WorkerSettings, doctor.DoclockSettings} {
		if s := facts.Status[part]; s.Failed {
			return errors.New(s.Why)
		}
	}
	if c.JSON {
		return c.PrintJSON(facts.Exports())
	}
	cli.Print(c.Out, "%s", cli.Exports(facts.Exports()))
	return nil
}

// Doctor checks whether the settings of a deployment fit each other.
func Doctor(lookup cli.Lookup) *cobra.Command {
	o := doctor.Options{Lookup: lookup}
	var input string
	cmd := &cobra.Command{
		Use: "doctor", GroupID: cli.Deploy, Args: cli.Args(0, 0),
		Short: "Check that a deployment's service, queue, indexes and jobs fit",
		Long: "A service is a name, which is looked up at Google, or the file for `gcloud run services replace`. " +
			"With --smoke alone, only the deployment is tested, and no settings are checked.",
		Example: "taskguard doctor --service worker.yaml --queue queue.yaml\n" +
			`taskguard doctor --smoke '{"text": "hello"}'`,
		Annotations: cli.Reads(cli.DatabaseVariables +
			", TASK_QUEUE; for short names also CLOUDSDK_RUN_REGION, or the region of TASK_QUEUE"),
		RunE: cli.Bind(lookup, func(ctx context.Context, c *cli.Call, _ []string) error {
			tests := c.Flags.Changed("smoke")
			if tests && c.JSON {
				return cli.UsageError("--smoke and --json exclude each other")
			}
			if !tests || o.Service+o.Doclock+o.Queue+o.Indexes != "" {
				if err := check(ctx, c, o); err != nil || !tests {
					return err
				}
			}
			return smoke(ctx, c, input)
		}),
	}

	flags := cmd.Flags()
	flags.StringVar(&o.Service, "service", "", "the worker: `FILE` or a service's name")
	flags.StringVar(&o.Doclock, "doclock", "", "the document lock: `FILE` or a service's name")
	flags.StringVar(&o.Queue, "queue", "", "the queue: `FILE` of gcloud's flags; without it, the queue of TASK_QUEUE")
	flags.StringVar(&o.Indexes, "indexes", "",
		"the indexes: `FILE` such as deploy/firestore.indexes.json; without it, the database's")
	flags.StringVar(&input, "smoke", "", "test the deployment: submit this JSON `INPUT`, wait for READY and look for "+
		"its log lines; with another flag after a check of the settings that finds no problem. "+
		"The analyzer really runs: choose an input that charges nobody and sends nothing")
	for _, file := range []string{"service", "doclock", "queue", "indexes"} {
		_ = cmd.RegisterFlagCompletionFunc(file, cli.Files) // it is declared
	}
	cli.TakesJSON(cmd, "print what was read, found and not checked as one JSON document")
	return cmd
}

// check prints what doctor finds in the settings. Its error is an ExitError if that is a problem.
func check(ctx context.Context, c *cli.Call, o doctor.Options) error {
	if c.Value("KINDS") != "" {
		e := c.Environment()
		o.Kinds = cli.Kinds(e)
		if err := cli.Check(e); err != nil {
			return err
		}
	}
	if err := refuseEmulator(c); err != nil && o.AsksGoogle() {
		return err
	}
	facts, err := doctor.Read(ctx, o)
	switch {
	case err != nil:
		return cli.UsageError(err.Error())
	case ctx.Err() != nil:
		return ctx.Err() // what was not read was not refused
	}

	read, unread := facts.Readings()
	d := diagnosis{ // no list is null
		append([]doctor.Reading{}, read...),
		append([]doctor.Finding{}, doctor.Check(facts)...),
		append([]doctor.Reading{}, unread...),
	}
	if c.JSON {
		err = c.PrintJSON(d)
	} else {
		d.print(c)
	}
	if problems, _, unreadable := d.count(); err == nil && problems+unreadable > 0 {
		return cli.ExitError{Code: cli.ExitFailed}
	}
	return err
}

// refuseEmulator returns an error if the environment names an emulator, which doctor cannot check: the project and the
// queue beside it are not the deployment's.
func refuseEmulator(c *cli.Call) error {
	for _, name := range []string{cli.FirestoreEmulator, cli.TasksEmulator} {
		if c.Value(name) != "" {
			return cli.EnvironmentError{Err: fmt.Errorf("%s is set, and doctor checks a deployment on Google Cloud: "+
				"unset %s and %s, and set GOOGLE_CLOUD_PROJECT and TASK_QUEUE to the deployment's. "+
				"On an emulator, only doctor --smoke INPUT and checks of files work",
				name, cli.FirestoreEmulator, cli.TasksEmulator)}
		}
	}
	return nil
}

func (d diagnosis) count() (problems, advice, unreadable int) {
	for _, f := range d.Findings {
		if f.Severity == doctor.Problem {
			problems++
		}
	}
	for _, u := range d.Unchecked {
		if u.Failed {
			unreadable++
		}
	}
	return problems, len(d.Findings) - problems, unreadable
}

func (d diagnosis) print(c *cli.Call) {
	for _, s := range d.Read {
		cli.Print(c.Out, "read: %s: %s\n", printable.Line(s.From), strings.Join(s.Parts, ", "))
	}
	for _, f := range d.Findings {
		problem, fix := printable.Line(f.Problem), printable.Line(f.Fix)
		cli.Print(c.Out, "\n%s: %s (%s)\n    %s\n", f.Severity, problem, f.Rule, fix)
	}
	if len(d.Findings) > 0 {
		cli.Print(c.Out, "\n")
	}
	problems, advice, unreadable := d.count()
	for _, u := range d.Unchecked {
		verdict := "not checked"
		if u.Failed {
			verdict = "not readable"
		} else if unreadable > 0 && len(d.Read) == 0 { // that is the reason
			continue
		}
		cli.Print(c.Out, "%s: %s: %s\n", verdict, strings.Join(u.Parts, ", "), printable.Line(u.Why))
	}

	last := cli.Count(problems, "problem") + ", " + cli.Count(advice, "piece") + " of advice"
	switch {
	case len(d.Read) == 0:
		last = "nothing was read"
	case len(d.Findings) == 0:
		last = "no problem in what was read"
	}
	if unreadable > 0 && len(d.Read) > 0 {
		last += "; not all could be read"
	}
	cli.Print(c.Out, "%s\n", last)
}

// smokeMargin is how much longer than a run a smoke test waits for READY: for an instance to
// start, and for a retry.
const smokeMargin = 5 * time.Minute

// smoke submits one analysis to the deployment and waits until it is READY. Then it looks for
// its log line and for the log line of a recovery. The document stays: without it, a second delivery
// of its task would be rejected, which raises an alert.
func smoke(ctx context.Context, c *cli.Call, input string) (err error) {
	doc, err := inputDocument(input, "doctor-smoke-"+strings.ToLower(rand.Text()[:12]))
	if err != nil {
		return fmt.Errorf("--smoke: %w", err)
	}
	cl, err := connect(ctx, c, requiredQueue)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cl.close()) }()

	began, patience := time.Now(), cl.runTimeout+smokeMargin
	s, err := cl.submit(ctx, doc)
	if err != nil {
		return err
	}
	timeout := fmt.Errorf("%s is not READY after %v: see %[3]s %[1]s", doc.ID, patience, cl.place.Command("status"))
	limited, cancel := context.WithTimeoutCause(ctx, patience, timeout)
	defer cancel()
	if err := follow(limited, c, cl, c.Progress(), []*submitted{s}); err != nil {
		return err
	}
	report := func(line string) { cli.Print(c.Out, "%s %s\n", doc.ID, line) }
	report(analysislock.Ready)

	if cl.place.Emulator != "" {
		report("log lines: not checked, since an emulator has no Cloud Logging")
		return nil
	}
	logs := doctor.Logs{Project: cl.place.Project}
	service, err := logs.Delivered(ctx, doc.ID, began.Add(-time.Minute))
	if err != nil {
		return fmt.Errorf("the log line of its delivery: %w; LOG_FORMAT must be json and LOG_LEVEL info", err)
	}
	report("has its log line, of " + service)
	if err := logs.Recovered(ctx, service); err != nil {
		return fmt.Errorf("a recovery by %s: %w; is Cloud Scheduler's job enabled?", service, err)
	}
	report("recovery has run lately")
	return nil
}
