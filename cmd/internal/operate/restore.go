package operate

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"sync/atomic"

	"taskguard/cmd/internal/cli"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/repo"
)

// Restore makes the fencing token of each document of a kind at least --min-token, after a
// restore from a backup: without it, systems that compare tokens would refuse the next runs,
// or accept a late write of an earlier one. One that is locked counts as failed.
func Restore(ctx context.Context, c *cli.Call) (err error) {
	text := c.Flags.String("min-token", "",
		"the smallest `TOKEN` that a document has afterwards; now: Firestore's time in microseconds")
	c.TakesKind(firstKind)
	c.TakesJSON("print the summary as one JSON line")
	if _, err := c.Parse(0, 0); err != nil {
		return err
	}
	least, err := strconv.ParseInt(*text, 10, 64)
	if *text != "now" && (err != nil || least < 1) {
		return cli.UsageError("--min-token must be a number from 1 on, of at most 18 digits, or now")
	}

	cl, err := connect(ctx, c, noQueue)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cl.close()) }()
	now, err := cl.Now(ctx)
	switch most := now.UnixMicro(); {
	case err != nil:
		return err
	case *text == "now":
		least = most
	case least > most: // a fence refuses it as no token
		return cli.UsageError(fmt.Sprintf("--min-token must be at most Firestore's time in microseconds, %d", most))
	}

	all, err := cl.Find(ctx, repo.Filter{All: true}, "", math.MaxInt)
	if err != nil {
		return err
	}
	return cl.raiseTokens(ctx, c, all, least)
}

// raiseTokens raises the tokens of all that are below least, and prints how many.
func (cl *Client) raiseTokens(ctx context.Context, c *cli.Call, all []analysislock.Analysis, least int64) error {
	var raised, failed atomic.Int64
	uninterrupted := context.WithoutCancel(ctx)
	var b bulk
	_ = b.each(ctx, all, func(d *analysislock.Analysis) error {
		if d.Malformed == nil && d.Lock.Token >= least {
			return nil
		}
		_, err := cl.RaiseToken(uninterrupted, d.ID, least)
		switch {
		case err == nil:
			raised.Add(1)
		case !errors.Is(err, lease.ErrNotFound): // else it was deleted meanwhile
			failed.Add(1)
			cli.Report(uninterrupted, c.Err, c.Name, cl.explain(d.ID, fmt.Errorf("%q: %w", d.ID, err)))
		}
		return nil
	})

	if c.JSON {
		_ = c.PrintJSON(map[string]int64{ // cli.Run reports its error
			"documents": int64(len(all)), "raised": raised.Load(), "failed": failed.Load(), "min_token": least,
		})
	} else {
		cli.Print(c.Out, "%d documents: %d tokens raised to %d, %d failed\n",
			len(all), raised.Load(), least, failed.Load())
	}
	if ctx.Err() == nil && failed.Load() > 0 {
		return cli.ExitError{Code: cli.ExitFailed}
	}
	return ctx.Err()
}
