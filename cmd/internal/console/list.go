package console

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/labstack/echo/v4"
	"golang.org/x/sync/errgroup"

	"taskguard/cmd/internal/cli"
	"taskguard/cmd/internal/printable"
	"taskguard/lease/analysislock"
	"taskguard/repo"
)

// choice selects the analyses that a page shows, as its address does.
type choice struct {
	State, Code  string // empty: all
	Cause        bool   // Code is the code of a group on the page of failures
	Since, Older string // times, in the form that cli.ParseTime reads
	Search       string // the beginning of the id; if it is not empty, nothing else is compared
	After        string // where the page begins; empty: the first page
}

// chosen returns the choice of a request. It refuses values that no analysis has.
func (s *Server) chosen(c echo.Context) (choice, error) {
	q := c.QueryParam
	ch := choice{
		State: q("state"), Code: q("code"), Since: q("since"), Older: q("older"), Search: q("q"), After: q("after"),
	}
	answer := badValue
	for _, text := range []string{ch.Since, ch.Older} {
		if _, err := cli.ParseTime(text); err != nil && text != "" {
			answer.message = "“" + shorten(printable.Line(text)) + "” is no time: " + err.Error() + "."
			return ch, answer
		}
	}
	if ch.State != "" && len(ch.State) <= maxValue {
		status, err := cli.ParseStatus(s.o.Fields, ch.State)
		if err != nil {
			answer.message = printable.Line(err.Error()) + "."
			return ch, answer
		}
		ch.State = status
	}

	switch {
	case ch.Search != "" && analysislock.CheckID(ch.Search) != nil:
		return ch, refusalOf(analysislock.CheckID(ch.Search), "")
	case len(ch.State) > maxValue || len(ch.Code) > maxValue:
		return ch, badValue
	}
	return ch, nil
}

// maxValue bounds a value of an address, in bytes, as Firestore bounds an id.
const maxValue = 1500

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

// at returns the filter of c at now.
func (c choice) at(now time.Time) repo.Filter {
	f := repo.Filter{Status: c.State, Code: c.Code, Prefix: c.Search, Cause: c.Cause}
	if since, err := cli.ParseTime(c.Since); err == nil {
		f.Since = since(now)
	}
	if olderThan, err := cli.ParseTime(c.Older); err == nil {
		f.Before = olderThan(now)
	}
	return f
}

// listPage is a page of many analyses.
type listPage struct {
	frame
	choice
	Filtered bool // choice leaves out some analyses
	Bulk     bool // all that choice selects may be changed
	Rows     []row
	Oldest   *row // the unfinished analysis that was created first
	Pills    []pill
	Tally    live         // how old the numbers of the Pills are
	First    string       // the query of the first page
	Next     string       // the query of the next page
	Backlog  repo.Backlog // only without a filter; a zero At: never read
	Counted  live         // how old the Backlog is
}

// pill is one choice of a state, with the number of its analyses.
type pill struct {
	State, Kind string
	N           string // empty: unknown
	Current     bool   // the page shows this choice
	Query       string // the query of the page with this choice
}

// view is what one reading for a list returns.
type view struct {
	running, waiting, stuck, others []analysislock.Analysis
	next                            string
	keys                            map[string]repo.KeyState // by the id of an analysis that is parked
	readAt                          time.Time
}

// totals are the numbers of all analyses and of each of kinds.
type totals []int64

// Reads returns how many reads Firestore has billed for t.
func (t totals) Reads() (n int64) {
	for _, counted := range t {
		n += 1 + counted/1000
	}
	return n
}

// list handles GET /.
func (s *Server) list(c echo.Context) error {
	ch, err := s.chosen(c)
	if err != nil {
		return err
	}
	p := listPage{frame: s.frame(c, "Analyses"), choice: ch}
	p.Poll = "/" + ch.query() // this page, and below the first one
	ch.After = ""
	p.Filtered, p.Bulk, p.First = ch != (choice{}), s.o.Operator != nil && ch.narrow(), ch.query()

	ctx, cancel := context.WithTimeout(c.Request().Context(), maxWait)
	defer cancel()
	s.fill(ctx, &p)
	return s.render(c, http.StatusOK, "list", p)
}

