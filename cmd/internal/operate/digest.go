package operate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"taskguard/cmd/internal/cli"
	"taskguard/cmd/internal/console"
	"taskguard/cmd/internal/printable"
	"taskguard/cmd/internal/why"
	"taskguard/lease/analysislock"
	"taskguard/repo"
)

const (
	recentFailures = 24 * time.Hour // a digest groups the failures since then
	maxGrouped     = 300            // the newest of them
	maxLines       = 3              // messages that are shown of a group
	digestRows     = 10             // of each section, without --limit
	maxDigestRows  = 1000           // of each section, whatever --limit is
)

// digest is what status shows without an argument: first what needs an operator. An analysis is in one of
// attention, running and waiting, and may be in updated too.
type digest struct {
	counts []int64 // of all, and by status in the order of statuses
	attention, running, waiting,
	failed, // since a day, the newest first
	updated []analysislock.Analysis
	at     time.Time
	states map[string]why.State // by id
}

// statuses is the order of the counts of a digest.
var statuses = []string{analysislock.Queued, analysislock.Processing, analysislock.Ready, analysislock.Failed}

// digest reads up to limit+1 analyses of each section, to know whether there are more. It makes a read, five
// counts, and up to nine queries, and another if few analyses have an updatedAt.
func (cl *Client) digest(parent context.Context, c *cli.Call, limit int) (o digest, err error) {
	limit++
	running, waiting, stuck, at, err := cl.Active(parent, limit)
	if err != nil {
		return o, err
	}
	o.at, o.states, o.counts = at, map[string]why.State{}, make([]int64, 1+len(statuses))

	var uncertain, unfinished []analysislock.Analysis
	reads, ctx := errgroup.WithContext(parent)
	for i, status := range append([]string{""}, statuses...) {
		reads.Go(func() (err error) {
			o.counts[i], err = cl.Count(ctx, repo.Filter{Status: status})
			return err
		})
	}
	reads.Go(func() (err error) {
		uncertain, err = cl.Uncertain(ctx, limit)
		return err
	})
	reads.Go(func() (err error) { // also what is malformed, and in the queue
		if unfinished, err = cl.Unfinished(ctx, limit); errors.Is(err, repo.ErrUnread) {
			cli.Report(ctx, c.Err, c.Name, fmt.Errorf("not all are listed: %w", err))
			err = nil
		}
		return err
	})
	reads.Go(func() (err error) {
		recent := repo.Filter{Status: analysislock.Failed, Since: at.Add(-recentFailures)}
		o.failed, _, _, err = cl.Page(ctx, recent, "", maxGrouped)
		return err
	})
	reads.Go(func() (err error) {
		o.updated, _, _, err = cl.Page(ctx, repo.Filter{}, "", limit)
		return err
	})
	if err = reads.Wait(); err != nil {
		return o, err
	}

	o.sort(cl, slices.Concat(uncertain, stuck, running, unfinished, waiting))
	err = cl.addUndated(parent, &o, limit)
	return o, err
}

// addUndated adds up to limit analyses without an updatedAt, which the other queries do not find, if all others have
// been read.
func (cl *Client) addUndated(ctx context.Context, o *digest, limit int) error {
	known := o.each(math.MaxInt)
	if len(o.updated) >= limit || int64(len(known)) >= o.counts[0] {
		return nil
	}
	all, err := cl.Find(ctx, repo.Filter{All: true}, "", len(known)+limit)
	all = slices.DeleteFunc(all, func(a analysislock.Analysis) bool {
		return slices.ContainsFunc(known, func(k analysislock.Analysis) bool { return k.ID == a.ID })
	})
	o.sort(cl, all)
	for i := range all {
		if all[i].Finished() {
			o.updated = append(o.updated, all[i])
		}
	}
	return err
}

// sort puts the analyses, which may repeat, into the sections of their states.
func (o *digest) sort(cl *Client, all []analysislock.Analysis) {
	for i := range all {
		a := &all[i]
		if _, listed := o.states[a.ID]; listed {
			continue
		}
		state := cl.why(a, nil).State
		o.states[a.ID] = state
		switch {
		case slices.ContainsFunc(notices, func(n notice) bool { return n.state == state }):
			o.attention = append(o.attention, *a)
		case state == why.Running:
			o.running = append(o.running, *a)
		case !a.Finished():
			o.waiting = append(o.waiting, *a)
		}
	}
}

// each returns every analysis once, in the order of the sections, with at most limit of each section.
func (o *digest) each(limit int) (all []analysislock.Analysis) {
	seen := map[string]bool{}
	for _, section := range [][]analysislock.Analysis{o.attention, o.failed, o.running, o.waiting, o.updated} {
		n := 0
		for i := range section {
			if id := section[i].ID; !seen[id] && n < limit {
				seen[id] = true
				all = append(all, section[i])
				n++
			}
		}
	}
	return all
}

