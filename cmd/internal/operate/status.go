package operate

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"taskguard/cmd/internal/cli"
	"taskguard/cmd/internal/console"
	"taskguard/cmd/internal/printable"
	"taskguard/internal/text"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/lease/iso8601"
	"taskguard/repo"
	"taskguard/worker"
)

// shownAnalysis is an analysis in status's JSON: its public form, and its lock
// without the fencing token.
type shownAnalysis struct {
	Kind string `json:"kind,omitempty"` // empty for the kind analysis
	analysislock.Analysis
	FinishedBy string              `json:"finished_by,omitempty"`
	Lock       lockInfo            `json:"lock"`
	Malformed  string              `json:"malformed,omitempty"` // why Lock is empty
	Acts       map[string]shownAct `json:"effects,omitempty"`
	Why        string              `json:"why"` // it is not running, and what happens next

	// These and History are set only where one analysis is shown.
	Checkpoint json.RawMessage `json:"checkpoint,omitempty"`
	Input      json.RawMessage `json:"input,omitempty"`
	Result     json.RawMessage `json:"result,omitempty"`
	// KeyState says who has the slots of its key, and how many wait before it.
	KeyState repo.KeyState `json:"key_state,omitzero"`
}

// shownAct is an act with its idempotency key, by which its receiver may know it.
type shownAct struct {
	analysislock.Act
	Key string `json:"key,omitempty"`
}

// lockInfo describes a lock when it was read. The owner of an expired lock is the last one.
type lockInfo struct {
	Held      bool      `json:"held"`
	Owner     string    `json:"owner,omitempty"`
	ExpiresAt time.Time `json:"expires_at,omitzero"`
}

func lockOf(a *analysislock.Analysis) lockInfo {
	return lockInfo{lease.Held(a.Lock, a.ReadAt), a.Lock.Owner, a.Lock.ExpiresAt}
}

// selection is the flags of status that select what it shows.
type selection struct {
	filter
	id                                        string
	key, scope, operation                     string // name a client's request; then id is the id of its record
	unfinished, uncertain, abandoned, summary bool
	filtered                                  bool
	limit                                     int
}

// Status shows one analysis with input and result, many without, or the backlog.
func Status(lookup cli.Lookup) *cobra.Command {
	var s selection
	cmd := &cobra.Command{
		Use: "status [ID | FILTER]", GroupID: cli.Look, Args: cli.Args(0, 1),
		Short: "Show what needs attention, one analysis, a list, or the backlog",
		Example: "taskguard status\n" +
			"taskguard status report-8\n" +
			"taskguard status --status FAILED --since 1h\n" +
			"taskguard status --summary",
		Annotations: cli.Reads(cli.DatabaseVariables),
		RunE:        cli.Bind(lookup, s.show),
	}
	flags := cmd.Flags()
	flags.BoolVar(&s.unfinished, "unfinished", false,
		"list unfinished analyses, oldest update first")
	flags.IntVar(&s.limit, "limit", 100,
		"how many are listed; without an argument 10 of each section, with a filter all")
	flags.BoolVar(&s.uncertain, "uncertain", false,
		"list analyses with an uncertain side effect, for resolve")
	flags.BoolVar(&s.abandoned, "abandoned", false,
		"with --kind do: list the unfinished records with an act whose callers have not come back")
	flags.BoolVar(&s.summary, "summary", false, "show the backlog, the last three hours, and an estimate of its end")
	flags.StringVar(&s.key, "idempotency-key", "", "show the stored response to this `KEY`; needs --scope")
	flags.StringVar(&s.scope, "scope", "", "the `SCOPE` of --idempotency-key, such as the client's account")
	flags.StringVar(&s.operation, "operation", "", "the `OPERATION` of --idempotency-key (default: http)")
	s.declare(cmd, lookup)
	cli.TakesKind(cmd, lookup, firstKind)
	cli.TakesJSON(cmd, "print one analysis, or the summary, as a JSON document, many as one JSON line each")
	return cmd
}

// read completes s by the arguments, and refuses what excludes each other.
func (s *selection) read(c *cli.Call, args []string) (err error) {
	if len(args) == 1 {
		s.id = args[0]
		if err := checkID(s.id); err != nil {
			return err
		}
	}

	keyed := c.Flags.Changed("idempotency-key")
	if keyed {
		c.UseRecords()
		if s.id, err = worker.IdempotencyRecord(s.operation, s.scope, s.key); err != nil {
			return cli.UsageError("--idempotency-key: " + text.Error(err))
		}
	}
	if s.filtered, err = s.given(c); err != nil {
		return err
	}
	if s.filtered && !c.Flags.Changed("limit") {
		s.limit = math.MaxInt
	}
	return s.check(c, len(args) == 1, keyed)
}

