package local

import (
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"

	"taskguard/cmd/internal/cli"
	"taskguard/cmd/internal/printable"
	"taskguard/lease/analysislock"
)

// row reports one file.
type row struct {
	Name       string `json:"file"`
	ID         string `json:"analysis_id"`
	Status     string `json:"status"`
	Deliveries int    `json:"deliveries"` // runs, skips and unanswered ones
	Runs       int    `json:"runs"`       // deliveries that ran the file, the killed run too
	Skips      int    `json:"skips"`      // deliveries that a worker acknowledged without a run
	Unanswered int    `json:"unanswered"` // deliveries to a dead worker, or that were answered by an error
	Finishes   int    `json:"finishes"`   // runs that finished the file
	FinishedBy int    `json:"finished_by"`

	runner *process // the worker whose run of the file has not been answered
}

// shown returns the file's name as the lines and the table show it.
func (r *row) shown() string { return cli.Shorten(printable.Line(r.Name), 17) }

func (r *row) count(d *delivery) {
	r.Deliveries++
	answered := d.status/100 == 2
	switch {
	case answered && !d.answer.Acquired:
		r.Skips++
		return
	case !answered && d.worker != r.runner:
		r.Unanswered++
		return
	}

	r.Runs++
	r.runner = nil
	if answered && d.answer.Result != "" {
		r.Finishes++
		r.FinishedBy = d.worker.number
	}
}

// report prints the table. It returns an error if a promise is broken.
func (d *demo) report() error {
	problems := d.problems()
	if d.c.JSON {
		var rows []*row
		for _, doc := range d.docs {
			rows = append(rows, d.rows[doc.ID])
		}
		report := map[string]any{"ok": len(problems) == 0, "problems": problems, "files": rows, "killed": d.killed}
		_ = d.c.PrintJSON(report) // cli.Run reports an error of standard output
	} else {
		d.printTable()
	}

	if len(problems) > 0 {
		return errors.New("not as promised: " + strings.Join(problems, "; "))
	}
	if !d.c.JSON {
		cli.Print(d.c.Out, "Each file was finished once.\n")
	}
	return nil
}

// problems describes the broken promises.
func (d *demo) problems() []string {
	all := []string{}
	if d.killed == nil {
		all = append(all, "no worker was killed in the middle of a run")
	} else if d.killed.checkpoint && d.killed.Continued == 0 {
		all = append(all, "the killed run was not continued from its checkpoint")
	}

	skips := 0
	for _, doc := range d.docs {
		r := d.rows[doc.ID]
		skips += r.Skips
		if r.Status != analysislock.Ready || r.Finishes != 1 {
			all = append(all, fmt.Sprintf("%s is %s, finished by %s; want READY, by 1",
				printable.Line(doc.Name), r.Status, cli.Count(r.Finishes, "delivery")))
		}
	}
	if skips == 0 {
		all = append(all, "no delivery was skipped")
	}
	return all
}

// printTable prints a table of at most 80 columns, and how the killed run went on.
func (d *demo) printTable() {
	cli.Print(d.c.Out, "\n")
	t := tabwriter.NewWriter(d.c.Out, 0, 0, 2, ' ', 0)
	cli.Print(t, "FILE\tRESULT\tDELIVERIES\tRUNS\tSKIPPED\tUNANSWERED\tFINISHED BY\n")
	for _, doc := range d.docs {
		r := d.rows[doc.ID]
		cli.Print(t, "%s\t%s\t%d\t%d\t%d\t%d\tworker %d\n",
			r.shown(), r.Status, r.Deliveries, r.Runs, r.Skips, r.Unanswered, r.FinishedBy)
	}
	_ = t.Flush() // cli.Run reports an error of standard output
	cli.Print(d.c.Out, "\nDELIVERIES = RUNS + SKIPPED + UNANSWERED. A worker skips a file that is locked\n"+
		"or finished. A dead worker does not answer, and the queue tries again.\n")

	if k := d.killed; k != nil {
		cli.Print(d.c.Out, "\nWorker %d was killed at %d %% of %s. Worker %d continued at %d %%.\n",
			k.Worker, k.Percent, d.rows[k.ID].shown(), k.TakenOver, k.Continued)
	}
}
