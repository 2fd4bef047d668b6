package operate

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"taskguard/cmd/internal/cli"
	"taskguard/cmd/internal/console"
	"taskguard/cmd/internal/printable"
	"taskguard/internal/clock"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/lease/iso8601"
	"taskguard/repo"
	"taskguard/worker"
)

// notNeeded is the booking of a finished analysis.
const notNeeded = string(console.NotNeeded)

// submitted is the output of submit --json for one analysis.
type submitted struct {
	ID      string              `json:"id"`
	Name    string              `json:"name"`
	Created bool                `json:"created"`               // false: it existed already
	Other   bool                `json:"other_input,omitempty"` // it exists with another input
	Booked  string              `json:"booked"`                // now, already, not_needed: it is finished, not_booked: Other
	Status  string              `json:"status"`
	Error   *analysislock.Error `json:"error,omitempty"`  // only with --wait
	Result  json.RawMessage     `json:"result,omitempty"` // only with --wait

	last shown // only with --wait
}

// Submit creates an analysis for each file and books its delivery. The id of an
// analysis is made from its name and content, so submitting it again changes nothing.
func Submit(lookup cli.Lookup) *cobra.Command {
	var o submitOptions
	cmd := &cobra.Command{
		Use: "submit FILE… | --input JSON", GroupID: cli.RunThem, ValidArgsFunction: cli.Files,
		Short: "Create analyses and enqueue them",
		Long: "The same name and content give the same analysis, so submitting it again changes nothing. A FILE becomes " +
			`{"name", "text"}, or {"name", "base64"} if it is not text. For JSON, use --input @FILE.`,
		Example: "taskguard submit report.txt notes.md\n" +
			`taskguard submit --id greeting --input '{"text": "hello"}' --wait`,
		Annotations: cli.Reads(queueVariables),
		RunE:        cli.Bind(lookup, o.submit),
	}
	flags := cmd.Flags()
	flags.StringVar(&o.input, "input", "", "submit this JSON `value`; @FILE reads it from a file, - from standard input")
	flags.StringVar(&o.id, "id", "", "the analysis `id`; by default a hash of the file name and content")
	flags.BoolVar(&o.wait, "wait", false, "wait for the results; exit 1 if any analysis is FAILED")
	cli.TakesKind(cmd, lookup, firstKind)
	cli.TakesJSON(cmd, "print one JSON line for each analysis, with --wait at its end; progress goes to standard error")
	return cmd
}

// submitOptions are the flags of submit.
type submitOptions struct {
	input, id string
	wait      bool
}

func (o *submitOptions) submit(ctx context.Context, c *cli.Call, files []string) (err error) {
	docs, err := o.documents(c, files)
	if err != nil {
		return err
	}
	cl, err := connect(ctx, c, submitQueue)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cl.close()) }()

	cli.Print(c.Err, "taskguard submit%s: to %s\n", cl.place.Flag(), cl.place)
	show := c.Progress()
	var all []*submitted
	for _, doc := range docs {
		s, err := cl.submit(ctx, doc)
		if err != nil {
			return fmt.Errorf("%s: %w", printable.Line(doc.Name), err)
		}
		all = append(all, s)
		switch {
		case o.wait:
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
	if o.wait {
		return follow(ctx, c, cl, show, all)
	}
	return nil
}

// documents returns the documents that the command line names.
func (o *submitOptions) documents(c *cli.Call, files []string) ([]Document, error) {
	input, id := o.input, o.id
	switch {
	case !c.Flags.Changed("input") && len(files) == 0:
		return nil, c.MissingArgument()
	case c.Flags.Changed("input") && len(files) > 0:
		return nil, cli.UsageError("--input and files exclude each other")
	case c.Flags.Changed("id") && len(files) > 1:
		return nil, cli.UsageError("--id is for one analysis")
	}
	if c.Flags.Changed("id") {
		if err := checkID(id); err != nil {
			return nil, cli.UsageError("--id: " + err.Error())
		}
	}

	if c.Flags.Changed("input") {
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
	done, err := cl.work.Submit(ctx, doc.ID, doc.Input)
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
		s.Booked = notNeeded
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
		return fmt.Sprintf("%s: exists already with another input, which stays as it is; %s; not enqueued",
			name, statusOrNone(s.Status))
	case !s.Created:
		created = "exists already, " + statusOrNone(s.Status)
	}

	booking := map[string]string{
		"now": "enqueued", "already": "already enqueued",
		notNeeded: "finished, no delivery needed",
	}
	return fmt.Sprintf("%s: %s; %s", name, created, booking[s.Booked])
}

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
	printed                 time.Time
	state, failed, progress string
	finished                bool
}

