package operate

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"taskguard/cmd/internal/cli"
	"taskguard/internal/delivery"
	"taskguard/internal/printable"
	"taskguard/repo"
)

// Recover does what POST /internal/tasks/recover does each minute: it books a delivery
// for each orphaned analysis.
func Recover(ctx context.Context, c *cli.Call) (err error) {
	c.TakesJSON("print what was found and booked as one JSON document, also after an error")
	if _, err := c.Parse(0, 0); err != nil {
		return err
	}
	policy, err := lockPolicy(c)
	if err != nil {
		return err
	}
	log := c.Log()
	cl, err := connect(ctx, c, requiredQueue, repo.Options{Policy: policy, Log: log})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cl.close()) }()
	guard := delivery.Guard{Orphans: cl.analyses, Queue: cl.queue, RunTimeout: cl.runTimeout, Log: log}
	r, err := guard.Recover(ctx)
	if err := errors.Join(printRecovered(c, r, err), explainIndex(err)); err != nil {
		return err
	}
	return reportUnknown(ctx, c, cl)
}

// reportUnknown reports, on standard error, the analyses that recovery cannot find.
func reportUnknown(ctx context.Context, c *cli.Call, cl *Client) error {
	const most = 1000
	all, err := cl.analyses.UnknownStatus(ctx, most)
	if err != nil || len(all) == 0 {
		return err
	}
	var some []string
	for i := range all[:min(len(all), 3)] {
		some = append(some, fmt.Sprintf("%q (%q)", all[i].ID, all[i].Status))
	}
	cli.Print(c.Err, "taskguard recover: %d never run and not found by recovery, as the status is none of QUEUED, PROCESSING, READY, FAILED (of at most %d read): %s; to run one: taskguard requeue ID\n",
		len(all), most, printable.Line(strings.Join(some, ", ")))
	return nil
}

// printRecovered prints what was done, also if recovery failed afterwards.
func printRecovered(c *cli.Call, r delivery.Recovery, failed error) error {
	if c.JSON {
		return c.PrintJSON(r)
	}
	text := fmt.Sprintf("found %d, booked %d", r.Found, r.Booked)
	switch {
	case failed != nil:
		text += "; then it failed"
	case r.More:
		text += "; there may be more: run it again"
	}
	_, err := fmt.Fprintln(c.Out, text)
	return err
}

// explainIndex adds where the index is defined that recovery's query lacks. Firestore
// refuses other queries with the same code; only the text distinguishes them.
func explainIndex(err error) error {
	if status.Code(err) == codes.FailedPrecondition && strings.Contains(err.Error(), "index") {
		return fmt.Errorf("an index of deploy/firestore.indexes.json is missing, or is still being built: %w", err)
	}
	return err
}