// why answers for an analysis; key is the state of its key, if that was read.
func (cl *Client) why(a *analysislock.Analysis, key *repo.KeyState) why.Answer {
	return why.Of(a, why.Options{
		Lock: cl.lock, Key: *cmp.Or(key, &repo.KeyState{}), Called: cl.place.Called(),
	})
}

// notice describes a state that needs an operator, and the command that helps.
type notice struct {
	state         why.State
	text, command string
}

var notices = []notice{
	{why.Uncertain, "A side effect may have happened. Find out, then answer:",
		"resolve ID NAME (--done JSON | --not-done)"},
	{why.Stuck, "No delivery came, and recovery does not seem to run. Check its job, or enqueue them now:", "recover"},
	{why.Malformed, "No worker can run these. If the lock is malformed, repair it:", "unlock ID"},
	{why.Unfound, "Recovery does not find these. If they wait for too long, enqueue them:", "requeue ID"},
	{why.Silent, "The worker seems to be dead. Another takes over when the lock expires, or now:", "unlock ID"},
}

// showDigest prints the digest.
func (cl *Client) showDigest(ctx context.Context, c *cli.Call, s *selection) error {
	limit := min(s.limit, maxDigestRows)
	if !c.JSON && !c.Flags.Changed("limit") {
		limit = digestRows
	}
	o, err := cl.digest(ctx, c, limit)
	if err != nil {
		return explainIndex(err)
	}

	if c.JSON {
		all := o.each(limit)
		for i := range all {
			if err := c.PrintJSON(cl.summaryOf(&all[i])); err != nil {
				return err
			}
		}
		return nil
	}
	if o.counts[0] == 0 {
		cl.printEmpty(c)
		return nil
	}
	cl.printDigest(c, &o, limit, c.Columns())
	return nil
}

// printEmpty prints what to do with an empty collection.
func (cl *Client) printEmpty(c *cli.Call) {
	cli.Print(c.Out, "There is nothing yet in collection %s.", cl.place.Collection)
	if !cl.place.Called() { // its records come from calls
		cli.Print(c.Out, " Submit something:\n  %s --input %s --wait",
			cl.place.Command("submit"), `'{"name": "hello.txt", "text": "hello"}'`)
	}
	cli.Print(c.Out, "\n")
}

// printDigest prints o, with at most limit rows in each section, for a terminal of so many columns; 0: it is none.
func (cl *Client) printDigest(c *cli.Call, o *digest, limit, columns int) {
	others := o.counts[0]
	var counted []string
	for i, status := range statuses {
		counted = append(counted, fmt.Sprint(o.counts[1+i], " ", status))
		others -= o.counts[1+i]
	}
	if others > 0 { // they are counted one after another
		counted = append(counted, fmt.Sprint(others, " with another status or none"))
	}
	cli.Print(c.Out, "%s\n", strings.Join(counted, ", "))

	cl.printAttention(c, o, limit, columns)
	cl.printCauses(c, o, limit, columns)
	shown := map[string]bool{}
	for i := range o.attention {
		shown[o.attention[i].ID] = true
	}
	for _, section := range []struct {
		title      string
		all        []analysislock.Analysis
		withStatus bool
	}{{"RUNNING", o.running, false}, {"WAITING", o.waiting, false}, {"LAST UPDATED", o.updated, true}} {
		all := slices.DeleteFunc(slices.Clone(section.all), func(a analysislock.Analysis) bool { return shown[a.ID] })
		if len(all) == 0 {
			continue
		}
		rows := all[:min(limit, len(all))]
		heading(c, section.title, len(rows) < len(all), len(rows))
		cl.listTable(rows, section.withStatus).print(c, "", columns)
		for i := range rows {
			shown[rows[i].ID] = true
		}
	}
}

// heading prints the title of a section, and whether it has more rows than n.
func heading(c *cli.Call, title string, more bool, n int) {
	if more {
		title += fmt.Sprintf(", the first %d (--limit shows more)", n)
	}
	cli.Print(c.Out, "\n%s\n", title)
}

// printAttention prints what needs an operator, by state.
func (cl *Client) printAttention(c *cli.Call, o *digest, limit, columns int) {
	if len(o.attention) == 0 {
		return
	}
	heading(c, "NEEDS ATTENTION", false, 0)
	for _, n := range notices {
		all := slices.DeleteFunc(slices.Clone(o.attention), func(a analysislock.Analysis) bool {
			return o.states[a.ID] != n.state
		})
		if len(all) == 0 {
			continue
		}
		rows := all[:min(limit, len(all))]
		command, arguments, _ := strings.Cut(n.command, " ")
		cli.Print(c.Out, "%s\n  %s%s\n", cli.Wrap(n.text, 0, columns), cl.place.Command(command),
			more(" ", arguments))

		t := cl.listTable(rows, false)
		if n.state == why.Uncertain {
			t = actTable(rows)
		}
		t.print(c, "  ", columns)
		if len(rows) < len(all) {
			cli.Print(c.Out, "  and more; --limit shows them\n")
		}
	}
}

