package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/status"

	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/lease/iso8601"
	"taskguard/repo"
	"taskguard/worker/taskqueue"
)

// submitted is what submit prints of each analysis with --json.
type submitted struct {
	ID      string              `json:"id"`
	Name    string              `json:"name"`
	Created bool                `json:"created"` // false: it existed already
	Booked  string              `json:"booked"`  // now, already, or not_needed: it is finished
	Status  string              `json:"status"`
	Error   *analysislock.Error `json:"error,omitempty"`  // with --wait
	Result  json.RawMessage     `json:"result,omitempty"` // with --wait

	said string // last, while it was followed
}

// submit creates an analysis for each file and books its delivery. Ids are made
// of name and content: to submit again changes nothing.
func submit(ctx context.Context, c *call) (err error) {
	input := c.flags.String("input", "", "submit this JSON `value` instead of files")
	id := c.flags.String("id", "", "the analysis's `id`, for one analysis; else made of name and content")
	wait := c.flags.Bool("wait", false, "follow the analyses to their end; exit 1 if any FAILED")
	c.takesJSON("print one JSON line for each analysis, at its end with --wait; progress goes to standard error")
	files, err := c.parse(0, -1)
	if err != nil {
		return err
	}
	docs, err := c.submission(files, *input, *id)
	if err != nil {
		return err
	}
	cl, err := c.connect(ctx, mustQueue, repo.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cl.close()) }()
	var all []*submitted
	for _, doc := range docs {
		s, err := cl.submit(ctx, doc)
		if err != nil {
			return fmt.Errorf("%s: %w", visible(doc.name), err)
		}
		all = append(all, s)
		if !*wait {
			if err := c.tellSubmitted(s); err != nil {
				return err
			}
		} else if !s.Created && *id != "" {
			printTo(c.err, "taskguard submit: %s exists already and keeps its input\n", visible(s.ID))
		}
	}
	if *wait {
		return c.follow(ctx, cl, all)
	}
	return nil
}

// submission is what the command line asks for.
func (c *call) submission(files []string, input, id string) ([]document, error) {
	given := map[string]bool{}
	c.flags.Visit(func(f *flag.Flag) { given[f.Name] = true })
	switch {
	case !given["input"] && len(files) == 0:
		return nil, usageError("missing argument: want " + c.arguments)
	case given["input"] && len(files) > 0:
		return nil, usageError("--input and files exclude each other")
	case given["id"] && len(files) > 1:
		return nil, usageError("--id is for one analysis")
	}
	if given["id"] {
		if err := checkID(id); err != nil {
			return nil, usageError("--id: " + err.Error())
		}
	}
	if given["input"] {
		doc, err := inputDocument(input, id)
		return []document{doc}, err
	}
	docs, err := readDocuments(files, readFile)
	if err == nil && id != "" {
		docs[0].id = id
	}
	return docs, err
}

// submit creates the document unless it exists, and books unless it is finished.
func (cl *client) submit(ctx context.Context, doc document) (*submitted, error) {
	s := &submitted{ID: doc.id, Name: doc.name, Booked: "now"}
	err := cl.analyses.Create(ctx, doc.id, doc.input)
	if s.Created = err == nil; !s.Created && !errors.Is(err, repo.ErrExists) {
		return nil, err
	}
	a, err := cl.analyses.Get(ctx, doc.id)
	if s.Status = a.Status; err == nil && finished(a.Status) {
		s.Booked = string(notNeeded)
		return s, nil
	}
	if err == nil {
		// Submitting again books what a submit that died has not, and nothing where
		// the name is taken. Where that task is gone, recovery books another.
		task := cl.task(doc.id, "submit")
		task.Name = taskqueue.Name("submit", doc.id, iso8601.Format(a.CreatedAt))
		var already bool
		if already, err = cl.queue.Book(ctx, task); already {
			s.Booked = "already"
		}
	}
	if err != nil {
		return nil, fmt.Errorf("the document exists, but its delivery is not booked: %w; repeating the command books it", err)
	}
	return s, nil
}

func finished(status string) bool {
	return status == analysislock.Ready || status == analysislock.Failed
}

func (c *call) tellSubmitted(s *submitted) error {
	if c.json {
		return json.NewEncoder(c.out).Encode(s)
	}
	made := "created"
	if !s.Created {
		made = "exists already and keeps its input, " + orNone(s.Status)
	}
	what := map[string]string{"now": "delivery booked", "already": "its delivery was booked before", string(notNeeded): "finished, no delivery needed"}
	_, err := fmt.Fprintf(c.out, "%s  %s: %s; %s\n", s.ID, visible(s.Name), visible(made), what[s.Booked])
	return err
}

// Pauses between two looks at the documents.
const (
	firstLook = 250 * time.Millisecond
	longLook  = 2 * time.Second
)

// follow polls until every analysis is finished, also through outages.
func (c *call) follow(ctx context.Context, cl *client, all []*submitted) error {
	progress := c.out
	if c.json {
		progress = c.err
	}
	var names []string
	for _, s := range all {
		names = append(names, s.Name)
	}
	show := newDisplay(progress, c.lookup, names)
	defer show.close()
	for i, s := range all {
		s.said = orNone(s.Status)
		show.set(i, time.Time{}, "%s", s.said)
	}
	open := len(all)
	done, dark := make([]bool, len(all)), false
	for pause := firstLook; open > 0; pause = min(pause*3/2, longLook) {
		for i, s := range all {
			if done[i] {
				continue
			}
			var err error
			done[i], err = c.look(ctx, cl, s, func(text string) { show.set(i, time.Time{}, "%s", text) })
			if outage := ctx.Err() == nil && errors.Is(err, lease.ErrUnavailable) && refusals[status.Code(err)] == ""; outage != dark {
				dark = outage
				show.note(bad, "%s", map[bool]string{true: "Firestore does not answer; still waiting", false: "Firestore answers again"}[dark])
			}
			if err != nil && !dark {
				return err
			}
			if done[i] {
				open--
			}
		}
		if open == 0 {
			break
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(pause):
		}
	}
	return failures(all)
}

// look reads one analysis, and prints it if it is finished.
func (c *call) look(ctx context.Context, cl *client, s *submitted, tell func(string)) (done bool, err error) {
	a, err := cl.analyses.Get(ctx, s.ID)
	if err != nil {
		return false, cl.explain(s.ID, err)
	}
	if err := s.see(a, tell); err != nil {
		return false, err
	}
	if done = finished(a.Status); done && c.json {
		err = c.tellSubmitted(s)
	}
	return done, err
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

// state is what an unfinished analysis is about, and why its last attempt failed.
func state(a analysislock.Analysis) string {
	text := orNone(a.Status)
	if a.Attempts > 0 {
		text += fmt.Sprintf(", attempt %d", a.Attempts)
	}
	if a.LastError != nil {
		text += "; the last failed for now: " + a.LastError.Code + ": " + squeeze(a.LastError.Message, 100)
	}
	return text
}

// see takes over what a reading says, and tells what has changed.
func (s *submitted) see(a analysislock.Analysis, tell func(string)) (err error) {
	s.Status, s.Error = a.Status, a.Error
	if !finished(a.Status) {
		if text := state(a); text != s.said {
			s.said = text
			tell(text)
		}
		return nil
	}
	text := strings.TrimSpace(a.Status + " " + summary(a.Result))
	if a.Error != nil {
		text = a.Status + " " + a.Error.Code + ": " + a.Error.Message
	}
	tell(text)
	if a.Result != nil {
		s.Result, err = repo.Plain(a.Result)
	}
	return err
}
