package operate

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"taskguard/cmd/internal/cli"
	"taskguard/cmd/internal/console"
	"taskguard/cmd/internal/printable"
	"taskguard/lease/analysislock"
	"taskguard/worker"
)

// Recover does what POST /internal/tasks/recover does each minute: it books a delivery
// for each orphaned analysis, of all kinds unless --kind names one.
func Recover(ctx context.Context, c *cli.Call) (err error) {
	c.TakesKind("all")
	c.TakesJSON("print what was found and booked as one JSON document for each kind, also after an error")
	if _, err := c.Parse(0, 0); err != nil {
		return err
	}
	all, err := connectAll(ctx, c, requiredQueue, c.Log())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, all[0].close()) }()

	for _, cl := range all {
		r, failed := cl.Recover(ctx)
		if errors.Is(failed, worker.ErrNoQueue) {
			continue // records of Do, whose callers call again
		}
		printRecovered(c, cl.place.Other(), r, failed)
		if failed = explainIndex(explainQueue(failed)); failed == nil {
			failed = reportUnfound(ctx, c, cl)
		}
		err = errors.Join(err, failed)
	}
	return err
}

// maxUnfound bounds each list of reportUnfound.
const maxUnfound = 1000

// reportUnfound reports, on standard error, the analyses that recovery cannot find.
func reportUnfound(ctx context.Context, c *cli.Call, cl *Client) error {
	f := cl.Fields()
	unknown, err := cl.UnknownStatus(ctx, maxUnfound)
	cl.printUnfound(c, unknown, fmt.Sprintf("never run and not found by recovery, as the %s is none of %s",
		f.Status, strings.Join(append([]string{f.Queued, f.Processing, f.Finished, f.Failed}, f.Final...), ", ")))

	unfound, failed := cl.Unfound(ctx, maxUnfound)
	cl.printUnfound(c, unfound,
		fmt.Sprintf("not found by recovery, as they have no %s, or no updatedAt that can be read", f.Status))
	return errors.Join(err, failed)
}

// printUnfound prints how many analyses there are, why recovery does not find them, and three.
func (cl *Client) printUnfound(c *cli.Call, all []analysislock.Analysis, why string) {
	if len(all) == 0 {
		return
	}
	var some []string
	for i := range all[:min(len(all), 3)] {
		some = append(some, fmt.Sprintf("%q (%q)", all[i].ID, all[i].Status))
	}
	c.Notice("%d %s (of at most %d read): %s; to run one: taskguard requeue%s ID",
		len(all), why, maxUnfound, printable.Line(strings.Join(some, ", ")), cl.place.Flag())
}

// printRecovered prints what was done, also if recovery failed afterwards.
func printRecovered(c *cli.Call, kind string, r worker.Recovery, failed error) {
	if c.JSON {
		_ = c.PrintJSON(struct { // cli.Run reports its error
			Kind string `json:"kind,omitempty"` // unless it is analysis
			worker.Recovery
		}{kind, r})
		return
	}
	text := fmt.Sprintf("found %d, booked %d", r.Found, r.Booked)
	if r.Waiting > 0 {
		text += fmt.Sprintf(", waiting in the queue %d", r.Waiting)
	}
	if kind != "" {
		text = kind + ": " + text
	}
	switch {
	case failed != nil:
		text += "; then it failed"
	case r.More:
		text += "; there may be more: run it again"
	}
	cli.Print(c.Out, "%s\n", text)
}

// explainIndex adds where the index is defined that a query lacks. Firestore
// refuses other queries with the same code; only the text distinguishes them.
func explainIndex(err error) error {
	if status.Code(err) == codes.FailedPrecondition && strings.Contains(err.Error(), "index") {
		return fmt.Errorf(console.MissingIndex+": %w", err)
	}
	return err
}
