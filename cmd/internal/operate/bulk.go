package operate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"taskguard/cmd/internal/cli"
	"taskguard/cmd/internal/console"
	"taskguard/cmd/internal/printable"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/lease/iso8601"
	"taskguard/repo"
)

// maxCodes bounds the codes that are listed where none matches.
const maxCodes = 20

// filter is the flags that select analyses.
type filter struct {
	status, code  string
	since, before func(now time.Time) time.Time
}

// flags declares the flags of f.
func (f *filter) flags(c *cli.Call) {
	c.Flags.StringVar(&f.status, "status", "", "filter: with this `STATUS`: QUEUED, PROCESSING, READY or FAILED")
	c.Flags.StringVar(&f.code, "code", "", "filter: with this `CODE` of the error, or of the last attempt's")
	unlimited := func(time.Time) (none time.Time) { return none }
	f.since, f.before = unlimited, unlimited
	for name, at := range map[string]*func(time.Time) time.Time{"since": &f.since, "older-than": &f.before} {
		c.Flags.Func(name, "filter: by the last update: a `TIME`, or how long ago it was, such as 1h", func(text string) error {
			parsed, err := console.ParseTime(text)
			if err == nil {
				*at = parsed
			}
			return err
		})
	}
}

// given reports whether f selects analyses. It refuses what no analysis can have.
func (f *filter) given(c *cli.Call) (bool, error) {
	for name, value := range map[string]string{"status": f.status, "code": f.code} {
		if c.Given(name) && (value == "" || !utf8.ValidString(value)) {
			return true, cli.UsageError("--" + name + " must not be empty, and must be UTF-8")
		}
	}
	return slices.ContainsFunc([]string{"status", "code", "since", "older-than"}, c.Given), nil
}

// find reads up to limit analyses that f selects. before is the time of --older-than, or else
// Firestore's. That is no limit: an updatedAt may be some milliseconds ahead of it. If there are
// none, it prints which statuses there are and, if they can be read, which codes.
func (cl *Client) find(ctx context.Context, c *cli.Call, f *filter, limit int) (
	found []analysislock.Analysis, before time.Time, err error,
) {
	now, err := cl.analyses.Now(ctx)
	if err != nil {
		return nil, now, err
	}
	selected := repo.Filter{Status: f.status, Code: f.code, Since: f.since(now), Before: f.before(now)}
	found, err = cl.analyses.Find(ctx, selected, "", limit)
	if err == nil && len(found) == 0 && f.status+f.code != "" {
		known := ""
		if codes, err := cl.analyses.Codes(ctx, maxCodes); err == nil {
			known = ", the codes of errors are: " + printable.Line(cmp.Or(strings.Join(codes, ", "), "none"))
		}
		cli.Print(c.Err, "taskguard %s: no analysis matches; the statuses are QUEUED, PROCESSING, READY and FAILED%s\n", c.Name, known)
	}
	return found, cmp.Or(selected.Before, now), explainIndex(err)
}

// bulk is the flags of a change of all analyses that a filter selects.
type bulk struct {
	filter
	dryRun bool
	// running makes cancel take those too that are held, also since they were listed.
	running bool
	rate    float64 // changes a second; 0: not limited
	who     string  // makes the changes; empty: operator
}

// parse returns the IDs, or none if a filter is given.
func (b *bulk) parse(c *cli.Call) ([]string, error) {
	c.TakesKind(firstKind)
	c.TakesJSON("print a JSON line for each analysis and, with a filter, one for the summary")
	b.flags(c)
	c.Flags.BoolVar(&b.dryRun, "dry-run", false, "with a filter: change nothing, only count")
	c.Flags.Float64Var(&b.rate, "rate", 0, "with a filter: at most `N` changes a second (default: no limit)")
	ids, err := c.Parse(0, -1)
	if err != nil {
		return nil, err
	}
	filtered, err := b.given(c)
	switch {
	case err != nil:
		return nil, err
	case filtered == (len(ids) > 0):
		return nil, cli.UsageError("want either IDs or a filter, such as --status FAILED")
	case !filtered && (c.Given("dry-run") || c.Given("rate") || b.running):
		return nil, cli.UsageError("options of a bulk change need a filter, such as --status FAILED")
	case c.Given("rate") && !(b.rate >= 0.001 && b.rate <= 1000):
		return nil, cli.UsageError("--rate must be from 0.001 to 1000")
	}
	return ids, nil
}

