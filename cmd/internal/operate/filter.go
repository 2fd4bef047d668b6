package operate

import (
	"cmp"
	"context"
	"slices"
	"time"
	"unicode/utf8"

	"taskguard/cmd/internal/cli"
	"taskguard/lease/analysislock"
	"taskguard/repo"
)

// filter is the flags that select analyses.
type filter struct {
	status, code  string
	since, before func(now time.Time) time.Time
}

// flags declares the flags of f.
func (f *filter) flags(c *cli.Call) {
	c.Flags.StringVar(&f.status, "status", "", "filter: with this `STATUS`: QUEUED, PROCESSING, READY or FAILED")
	c.Flags.StringVar(&f.code, "code", "", "filter: with this `CODE` of the error, or of the last attempt's")
	const usage = "filter: by the last update: a `TIME`, or how long ago it was, such as 1h"
	unlimited := func(time.Time) (none time.Time) { return none }
	f.since, f.before = unlimited, unlimited
	for name, limit := range map[string]*func(time.Time) time.Time{"since": &f.since, "older-than": &f.before} {
		c.Flags.Func(name, usage, func(text string) (err error) {
			*limit, err = cli.ParseTime(text)
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

// find reads up to limit analyses that f selects. It returns the time of --older-than, or else
// Firestore's present time. It does not use the latter as a limit, as an updatedAt may be some
// milliseconds ahead of it.
func (cl *Client) find(ctx context.Context, c *cli.Call, f *filter, limit int) (
	found []analysislock.Analysis, before time.Time, err error,
) {
	now, err := cl.Analyses.Now(ctx)
	if err != nil {
		return nil, now, err
	}
	selected := repo.Filter{Status: f.status, Code: f.code, Since: f.since(now), Before: f.before(now)}
	found, err = cl.Analyses.Find(ctx, selected, "", limit)
	if err == nil && len(found) == 0 && f.status+f.code != "" {
		c.Notice("no analysis matches; the statuses are QUEUED, PROCESSING, READY and FAILED")
	}
	return found, cmp.Or(selected.Before, now), explainIndex(err)
}
