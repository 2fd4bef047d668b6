package console

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// newestFirst is the order of all lists without another order. With it, the first page has no sections.
const newestFirst = "-updated"

// allByID reports whether c selects all analyses in the order of their ids, which an index serves.
func (c choice) allByID() bool { return c.Sort == "id" && c.Search == "" && !c.narrow() }

// column is a column by which a page can be sorted. The sign of descending sorting is a minus before its Name.
type column struct {
	Name, Title string
	Class       string // how its cells look
	Falls       bool   // its first click sorts in descending order
	Order       string // ascending or descending: how the page is sorted by it; empty: it is not
	All         bool   // Order is the order of all analyses, not only of those on this page
	Query       string // the query of the page that is sorted by it, or the other way round
	compare     func(a, b *row) int
}

// sortable lists the columns.
var sortable = []column{
	{Name: "id", Title: "Analysis", Class: "id", compare: func(a, b *row) int { return cmp.Compare(a.ID, b.ID) }},
	{Name: "state", Title: "Status", compare: func(a, b *row) int { return cmp.Compare(a.State, b.State) }},
	{Name: "now", Title: "Now, or why it failed", Class: "now", compare: func(a, b *row) int {
		return cmp.Compare(a.Now(), b.Now())
	}},
	{Name: "attempts", Title: "Attempt", Class: "number", Falls: true, compare: func(a, b *row) int {
		return cmp.Compare(a.Attempts, b.Attempts)
	}},
	{Name: "time", Title: "Run time", Class: "number", Falls: true, compare: func(a, b *row) int {
		return cmp.Compare(a.RunTime(), b.RunTime())
	}},
	{Name: "age", Title: "Age", Class: "number", Falls: true, compare: func(a, b *row) int {
		return b.CreatedAt.Compare(a.CreatedAt)
	}},
	{Name: "updated", Title: "Updated", Class: "number", Falls: true, compare: func(a, b *row) int {
		return a.UpdatedAt.Compare(b.UpdatedAt)
	}},
}

// sortColumn returns the column that sorts as order says; nil: there is none.
func sortColumn(order string) *column {
	name := strings.TrimPrefix(order, "-")
	i := slices.IndexFunc(sortable, func(c column) bool { return c.Name == name })
	if i < 0 {
		return nil
	}
	found := sortable[i]
	found.Order = "ascending"
	if order != name {
		found.Order = "descending"
	}
	return &found
}

// columns returns the columns of the page of c, and the one by which it is sorted; nil: none.
func (c choice) columns() (all []column, sorted *column) {
	all = slices.Clone(sortable)
	for i := range all {
		col, next := &all[i], c
		next.After, next.Sort = "", col.Name
		if col.Falls {
			next.Sort = "-" + col.Name
		}
		if next.Sort == c.Sort { // a second click turns it round
			next.Sort = strings.TrimPrefix("-"+c.Sort, "--")
		}
		col.Query = next.query()
		if by := sortColumn(c.Sort); by != nil && by.Name == col.Name {
			col.Order, sorted = by.Order, col
			col.All = c.allByID() || c.Sort == newestFirst && c.Search == "" || c.Sort == "id" && c.Search != ""
		}
	}
	return all, sorted
}

// sort sorts rows by c. They have no sections then.
func (c *column) sort(rows []row) {
	for i := range rows {
		rows[i].Section = ""
	}
	slices.SortStableFunc(rows, func(a, b row) int {
		if c.Order == "descending" {
			return c.compare(&b, &a)
		}
		return c.compare(&a, &b)
	})
}

// RunTime returns how long the attempt under way has taken so far, or how long a finished analysis took; 0: unknown.
func (r row) RunTime() time.Duration {
	if r.LockState == lockHeld && !r.Began().IsZero() {
		return r.Since(r.Began())
	}
	return r.Took()
}

// Now returns a word for what the analysis does now, or the code of its error.
func (r row) Now() string {
	if r.Error != nil {
		return r.Error.Code
	}
	return r.Group
}