// actTable returns a table of the uncertain acts, the oldest first.
func actTable(all []analysislock.Analysis) table {
	rows := table{{"ID", "NAME", "SINCE", "STATUS"}}
	for i := range all {
		a := &all[i]
		for _, name := range a.Acts.Open() {
			rows = append(rows, []string{
				printable.Line(a.ID), printable.Line(name), ago(a, a.Acts[name].At), printable.Line(a.Status),
			})
		}
	}
	return rows
}

// cause is a code with the analyses that have failed with it, and their messages.
type cause struct {
	code  string
	n     int
	lines []*causeLine // the most frequent first
}

// causeLine is the first line of a message.
type causeLine struct {
	text, id string // id has it, and was updated last
	n        int
}

// causes groups failures by their code and the line that names their cause. It leaves out cancelled ones, and those
// with an uncertain act, which a requeue does not help.
func causes(failed []analysislock.Analysis) (all []*cause, n int) {
	groups, lines := map[string]*cause{}, map[[2]string]*causeLine{}
	for i := range failed { // the newest first
		a := &failed[i]
		e := cmp.Or(a.Cause(), &analysislock.Error{})
		if a.OpenActs > 0 || e.Code == analysislock.Cancelled {
			continue
		}
		n++
		group, line := groups[e.Code], [2]string{e.Code, console.Topic(e.Message)}
		if group == nil {
			group = &cause{code: e.Code}
			groups[e.Code], all = group, append(all, group)
		}
		group.n++
		if lines[line] == nil {
			lines[line] = &causeLine{text: line[1], id: a.ID}
			group.lines = append(group.lines, lines[line])
		}
		lines[line].n++
	}

	for _, group := range all {
		slices.SortStableFunc(group.lines, func(a, b *causeLine) int { return cmp.Compare(b.n, a.n) })
	}
	slices.SortStableFunc(all, func(a, b *cause) int { return cmp.Compare(b.n, a.n) })
	return all, n
}

// printCauses prints the failures of the last day by cause, with the commands that list them.
func (cl *Client) printCauses(c *cli.Call, o *digest, limit, columns int) {
	all, n := causes(o.failed)
	title := fmt.Sprintf("FAILED IN THE LAST 24 HOURS: %d", n)
	cut := len(o.failed) >= maxGrouped
	switch {
	case n == 0 && cut: // an operator has cancelled many
		heading(c, "FAILED IN THE LAST 24 HOURS", false, 0)
		cli.Print(c.Out, "%s\n  %s --status FAILED --since 24h\n", cli.Wrap(fmt.Sprintf(
			"The newest %d were cancelled or have an uncertain side effect. To list the others too:", maxGrouped),
			0, columns), cl.place.Command("status"))
		return
	case n == 0:
		return
	case cut:
		title = fmt.Sprintf("FAILED IN THE LAST 24 HOURS: the newest %d", n)
	}
	heading(c, title, false, 0)
	cli.Print(c.Out, "%s\n", cli.Wrap("Each command lists its analyses; --message TEXT selects one message. Once the "+
		"cause is fixed, requeue instead of status runs them again.", 0, columns))

	for _, group := range all[:min(limit, len(all))] {
		cli.Print(c.Out, "%d × %s\n", group.n, printable.Line(cmp.Or(group.code, "no code")))
		for _, line := range group.lines[:min(maxLines, len(group.lines))] {
			example := " (" + printable.Line(line.id) + ")"
			if line.n > 1 {
				example = " (such as " + printable.Line(line.id) + ")"
			}
			text := fmt.Sprintf("  %d × %s", line.n, printable.Line(cmp.Or(line.text, "no message")))
			if columns > 0 {
				text = cli.Shorten(text, max(columns-len([]rune(example)), 2*narrowest))
			}
			cli.Print(c.Out, "%s%s\n", text, example)
		}
		if left := len(group.lines) - maxLines; left > 0 {
			cli.Print(c.Out, "  and %s\n", cli.Count(left, "other message"))
		}
		list := cl.place.Command("status") + " --status FAILED"
		if group.code != "" {
			list += " --code " + cli.Quote(group.code)
		}
		cli.Print(c.Out, "  %s --since 24h\n", list)
	}
	if left := len(all) - limit; left > 0 {
		cli.Print(c.Out, "and %s; --limit shows more\n", cli.Count(left, "other code"))
	}
}
