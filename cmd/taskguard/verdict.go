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
	"taskguard/repo"
)

// row is what is known of one document.
type row struct {
	index      int
	Name       string `json:"file"`
	ID         string `json:"analysis_id"`
	Status     string `json:"status"`
	Result     any    `json:"result,omitempty"`
	Deliveries int    `json:"deliveries"`
	Skips      int    `json:"skips"`
	Unanswered int    `json:"unanswered"` // by a worker that was dead, or died
	Runs       int64  `json:"runs"`       // acquisitions
	FinishedBy int    `json:"finished_by"`

	attempts int
}

func (r *row) count(v fleet.Delivery) {
	r.Deliveries++
	switch {
	case v.Status == 0:
		r.Unanswered++
	case v.Skip():
		r.Skips++
	case v.Acquired && v.Result != "":
		r.FinishedBy = v.Worker.Number
	}
}

// collect reads what the documents have become.
func (d *demonstration) collect(ctx context.Context) error {
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
	for _, doc := range d.docs {
		rows = append(rows, d.rows[doc.id])
	}
	if d.c.json {
		e := json.NewEncoder(d.c.out)
		e.SetIndent("", "  ")
		err := e.Encode(map[string]any{
			"ok": len(problems) == 0, "problems": problems, "files": rows, "killed": d.killed,
			"documents": map[string]string{"project": d.place.project, "collection": d.place.collection, "where": d.where},
		})
		if err != nil {
			return err
		}
	} else if err := d.table(rows, len(problems) == 0); err != nil {
		return err
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
		r := d.rows[doc.id]
		want := int64(1)
		if d.killed != nil && d.killed.ID == doc.id {
			want = 2
			if r.FinishedBy == d.killed.Worker {
				problem("%s was finished by the worker that was killed", r.Name)
			}
		}
		switch {
		case r.Status != repo.Ready:
			problem("%s is %s", r.Name, r.Status)
		case r.FinishedBy == 0:
			problem("%s was finished by nobody who said so", r.Name)
		}
		if r.Runs != want || r.attempts != int(want) {
			problem("%s had %d runs, want %d", r.Name, r.Runs, want)
		}
		if r.Deliveries <= len(again) {
			problem("%s was delivered %d times, want at least %d", r.Name, r.Deliveries, len(again)+1)
		}
		skips += r.Skips
	}
	if skips == 0 {
		problem("no delivery was skipped")
	}
	return all
}

func (d *demonstration) table(rows []*row, held bool) error {
	printTo(d.c.out, "\n")
	t := tabwriter.NewWriter(d.c.out, 0, 0, 2, ' ', 0)
	printTo(t, "FILE\tRESULT\tDELIVERIES\tSKIPS\tRUNS\tFINISHED BY\n")
	var total row
	for _, r := range rows {
		by := "worker " + strconv.Itoa(r.FinishedBy)
		if r.FinishedBy == 0 {
			by = "nobody"
		} else if d.killed != nil && d.killed.ID == r.ID {
			by += fmt.Sprintf(", after worker %d was killed", d.killed.Worker)
		}
		printTo(t, "%s\t%s\t%d\t%d\t%d\t%s\n", clip(r.Name, 32), strings.TrimSpace(r.Status+" "+summary(r.Result)), r.Deliveries, r.Skips, r.Runs, by)
		total.Deliveries, total.Skips, total.Runs = total.Deliveries+r.Deliveries, total.Skips+r.Skips, total.Runs+r.Runs
		total.Unanswered += r.Unanswered
	}
	if err := t.Flush(); err != nil {
		return err
	}
	verdict := ""
	if held {
		verdict = " Each file finished once."
	}
	_, err := fmt.Fprintf(d.c.out,
		"\n%d files, %d deliveries: %d runs, %d skips, %d to a worker that was dead or died.%s\nThe documents: %s.\n",
		len(rows), total.Deliveries, total.Runs, total.Skips, total.Unanswered, verdict, d.where)
	return err
}

// summary is a result in a few words.
func summary(result any) string {
	m, _ := result.(map[string]any)
	for _, unit := range []string{"lines", "bytes"} {
		if n, ok := m[unit].(int64); ok {
			return fmt.Sprintf("%d %s", n, unit)
		}
	}
	return ""
}
