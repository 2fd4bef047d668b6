package operate

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"taskguard/cmd/internal/console"
	"taskguard/lease/analysislock"
	"taskguard/repo"
)

// consoleOperator makes the console's changes as the commands do.
type consoleOperator struct {
	*Client
	log *slog.Logger
}

// Change implements console.Operator.
func (o consoleOperator) Change(ctx context.Context, c console.Change) (console.Delivery, error) {
	done, err := o.change(ctx, c, o.log)
	if errors.Is(err, console.ErrNotBooked) {
		o.warn(ctx, c, err)
	}
	return done.Delivery, err
}

// warn logs why a change is not made, or its delivery not booked.
func (o consoleOperator) warn(ctx context.Context, c console.Change, err error) {
	o.log.WarnContext(ctx, "no delivery is booked, or nothing is changed",
		"command", c.Verb, "analysis_id", c.ID, "by", c.Who, "error", err)
}

// ChangeAll implements console.Operator.
func (o consoleOperator) ChangeAll(
	ctx context.Context, verb console.Verb, f func(now time.Time) repo.Filter, who string,
	before time.Time, limit int, dryRun bool,
) (result console.Bulk, err error) {
	if result.Before = before; before.IsZero() {
		if result.Before, err = o.Analyses.Now(ctx); err != nil {
			return result, err
		}
	}
	selected := f(result.Before)
	if selected.Before.IsZero() || selected.Before.After(result.Before) {
		selected.Before = result.Before
	}
	if result.Matched, err = o.Analyses.Count(ctx, selected); err != nil {
		return result, err
	}
	found, err := o.Analyses.Find(ctx, selected, "", limit)
	if err != nil {
		return result, err
	}

	b := bulk{filter: filter{status: selected.Status}, dryRun: dryRun}
	uninterrupted := context.WithoutCancel(ctx)
	var mu sync.Mutex
	n := map[string]int64{}
	_ = b.each(ctx, found, func(d *analysislock.Analysis) error {
		c := console.Change{Verb: verb, ID: d.ID, Who: who}
		outcome, _, err := b.change(uninterrupted, o.Client, c, d, o.log)
		if err != nil {
			o.warn(uninterrupted, c, err)
		}
		mu.Lock()
		defer mu.Unlock()
		n[outcome]++
		return queueRefuses(err)
	})

	result.Changed, result.Skipped, result.Failed = n[didChange]+n[wouldChange], n[skipped], n[failed]
	if !dryRun {
		o.log.InfoContext(uninterrupted, "all that a filter selects changed by an operator",
			"command", verb, "status", selected.Status, "code", selected.Code,
			"since", selected.Since, "before", selected.Before, "by", who, "matched", result.Matched,
			"changed", result.Changed, "skipped", result.Skipped, "failed", result.Failed)
	}
	return result, nil
}
