package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"

	"taskguard/cmd/taskguard/fleet"
	"taskguard/lease/analysislock"
	"taskguard/repo"
)

// row is what is known of one document.
type row struct {
	index  int
	task   string // name of the task that was submitted
	Name   string `json:"file"`
	ID     string `json:"analysis_id"`
	Status string `json:"status"`
	Result any    `json:"result,omitempty"`
	tally
	Runs       int64 `json:"runs"` // acquisitions; one that was killed is an unanswered delivery
	FinishedBy int   `json:"finished_by"`

	attempts     int
	cut          int64 // runs that ended without a result
	finished     bool  // an answer has said so
	followedUp   bool  // the delivery that finished it was a follow-up
	acknowledged bool  // the task that was submitted
	duplicates   int   // of it
}

// tally counts deliveries by what came of them: Deliveries is the sum of the
// others.
type tally struct {
	Deliveries int `json:"deliveries"`
	Finishes   int `json:"finishes"`
	Skips      int `json:"skips"`
	Unanswered int `json:"unanswered"` // by a worker that was dead, or died
	Others     int `json:"others"`     // refused, or ended without a result
}

func (t *tally) add(o tally) {
	t.Deliveries += o.Deliveries
	t.Finishes += o.Finishes
	t.Skips += o.Skips
	t.Unanswered += o.Unanswered
	t.Others += o.Others
}

// String says it for people.
func (t tally) String() string {
	text := counted(t.Deliveries, "delivery") + fmt.Sprintf(": %d finished a file, %d skipped, %d unanswered by a worker that was dead or died", t.Finishes, t.Skips, t.Unanswered)
	if t.Others > 0 {
		text += fmt.Sprintf(", %d without a result", t.Others)
	}
	return text
}

func (r *row) count(v fleet.Delivery) {
	r.Deliveries++
	r.finished = r.finished || v.Result != ""
	switch {
	case v.Status == 0:
		r.Unanswered++
	case v.Skip():
		r.Skips++
	case v.Acquired && v.Result != "":
		r.Finishes++
		r.FinishedBy, r.followedUp = v.Worker.Number, v.Task != r.task
	default:
		r.Others++
		if v.Acquired {
			r.cut++
		}
	}
}

// collect reads what the documents have become, and what the queue still holds.
func (d *demonstration) collect(ctx context.Context) (err error) {
	if d.left, err = d.cloud.pending(ctx); err != nil {
		return err
	}
	for _, doc := range d.docs {
		a, err := d.analyses.Get(ctx, doc.id)
		if err != nil {
			return err
		}
		d.mu.Lock()
		r := d.rows[doc.id]
		r.Status, r.Result, r.Runs, r.attempts = a.Status, a.Result, a.Lock.Token, a.Attempts
		d.mu.Unlock()
	}
	return nil
}

// verdict prints the table, and is an error if anything did not hold.
func (d *demonstration) verdict() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	problems := d.problems()
	var rows []*row
	var total tally
	runs := int64(0)
	for _, doc := range d.docs {
		r := d.rows[doc.id]
		rows = append(rows, r)
		total.add(r.tally)
		runs += r.Runs
	}
	if d.c.json {
		e := json.NewEncoder(d.c.out)
		e.SetIndent("", "  ")
		err := e.Encode(map[string]any{
			"ok": len(problems) == 0, "problems": problems, "files": rows, "killed": d.killed, "total": total, "runs": runs,
			"follow_ups_pending": d.left,
			"documents":          map[string]string{"project": d.place.project, "collection": d.place.collection, "where": d.where},
		})
		if err != nil {
			return err
		}
	} else {
		if err := d.table(rows); err != nil {
			return err
		}
		held := ""
		if len(problems) == 0 {
			held = " Each file finished once."
		}
		_, err := fmt.Fprintf(d.c.out, "\n%s, %v.\n%s%s%s\n%sThe documents: %s.\n",
			counted(len(rows), "file"), total, counted(runs, "run"), d.killedRun(), held, d.stillToCome(), visible(d.where))
		if err != nil {
			return err
		}
	}
	if len(problems) > 0 {
		return errors.New("this did not hold: " + strings.Join(problems, "; "))
	}
	return nil
}