// check refuses flags that exclude each other, or that need another. byID and keyed report an ID and an
// --idempotency-key on the command line.
func (s *selection) check(c *cli.Call, byID, keyed bool) error {
	selectors := 0
	for _, given := range []bool{byID, keyed, s.unfinished, s.uncertain, s.abandoned, s.summary, s.filtered} {
		if given {
			selectors++
		}
	}
	switch {
	case s.limit < 1:
		return cli.UsageError("--limit must be at least 1")
	case selectors > 1:
		return cli.UsageError("an ID, --idempotency-key, --unfinished, --uncertain, --abandoned, --summary " +
			"and a filter exclude each other")
	case keyed != c.Flags.Changed("scope") || c.Flags.Changed("operation") && !keyed:
		return cli.UsageError("--idempotency-key needs --scope, and --scope and --operation need --idempotency-key")
	case keyed && c.Flags.Changed("kind"):
		return cli.UsageError("--idempotency-key and --kind exclude each other: name the kind do in KINDS")
	}
	return nil
}

// show reads and prints what s selects.
func (s *selection) show(ctx context.Context, c *cli.Call, args []string) (err error) {
	if err := s.read(c, args); err != nil {
		return err
	}
	cl, err := connect(ctx, c, noQueue)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cl.close()) }()
	c.Line("taskguard status%s: reading %s", cl.place.Flag(), cl.place)

	switch {
	case s.id != "":
		err := cl.showOne(ctx, c, s)
		if s.key != "" && errors.Is(err, lease.ErrNotFound) {
			return fmt.Errorf("no record of the Idempotency-Key %q in collection %s of project %s: check --scope and "+
				"--operation; or the key was never used, or its record has expired",
				s.key, cl.place.Collection, cl.place.Project)
		}
		return cl.explain(s.id, err)
	case s.summary:
		return cl.summarize(ctx, c)
	case !s.unfinished && !s.uncertain && !s.abandoned && !s.filtered:
		return cl.showDigest(ctx, c, s)
	}
	return cl.showMany(ctx, c, s)
}

// unfinished reads up to limit unfinished analyses. Analyses that recovery cannot find come last, and take
// longer to read. If reading them fails, unfinished prints a warning and returns the others.
func (cl *Client) unfinished(ctx context.Context, c *cli.Call, limit int) ([]analysislock.Analysis, error) {
	dated, err := cl.Unfinished(ctx, limit)
	if errors.Is(err, repo.ErrUnread) {
		cli.Report(ctx, c.Err, c.Name, fmt.Errorf("not all are listed: %s", text.Error(err)))
		err = nil
	}
	if err != nil || len(dated) == limit {
		return dated, err
	}
	undated, err := cl.Unfound(ctx, limit-len(dated))
	if err != nil {
		cli.Report(ctx, c.Err, c.Name, fmt.Errorf("the list may miss analyses that recovery does not find: %w", err))
	}
	return slices.Concat(dated, undated), nil
}

func (cl *Client) showOne(ctx context.Context, c *cli.Call, selected *selection) error {
	a, err := cl.Get(ctx, selected.id)
	if err != nil {
		return err
	}
	s := cl.summaryOf(&a)
	s.History = a.History
	if s.KeyState, err = cl.KeyState(ctx, &a, true); err != nil {
		return err
	}
	answer := cl.why(&a, &s.KeyState)
	s.Why = answer.Text
	checkpoint := cmp.Or(a.Checkpoint, &analysislock.Checkpoint{})
	for field, value := range map[*json.RawMessage]any{
		&s.Input: a.Input, &s.Result: a.Result, &s.Checkpoint: checkpoint.Value,
	} {
		if *field, err = plainJSON(value); err != nil {
			return err
		}
	}
	if c.JSON {
		return c.PrintJSON(s)
	}

	printFields(c, &s, cl.commandText(&a, answer.Command))
	printHistory(c, &s)
	var response worker.StoredResponse
	switch {
	case s.Result == nil:
		return nil
	case selected.key != "" && json.Unmarshal(s.Result, &response) == nil:
		cli.Print(c.Out, "response %d\n%s\n", response.Status, printable.Lines(string(response.Body)))
		return nil
	}
	var result bytes.Buffer
	_ = json.Indent(&result, s.Result, "", "  ") // it is JSON
	cli.Print(c.Out, "result\n%s\n", printable.Lines(result.String()))
	return nil
}

