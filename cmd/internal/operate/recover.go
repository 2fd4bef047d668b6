package operate

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"taskguard/cmd/internal/cli"
	"taskguard/cmd/internal/console"
	"taskguard/cmd/internal/printable"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/repo"
	"taskguard/worker"
)

// Recover does what POST /internal/tasks/recover does each minute: it books a delivery
// for each orphaned analysis, of all kinds unless --kind names one.
func Recover(lookup cli.Lookup) *cobra.Command {
	cmd := &cobra.Command{
		Use: "recover", GroupID: cli.Change, Args: cli.Args(0, 0),
		Short: "Enqueue orphans: unfinished, not locked, and not in the queue",
		Long: "Cloud Scheduler makes the worker do the same each minute. " +
			"This command also lists the analyses that recovery cannot find.",
		Example:     "taskguard recover",
		Annotations: cli.Reads(queueVariables),
		RunE:        cli.Bind(lookup, recoverAll),
	}
	cli.TakesKind(cmd, lookup, "all")
	cli.TakesJSON(cmd, "print one JSON document for each kind, even after an error")
	return cmd
}

func recoverAll(ctx context.Context, c *cli.Call, _ []string) (err error) {
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
func (cl *Client) printUnfound(c *cli.Call, all []analysislock.Analysis, reason string) {
	if len(all) == 0 {
		return
	}
	var some []string
	for i := range all[:min(len(all), 3)] {
		some = append(some, fmt.Sprintf("%q (%q)", all[i].ID, all[i].Status))
	}
	c.Notice("%d %s (of at most %d read): %s; to run one: %s ID",
		len(all), reason, maxUnfound, printable.Line(strings.Join(some, ", ")), cl.place.Command("requeue"))
}

// printRecovered prints what was done, also if recovery failed afterwards.
func printRecovered(c *cli.Call, kind string, r worker.Recovery, failed error) {
	if c.JSON {
		_ = c.PrintJSON(struct { // cli.Run reports its error
			Kind string `json:"kind,omitempty"` // empty for the kind analysis
			worker.Recovery
		}{kind, r})
		return
	}
	text := fmt.Sprintf("found %d, enqueued %d", r.Found, r.Booked)
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

// Restore makes the fencing token of each document of a kind at least --min-token, after a
// restore from a backup: without it, systems that compare tokens would refuse the next runs,
// or accept a late write of an earlier one. A locked document counts as failed.
func Restore(lookup cli.Lookup) *cobra.Command {
	var minimum string
	cmd := &cobra.Command{
		Use: "restore --min-token TOKEN", GroupID: cli.Deploy, Args: cli.Args(0, 0),
		Short: "After a restore of the database, raise its fencing tokens",
		Long: "Without it, systems that compare tokens refuse the next runs, or accept a late write of an earlier one. " +
			"Locked documents stay as they are, and make it exit 1.",
		Example:     "taskguard restore --min-token now",
		Annotations: cli.Reads(cli.DatabaseVariables),
		RunE: cli.Bind(lookup, func(ctx context.Context, c *cli.Call, _ []string) error {
			return restore(ctx, c, minimum)
		}),
	}
	cmd.Flags().StringVar(&minimum, "min-token", "",
		"the smallest `TOKEN` that a document has afterwards; now: Firestore's time in microseconds")
	cli.TakesKind(cmd, lookup, firstKind)
	cli.TakesJSON(cmd, "print the summary as one JSON line")
	return cmd
}

func restore(ctx context.Context, c *cli.Call, text string) (err error) {
	minimum, err := strconv.ParseInt(text, 10, 64)
	if text != "now" && (err != nil || minimum < 1) {
		return cli.UsageError("--min-token must be a number from 1 on, of at most 18 digits, or now")
	}

	cl, err := connect(ctx, c, noQueue)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cl.close()) }()
	now, err := cl.Now(ctx)
	if err != nil {
		return err
	}
	switch limit := now.UnixMicro(); {
	case text == "now":
		minimum = limit
	case minimum > limit: // no run can have such a token, so a fence refuses it
		return cli.UsageError(fmt.Sprintf("--min-token must be at most Firestore's time in microseconds, %d", limit))
	}

	all, err := cl.Find(ctx, repo.Filter{All: true}, "", math.MaxInt)
	if err != nil {
		return err
	}
	return cl.raiseTokens(ctx, c, all, minimum)
}

// raiseTokens raises all tokens that are below the minimum, and prints how many.
func (cl *Client) raiseTokens(ctx context.Context, c *cli.Call, all []analysislock.Analysis, minimum int64) error {
	var raised, failed atomic.Int64
	uninterrupted := context.WithoutCancel(ctx)
	var b bulk
	_ = b.each(ctx, all, func(d *analysislock.Analysis) error {
		if d.Malformed == nil && d.Lock.Token >= minimum {
			return nil
		}
		_, err := cl.RaiseToken(uninterrupted, d.ID, minimum)
		switch {
		case err == nil:
			raised.Add(1)
		case !errors.Is(err, lease.ErrNotFound): // a document that was deleted meanwhile is no error
			failed.Add(1)
			cli.Report(uninterrupted, c.Err, c.Name, cl.explain(d.ID, fmt.Errorf("%q: %w", d.ID, err)))
		}
		return nil
	})

	if c.JSON {
		_ = c.PrintJSON(map[string]int64{ // cli.Run reports its error
			"documents": int64(len(all)), "raised": raised.Load(), "failed": failed.Load(), "min_token": minimum,
		})
	} else {
		cli.Print(c.Out, "%d documents: %d tokens raised to %d, %d failed\n",
			len(all), raised.Load(), minimum, failed.Load())
	}
	if ctx.Err() == nil && failed.Load() > 0 {
		return cli.ExitError{Code: cli.ExitFailed}
	}
	return ctx.Err()
}