// problems are sentences about what did not hold.
func (d *demonstration) problems() []string {
	all := []string{}
	problem := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	skips := 0
	if d.killed == nil {
		problem("no worker was killed in the middle of a run")
	}
	for _, doc := range d.docs {
		r, name := d.rows[doc.id], visible(doc.name)
		want := int64(1)
		if d.killed != nil && d.killed.ID == doc.id {
			want = 2
			if r.FinishedBy == d.killed.Worker {
				problem("%s was finished by the worker that was killed", name)
			}
		}
		switch {
		case r.Status != analysislock.Ready:
			problem("%s is %s", name, r.Status)
		case r.Finishes != 1:
			problem("%s was finished by %s, want 1", name, counted(r.Finishes, "delivery"))
		}
		want += r.cut // as where this machine stalls for longer than a lock lasts
		if r.Runs != want || r.attempts != int(want) {
			problem("%s had %s, want %d", name, counted(r.Runs, "run"), want)
		}
		if r.Deliveries <= len(again) {
			problem("%s had %s, want at least %d", name, counted(r.Deliveries, "delivery"), len(again)+1)
		}
		skips += r.Skips
	}
	if skips == 0 {
		problem("no delivery was skipped")
	}
	return all
}

// killedRun says which of the runs, and of the unanswered deliveries, is the
// one whose worker was killed.
func (d *demonstration) killedRun() string {
	if d.killed == nil {
		return "."
	}
	text := fmt.Sprintf(", one of them killed with worker %d: its delivery is among the unanswered.", d.killed.Worker)
	if d.rows[d.killed.ID].followedUp {
		text += " A follow-up, booked by a delivery that met that worker's lock, took its file over."
	}
	return text
}

// stillToCome says what was not waited for.
func (d *demonstration) stillToCome() string {
	switch d.left {
	case 0:
		return ""
	case 1:
		return "1 follow-up was still to come, booked by a delivery that met a lock; its file is finished.\n"
	}
	return fmt.Sprintf("%d follow-ups were still to come, booked by deliveries that met locks; their files are finished.\n", d.left)
}

// table fits the terminal: beside names it takes 58 columns, without summaries 46.
func (d *demonstration) table(rows []*row) error {
	columns, name := screenOf(d.c.out, d.c.lookup).columns, nameWidth
	brief := columns > 0 && columns < 80
	if brief {
		name = max(columns-47, 8)
	} else if columns > 0 {
		name = min(columns-59, name)
	}
	printTo(d.c.out, "\n")
	t := tabwriter.NewWriter(d.c.out, 0, 0, 2, ' ', 0)
	printTo(t, "FILE\tRESULT\tDELIVERIES\tSKIPS\tRUNS\tFINISHED BY\n")
	for _, r := range rows {
		by := "worker " + strconv.Itoa(r.FinishedBy)
		if r.FinishedBy == 0 {
			by = "nobody"
		}
		result := r.Status
		if !brief {
			result = strings.TrimSpace(result + " " + summary(r.Result))
		}
		printTo(t, "%s\t%s\t%d\t%d\t%d\t%s\n", clip(visible(r.Name), name), visible(result), r.Deliveries, r.Skips, r.Runs, by)
	}
	return t.Flush()
}

// summary is a result in a few words: the built-in analyzer's count, or how
// another's begins.
func summary(result any) string {
	if result == nil {
		return ""
	}
	m, _ := result.(map[string]any)
	for _, unit := range []string{"line", "byte"} {
		if n, ok := m[unit+"s"].(int64); ok {
			return counted(n, unit)
		}
	}
	text, err := repo.Plain(result)
	if err != nil {
		return ""
	}
	return cut(string(text), 60)
}
