package operate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

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

// submitted is the output of submit --json for one analysis.
type submitted struct {
	ID      string              `json:"id"`
	Name    string              `json:"name"`
	Created bool                `json:"created"`               // false: it existed already
	Other   bool                `json:"other_input,omitempty"` // it exists with another input, and keeps that
	Booked  string              `json:"booked"`                // now, already, or not_needed: it is finished
	Status  string              `json:"status"`
	Error   *analysislock.Error `json:"error,omitempty"`  // with --wait
	Result  json.RawMessage     `json:"result,omitempty"` // with --wait

	// With --wait, what was printed last, and when.
	printed, progress string // the state and the tenths of its progress; the progress
	at                time.Time
}

// Submit creates an analysis for each file and books its delivery. The id of an
// analysis is made from its name and content, so submitting it again changes nothing.
func Submit(ctx context.Context, c *cli.Call) (err error) {
	input := c.Flags.String("input", "", "submit this JSON `value`, that of @FILE, or with - that of standard input, instead of files")
	id := c.Flags.String("id", "", "the `id` of the one analysis; without it, the id is made from name and content")
	wait := c.Flags.Bool("wait", false, "wait until the analyses are finished; exit 1 if any is FAILED")
	c.TakesKind(firstKind)
	c.TakesJSON("print one JSON line for each analysis, with --wait when it is finished; progress goes to standard error")
	files, err := c.Parse(0, -1)
	if err != nil {
		return err
	}
	docs, err := submission(c, files, *input, *id)
	if err != nil {
		return err
	}
	cl, err := connect(ctx, c, requiredQueue)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cl.close()) }()
	show := c.Progress()
	var all []*submitted
	for _, doc := range docs {
		s, err := cl.submit(ctx, doc)
		if err != nil {
			return fmt.Errorf("%s: %w", printable.Line(doc.Name), err)
		}
		all = append(all, s)
		switch {
		case *wait:
			show.Print("%s", s)
		case c.JSON:
			err = c.PrintJSON(s)
		default:
			_, err = fmt.Fprintln(c.Out, printable.Line(s.String()))
		}
		if err != nil {
			return err
		}
	}
	if slices.ContainsFunc(all, func(s *submitted) bool { return s.Other }) {
		return errors.New("an analysis with this id exists with another input: choose another --id")
	}
	if *wait {
		return follow(ctx, c, cl, show, all)
	}
	return nil
}

// submission returns the documents that the command line names.
func submission(c *cli.Call, files []string, input, id string) ([]Document, error) {
	switch {
	case !c.Given("input") && len(files) == 0:
		return nil, c.MissingArgument()
	case c.Given("input") && len(files) > 0:
		return nil, cli.UsageError("--input and files exclude each other")
	case c.Given("id") && len(files) > 1:
		return nil, cli.UsageError("--id is for one analysis")
	}
	if c.Given("id") {
		if err := checkID(id); err != nil {
			return nil, cli.UsageError("--id: " + err.Error())
		}
	}
	if c.Given("input") {
		text, err := readInput(c.In, input)
		if err != nil {
			return nil, fmt.Errorf("--input %s: %w", printable.Line(input), err)
		}
		doc, err := inputDocument(text, id)
		if err != nil {
			err = fmt.Errorf("--input: %w", err)
		}
		return []Document{doc}, err
	}
	docs, err := ReadDocuments(files, ReadFile)
	if err == nil && id != "" {
		docs[0].ID = id
	}
	return docs, err
}

// submit creates the document unless it exists, and books unless it is finished.
func (cl *Client) submit(ctx context.Context, doc Document) (*submitted, error) {
	done, err := cl.guard().Submit(ctx, cl.analyses, repo.ErrExists, doc.ID, doc.Input)
	s := &submitted{ID: doc.ID, Name: doc.Name, Created: done.Created, Other: errors.Is(err, delivery.ErrOtherInput), Booked: "now", Status: done.Status}
	switch {
	case errors.Is(err, delivery.ErrNotBooked):
		return nil, fmt.Errorf("%w; repeat the command", err)
	case err != nil && !s.Other:
		return nil, err
	case done.Already:
		s.Booked = "already"
	case !done.Booked:
		s.Booked = string(console.NotNeeded)
	}
	return s, nil
}

