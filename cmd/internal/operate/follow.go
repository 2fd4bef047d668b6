package operate

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"taskguard/cmd/internal/cli"
	"taskguard/cmd/internal/console"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/lease/iso8601"
	"taskguard/repo"
)

// maxSummary is the number of characters that are shown of a result.
const maxSummary = 80

// Pauses between two readings of the documents.
const (
	firstPause = 250 * time.Millisecond
	maxPause   = 2 * time.Second

	progressPause = 10 * time.Second // the shortest between two lines with the same state
)

// shown is what follow has printed last of an analysis.
type shown struct {
	at       time.Time
	state    string
	progress string
}

// follow polls until every analysis is finished, also through outages of Firestore.
func follow(ctx context.Context, c *cli.Call, cl *Client, show *cli.Progress, all []*submitted) error {
	done, unavailable := map[*submitted]bool{}, false
	for pause := firstPause; ; pause = min(pause*3/2, maxPause) {
		for _, s := range all {
			if done[s] {
				continue
			}
			finished, err := cl.poll(ctx, c, show, s)
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			outage := errors.Is(err, lease.ErrUnavailable) && console.Refusal(err) == ""
			switch {
			case outage && !unavailable:
				show.Print("Firestore does not answer; still waiting")
			case !outage && unavailable:
				show.Print("Firestore answers again")
			}
			if unavailable = outage; err != nil && !outage {
				return err
			}
			if finished {
				done[s] = true
			}
		}

		if len(done) == len(all) {
			return failures(all)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(pause):
		}
	}
}

// poll reads one analysis and prints what has changed.
func (cl *Client) poll(ctx context.Context, c *cli.Call, show *cli.Progress, s *submitted) (finished bool, err error) {
	a, err := cl.Analyses.Get(ctx, s.ID)
	if err != nil {
		return false, cl.explain(s.ID, err)
	}
	progress := ""
	if finished = a.Finished(); !finished && a.Progress != nil {
		progress = progressText(a.Progress)
	}
	s.show(show, state(&a), progress)
	if !finished {
		return false, nil
	}

	s.Status, s.Error = a.Status, a.Error
	if s.Result, err = plainJSON(a.Result); err == nil && c.JSON {
		err = c.PrintJSON(s)
	}
	return true, err
}

// show prints a state that has changed at once, and its progress at most each progressPause.
func (s *submitted) show(show *cli.Progress, state, progress string) {
	soon := progress == s.shown.progress || time.Since(s.shown.at) < progressPause
	if state == s.shown.state && soon {
		return
	}
	s.shown = shown{time.Now(), state, progress}
	show.Print("%s %s", s.Name, strings.TrimSuffix(state+"; "+progress, "; "))
}

func failures(all []*submitted) error {
	failed := 0
	for _, s := range all {
		if s.Status == analysislock.Failed {
			failed++
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d FAILED", failed, len(all))
	}
	return nil
}

// state describes an analysis in one line: its result, or why it has none.
func state(a *analysislock.Analysis) string {
	switch {
	case a.Finished() && a.Error != nil:
		return a.Status + " " + a.Error.Code + ": " + a.Error.Message
	case a.Finished():
		return strings.TrimSpace(a.Status + " " + summary(a.Result))
	}

	text := statusOrNone(a.Status)
	if a.Attempts > 0 {
		text += fmt.Sprintf(", attempt %d", a.Attempts)
	}
	before := len(a.History) - 2 // the attempt before this one
	switch {
	case a.Lock.Owner != "" && !lease.Held(a.Lock, a.ReadAt):
		text += "; its worker is lost: the lock expired at " + iso8601.Format(a.Lock.ExpiresAt)
	case before >= 0 && a.Lock.Owner != "" && a.History[before].Outcome == "":
		text += fmt.Sprintf("; the worker of attempt %d was lost", a.History[before].Number)
	}
	if e := a.LastError; e != nil {
		text += "; the last attempt failed temporarily: " + e.Code + ": " + cli.Shorten(e.Message, 100)
	}
	if !a.NextAttemptAt.IsZero() {
		text += "; the next attempt is at " + iso8601.Format(a.NextAttemptAt)
	}
	return text
}

// summary returns the beginning of a result, as JSON.
func summary(result any) string {
	text, err := repo.Plain(result)
	if result == nil || err != nil {
		return ""
	}
	if r := []rune(string(text)); len(r) > maxSummary {
		return string(r[:maxSummary-1]) + "…"
	}
	return string(text)
}
