package console

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/labstack/echo/v4"

	"taskguard/cmd/internal/cli"
	"taskguard/cmd/internal/printable"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/repo"
)

// choice selects the analyses that a page shows, as its address does.
type choice struct {
	State, Code  string // empty: all
	Since, Older string // as cli.ParseTime reads them
	Search       string // the beginning of the id; if it is not empty, nothing else is compared
	After        string // the Next of the page before; empty: the first page
}

// chosen returns the choice of a request.
func chosen(c echo.Context) choice {
	q := c.QueryParam
	return choice{q("state"), q("code"), q("since"), q("older"), q("q"), q("after")}
}

// narrow reports whether c selects by more than an id, so that a change of all is offered.
func (c choice) narrow() bool { return c.Search == "" && c.State+c.Code+c.Since+c.Older != "" }

// query returns c as part of an address.
func (c choice) query() string {
	v := url.Values{}
	for name, value := range map[string]string{
		"state": c.State, "code": c.Code, "since": c.Since, "older": c.Older, "q": c.Search, "after": c.After,
	} {
		if value != "" {
			v.Set(name, value)
		}
	}
	return "?" + v.Encode()
}

// maxValue bounds a value of an address, in bytes, as Firestore bounds an id.
const maxValue = 1500

// check returns a refusal of values that no analysis has.
func (c choice) check() error {
	for _, text := range []string{c.Since, c.Older} {
		if _, err := cli.ParseTime(text); err != nil && text != "" {
			r := badValue
			r.message = "“" + shorten(printable.Line(text)) + "” is no time: " + err.Error() + "."
			return r
		}
	}
	switch {
	case c.Search != "" && analysislock.CheckID(c.Search) != nil:
		return invalidID
	case len(c.State) > maxValue || len(c.Code) > maxValue:
		return badValue
	}
	return nil
}

// at returns the filter of c at now. A time that cannot be read is ignored.
func (c choice) at(now time.Time) repo.Filter {
	f := repo.Filter{Status: c.State, Code: c.Code, Prefix: c.Search, ErrorOnly: c.State == analysislock.Failed}
	if since, err := cli.ParseTime(c.Since); err == nil {
		f.Since = since(now)
	}
	if before, err := cli.ParseTime(c.Older); err == nil {
		f.Before = before(now)
	}
	return f
}

// matches reports whether f, which has no Prefix, selects a, which is unfinished.
func matches(f repo.Filter, a *analysislock.Analysis) bool {
	coded := func(e *analysislock.Error) bool { return e != nil && e.Code == f.Code }
	return (f.Status == "" || f.Status == a.Status) &&
		(f.Code == "" || coded(a.Error) || coded(a.LastError)) &&
		!a.UpdatedAt.Before(f.Since) && (f.Before.IsZero() || a.UpdatedAt.Before(f.Before))
}

// listPage is a page of many analyses.
type listPage struct {
	frame
	choice
	Filtered bool // choice selects not all
	Bulk     bool // all that choice selects may be changed
	Rows     []row
	Oldest   *row // the unfinished analysis that was created first
	All      pill
	States   []pill
	First    string       // the query of the first page
	Next     string       // the query of the next page
	Backlog  repo.Backlog // of the page without a filter; its At is zero if it was never read
	Counted  live         // how old the Backlog is
}

// pill is one choice of a filter, with the number of its analyses.
type pill struct {
	Name, Kind string
	N          string // empty: unknown
	Current    bool   // the page shows this choice
	Query      string // of the address of that page
}

// list handles GET /.
func (s *Server) list(c echo.Context) error {
	ch := chosen(c)
	if err := ch.check(); err != nil {
		return err
	}
	p := listPage{frame: s.frame(c, "Analyses"), choice: ch}
	p.Poll = "/" + ch.query()
	ch.After = ""
	p.Filtered, p.Bulk = ch != (choice{}), s.o.Operator != nil && ch.narrow()
	p.First = ch.query()
	s.listed(&p)
	return s.render(c, http.StatusOK, "list", p)
}

// view is what a page shows of the analyses, as it was read at once.
type view struct {
	active Listing // not with a Search
	page   Listing
}

// totals has what all pages show of all analyses.
type totals struct {
	counts Counts
	oldest []analysislock.Analysis // the unfinished one that was created first, if there is one
}

// readView reads the view of ch.
func (s *Server) readView(ctx context.Context, ch choice) (v view, err error) {
	if ch.Search == "" {
		if v.active, err = s.source.Active(ctx, s.o.Limit); err != nil {
			return v, err
		}
	}
	v.page, err = s.source.Page(ctx, ch.at(v.active.At), ch.After, s.o.Limit)
	return v, err
}