// String describes what submit did.
func (s *submitted) String() string {
	name, created := s.ID, "created"
	if s.Name != s.ID {
		name += "  " + s.Name
	}
	switch {
	case s.Other:
		created = "exists already with another input, which is left as it is; " + statusOrNone(s.Status)
	case !s.Created:
		created = "exists already, " + statusOrNone(s.Status)
	}
	booking := map[string]string{
		"now": "delivery booked", "already": "its delivery was booked before", string(console.NotNeeded): "finished, no delivery needed",
	}
	return fmt.Sprintf("%s: %s; %s", name, created, booking[s.Booked])
}

// maxSummary is the number of characters that are shown of a result.
const maxSummary = 80

// Pauses between two readings of the documents.
const (
	firstPause = 250 * time.Millisecond
	maxPause   = 2 * time.Second

	messagePause = 30 * time.Second // the shortest between two messages without a fraction
)

// follow polls until every analysis is finished, also through outages of Firestore.
func follow(ctx context.Context, c *cli.Call, cl *Client, show *cli.Progress, all []*submitted) error {
	done, pending, unavailable := make([]bool, len(all)), len(all), false
	for pause := firstPause; ; pause = min(pause*3/2, maxPause) {
		for i, s := range all {
			if done[i] {
				continue
			}
			var err error
			done[i], err = cl.poll(ctx, c, show, s)
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if outage := errors.Is(err, lease.ErrUnavailable) && refusals[status.Code(err)] == ""; outage != unavailable {
				unavailable = outage
				show.Print("%s", map[bool]string{true: "Firestore does not answer; still waiting", false: "Firestore answers again"}[unavailable])
			}
			if err != nil && !unavailable {
				return err
			}
			if done[i] {
				pending--
			}
		}
		if pending == 0 {
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
func (cl *Client) poll(ctx context.Context, c *cli.Call, show *cli.Progress, s *submitted) (done bool, err error) {
	a, err := cl.analyses.Get(ctx, s.ID)
	if err != nil {
		return false, cl.explain(s.ID, err)
	}
	text, progress, tenths := state(a), "", -1
	if p := a.Progress; p != nil && !analysislock.Finished(a.Status) {
		if progress = progressText(p); p.Fraction != nil {
			tenths = int(10 * *p.Fraction)
		}
	}
	key := fmt.Sprint(tenths, progress != "", text)
	if key != s.printed || tenths < 0 && progress != s.progress && time.Since(s.at) >= messagePause {
		s.printed, s.progress, s.at = key, progress, time.Now()
		show.Print("%s %s", s.Name, strings.TrimSuffix(text+"; "+progress, "; "))
	}
	s.Status, s.Error = a.Status, a.Error
	if !analysislock.Finished(a.Status) {
		return false, nil
	}
	if a.Result != nil {
		s.Result, err = repo.Plain(a.Result)
	}
	if err == nil && c.JSON {
		err = c.PrintJSON(s)
	}
	return true, err
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
func state(a analysislock.Analysis) string {
	switch {
	case analysislock.Finished(a.Status) && a.Error != nil:
		return a.Status + " " + a.Error.Code + ": " + a.Error.Message
	case analysislock.Finished(a.Status):
		return strings.TrimSpace(a.Status + " " + summary(a.Result))
	}
	text := statusOrNone(a.Status)
	if a.Attempts > 0 {
		text += fmt.Sprintf(", attempt %d", a.Attempts)
	}
	lost := len(a.History) - 2 // the attempt before this one
	switch {
	case a.Lock.Owner != "" && !lease.Held(a.Lock, a.ReadAt):
		text += "; its worker is lost: the lock expired at " + iso8601.Format(a.Lock.ExpiresAt)
	case lost >= 0 && a.Lock.Owner != "" && a.History[lost].Outcome == "":
		text += fmt.Sprintf("; the worker of attempt %d was lost", a.History[lost].Number)
	}
	if a.LastError != nil {
		text += "; the last attempt failed temporarily: " + a.LastError.Code + ": " + cli.Shorten(a.LastError.Message, 100)
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
