package operate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"taskguard/cmd/internal/cli"
	"taskguard/cmd/internal/printable"
	"taskguard/lease/analysislock"
	"taskguard/lease/iso8601"
	"taskguard/orchestrator"
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
	id, name := args[0], args[1]
	answer, err := parseAnswer(c.Given("done"), *notDone, *result)
	if err == nil {
		err = checkID(id)
	}
	if err != nil {
		return err
	}

	cl, err := connect(ctx, c, optionalQueue)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cl.close()) }()
	return cl.resolve(ctx, c, id, name, answer)
}

// parseAnswer returns the answer of --done with its JSON, or of --not-done.
func parseAnswer(done, notDone bool, result string) (a analysislock.Answer, err error) {
	if done == notDone {
		return a, cli.UsageError("want either --done JSON or --not-done")
	}
	if done && !json.Valid([]byte(result)) {
		return a, cli.UsageError("--done: it is not JSON")
	}
	a.Done = done
	if done {
		a.Result, err = orchestrator.Storable(json.RawMessage(result))
	}
	return a, err
}

func (cl *Client) resolve(ctx context.Context, c *cli.Call, id, name string, answer analysislock.Answer) error {
	read, err := cl.Analyses.Summary(ctx, id)
	if err != nil {
		return cl.explain(id, err)
	}
	if act, known := read.Effects[name]; known {
		cli.Print(c.Err, "taskguard resolve: %s: the act %s\n", printable.Line(id), effectText(name, act))
	}

	seen := &analysislock.Seen{Status: read.Status, Grant: read.Lock.Grant()}
	resolve := func(task string) (was analysislock.Analysis, status string, err error) {
		was, err = cl.Analyses.Resolve(ctx, id, seen, name, answer, task)
		cancelled := was.Error != nil && was.Error.Code == analysislock.Cancelled
		if was.Closed() || was.Status == analysislock.Failed && cancelled {
			return was, was.Status, err
		}
		return was, analysislock.Queued, err
	}
	log := c.Log().With("effect", name, "done", answer.Done)
	done, err := cl.changeBy(ctx, verbResolve, id, operator(), log, resolve)
	return cl.printChange(c, verbResolve, id, done, err)
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