// totals returns the numbers of all states, and the oldest analysis unless it cannot be read.
func (s *Server) totals() (all totals, known bool) {
	r := s.shared("totals", 2*s.o.Every, func(ctx context.Context) (any, error) {
		counts, err := s.source.Count(ctx, kinds)
		if err != nil {
			return nil, err
		}
		oldest, _ := s.source.Oldest(ctx)
		return totals{counts, oldest}, nil
	})
	all, _ = r.value.(totals)
	return all, r.fresh()
}

// listed fills p with what was read last, or is read now.
func (s *Server) listed(p *listPage) {
	r := s.shared(p.query(), s.o.Every, func(ctx context.Context) (any, error) { return s.readView(ctx, p.choice) })
	v, _ := r.value.(view)
	all, known := s.totals()
	p.count(all.counts, known)

	var now time.Time
	p.Live, now = r.age(v.page.At)
	newRow := func(a *analysislock.Analysis) row { return s.newRow(a, now) }
	p.arrange(&v, newRow)
	if p.After == "" && p.Search == "" && known && len(all.oldest) > 0 {
		p.Oldest = new(newRow(&all.oldest[0]))
	}
	if !p.Filtered && p.After == "" {
		r := s.shared("backlog", 4*s.o.Every, func(ctx context.Context) (any, error) {
			return s.source.Backlog(ctx, v.active.Stuck)
		})
		p.Backlog, _ = r.value.(repo.Backlog)
		p.Counted, _ = r.age(p.Backlog.At)
	}
	if v.page.Next != "" {
		next := p.choice
		next.After = v.page.Next
		p.Next = next.query()
	}
}

// arrange makes the rows. On the first page are all of v.active that the choice selects: first
// those that run, then those that wait, then those that are stuck, then the others as v.page
// has them. Other pages have none of those.
func (p *listPage) arrange(v *view, newRow func(*analysislock.Analysis) row) {
	shown := map[string]bool{}
	for i := range v.active.All {
		r := newRow(&v.active.All[i])
		f := p.at(r.now)
		if r.Group == "" || shown[r.ID] || !matches(f, &r.Analysis) {
			continue
		}
		if shown[r.ID] = true; p.After == "" {
			p.Rows = append(p.Rows, r)
		}
	}

	for i := range v.page.All {
		if a := &v.page.All[i]; !shown[a.ID] {
			p.Rows = append(p.Rows, newRow(a))
		}
	}
	if p.Search == "" && p.After == "" {
		p.group()
	}
}

// group sorts the rows of the first page by their groups.
func (p *listPage) group() {
	order := []string{running, waiting, stuck, ""}
	slices.SortStableFunc(p.Rows, func(a, b row) int {
		if a.Group == "" && b.Group == "" {
			return 0
		}
		groups := cmp.Compare(slices.Index(order, a.Group), slices.Index(order, b.Group))
		return cmp.Or(groups, a.sortTime().Compare(b.sortTime()), cmp.Compare(a.ID, b.ID))
	})
	for i := range p.Rows {
		p.Rows[i].First = p.Rows[0].Group != "" && (i == 0 || p.Rows[i].Group != p.Rows[i-1].Group)
	}
}

// count makes the pills.
func (p *listPage) count(counts Counts, fresh bool) {
	newPill := func(status string) pill {
		ch := p.choice
		ch.State, ch.Search, ch.After = status, "", ""
		made := pill{Name: status, Kind: kindOf(status), Current: p.State == status, Query: ch.query()}
		if n, known := counts[status]; known && fresh {
			made.N = number(n)
		}
		return made
	}

	p.All = newPill("")
	p.All.Name, p.All.Kind, p.All.Current = "All", "", p.State == "" && p.Search == ""
	for _, status := range kinds {
		p.States = append(p.States, newPill(status))
	}
}

// live describes how old a page is.
type live struct {
	Status  string // static, or unavailable: the store does not answer
	At      string // the store's time of the data, as text
	Now     int64  // the same in milliseconds
	Problem string // a sentence about the store
}

// liveAt describes a page with data of the store's time at.
func liveAt(at time.Time) live {
	return live{Status: "static", At: clock(at), Now: at.UnixMilli()}
}

// problem describes why the store has not answered, as the beginning of a sentence. Without an
// error, a read is under way.
func problem(err error) string {
	var r *Refusal
	switch {
	case err == nil:
		return "Firestore is still being read"
	case errors.As(err, &r):
		return "Firestore refuses: " + r.Text
	case errors.Is(err, lease.ErrInvalidKey):
		return "There can be no such id or page"
	}
	return "Firestore does not answer"
}
