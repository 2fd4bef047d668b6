package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/lease/iso8601"
	"taskguard/repo"
)

// shownAnalysis is an analysis in status's JSON: its public form, and its lock
// as an operator may see it, without the fencing token.
type shownAnalysis struct {
	ID         string              `json:"id"`
	Status     string              `json:"status"`
	Attempts   int                 `json:"attempts"`
	Error      *analysislock.Error `json:"error,omitempty"`
	LastError  *analysislock.Error `json:"last_error,omitempty"` // of the last attempt, while unfinished
	CreatedAt  time.Time           `json:"created_at,omitzero"`
	UpdatedAt  time.Time           `json:"updated_at,omitzero"`
	FinishedBy string              `json:"finished_by,omitempty"`
	Lock       lockInfo            `json:"lock"`
	Malformed  string              `json:"malformed,omitempty"` // why Lock says nothing
	Input      json.RawMessage     `json:"input,omitempty"`
	Result     json.RawMessage     `json:"result,omitempty"`
}

// lockInfo is who holds a lock, as of a reading. One that has expired still
// names who had it.
type lockInfo struct {
	Held      bool      `json:"held"`
	Owner     string    `json:"owner,omitempty"`
	ExpiresAt time.Time `json:"expires_at,omitzero"`

	left time.Duration
}

func lockOf(a *analysislock.Analysis) lockInfo {
	_, err := lease.Reopen(a.Lock, a.ReadAt) // the rule that says who holds it
	var held *lease.HeldError
	return lockInfo{
		Held: errors.As(err, &held), Owner: a.Lock.Owner, ExpiresAt: a.Lock.ExpiresAt,
		left: a.Lock.ExpiresAt.Sub(a.ReadAt),
	}
}

// String says it for people.
func (l lockInfo) String() string {
	owner, expiry := visible(l.Owner), iso8601.Format(l.ExpiresAt)
	switch {
	case l.Held:
		return "held by " + owner + cmp.Or(within(l.left, ", %s left"), " until "+expiry)
	case l.Owner == "":
		return "free"
	case l.ExpiresAt.IsZero():
		return "left by " + owner + ", without an expiry"
	}
	return "left by " + owner + ", expired " + cmp.Or(within(-l.left, "%s ago"), "at "+expiry)
}

// showStatus shows one analysis with input and result, or many without.
func showStatus(ctx context.Context, c *call) (err error) {
	c.takesJSON("print an analysis as a JSON document, many as one JSON line each")
	unfinished := c.flags.Bool("unfinished", false, "list only what is QUEUED or PROCESSING, oldest update first")
	limit := c.flags.Int("limit", 100, "how many are listed, by id unless --unfinished")
	args, err := c.parse(0, 1)
	if err != nil {
		return err
	}
	if *limit < 1 {
		return usageError("--limit must be at least 1")
	}
	if len(args) == 1 {
		if *unfinished {
			return usageError("an ID and --unfinished exclude each other")
		}
		if err := checkID(args[0]); err != nil {
			return err
		}
	}
	cl, err := c.connect(ctx, noQueue, repo.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cl.close()) }()
	switch {
	case len(args) == 1:
		return c.showOne(ctx, cl, args[0])
	case *unfinished:
		return c.showAll(ctx, cl.analyses.Unfinished, *limit)
	}
	return c.showAll(ctx, cl.analyses.List, *limit)
}

func (c *call) showOne(ctx context.Context, cl *client, id string) error {
	a, err := cl.analyses.Get(ctx, id)
	if err != nil {
		return cl.explain(id, err)
	}
	s, err := shownWhole(&a)
	if err != nil {
		return err
	}
	if c.json {
		return json.NewEncoder(c.out).Encode(s)
	}
	if err := c.fields(s); err != nil || s.Result == nil {
		return err
	}
	var result bytes.Buffer
	if err := json.Indent(&result, s.Result, "", "  "); err != nil {
		return err
	}
	_, err = fmt.Fprintf(c.out, "result\n%s\n", visibleLines(result.String()))
	return err
}

// lines are an error's: those of a traceback each in the column of the first.
func lines(e *analysislock.Error) string {
	message := visibleLines(strings.TrimRight(e.Message, "\n"))
	return visible(e.Code) + ": " + strings.ReplaceAll(message, "\n", "\n\t")
}

