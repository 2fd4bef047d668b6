package main

import (
	"context"
	"encoding/json"
	"strings"

	"google.golang.org/api/option"

	"taskguard/cmd/taskguard/doctor"
)

// diagnosis is what doctor prints with --json.
type diagnosis struct {
	Read      []doctor.Source    `json:"read"`
	Findings  []doctor.Finding   `json:"findings"`
	Unchecked []doctor.Unchecked `json:"unchecked"`
}

// diagnose reports inconsistent settings of a deployment.
func diagnose(ctx context.Context, c *call) error { return diagnoseWith(ctx, c, nil) }

// diagnoseWith asks Google's APIs with the options.
func diagnoseWith(ctx context.Context, c *call, google []option.ClientOption) error {
	o := doctor.Options{Lookup: c.lookup, Google: google}
	c.flags.StringVar(&o.Service, "service", "", "the worker: `FILE` for gcloud run services replace, or a service's name")
	c.flags.StringVar(&o.Doclock, "doclock", "", "the document lock: `FILE` or a service's name")
	c.flags.StringVar(&o.Queue, "queue", "", "the queue: `FILE` of gcloud's flags; without, the queue of TASK_QUEUE")
	c.flags.StringVar(&o.Indexes, "indexes", "", "the indexes: `FILE` such as deploy/firestore.indexes.json; without, the database's")
	c.takesJSON("print what was read, found and left unchecked as one JSON document")
	if _, err := c.parse(0, 0); err != nil {
		return err
	}
	facts, err := doctor.Read(ctx, o)
	switch {
	case err != nil:
		return usageError(err.Error())
	case ctx.Err() != nil:
		return ctx.Err() // what was not read was not refused
	}
	found, unchecked := doctor.Check(facts)
	d := diagnosis{ // no list is null
		append([]doctor.Source{}, facts.Sources()...), append([]doctor.Finding{}, found...), append([]doctor.Unchecked{}, unchecked...),
	}
	if c.json {
		err = json.NewEncoder(c.out).Encode(d)
	} else {
		d.print(c)
	}
	if err == nil && d.wrong() {
		return exitError{code: exitFailed}
	}
	return err
}

// wrong reports whether there is a problem, or something could not be read.
func (d diagnosis) wrong() bool {
	for _, f := range d.Findings {
		if f.Severity == doctor.Problem {
			return true
		}
	}
	for _, u := range d.Unchecked {
		if u.Failed {
			return true
		}
	}
	return false
}

func (d diagnosis) print(c *call) {
	for _, s := range d.Read {
		printTo(c.out, "read: %s: %s\n", visible(s.From), strings.Join(s.Parts, ", "))
	}
	problems, advice := 0, 0
	for _, f := range d.Findings {
		if f.Severity == doctor.Problem {
			problems++
		} else {
			advice++
		}
		printTo(c.out, "\n%s: %s (%s)\n    %s\n", f.Severity, visible(f.Problem), f.Rule, visible(f.Fix))
	}
	if len(d.Findings) > 0 {
		printTo(c.out, "\n")
	}
	unread := 0
	for _, u := range d.Unchecked {
		verdict := "not checked"
		if u.Failed {
			verdict, unread = "not readable", unread+1
		}
		printTo(c.out, "%s: %s: %s\n", verdict, strings.Join(u.Parts, ", "), visible(u.Why))
	}
	last := counted(problems, "problem") + ", " + counted(advice, "piece") + " of advice"
	switch {
	case len(d.Read) == 0:
		last = "nothing was read"
	case problems+advice == 0:
		last = "nothing contradicts anything in what was read"
	}
	if unread > 0 && len(d.Read) > 0 {
		last += "; not all could be read"
	}
	printTo(c.out, "%s\n", last)
}
