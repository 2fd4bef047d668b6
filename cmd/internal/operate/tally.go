package operate

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"taskguard/cmd/internal/cli"
)

// tally counts and prints the outcomes of a bulk change. It is safe for concurrent use.
type tally struct {
	c        *cli.Call
	matched  int
	dryRun   bool
	terminal bool // standard error is one: it shows the progress

	mu        sync.Mutex
	outcomes  map[string]int
	reasons   map[string]int // of skips
	notBooked bool           // a change was made whose delivery is not booked
	shown     time.Time      // of the progress
}

func newTally(c *cli.Call, matched int, dryRun bool) *tally {
	return &tally{
		c: c, matched: matched, dryRun: dryRun, terminal: isTerminal(c.Err),
		outcomes: map[string]int{}, reasons: map[string]int{},
	}
}

// add counts the outcome of a change, and prints its error and its line.
func (t *tally) add(ctx context.Context, id, outcome, reason string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.outcomes[outcome]++
	if reason != "" {
		t.reasons[reason]++
	}
	if err != nil {
		t.notBooked = t.notBooked || errors.Is(err, errNotBooked)
		t.clearLine()
		cli.Report(ctx, t.c.Err, t.c.Name, err)
	}
	if t.terminal && time.Since(t.shown) > time.Second/5 {
		t.shown = time.Now()
		cli.Print(t.c.Err, "\r%s\x1b[K", t.summary())
	}
	if t.c.JSON {
		_ = t.c.PrintJSON(struct { // cli.Run reports its error
			ID      string `json:"id"`
			Outcome string `json:"outcome"`
			Reason  string `json:"reason,omitempty"`
		}{id, outcome, reason})
	}
}

// print prints the summary, and why some were skipped.
func (t *tally) print(v verb) {
	t.clearLine()
	if t.c.JSON {
		_ = t.c.PrintJSON(map[string]any{"summary": map[string]any{
			"matched": t.matched, "changed": t.outcomes[didChange], "skipped": t.outcomes[skipped],
			"failed": t.outcomes[failed], "dry_run": t.dryRun,
		}})
	} else {
		cli.Print(t.c.Out, "%s\n", t.summary())
	}

	var why []string
	for _, reason := range slices.Sorted(maps.Keys(t.reasons)) {
		why = append(why, fmt.Sprint(t.reasons[reason], " ", strings.ReplaceAll(reason, "_", " ")))
	}
	if v == verbCancel && t.reasons["held"] > 0 {
		why = append(why, "which --running cancels too")
	}
	if len(why) > 0 {
		t.c.Notice("skipped: %s", strings.Join(why, ", "))
	}
}

func (t *tally) summary() string {
	done, word := t.outcomes[didChange], "changed"
	if t.dryRun {
		done, word = t.outcomes[wouldChange], "would be changed"
	}
	return fmt.Sprintf("%d matched, %d %s, %d skipped, %d failed",
		t.matched, done, word, t.outcomes[skipped], t.outcomes[failed])
}

// clearLine removes the progress from a terminal.
func (t *tally) clearLine() {
	if t.terminal {
		cli.Print(t.c.Err, "\r\x1b[K")
	}
}

// isTerminal reports whether w is a terminal, or another character device.
func isTerminal(w any) bool {
	f, _ := w.(*os.File)
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
