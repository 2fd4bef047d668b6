package operate

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"taskguard/cmd/internal/cli"
	"taskguard/cmd/internal/console"
)

// tally counts and prints the outcomes of a bulk change. It is safe for concurrent use.
type tally struct {
	c       *cli.Call
	matched int
	dryRun  bool

	mu        sync.Mutex
	outcomes  map[string]int
	reasons   map[string]int // of skips
	notBooked bool           // a change was made whose delivery is not booked
}

// add counts the outcome of a change, and prints its error and its line.
func (t *tally) add(ctx context.Context, id, outcome, reason string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.outcomes[outcome]++
	if reason != "" {
		t.reasons[reason]++
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
			"matched": t.matched, "changed": n[didChange], "skipped": n[skipped], "failed": n[failed], "dry_run": t.dryRun,
		}})
	} else {
		word := "changed"
		if t.dryRun {
			word = "would be changed"
		}
		cli.Print(t.c.Out, "%d matched, %d %s, %d skipped, %d failed\n",
			t.matched, n[didChange]+n[wouldChange], word, n[skipped], n[failed])
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
