package operate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"taskguard/cmd/internal/cli"
	"taskguard/cmd/internal/console"
	"taskguard/cmd/internal/printable"
	"taskguard/internal/delivery"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/lease/iso8601"
	"taskguard/repo"
)

// bulk is the flags of a change of all analyses that a filter selects.
type bulk struct {
	filter
	dryRun  bool
	running bool    // cancel also what a worker holds, even if it was acquired after the list was read
	rate    float64 // changes a second; 0: not limited
}

// declare declares the flags of b.
func (b *bulk) declare(cmd *cobra.Command, lookup cli.Lookup) {
	cmd.Flags().BoolVar(&b.dryRun, "dry-run", false, "with a filter: count, change nothing")
	cmd.Flags().Float64Var(&b.rate, "rate", 0, "with a filter: at most `N` changes a second (default: no limit)")
	b.filter.declare(cmd, lookup)
	cli.TakesKind(cmd, lookup, firstKind)
	cli.TakesJSON(cmd, "print a JSON line for each analysis and, with a filter, one for the summary")
}

// changeMany changes the analyses with these ids, or those that the filter selects.
func (b *bulk) changeMany(ctx context.Context, c *cli.Call, verb console.Verb, ids []string) error {
	filtered, err := b.given(c)
	switch {
	case err != nil:
		return err
	case filtered == (len(ids) > 0):
		return cli.UsageError("want either IDs or a filter, such as --status FAILED")
	case !filtered && (c.Flags.Changed("dry-run") || c.Flags.Changed("rate") || b.running):
		return cli.UsageError("--dry-run, --rate and --running need a filter, such as --status FAILED, and no IDs")
	case c.Flags.Changed("rate") && !(b.rate >= 0.001 && b.rate <= 1000):
		return cli.UsageError("--rate must be from 0.001 to 1000")
	}
	return changeAll(ctx, c, verb, ids, b)
}

// run lists the analyses, and then changes each of them unless it has changed since. When ctx ends, run
// completes the changes under way and begins no other.
func (b *bulk) run(ctx context.Context, c *cli.Call, cl *Client, verb console.Verb) error {
	c.Notice("%s", cl.place)
	all, limit, err := cl.find(ctx, c, &b.filter, math.MaxInt)
	if err != nil {
		return err
	}
	if !cl.books && verb != console.Cancel {
		c.Notice("TASK_QUEUE is not set: nothing is enqueued")
	}

	t := &tally{c: c, matched: len(all), dryRun: b.dryRun, outcomes: map[string]int{}, reasons: map[string]int{}}
	uninterrupted := context.WithoutCancel(ctx)
	request, log := console.Change{Verb: verb, Who: operator()}, c.Log()
	stopped := b.each(ctx, all, func(d *analysislock.Analysis) error {
		outcome, reason, err := b.change(uninterrupted, cl, request, d, log)
		t.add(uninterrupted, d.ID, outcome, reason, err)
		return queueRefuses(err)
	})

	t.print(verb)
	if stopped != nil {
		c.Notice("it has stopped, as the queue refuses deliveries; when that is corrected, run it again for the rest")
	}
	again := iso8601.Format(limit)
	if t.notBooked {
		c.Notice("%s --status QUEUED --since %s enqueues them now; "+
			"recovery does after one TTL", cl.place.Command("requeue"), again)
	}
	switch {
	case ctx.Err() != nil:
		c.Notice("run it again for the rest; --older-than %s leaves out what has changed since", again)
		return ctx.Err()
	case t.outcomes[failed] > 0:
		return cli.ExitError{Code: cli.ExitFailed}
	}
	return nil
}

// each calls do for all analyses, 16 at a time and at most at the rate. It stops when ctx ends, or
// when a call fails, and returns that error.
func (b *bulk) each(ctx context.Context, all []analysislock.Analysis, do func(*analysislock.Analysis) error) error {
	changes, ctx := errgroup.WithContext(ctx)
	changes.SetLimit(16)
	period := time.Microsecond
	if b.rate > 0 && !b.dryRun {
		period = time.Duration(float64(time.Second) / b.rate)
	}
	due := time.NewTicker(period)
	defer due.Stop()

	for i := range all {
		if i > 0 {
			select {
			case <-ctx.Done():
			case <-due.C:
			}
		}
		if ctx.Err() != nil {
			break
		}
		changes.Go(func() error { return do(&all[i]) })
	}
	return changes.Wait()
}

// queueRefuses returns err if its booking failed for a reason that is the same for all.
func queueRefuses(err error) error {
	code := status.Code(err)
	if errors.Is(err, console.ErrNotBooked) && (code == codes.NotFound || code == codes.PermissionDenied) {
		return err
	}
	return nil
}

// The outcomes of a bulk change of one analysis.
const didChange, wouldChange, skipped, failed = "changed", "would_change", "skipped", "failed"

// notConfirmed is the reason of a change that failed, but may have been made.
const notConfirmed = "not_confirmed"