// follow polls until every analysis is finished, also through outages of Firestore.
func follow(ctx context.Context, c *cli.Call, cl *Client, show *cli.Progress, all []*submitted) error {
	waiting, unavailable := slices.Clone(all), false
	for pause := firstPause; ; pause = min(pause*3/2, maxPause) {
		for _, s := range waiting {
			err := cl.poll(ctx, c, show, s)
			if ctx.Err() != nil {
				return abandoned(ctx, c)
			}
			outage := errors.Is(err, lease.ErrUnavailable) && console.Permanent(err) == ""
			switch {
			case err != nil && !outage:
				return err
			case outage && !unavailable:
				show.Print("Firestore does not answer; still waiting")
			case !outage && unavailable:
				show.Print("Firestore answers again")
			}
			unavailable = outage
		}

		waiting = slices.DeleteFunc(waiting, func(s *submitted) bool { return s.last.finished })
		if len(waiting) == 0 {
			return failures(all)
		}
		if !clock.Sleep(ctx, pause) {
			return abandoned(ctx, c)
		}
	}
}

// abandoned says that the analyses go on, and returns the cause of ctx's end.
func abandoned(ctx context.Context, c *cli.Call) error {
	c.Notice("what is not finished goes on without this command; %s status shows it", cli.Program())
	return context.Cause(ctx)
}

// poll reads one analysis and prints what has changed.
func (cl *Client) poll(ctx context.Context, c *cli.Call, show *cli.Progress, s *submitted) error {
	a, err := cl.Get(ctx, s.ID)
	if err != nil {
		return cl.explain(s.ID, err)
	}
	if !a.Finished() {
		s.show(show, shown{state: state(&a), failed: lastFailure(&a), progress: progressText(a.Progress)})
		return nil
	}

	s.show(show, shown{state: state(&a)})
	s.Status, s.Error, s.last.finished = a.Status, a.Error, true
	if s.Result, err = plainJSON(a.Result); err == nil && c.JSON {
		err = c.PrintJSON(s)
	}
	return err
}

// show prints a state that has changed at once, with an error that is new, and its progress at most each progressPause.
func (s *submitted) show(show *cli.Progress, now shown) {
	soon := now.progress == s.last.progress || time.Since(s.last.printed) < progressPause
	failed := now.failed
	switch {
	case failed != s.last.failed:
	case now.state == s.last.state && soon:
		return
	default:
		failed = "" // it was printed
	}
	now.printed = time.Now()
	s.last = now
	show.Print("%s %s", s.Name, now.state+more("; ", failed)+more("; ", now.progress))
}

func failures(all []*submitted) error {
	failed := slices.DeleteFunc(slices.Clone(all), func(s *submitted) bool { return s.Status != analysislock.Failed })
	if len(failed) > 0 {
		return fmt.Errorf("%d of %d FAILED", len(failed), len(all))
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
	if !a.NextAttemptAt.IsZero() {
		text += "; the next attempt is at " + iso8601.Format(a.NextAttemptAt)
	}
	return text
}

// lastFailure describes the error of the last attempt, if it failed temporarily.
func lastFailure(a *analysislock.Analysis) string {
	e := a.LastError
	if e == nil {
		return ""
	}
	return "the last attempt failed temporarily: " + e.Code + ": " + cli.Shorten(e.Message, 100)
}

// summary returns a result as JSON, shortened.
func summary(result any) string {
	text, err := repo.Plain(result)
	if result == nil || err != nil {
		return ""
	}
	return cli.Shorten(string(text), maxSummary)
}
