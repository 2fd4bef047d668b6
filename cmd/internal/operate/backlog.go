package operate

import (
	"context"
	"fmt"
	"strings"
	"time"

	"taskguard/cmd/internal/cli"
	"taskguard/repo"
)

// maxStuck is how many stuck analyses a summary lists to count them, plotWidth the width of its
// bars, and clock its form of a time.
const maxStuck, plotWidth, clock = 50, 40, "15:04"

// summarize prints the backlog.
func (cl *Client) summarize(ctx context.Context, c *cli.Call) error {
	_, _, stuck, _, err := cl.Analyses.Active(ctx, maxStuck)
	if err != nil {
		return explainIndex(err)
	}
	b, err := cl.Analyses.Backlog(ctx, len(stuck))
	switch {
	case err != nil:
		return explainIndex(err)
	case c.JSON:
		return c.PrintJSON(struct {
			Kind string `json:"kind,omitempty"` // unless it is analysis
			repo.Backlog
		}{cl.place.Other(), b})
	}

	drained := "not drained: nothing ends"
	switch left := b.DrainedAt.Sub(b.At).Round(time.Second); {
	case b.Waiting+b.Stuck == 0:
		drained = "nothing waits"
	case !b.DrainedAt.IsZero():
		drained = fmt.Sprintf("drained in about %v at the present rate, if no more are created", left)
	}
	cli.Print(c.Out, "%d running, %d waiting, %d stuck\n", b.Running, b.Waiting, b.Stuck)
	if !b.OldestCreatedAt.IsZero() {
		cli.Print(c.Out, "the oldest was created %v ago\n", b.At.Sub(b.OldestCreatedAt).Round(time.Second))
	}
	cli.Print(c.Out, "%s\n%d ended, %d were created since %s UTC\n", drained, b.Ended, b.Created, b.Since.Format(clock))

	const row = "%-5v  %7v  %8v  %6v  %s%s\n"
	cli.Print(c.Out, "\n"+row, "UTC", "STARTED", "FINISHED", "FAILED", "# finished, x failed", "")
	scaled := func(n int64) int { return int((n*plotWidth + b.Top - 1) / max(1, b.Top)) }
	for _, i := range b.Intervals {
		failed := scaled(i.Failed) // one is visible beside thousands
		bar := strings.Repeat("#", scaled(i.Finished+i.Failed)-failed)
		cli.Print(c.Out, row, i.From.Format(clock), i.Started, i.Finished, i.Failed, bar, strings.Repeat("x", failed))
	}
	return nil
}
