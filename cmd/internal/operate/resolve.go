package operate

import (
	"context"
	"errors"
	"fmt"

	"taskguard/cmd/internal/cli"
	"taskguard/cmd/internal/console"
	"taskguard/cmd/internal/printable"
	"taskguard/lease/analysislock"
	"taskguard/lease/iso8601"
)

// Resolve answers an uncertain act of an analysis, and books a delivery. It is refused while the
// analysis is locked, and if its state or the act has changed since it was read.
func Resolve(ctx context.Context, c *cli.Call) (err error) {
	result := c.Flags.String("done", "", "the act was done: record this `JSON` as its result")
	notDone := c.Flags.Bool("not-done", false, "the act was certainly not done: a later attempt does it")
	c.TakesKind(firstKind)
	c.TakesJSON("print what was changed as one JSON line")
	args, err := c.Parse(2, 2)
	if err != nil {
		return err
	}
	what := console.Change{Verb: console.Resolve, ID: args[0], Act: args[1], Who: operator()}
	if err := checkID(what.ID); err != nil {
		return err
	}
	if c.Given("done") == *notDone {
		return cli.UsageError("want either --done JSON or --not-done")
	}
	if !*notDone {
		if what.Answer, err = console.Done(*result); err != nil {
			return cli.UsageError("--done: " + err.Error())
		}
	}

	cl, err := connect(ctx, c, optionalQueue)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cl.close()) }()
	return cl.resolve(ctx, c, what)
}

// resolve prints the act, and answers it if the analysis is still in the state that was read.
func (cl *Client) resolve(ctx context.Context, c *cli.Call, what console.Change) error {
	read, err := cl.Analyses.Summary(ctx, what.ID)
	if err != nil {
		return cl.explain(what.ID, err)
	}
	if act, known := read.Effects[what.Act]; known {
		c.Notice("%s: the act %s", printable.Line(what.ID), effectText(what.Act, act))
	}
	what.Seen = console.StateOf(&read)
	return cl.changeOne(ctx, c, what, c.Log())
}

// printUncertain prints the acts of analyses that have started and are not done, a row each.
func printUncertain(c *cli.Call, all []analysislock.Analysis) {
	const row = "%-36s  %-16s  %-24s  %v\n"
	cli.Print(c.Out, row, "ID", "ACT", "SINCE", "TOKEN")
	for i := range all {
		for _, name := range all[i].Effects.Open() {
			act := all[i].Effects[name]
			cli.Print(c.Out, row, printable.Line(all[i].ID), printable.Line(name), iso8601.Format(act.At), act.Token)
		}
	}
}

// effectText describes an act for people.
func effectText(name string, e analysislock.Effect) string {
	return fmt.Sprintf("%s: %s at %s with lock token %d", printable.Line(name), e.State, iso8601.Format(e.At), e.Token)
}