// errorLines formats an error for a table's column; a message may have several lines. For a terminal it wraps those
// that are not the code of a traceback.
func errorLines(e *analysislock.Error, columns int) string {
	if e == nil {
		return ""
	}
	lines := strings.Split(printable.Line(e.Code)+": "+printable.Lines(strings.TrimRight(e.Message, "\n")), "\n")
	for i, line := range lines {
		if !strings.HasPrefix(line, " ") {
			lines[i] = cli.Wrap(line, 0, columns)
		}
	}
	return strings.ReplaceAll(strings.Join(lines, "\n"), "\n", "\n\t")
}

// withoutLast returns e without the message of the last error at its end: that is printed below it.
func withoutLast(e, last *analysislock.Error) *analysislock.Error {
	if e == nil || last == nil || last.Message == "" {
		return e
	}
	head, repeated := strings.CutSuffix(e.Message, ": "+last.Message)
	if !repeated {
		return e
	}
	return &analysislock.Error{Code: e.Code, Message: strings.TrimSuffix(head, "; last error")}
}

// commandText returns the command of an answer as one types it; empty: there is none.
func (cl *Client) commandText(a *analysislock.Analysis, name string) string {
	id := " " + cli.Quote(a.ID)
	switch name {
	case "":
		return ""
	case "recover":
		id = ""
	case "resolve":
		act := "NAME"
		if open := a.Acts.Open(); len(open) == 1 {
			act = cli.Quote(open[0])
		}
		id += " " + act + " (--done JSON | --not-done)"
	}
	return cl.place.Command(name) + id
}

// textWidth is the width of a text beside the names of the fields; 0 or less: it is not wrapped.
func textWidth(c *cli.Call) int { return c.Columns() - firstColumn }

// printFields prints an analysis without its result, and the command that helps, if any.
func printFields(c *cli.Call, s *shownAnalysis, command string) {
	t := tabwriter.NewWriter(c.Out, 0, 0, 2, ' ', 0)
	field := func(name, value string, present bool) {
		if present {
			cli.Print(t, "%s\t%s\n", name, value)
		}
	}
	field("id", printable.Line(s.ID), true)
	field("status", printable.Line(statusOrNone(s.Status)), true)
	field("why", strings.ReplaceAll(cli.Wrap(s.Why, 0, textWidth(c)), "\n", "\n\t"), true)
	field("next", printable.Line(command), command != "")
	field("attempts", strconv.Itoa(s.Attempts), true)
	lock := lockText(&s.Analysis, s.Lock.Owner)
	field("lock", lock, lock != "")
	field("key", printable.Line(s.KeyState.String()), s.KeyState.Key != "")

	if p := s.Progress; p != nil {
		ago := cmp.Or(cli.Duration(max(0, s.ReadAt.Sub(p.At)), "%s ago"), "at "+iso8601.Format(p.At))
		field("progress", progressText(p, "reported "+ago), !p.At.IsZero())
	}
	field("checkpoint", cli.Count(len(s.Checkpoint), "byte")+"; the next run continues from it", s.Checkpoint != nil)
	for _, name := range slices.Sorted(maps.Keys(s.Acts)) {
		act := s.Acts[name]
		field("act", actText(name, act.Act), true)
		field("", "its key is "+act.Key, act.Key != "")
	}
	field("error", errorLines(withoutLast(s.Error, s.LastError), textWidth(c)), s.Error != nil)
	field("last error", errorLines(s.LastError, textWidth(c)), s.LastError != nil)

	next := iso8601.Format(s.NextAttemptAt)
	if remaining := s.NextAttemptAt.Sub(s.ReadAt); remaining > 0 {
		next += cli.Duration(remaining, ", %s left")
	}
	field("next attempt", next, s.NextAttemptAt.After(s.UpdatedAt)) // an earlier time is recovery's mark
	field("created", iso8601.Format(s.CreatedAt), !s.CreatedAt.IsZero())
	field("updated", iso8601.Format(s.UpdatedAt), !s.UpdatedAt.IsZero())
	field("finished by", printable.Line(s.FinishedBy), s.FinishedBy != "" && s.Finished())
	_ = t.Flush() // cli.Run reports its error
}