// fill fills p with what was read last, or is read now.
func (s *Server) fill(ctx context.Context, p *listPage) {
	r := s.shared(ctx, p.query(), s.o.Every, func(ctx context.Context) (any, error) { return s.view(ctx, p.choice) })
	all, counted := s.totals(ctx)
	oldest := s.shared(ctx, "oldest", 2*s.o.Every, func(ctx context.Context) (any, error) {
		oldest, _, err := s.source.OldestUnfinished(ctx)
		return oldest, err
	})

	v, _ := r.value.(view)
	var now time.Time
	p.Live, now = r.age(v.readAt)
	p.Rows = s.rows(&v, now)
	p.Pills = p.pills(all, counted.fresh())
	p.Tally, _ = counted.age(time.Time{})
	if first, _ := oldest.value.(analysislock.Analysis); first.ID != "" && oldest.fresh() && p.After+p.Search == "" {
		p.Oldest = new(s.newRow(&first, now))
	}
	if !p.Filtered && p.After == "" {
		r := s.shared(ctx, "backlog", 4*s.o.Every, func(ctx context.Context) (any, error) {
			return s.source.Backlog(ctx, len(v.stuck))
		})
		p.Backlog, _ = r.value.(repo.Backlog)
		p.Counted, _ = r.age(p.Backlog.At)
	}
	if v.next != "" {
		next := p.choice
		next.After = v.next
		p.Next = next.query()
	}
}

// view reads what ch asks for: a page of analyses. The first page without a filter also shows which
// analyses run, wait or are stuck.
func (s *Server) view(ctx context.Context, ch choice) (v view, err error) {
	switch {
	case ch == (choice{}):
		v.running, v.waiting, v.stuck, v.readAt, err = s.source.Active(ctx, s.o.Limit)
		slices.SortFunc(v.running, func(a, b analysislock.Analysis) int { // a heartbeat changes no place
			return cmp.Or(a.StartedAt.Compare(b.StartedAt), cmp.Compare(a.ID, b.ID))
		})
	case ch.Since+ch.Older != "":
		v.readAt, err = s.source.Now(ctx)
	}
	if err != nil {
		return v, err
	}
	v.others, v.next, v.readAt, err = s.source.Page(ctx, ch.at(v.readAt), ch.After, s.o.Limit)
	if err != nil {
		return v, err
	}
	v.keys, err = s.keyStates(ctx, slices.Concat(v.waiting, v.stuck, v.others))
	return v, err
}

// maxKeys bounds how many keys a list reads.
const maxKeys = 20

// keyStates returns the state of the key of each parked analysis, up to maxKeys keys.
func (s *Server) keyStates(ctx context.Context, all []analysislock.Analysis) (map[string]repo.KeyState, error) {
	known, states := map[string]repo.KeyState{}, map[string]repo.KeyState{}
	for i := range all {
		a := &all[i]
		keyID, _, _ := strings.Cut(a.Place, " ")
		state, read := known[keyID]
		if a.ParkedAt.IsZero() || !read && len(known) == maxKeys {
			continue
		}
		if !read {
			var err error
			if state, err = s.keyState(ctx, a, false); err != nil {
				return nil, err
			}
			known[keyID] = state
		}
		states[a.ID] = state
	}
	return states, nil
}

// rows returns one row for each analysis of v: first the running ones, then the waiting ones, then
// the stuck ones, then the others.
func (s *Server) rows(v *view, now time.Time) (rows []row) {
	listed := map[string]bool{}
	for _, section := range []struct {
		name string
		all  []analysislock.Analysis
	}{{running, v.running}, {waiting, v.waiting}, {stuck, v.stuck}, {"others", v.others}} {
		start := len(rows)
		for i := range section.all {
			r := s.newRow(&section.all[i], now)
			if listed[r.ID] {
				continue
			}
			listed[r.ID] = true
			r.KeyState = v.keys[r.ID]
			if section.name == stuck {
				r.Group = stuck
			}
			rows = append(rows, r)
		}

		if len(rows) > start && (start > 0 || section.name != "others") {
			rows[start].Section = section.name
		}
	}
	return rows
}

// totals returns the numbers of all states.
func (s *Server) totals(ctx context.Context) (totals, reading) {
	r := s.shared(ctx, "totals", 2*s.o.Every, func(ctx context.Context) (any, error) {
		all := make(totals, 1+len(kinds))
		counts, ctx := errgroup.WithContext(ctx)
		for i, status := range append([]string{""}, kinds...) {
			counts.Go(func() (err error) {
				all[i], err = s.source.Count(ctx, repo.Filter{Status: status})
				return err
			})
		}
		return all, counts.Wait()
	})
	all, _ := r.value.(totals)
	return all, r
}

// pills returns the choices of a state; the first one is of all.
func (p *listPage) pills(counts totals, fresh bool) (all []pill) {
	for i, status := range append([]string{""}, kinds...) {
		ch := p.choice
		ch.State, ch.Search, ch.After = status, "", ""
		link := pill{State: status, Kind: kindOf(status), Query: ch.query(),
			Current: p.State == status && p.Search == ""}
		if fresh {
			link.N = number(counts[i])
		}
		all = append(all, link)
	}
	return all
}
