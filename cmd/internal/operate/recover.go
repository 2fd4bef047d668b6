package operate

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"taskguard/cmd/internal/cli"
	"taskguard/cmd/internal/printable"
	"taskguard/internal/delivery"
	"taskguard/lease/analysislock"
	"taskguard/repo"
)

// Recover does what POST /internal/tasks/recover does each minute: it books a delivery
// for each orphaned analysis, of all kinds unless --kind names one.
func Recover(ctx context.Context, c *cli.Call) (err error) {
	c.TakesKind("all")
	c.TakesJSON("print what was found and booked as one JSON document for each kind, also after an error")
	if _, err := c.Parse(0, 0); err != nil {
		return err
	}
	policy, err := lockPolicy(c)
	if err != nil {
		return err
	}
	log := c.Log()
	all, err := connectAll(ctx, c, requiredQueue, repo.Options{Policy: policy, Log: log})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, all[0].close()) }()
	for _, cl := range all {
		guard := cl.guard()
		guard.Log = log
		r, failed := guard.Recover(ctx)
		failed = errors.Join(printRecovered(c, cl.place.Other(), r, failed), explainIndex(failed))
		if failed == nil {
			failed = reportUnfound(ctx, c, cl)
		}
		err = errors.Join(err, failed)
	}
	return err
}

// reportUnfound reports, on standard error, the analyses that recovery cannot find.
func reportUnfound(ctx context.Context, c *cli.Call, cl *Client) error {
	const most = 1000
	f := cl.analyses.Fields()
	report := func(why string, all []analysislock.Analysis) {
		if len(all) == 0 {
			return
		}
		var some []string
		for i := range all[:min(len(all), 3)] {
			some = append(some, fmt.Sprintf("%q (%q)", all[i].ID, all[i].Status))
		}
		cli.Print(c.Err, "taskguard recover: %d %s (of at most %d read): %s; to run one: taskguard requeue%s ID\n",
			len(all), why, most, printable.Line(strings.Join(some, ", ")), cl.place.Flag())
	}

	unknown, err := cl.analyses.UnknownStatus(ctx, most)
	report(fmt.Sprintf("never run and not found by recovery, as the %s is none of %s, %s, %s, %s", f.Status, f.Queued, f.Processing, f.Finished, f.Failed), unknown)
	unfound, failed := cl.analyses.Unfound(ctx, most)
	report(fmt.Sprintf("not found by recovery, as they have no %s, or no updatedAt that can be read", f.Status), unfound)
	return errors.Join(err, failed)
}

// printRecovered prints what was done, also if recovery failed afterwards.
func printRecovered(c *cli.Call, kind string, r delivery.Recovery, failed error) error {
	if c.JSON {
		return c.PrintJSON(struct {
			Kind string `json:"kind,omitempty"` // unless it is analysis
			delivery.Recovery
		}{kind, r})
	}
	text := fmt.Sprintf("found %d, booked %d", r.Found, r.Booked)
	if kind != "" {
		text = kind + ": " + text
	}
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