// printHistory prints the attempts, a row each, and below it its error. An attempt without an
// end is running, or no acquisition has found yet that its worker died.
func printHistory(c *cli.Call, s *shownAnalysis) {
	const row = "%-7v  %-24s  %-9s  %-11s  %-5s  %s\n" // 80 columns with an instance of local
	if len(s.History) > 0 {
		cli.Print(c.Out, "\n"+row, "ATTEMPT", "STARTED", "DURATION", "OUTCOME", "ALONE", "INSTANCE")
	}
	for i := range s.History {
		a := &s.History[i]
		took, outcome := "", cmp.Or(a.Outcome, "no end recorded")
		if !a.EndedAt.IsZero() {
			took = a.EndedAt.Sub(a.StartedAt).String()
		}
		if a.Outcome == "" && i == len(s.History)-1 && s.Lock.Held {
			outcome = "running"
		}
		alone := ""
		if a.Alone {
			alone = "alone"
		}
		cli.Print(c.Out, row, a.Number, iso8601.Format(a.StartedAt), took, printable.Line(outcome), alone,
			printable.Line(a.Instance()))

		if a.Code != "" {
			message := strings.TrimSpace(a.Message)
			if c.Columns() > 0 { // the newest traceback is above, and --json has all
				message = attemptLine(message)
			}
			problem := printable.Line(a.Code + ": " + message)
			cli.Print(c.Out, "%9s%s\n", "", c.Fit(problem, 71))
		}
		for _, change := range a.Changes {
			by := c.Fit(printable.Line(change.Change+" by "+change.By), 44)
			cli.Print(c.Out, "%9s%s at %s\n", "", by, iso8601.Format(change.At))
		}
		if a.Delays > 0 {
			times := cli.Count(a.Delays, "time")
			cli.Print(c.Out, "%9sthe next attempt was delayed %s: the instance was busy\n", "", times)
		}
	}
}

// attemptLine returns the line that names the cause of a message, which is stored without its middle if it is long.
func attemptLine(message string) string {
	line := console.Topic(message)
	if _, end, cut := strings.Cut(line, " … "); cut && line != message {
		line = "… " + end
	}
	return line
}

// percent formats the part of the work that is done; "": it was not reported.
func percent(p *analysislock.Progress) string {
	if n := p.Percent(); n >= 0 {
		return fmt.Sprintf("%d %%", n)
	}
	return ""
}

// progressText describes a progress in one line: its percentage, its message, and more. Without a
// progress it is empty.
func progressText(p *analysislock.Progress, details ...string) string {
	if p == nil {
		return ""
	}
	parts := append([]string{percent(p), printable.Line(p.Message)}, details...)
	return strings.Join(slices.DeleteFunc(parts, func(part string) bool { return part == "" }), ", ")
}

// showMany prints the selected analyses, or their uncertain acts, and whether there are more.
func (cl *Client) showMany(ctx context.Context, c *cli.Call, s *selection) (err error) {
	var all []analysislock.Analysis
	limit := max(s.limit, s.limit+1) // one more than shown, to know whether there are others; MaxInt stays
	switch {
	case s.unfinished:
		all, err = cl.unfinished(ctx, c, limit)
	case s.uncertain:
		all, err = cl.Uncertain(ctx, limit)
	case s.abandoned:
		all, err = cl.Abandoned(ctx, limit)
	default:
		all, _, err = cl.find(ctx, c, &s.filter, limit)
	}
	if err != nil {
		return err
	}
	if len(all) > s.limit {
		all = all[:s.limit]
		c.Notice("the first %d; --limit shows more", s.limit)
	}

	switch {
	case c.JSON:
		for i := range all {
			if err := c.PrintJSON(cl.summaryOf(&all[i])); err != nil {
				return err
			}
		}
	case len(all) == 0 && s.code == "" && s.message == "": // find has said it with those
		c.Notice("no analysis matches")
	case len(all) == 0:
	case s.uncertain:
		cl.printActs(c, all, analysislock.Acts.Open)
	case s.abandoned:
		cl.printActs(c, all, func(acts analysislock.Acts) []string { return slices.Sorted(maps.Keys(acts)) })
	default:
		cl.listTable(all, true).print(c, "", c.Columns())
	}
	return nil
}

// lockText describes who holds an analysis, or when its next attempt is.
func lockText(a *analysislock.Analysis, owner string) string {
	expiry, remaining := iso8601.Format(a.Lock.ExpiresAt), a.Lock.ExpiresAt.Sub(a.ReadAt)
	owner = printable.Line(owner)
	switch {
	case errors.Is(a.Malformed, lease.ErrMalformed): // with another error the lock can be read
		return "malformed"
	case lease.Held(a.Lock, a.ReadAt):
		return "held by " + owner + cmp.Or(cli.Duration(remaining, ", %s left"), " until "+expiry)
	case owner != "" && (remaining > 0 || a.Lock.ExpiresAt.IsZero()): // another program has written it
		return "left by " + owner
	case owner != "":
		return "left by " + owner + ", expired " + cmp.Or(cli.Duration(-remaining, "%s ago"), "at "+expiry)
	case a.Finished():
		return ""
	case !a.ParkedAt.IsZero():
		return "parked" + cmp.Or(cli.Duration(a.ReadAt.Sub(a.ParkedAt), " %s ago"), " since "+iso8601.Format(a.ParkedAt))
	case a.Waits():
		next := iso8601.Format(a.NextAttemptAt)
		return "waits" + cmp.Or(cli.Duration(a.NextAttemptAt.Sub(a.ReadAt), ", %s left"), " until "+next)
	}
	return "free"
}

