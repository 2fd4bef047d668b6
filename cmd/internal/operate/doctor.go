package operate

import (
	"context"
	"strings"

	"taskguard/cmd/internal/cli"
	"taskguard/cmd/internal/doctor"
	"taskguard/cmd/internal/printable"
)

// diagnosis is the output of doctor --json.
type diagnosis struct {
	Read      []doctor.Reading `json:"read"`
	Findings  []doctor.Finding `json:"findings"`
	Unchecked []doctor.Reading `json:"unchecked"`
}

// Doctor checks whether the settings of a deployment fit each other.
func Doctor(ctx context.Context, c *cli.Call) error {
	o := doctor.Options{Lookup: c.Lookup}
	c.Flags.StringVar(&o.Service, "service", "",
		"the worker: `FILE` for gcloud run services replace, or a service's name")
	c.Flags.StringVar(&o.Doclock, "doclock", "", "the document lock: `FILE` or a service's name")
	c.Flags.StringVar(&o.Queue, "queue", "", "the queue: `FILE` of gcloud's flags; without it, the queue of TASK_QUEUE")
	c.Flags.StringVar(&o.Indexes, "indexes", "",
		"the indexes: `FILE` such as deploy/firestore.indexes.json; without it, the database's")
	input := c.Flags.String("smoke", "", "test the deployment: submit this JSON `INPUT`, wait for READY and look for "+
		"its log lines; with another flag after a check of the settings that finds no problem")
	c.TakesJSON("print what was read, found and not checked as one JSON document")
	if _, err := c.Parse(0, 0); err != nil {
		return err
	}

	tests := c.Given("smoke")
	switch {
	case tests && c.JSON:
		return cli.UsageError("--smoke and --json exclude each other")
	case tests && o.Service+o.Doclock+o.Queue+o.Indexes == "":
		return smoke(ctx, c, *input)
	}
	if err := check(ctx, c, o); err != nil || !tests {
		return err
	}
	return smoke(ctx, c, *input)
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
	for _, u := range d.Unchecked {
		verdict := "not checked"
		if u.Failed {
			verdict = "not readable"
		}
		cli.Print(c.Out, "%s: %s: %s\n", verdict, strings.Join(u.Parts, ", "), printable.Line(u.Why))
	}

	problems, advice, unreadable := d.count()
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