// run lists the analyses first, and then makes the change to each that is still as it was
// listed. When ctx ends, it completes the changes under way and begins no other.
func (b *bulk) run(ctx context.Context, c *cli.Call, cl *Client, what console.Change) error {
	all, before, err := cl.find(ctx, c, &b.filter, math.MaxInt)
	if err != nil {
		return err
	}
	if cl.queue == nil && what != console.Cancel {
		cli.Print(c.Err, "taskguard %s: TASK_QUEUE is not set: no deliveries are booked\n", c.Name)
	}
	log, terminal := c.Log(), isTerminal(c.Err)
	if terminal { // which shows the progress instead
		log = slog.New(slog.DiscardHandler)
	}
	var mu sync.Mutex
	var shown time.Time
	notBooked := false
	n, reasons := map[string]int{}, map[string]int{}
	summary := func() string {
		if b.dryRun {
			return fmt.Sprintf("%d matched, %d would be changed, %d skipped, %d failed", len(all), n[wouldChange], n[skipped], n[failed])
		}
		return fmt.Sprintf("%d matched, %d changed, %d skipped, %d failed", len(all), n[didChange], n[skipped], n[failed])
	}
	uninterrupted := context.WithoutCancel(ctx)
	stopped := b.each(ctx, all, func(d *analysislock.Analysis) error {
		outcome, reason, err := b.change(uninterrupted, cl, what, d, log)
		mu.Lock()
		defer mu.Unlock()
		n[outcome]++
		if reason != "" {
			reasons[reason]++
		}
		if err != nil {
			notBooked = notBooked || errors.Is(err, errNotBooked)
			if terminal {
				cli.Print(c.Err, "\r\x1b[K")
			}
			cli.Report(uninterrupted, c.Err, c.Name, err)
		}
		if terminal && time.Since(shown) > time.Second/5 {
			shown = time.Now()
			cli.Print(c.Err, "\r%s\x1b[K", summary())
		}
		if c.JSON {
			line := map[string]string{"id": d.ID, "outcome": outcome, "reason": reason}
			maps.DeleteFunc(line, func(_, value string) bool { return value == "" })
			_ = c.PrintJSON(line) // cli.Run reports its error
		}
		return queueRefuses(err)
	})
	if terminal {
		cli.Print(c.Err, "\r\x1b[K")
	}
	if c.JSON {
		err = c.PrintJSON(map[string]any{"summary": map[string]any{
			"matched": len(all), "changed": n[didChange], "skipped": n[skipped], "failed": n[failed], "dry_run": b.dryRun,
		}})
	} else {
		_, err = fmt.Fprintln(c.Out, summary())
	}
	var why []string
	for _, reason := range slices.Sorted(maps.Keys(reasons)) {
		why = append(why, fmt.Sprint(reasons[reason], " ", strings.ReplaceAll(reason, "_", " ")))
	}
	if what == console.Cancel && reasons["held"] > 0 {
		why = append(why, "which --running cancels too")
	}
	if len(why) > 0 {
		cli.Print(c.Err, "taskguard %s: skipped: %s\n", c.Name, strings.Join(why, ", "))
	}
	if stopped != nil {
		cli.Print(c.Err, "taskguard %s: it has stopped, as the queue refuses deliveries; when that is corrected, run it again for the rest\n", c.Name)
	}
	if notBooked {
		cli.Print(c.Err, "taskguard %s: taskguard requeue%s --status QUEUED --since %s books the missing deliveries now; recovery does after one TTL\n", c.Name, cl.place.Flag(), iso8601.Format(before))
	}
	if ctx.Err() != nil {
		cli.Print(c.Err, "taskguard %s: run it again for the rest; --older-than %s leaves out what has changed since\n", c.Name, iso8601.Format(before))
		return ctx.Err()
	}
	if err == nil && n[failed] > 0 {
		return cli.ExitError{Code: cli.ExitFailed}
	}
	return err
}

// each calls do for all analyses, 16 at a time and at most at the rate, until ctx ends or
// one call returns an error, which each returns.
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
	if code := status.Code(err); errors.Is(err, errNotBooked) && (code == codes.NotFound || code == codes.PermissionDenied) {
		return err
	}
	return nil
}

// The outcomes of a bulk change of one analysis.
const didChange, wouldChange, skipped, failed = "changed", "would_change", "skipped", "failed"

// change makes the change to an analysis that is still as d, and returns the outcome and, of a
// skip, the reason. Unless b.running, it skips an analysis that is held or has changed. It skips
// an analysis that is READY, or that a requeue has already reset, unless the filter selects its
// status. So a command that is run again books no second delivery.
func (b *bulk) change(ctx context.Context, cl *Client, what console.Change, d *analysislock.Analysis,
	log *slog.Logger,
) (outcome, reason string, err error) {
	reset := b.status != analysislock.Queued && d.Status == analysislock.Queued && d.Attempts == 0 && d.Lock.Owner == "" && d.LastError == nil
	switch {
	case d.Malformed != nil:
		return failed, "", cl.explain(d.ID, fmt.Errorf("%q: %w", d.ID, d.Malformed))
	case what == console.Cancel && analysislock.Finished(d.Status):
		return skipped, "already_finished", nil
	case lease.Held(d.Lock, d.ReadAt) && !b.running:
		return skipped, "held", nil
	case what != console.Cancel && reset:
		return skipped, "already_queued", nil
	case what != console.Cancel && d.Status == analysislock.Ready && b.status != analysislock.Ready:
		return skipped, "ready", nil
	case b.dryRun:
		return wouldChange, "", nil
	}
	seen := &analysislock.Seen{Status: d.Status, Grant: d.Lock.Grant()}
	if b.running { // a run that has begun or ended since is no reason to skip it
		seen = nil
	}
	done, err := cl.change(ctx, what, d.ID, seen, cmp.Or(b.who, operator()), log)
	switch {
	case errors.As(err, new(*lease.HeldError)):
		return skipped, "held", nil
	case errors.Is(err, lease.ErrConflict):
		return skipped, "changed", nil
	case errors.Is(err, lease.ErrFinished), err == nil && done.Was == done.Status && what == console.Cancel: // it was cancelled before
		return skipped, "already_finished", nil
	case errors.Is(err, lease.ErrNotFound):
		return skipped, "deleted", nil
	case err != nil:
		return failed, "", cl.explain(d.ID, fmt.Errorf("%q: %w", d.ID, err))
	}
	return didChange, "", nil
}

// isTerminal reports whether w is a terminal, or another character device.
func isTerminal(w any) bool {
	f, _ := w.(*os.File)
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