// summaryOf returns an analysis as a list shows it.
func (cl *Client) summaryOf(a *analysislock.Analysis) shownAnalysis {
	s := shownAnalysis{
		Kind: cl.place.Other(), Analysis: *a, FinishedBy: a.Lock.FinishedBy, Lock: lockOf(a), Why: cl.why(a, nil).Text,
	}
	s.History, s.Acts = nil, map[string]shownAct{}
	for name, act := range a.Acts {
		s.Acts[name] = shownAct{act, cl.ActKey(a.ID, name)}
	}
	if errors.Is(a.Malformed, lease.ErrMalformed) {
		s.Malformed = a.Problem()
	}
	if a.Status == analysislock.Ready { // another program may not have deleted it
		s.LastError = nil
	}
	return s
}

// plainJSON returns the JSON of an input or a result; nil: there is none.
func plainJSON(v any) (json.RawMessage, error) {
	if v == nil {
		return nil, nil
	}
	return repo.Plain(v)
}

const (
	firstColumn = 14 // about the width of the names of the fields

	maxStuck  = 50      // a summary counts no more stuck analyses
	plotWidth = 40      // the longest bar of a summary, in characters
	hhmm      = "15:04" // the format of a summary's times
)

// summarize prints the backlog.
func (cl *Client) summarize(ctx context.Context, c *cli.Call) error {
	_, _, stuck, _, err := cl.Active(ctx, maxStuck)
	if err != nil {
		return explainIndex(err)
	}
	b, err := cl.Backlog(ctx, len(stuck))
	switch {
	case err != nil:
		return explainIndex(err)
	case c.JSON:
		return c.PrintJSON(struct {
			Kind string `json:"kind,omitempty"` // empty for the kind analysis
			repo.Backlog
		}{cl.place.Other(), b})
	}

	failed := int64(0)
	for _, i := range b.Intervals {
		if !i.From.Before(b.Since) {
			failed += i.Failed
		}
	}
	drained := "not drained: nothing ends"
	switch remaining := b.DrainedAt.Sub(b.At).Round(time.Second); {
	case b.Waiting+b.Stuck == 0:
		drained = "nothing waits"
	case b.Ended > 0 && failed == b.Ended:
		drained = "not drained: all that end are FAILED"
	case failed > 0:
		drained = fmt.Sprintf("drained in about %v at this rate, FAILED included, if none are created", remaining)
	case !b.DrainedAt.IsZero():
		drained = fmt.Sprintf("drained in about %v at this rate, if none are created", remaining)
	}
	cli.Print(c.Out, "%d running, %d waiting, %d stuck\n", b.Running, b.Waiting, b.Stuck)
	switch {
	case b.Running+b.Waiting+b.Stuck == 0:
	case b.OldestCreatedAt.IsZero():
		cli.Print(c.Out, "the age of the oldest is unknown\n")
	default:
		cli.Print(c.Out, "the oldest was created %v ago\n", b.At.Sub(b.OldestCreatedAt).Round(time.Second))
	}
	cli.Print(c.Out, "%s\n%d ended, %d of them FAILED, and %d were created since %s UTC\n",
		drained, b.Ended, failed, b.Created, b.Since.Format(hhmm))

	const row = "%-5v  %7v  %8v  %6v  %s%s\n"
	cli.Print(c.Out, "\n"+row, "UTC", "STARTED", "FINISHED", "FAILED", "# finished, x failed", "")
	top := max(1, b.Top) // nothing may have started or ended
	scaled := func(n int64) int { return int((n*plotWidth + top - 1) / top) }
	for _, i := range b.Intervals {
		failed := scaled(i.Failed) // one is visible beside thousands
		bar := strings.Repeat("#", scaled(i.Finished+i.Failed)-failed)
		cli.Print(c.Out, row, i.From.Format(hhmm), i.Started, i.Finished, i.Failed, bar, strings.Repeat("x", failed))
	}
	return nil
}
