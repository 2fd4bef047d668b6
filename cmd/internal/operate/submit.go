package operate

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"taskguard/cmd/internal/cli"
	"taskguard/cmd/internal/console"
	"taskguard/cmd/internal/printable"
	"taskguard/lease/analysislock"
	"taskguard/worker"
)

// submitted is the output of submit --json for one analysis.
type submitted struct {
	ID      string              `json:"id"`
	Name    string              `json:"name"`
	Created bool                `json:"created"`               // false: it existed already
	Other   bool                `json:"other_input,omitempty"` // it exists with another input, and keeps that
	Booked  string              `json:"booked"`                // now, already, not_needed: it is finished, or not_booked: Other
	Status  string              `json:"status"`
	Error   *analysislock.Error `json:"error,omitempty"`  // with --wait
	Result  json.RawMessage     `json:"result,omitempty"` // with --wait

	shown shown // with --wait
}

// Submit creates an analysis for each file and books its delivery. The id of an
// analysis is made from its name and content, so submitting it again changes nothing.
func Submit(ctx context.Context, c *cli.Call) (err error) {
	input := c.Flags.String("input", "",
		"submit this JSON `value`, that of @FILE, or with - that of standard input, instead of files")
	id := c.Flags.String("id", "", "the `id` of the one analysis; without it, the id is made from name and content")
	wait := c.Flags.Bool("wait", false, "wait until the analyses are finished; exit 1 if any is FAILED")
	c.TakesKind(firstKind)
	c.TakesJSON("print one JSON line for each analysis, with --wait at its end; progress goes to standard error")
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
			_ = c.PrintJSON(s) // cli.Run reports its error
		default:
			cli.Print(c.Out, "%s\n", printable.Line(s.String()))
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
	done, err := worker.Submit(ctx, cl.guard, cl.place.Kind, doc.ID, doc.Input)
	s := &submitted{
		ID: doc.ID, Name: doc.Name, Created: done.Created, Other: errors.Is(err, worker.ErrOtherInput),
		Booked: "now", Status: done.Status,
	}
	err = cmp.Or(errors.Unwrap(err), err) // without the id
	switch {
	case errors.Is(err, worker.ErrNotBooked):
		return nil, fmt.Errorf("%w; repeat the command", explainQueue(err))
	case err != nil && !s.Other:
		return nil, err
	case s.Other:
		s.Booked = "not_booked"
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
		return fmt.Sprintf("%s: exists already with another input, which is left as it is; %s; no delivery booked",
			name, statusOrNone(s.Status))
	case !s.Created:
		created = "exists already, " + statusOrNone(s.Status)
	}

	booking := "delivery booked"
	switch s.Booked {
	case "already":
		booking = "its delivery was booked before"
	case string(console.NotNeeded):
		booking = "finished, no delivery needed"
	}
	return fmt.Sprintf("%s: %s; %s", name, created, booking)
}