// change changes an analysis that is still as d. It returns the outcome, and the reason for a skip, or notConfirmed.
// Without --running it skips an analysis that is held or has changed.
func (b *bulk) change(
	ctx context.Context, cl *Client, request console.Change, d *analysislock.Analysis, log *slog.Logger,
) (outcome, reason string, err error) {
	if d.Malformed != nil {
		return failed, "", cl.explain(d.ID, fmt.Errorf("%q: %w", d.ID, d.Malformed))
	}
	if reason := b.excludes(request.Verb, d); reason != "" {
		return skipped, reason, nil
	}
	if b.dryRun {
		return wouldChange, "", nil
	}

	request.ID = d.ID
	if !b.running { // with --running, a run that began or ended meanwhile is no reason to skip it
		request.Seen = console.StateOf(d)
	}
	done, err := cl.change(ctx, request, log)
	reason = skipReason(request.Verb, done, err)
	switch {
	case reason != "":
		return skipped, reason, nil
	case errors.Is(err, console.ErrUnconfirmed):
		return failed, notConfirmed, cl.explain(d.ID, fmt.Errorf("%q: %w", d.ID, err))
	case err != nil:
		return failed, "", cl.explain(d.ID, fmt.Errorf("%q: %w", d.ID, err))
	}
	return didChange, "", nil
}

// excludes returns why the change leaves out d, or "". It leaves out an analysis that is READY or
// that a requeue has already reset, unless the filter selects this status. So a command that is
// run again books no second delivery.
func (b *bulk) excludes(verb console.Verb, d *analysislock.Analysis) (reason string) {
	reset := d.Status == analysislock.Queued && d.Attempts == 0 && d.Lock.Owner == "" && d.LastError == nil
	switch {
	case verb == console.Cancel && d.Finished():
		return "already_finished"
	case lease.Held(d.Lock, d.ReadAt) && !b.running:
		return "held"
	case verb == console.Cancel:
		return ""
	case reset && b.status != analysislock.Queued:
		return "already_queued"
	case d.Closed() && b.status != d.Status:
		return "ready"
	}
	return ""
}

// skipReason returns why a listed analysis was skipped. It returns "" if it was changed, or if the
// change failed.
func skipReason(verb console.Verb, done changed, err error) (reason string) {
	switch {
	case errors.Is(err, console.ErrUnconfirmed): // also after conflicts
		return ""
	case errors.As(err, new(*lease.HeldError)):
		return "held"
	case errors.Is(err, lease.ErrConflict):
		return "changed"
	case errors.Is(err, lease.ErrNotFound):
		return "deleted"
	case errors.Is(err, lease.ErrFinished), err == nil && verb == console.Cancel && done.Was == done.Status:
		return "already_finished"
	}
	return ""
}

// tally counts and prints the outcomes of a bulk change. It is safe for concurrent use.
type tally struct {
	c       *cli.Call
	matched int
	dryRun  bool

	mu        sync.Mutex
	outcomes  map[string]int
	reasons   map[string]int // why analyses were skipped
	notBooked bool           // a change was made whose delivery is not booked

	unconfirmed int // of the failed: may have been made
}

// add counts the outcome of a change. It prints the error, if any, and with --json the line of the analysis.
func (t *tally) add(ctx context.Context, id, outcome, reason string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.outcomes[outcome]++
	if outcome == skipped {
		t.reasons[reason]++
	}
	if reason == notConfirmed {
		t.unconfirmed++
	}
	t.notBooked = t.notBooked || errors.Is(err, console.ErrNotBooked)
	cli.Report(ctx, t.c.Err, t.c.Name, err)
	if t.c.JSON {
		_ = t.c.PrintJSON(struct { // cli.Run reports its error
			ID      string `json:"id"`
			Outcome string `json:"outcome"`
			Reason  string `json:"reason,omitempty"`
		}{id, outcome, reason})
	}
}

// print prints the summary, and why some were skipped.
func (t *tally) print(verb console.Verb) {
	n := t.outcomes
	if t.c.JSON {
		_ = t.c.PrintJSON(map[string]any{"summary": map[string]any{
			"matched": t.matched, "dry_run": t.dryRun,
			"changed": n[didChange], "skipped": n[skipped], "failed": n[failed],
			"not_confirmed": t.unconfirmed,
		}})
	} else {
		word := "changed"
		if t.dryRun {
			word = "would be changed"
		}
		unconfirmed := ""
		if t.unconfirmed > 0 {
			unconfirmed = fmt.Sprintf(", %d of them not confirmed", t.unconfirmed)
		}
		cli.Print(t.c.Out, "%d matched, %d %s, %d skipped, %d failed%s\n",
			t.matched, n[didChange]+n[wouldChange], word, n[skipped], n[failed], unconfirmed)
	}

	var why []string
	for _, reason := range slices.Sorted(maps.Keys(t.reasons)) {
		why = append(why, fmt.Sprint(t.reasons[reason], " ", strings.ReplaceAll(reason, "_", " ")))
	}
	if verb == console.Cancel && t.reasons["held"] > 0 {
		why = append(why, "which --running cancels too")
	}
	if len(why) > 0 {
		t.c.Notice("skipped: %s", strings.Join(why, ", "))
	}
}

