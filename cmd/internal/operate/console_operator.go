package operate

import (
	"context"
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
func (o consoleOperator) Change(
	ctx context.Context, what console.Change, id, who string, seen analysislock.Seen,
) (console.Delivery, error) {
	done, err := o.change(ctx, verb(what), id, &seen, who, o.log)
	switch {
	case err == nil:
		return console.Delivery(done.Delivery), nil
	case done == (changed{}):
		return "", err
	}
	o.log.WarnContext(ctx, "no delivery is booked", "command", what, "analysis_id", id, "by", who, "error", err)
	return console.Failed, nil
}

// ChangeAll implements console.Operator.
func (o consoleOperator) ChangeAll(
	ctx context.Context, what console.Change, f func(now time.Time) repo.Filter, who string,
	last console.Bulk, limit int, dryRun bool,
) (console.Bulk, error) {
	selected, found, result, err := o.selected(ctx, f, last, limit)
	if err != nil {
		return result, refusal(err)
	}

	b := bulk{filter: filter{status: selected.Status}, dryRun: dryRun, who: who}
	uninterrupted := context.WithoutCancel(ctx)
	var mu sync.Mutex
	n := map[string]int64{}
	_ = b.each(ctx, found, func(d *analysislock.Analysis) error {
		outcome, _, err := b.change(uninterrupted, o.Client, verb(what), d, o.log)
		if err != nil {
			o.log.WarnContext(uninterrupted, "no delivery is booked, or nothing is changed",
				"command", what, "analysis_id", d.ID, "by", who, "error", err)
		}
		mu.Lock()
		defer mu.Unlock()
		n[outcome]++
		return queueRefuses(err) // it is logged
	})

	result.Changed, result.Skipped, result.Failed = n[didChange]+n[wouldChange], n[skipped], n[failed]
	if handled := result.Changed + result.Skipped + result.Failed; handled > 0 { // in the order of found
		result.After = o.Analyses.Position(&found[handled-1])
	}
	if !dryRun {
		o.log.InfoContext(uninterrupted, "all that a filter selects changed by an operator",
			"command", what, "status", selected.Status, "code", selected.Code,
			"since", selected.Since, "before", selected.Before, "by", who, "matched", result.Matched,
			"changed", result.Changed, "skipped", result.Skipped, "failed", result.Failed)
	}
	return result, nil
}

// selected reads up to limit analyses that f selects, after those that the change with the
// result last has handled, and counts those that are left.
func (o consoleOperator) selected(
	ctx context.Context, f func(now time.Time) repo.Filter, last console.Bulk, limit int,
) (selected repo.Filter, found []analysislock.Analysis, result console.Bulk, err error) {
	result.Before, result.After = last.Before, last.After
	if last.Before.IsZero() {
		if result.Before, err = o.Analyses.Now(ctx); err != nil {
			return selected, nil, result, err
		}
	}
	selected = f(result.Before)
	if selected.Before.IsZero() || selected.Before.After(result.Before) {
		selected.Before = result.Before
	}

	if result.Matched, err = o.Analyses.Count(ctx, selected); err != nil {
		return selected, nil, result, err
	}
	found, err = o.Analyses.Find(ctx, selected, last.After, limit)
	if len(found) < limit { // without those before last.After
		result.Matched = int64(len(found))
	}
	return selected, found, result, err
}
