package operate

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"taskguard/cmd/internal/cli"
	"taskguard/cmd/internal/printable"
	"taskguard/cmd/internal/why"
	"taskguard/lease/analysislock"
)

// narrowest is the least width of a table's last column, even where the terminal has no room for it: ids stay whole.
const narrowest = 16

// widest is the width of a table whose last column must stay whole, if no terminal has another.
const widest = 100

// table is the cells of a table by row; the first row is its head.
type table [][]string

// print prints t in columns of the width of their longest cell. It cuts the last column at the width of a terminal;
// 0: it is none.
func (t table) print(c *cli.Call, indent string, columns int) {
	widths := t.widths()
	last, left := len(widths)-1, columns-len(indent)
	for _, n := range widths[:last] {
		left -= n + 2
	}

	for _, row := range t {
		line := indent
		for i, cell := range row[:last] {
			line += cell + strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell)+2)
		}
		if columns > 0 {
			row[last] = cli.Head(row[last], max(left, narrowest))
		}
		cli.Print(c.Out, "%s\n", strings.TrimRight(line+row[last], " "))
	}
}

// widths returns the width of the longest cell of each column.
func (t table) widths() []int {
	widths := make([]int, len(t[0]))
	for _, row := range t {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	return widths
}

// fold returns t, or if that is wider than columns, with the last cell of each row on a line below the others.
func (t table) fold(columns int) table {
	last, width := len(t[0])-1, 0
	for _, n := range t.widths() {
		width += n + 2
	}
	if width-2 <= columns {
		return t
	}
	var folded table
	for _, row := range t {
		cells := slices.Clone(row[:last])
		cells[last-1] += "\n  " + row[last]
		folded = append(folded, cells)
	}
	return folded
}

// ago returns how long before a reading of a the time t was; "" if it is unknown.
func ago(a *analysislock.Analysis, t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return cli.Age(a.ReadAt.Sub(t))
}

// listTable returns a table with an analysis a row.
func (cl *Client) listTable(all []analysislock.Analysis, withStatus bool) table {
	rows := table{{"ID", "STATUS", "TRY", "UPDATED", "NOW"}}
	for i := range all {
		a := &all[i]
		rows = append(rows, []string{
			printable.Line(a.ID), printable.Line(statusOrNone(a.Status)), strconv.Itoa(a.Attempts), ago(a, a.UpdatedAt),
			nowText(a, cl.why(a, nil)),
		})
	}

	if !withStatus {
		for i, row := range rows {
			rows[i] = append(row[:1:1], row[2:]...)
		}
	}
	return rows
}

// nowText says in a few words what an analysis does, in a table.
func nowText(a *analysislock.Analysis, answer why.Answer) string {
	text := map[why.State]string{
		why.Silent: "its worker seems to be dead", why.Expired: "its worker died",
		why.Unfound:  "recovery does not find it",
		why.Orphaned: "no delivery came", why.Stuck: "stuck: no delivery came", why.Called: "waits for its caller",
		why.Queued: "in the queue", why.Parked: "parked", why.Running: "running", why.Waiting: "next attempt",
		why.Malformed: "malformed: " + printable.Line(a.Problem()),
	}[answer.State]
	switch answer.State {
	case why.Running:
		if began := a.Began(); !began.IsZero() {
			text += " for " + cli.Span(a.ReadAt.Sub(began))
		}
		text += more(", ", progressText(a.Progress))
	case why.Waiting:
		text += " in " + cli.Span(a.NextAttemptAt.Sub(a.ReadAt))
	case why.Parked:
		text += " for " + cli.Span(a.ReadAt.Sub(a.ParkedAt))
	case why.Malformed:
		return text
	}
	if answer.State == why.Uncertain {
		text = "a side effect may have happened"
	}
	if text == "" {
		return problemText(a)
	}
	return text + more("; ", problemText(a))
}

// more returns text after an introduction, if there is a text.
func more(introduction, text string) string {
	if text == "" {
		return ""
	}
	return introduction + text
}

// problemText returns the code of the error, and that of the last attempt's if it is the cause or there is no other.
func problemText(a *analysislock.Analysis) string {
	switch {
	case a.Cause() != a.Error:
		return printable.Line(a.Error.Code + ", last: " + a.Cause().Code)
	case a.Error != nil:
		return printable.Line(cmp.Or(a.Error.Code, "no code"))
	case a.LastError != nil && a.Status != analysislock.Ready:
		return "last: " + printable.Line(a.LastError.Code)
	}
	return ""
}