// filter is the flags that select analyses.
type filter struct {
	status, code, message string
	since, olderThan      func(now time.Time) time.Time
}

// declare declares the flags of f.
func (f *filter) declare(cmd *cobra.Command, lookup cli.Lookup) {
	flags := cmd.Flags()
	flags.StringVar(&f.status, "status", "", "filter: `STATUS` is QUEUED, PROCESSING, READY or FAILED")
	cli.Complete(cmd, "status", lookup, (*cli.Call).Statuses)
	flags.StringVar(&f.code, "code", "",
		"filter: with this `CODE` of the error, or of the last attempt's if it is the cause")
	cli.Complete(cmd, "code", lookup, func(*cli.Call) []string { return delivery.Codes() })
	flags.StringVar(&f.message, "message", "",
		"filter: with this `TEXT` in the message of that error")
	usage := map[string]string{
		"since":      "filter: last updated after this `TIME`, or this long ago, such as 1h",
		"older-than": "filter: last updated before this `TIME`, or longer ago than, such as 1h",
	}
	unlimited := func(time.Time) (none time.Time) { return none }
	f.since, f.olderThan = unlimited, unlimited
	for name, limit := range map[string]*func(time.Time) time.Time{"since": &f.since, "older-than": &f.olderThan} {
		flags.Func(name, usage[name], func(text string) (err error) {
			*limit, err = cli.ParseTime(text)
			return err
		})
	}
}

// given reports whether f selects analyses. It refuses what no analysis can have.
func (f *filter) given(c *cli.Call) (bool, error) {
	for name, value := range map[string]string{"status": f.status, "code": f.code, "message": f.message} {
		if c.Flags.Changed(name) && (value == "" || !utf8.ValidString(value)) {
			return true, cli.UsageError("--" + name + " must not be empty, and must be UTF-8")
		}
	}
	if c.Flags.Changed("status") {
		var err error
		if f.status, err = c.ParseStatus(f.status); err != nil {
			return true, err
		}
	}
	return slices.ContainsFunc([]string{"status", "code", "message", "since", "older-than"}, c.Flags.Changed), nil
}

// maxCodes bounds the codes that find names.
const maxCodes = 20

// find reads up to limit analyses that f selects. It returns the time of --older-than, or else
// Firestore's present time. The present time is no limit of the query, because an updatedAt may be
// some milliseconds ahead of it.
func (cl *Client) find(ctx context.Context, c *cli.Call, f *filter, limit int) (
	found []analysislock.Analysis, before time.Time, err error,
) {
	now, err := cl.Now(ctx)
	if err != nil {
		return nil, now, err
	}
	selected := repo.Filter{Status: f.status, Code: f.code, Since: f.since(now), Before: f.olderThan(now)}
	if f.message == "" {
		found, err = cl.Find(ctx, selected, "", limit)
	} else {
		found, err = cl.findMessage(ctx, c, f.message, selected, limit)
	}
	if err == nil && len(found) == 0 && f.code != "" && f.message == "" {
		codes, _ := cl.Codes(ctx, maxCodes) // some, if it fails
		if len(codes) >= maxCodes {         // the codes come from two lists, and one may be cut
			codes = append(codes, "and perhaps others")
		}
		known := ""
		if len(codes) > 0 {
			known = "; the codes are: " + printable.Line(strings.Join(codes, ", "))
		}
		c.Notice("no analysis matches%s", known)
	}
	return found, cmp.Or(selected.Before, now), explainIndex(err)
}

// findMessage reads all that selected selects, and returns up to limit of them whose error has the text in its message.
func (cl *Client) findMessage(
	ctx context.Context, c *cli.Call, text string, selected repo.Filter, limit int,
) ([]analysislock.Analysis, error) {
	all, err := cl.Find(ctx, selected, "", math.MaxInt)
	found := slices.DeleteFunc(slices.Clone(all), func(a analysislock.Analysis) bool { return !hasMessage(&a, text) })
	if err == nil && len(found) == 0 && len(all) > 0 {
		c.Notice("no analysis has this message; %d match without --message", len(all))
	}
	return found[:min(limit, len(found))], err
}

// hasMessage reports whether an error by which Analysis.HasCode selects a has the text in its message.
func hasMessage(a *analysislock.Analysis, text string) bool {
	last := a.LastError
	if a.Finished() {
		last = a.Cause()
	}
	return slices.ContainsFunc([]*analysislock.Error{a.Error, last}, func(e *analysislock.Error) bool {
		return e != nil && strings.Contains(e.Message, text)
	})
}