// fields are what is to be said of one analysis beside its result.
func (c *call) fields(s shownAnalysis) error {
	t := tabwriter.NewWriter(c.out, 0, 0, 2, ' ', 0)
	printTo(t, "id\t%s\nstatus\t%s\nattempts\t%d\nlock\t%s\n", visible(s.ID), visible(orNone(s.Status)), s.Attempts, s.Lock)
	if s.Error != nil {
		printTo(t, "error\t%s\n", lines(s.Error))
	}
	if s.LastError != nil {
		printTo(t, "last error\t%s\n", lines(s.LastError))
	}
	for _, at := range []struct {
		name string
		time time.Time
	}{{"created", s.CreatedAt}, {"updated", s.UpdatedAt}} {
		if !at.time.IsZero() {
			printTo(t, "%s\t%s\n", at.name, iso8601.Format(at.time))
		}
	}
	if s.FinishedBy != "" {
		printTo(t, "finished by\t%s\n", visible(s.FinishedBy))
	}
	return t.Flush()
}

// showAll shows what read finds, and asks for one more, to know whether there is.
func (c *call) showAll(ctx context.Context, read func(context.Context, int) ([]analysislock.Analysis, error), limit int) error {
	all, err := read(ctx, max(limit, limit+1)) // the greatest int has no next
	if err != nil {
		return err
	}
	if len(all) > limit {
		all = all[:limit]
		printTo(c.err, "taskguard status: the first %d; --limit shows more\n", limit)
	}
	if c.json {
		e := json.NewEncoder(c.out)
		for i := range all {
			if err := e.Encode(shownBriefly(&all[i])); err != nil {
				return err
			}
		}
		return nil
	}
	return c.list(all)
}

// list is many analyses as a table.
func (c *call) list(all []analysislock.Analysis) error {
	t := tabwriter.NewWriter(c.out, 0, 0, 2, ' ', 0)
	printTo(t, "ID\tSTATUS\tATTEMPTS\tUPDATED\tLOCK\tERROR\n")
	for i := range all {
		s := shownBriefly(&all[i])
		updated, failed, lock := "", "", s.Lock.String()
		if !s.UpdatedAt.IsZero() {
			updated = iso8601.Format(s.UpdatedAt)
		}
		switch {
		case s.Error != nil:
			failed = s.Error.Code
		case s.LastError != nil:
			failed = "last: " + s.LastError.Code
		}
		if s.Malformed != "" {
			lock = "malformed: " + visible(s.Malformed)
		}
		printTo(t, "%s\t%s\t%d\t%s\t%s\t%s\n", visible(s.ID), visible(orNone(s.Status)), s.Attempts, updated, lock, visible(failed))
	}
	return t.Flush()
}

// malformed is why a's lock cannot be made out; empty: it can.
func malformed(a *analysislock.Analysis) string {
	if a.Malformed == nil {
		return ""
	}
	problem := strings.TrimPrefix(a.Malformed.Error(), fmt.Sprintf("repo: analysis %q: field ", a.ID))
	return strings.TrimSuffix(problem, ": "+lease.ErrMalformed.Error())
}

// shownBriefly is an analysis without its input and result.
func shownBriefly(a *analysislock.Analysis) shownAnalysis {
	s := shownAnalysis{
		ID: a.ID, Status: a.Status, Attempts: a.Attempts, Error: a.Error, CreatedAt: a.CreatedAt, UpdatedAt: a.UpdatedAt,
		FinishedBy: a.Lock.FinishedBy, Lock: lockOf(a),
	}
	if errors.Is(a.Malformed, lease.ErrMalformed) { // else it is the id, and the lock can be read
		s.Malformed = malformed(a)
	}
	if !finished(a.Status) { // others may leave it behind when they finish one
		s.LastError = a.LastError
	}
	return s
}

// shownWhole is an analysis with all of it.
func shownWhole(a *analysislock.Analysis) (s shownAnalysis, err error) {
	s = shownBriefly(a)
	if a.Input != nil {
		if s.Input, err = repo.Plain(a.Input); err != nil {
			return s, err
		}
	}
	if a.Result != nil {
		s.Result, err = repo.Plain(a.Result)
	}
	return s, err
}
