package local

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"

	"taskguard/cmd/internal/cli"
	"taskguard/cmd/internal/printable"
	"taskguard/lease/analysislock"
)

// row reports one file.
type row struct {
	Name   string `json:"file"`
	ID     string `json:"analysis_id"`
	Status string `json:"status"`
	Result any    `json:"result,omitempty"`
	tally
	Runs       int64 `json:"runs"` // acquisitions of the lock, including those of killed runs
	FinishedBy int   `json:"finished_by"`

	booked   bool // its redeliveries are scheduled
	finished bool // by a worker's answer
	parts    bool // it is analyzed in several parts
	percent  int  // of the work, by the last report
}

// tally counts deliveries by their outcome. Deliveries is the sum of the others.
type tally struct {
	Deliveries int `json:"deliveries"`
	Finishes   int `json:"finishes"`
	Skips      int `json:"skips"`
	Unanswered int `json:"unanswered"` // because the worker was dead, or died
	Others     int `json:"others"`     // refused, or ended without a result
}

func (r *row) count(e exchange) {
	r.Deliveries++
	r.finished = r.finished || e.answer.Result != ""
	switch {
	case e.status == 0:
		r.Unanswered++
	case e.skipped():
		r.Skips++
	case e.answer.Acquired && e.answer.Result != "":
		r.Finishes++
		r.FinishedBy = e.worker.number
	default:
		r.Others++
	}
}

// report prints the table. It returns an error if a promise is broken.
func (d *demo) report(where string) error {
	problems := d.problems()
	var rows []*row
	runs := int64(0)
	for _, doc := range d.docs {
		rows = append(rows, d.rows[doc.ID])
		runs += d.rows[doc.ID].Runs
	}

	if d.c.JSON {
		documents := map[string]string{"project": d.place.Project, "collection": d.place.Collection, "where": where}
		err := d.c.PrintJSON(map[string]any{
			"ok": len(problems) == 0, "problems": problems, "documents": documents,
			"files": rows, "killed": d.killed, "total": d.total.tally, "runs": runs,
		})
		if err != nil {
			return err
		}
	} else {
		printRows(d.c, rows)
		d.printTotal(len(rows), runs, where)
	}

	if len(problems) > 0 {
		return errors.New("not as promised: " + strings.Join(problems, "; "))
	}
	if !d.c.JSON {
		cli.Print(d.c.Out, "Each file was finished once.\n")
	}
	return nil
}

// printTotal prints the numbers of deliveries and runs, and how the killed run continued.
func (d *demo) printTotal(files int, runs int64, where string) {
	total := &d.total.tally
	cli.Print(d.c.Out, "\n%s, %s: %d finished a file, %d skipped, %d unanswered by a dead worker, %d others.\n",
		cli.Count(files, "file"), cli.Count(total.Deliveries, "delivery"),
		total.Finishes, total.Skips, total.Unanswered, total.Others)

	killed := "."
	if k := d.killed; k != nil && k.Continued > 0 {
		killed = fmt.Sprintf(", one of them killed with worker %d at %d %% and continued by worker %d at %d %%: "+
			"%d %% of its work was done twice.", k.Worker, k.Done, k.TakenOver, k.Continued, max(0, k.Done-k.Continued))
	} else if k != nil {
		killed = fmt.Sprintf(", one of them killed with worker %d and repeated by worker %d.", k.Worker, k.TakenOver)
	}
	cli.Print(d.c.Out, "%s%s\nThe documents: %s.\n", cli.Count(runs, "run"), killed, printable.Line(where))
}

// problems describes the broken promises.
func (d *demo) problems() []string {
	all := []string{}
	problem := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	if d.killed == nil {
		problem("no worker was killed in the middle of a run")
	}
	killed := cmp.Or(d.killed, &killedRun{})
	if d.total.Skips == 0 {
		problem("no delivery was skipped")
	}

	for _, doc := range d.docs {
		r, name := d.rows[doc.ID], printable.Line(doc.Name)
		if killed.ID == doc.ID && r.FinishedBy == killed.Worker {
			problem("%s was finished by the worker that was killed", name)
		}
		if killed.ID == doc.ID && killed.checkpoint && killed.Continued == 0 {
			problem("%s did not continue from its checkpoint", name)
		}
		switch {
		case r.Status != analysislock.Ready:
			problem("%s is %s", name, r.Status)
		case r.Finishes != 1:
			problem("%s was finished by %s, want 1", name, cli.Count(r.Finishes, "delivery"))
		}
	}
	return all
}

// printRows prints a table of at most 60 columns.
func printRows(c *cli.Call, rows []*row) {
	cli.Print(c.Out, "\n")
	t := tabwriter.NewWriter(c.Out, 0, 0, 2, ' ', 0)
	cli.Print(t, "FILE\tRESULT\tDELIVERIES\tSKIPS\tRUNS\tBY\n")
	for _, r := range rows {
		by := "none"
		if r.FinishedBy != 0 {
			by = "worker " + strconv.Itoa(r.FinishedBy)
		}
		name := cli.Shorten(printable.Line(r.Name), 17)
		cli.Print(t, "%s\t%s\t%d\t%d\t%d\t%s\n", name, r.Status, r.Deliveries, r.Skips, r.Runs, by)
	}
	_ = t.Flush() // cli.Run reports an error of standard output
}
