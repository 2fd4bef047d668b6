package console

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/labstack/echo/v4"
	"golang.org/x/sync/errgroup"

	"taskguard/lease/analysislock"
	"taskguard/repo"
)

// listPage is a page of many analyses.
type listPage struct {
	frame
	choice
	Filtered  bool      // choice leaves out some analyses
	Bulk      bool      // all that choice selects may be changed
	Overview  bool      // this is the first page, with neither a filter nor a sorting
	urgent    int       // so many Rows come first, as they need attention
	Attention attention // only on an Overview
	Rows      []row
	Columns   []column
	Sorted    *column // nil: not sorted
	Oldest    *row    // the unfinished analysis that was created first
	Pills     []pill
	Statuses  []string     // to choose from
	Codes     []string     // some codes to choose from
	Tally     live         // how old the numbers of the Pills are
	First     string       // the query of the first page
	Here      string       // the query of this page
	Next      string       // the query of the next page
	Unsorted  string       // the query of the first page, not sorted
	Backlog   repo.Backlog // only on an Overview; a zero At: never read
	Counted   live         // how old the Backlog is
	Now       float64      // where in the plot of the Backlog it was read; see readIn
}

// readIn returns where in its plot a Backlog was read, in intervals from its beginning.
func readIn(b *repo.Backlog) float64 {
	n := len(b.Intervals)
	if n == 0 {
		return 0
	}
	return float64(n-1) + float64(b.At.Sub(b.Intervals[n-1].From))/float64(repo.Step)
}

// Urgent returns the rows that come first, as they need attention. They come before the causes of failures: only an
// operator can answer for an uncertain side effect.
func (p *listPage) Urgent() []row { return p.Rows[:p.urgent] }

// Calm returns the other rows.
func (p *listPage) Calm() []row { return p.Rows[p.urgent:] }

// pill is one choice of a state, with the number of its analyses.
type pill struct {
	State, Kind string
	N           string // empty: unknown
	Current     bool   // the page shows this choice
	Query       string // the query of the page with this choice
}

// view is what one reading for a list returns.
type view struct {
	uncertain, stuck, waiting, running, others []analysislock.Analysis
	next                                       string
	keys                                       map[string]repo.KeyState // by the id of an analysis that is parked
	readAt                                     time.Time
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
	frame := s.frame(c, "")
	frame.Title = frame.Many
	p := listPage{frame: frame, choice: ch, Here: ch.query()}
	p.Statuses = slices.Concat(kinds, s.o.Fields.Final)
	p.Poll = "/" + p.Here
	ch.After = ""
	p.First, p.Bulk = ch.query(), s.o.Operator != nil && ch.narrow()
	p.Columns, p.Sorted = ch.columns()
	ch.Sort = ""
	p.Unsorted = ch.query()
	p.Filtered = ch != (choice{})
	p.Overview = p.choice == (choice{})

	ctx, cancel := context.WithTimeout(c.Request().Context(), maxWait)
	defer cancel()
	s.fill(ctx, &p)
	return s.render(c, http.StatusOK, "list", &p)
}

// fill fills p with what was read last, or is read now.
func (s *Server) fill(ctx context.Context, p *listPage) {
	asked := p.choice
	if !asked.allByID() { // what is read is the same in any order
		asked.Sort = ""
	}
	r := s.shared(ctx, asked.query(), s.o.Every, func(ctx context.Context) (any, error) { return s.view(ctx, asked) })
	all, counted := s.totals(ctx)
	oldest := s.shared(ctx, "oldest", 2*s.o.Every, func(ctx context.Context) (any, error) {
		oldest, _, err := s.source.OldestUnfinished(ctx)
		return oldest, err
	})

	v, _ := r.value.(view)
	var now time.Time
	p.Live, now = r.age(v.readAt)
	if p.Overview {
		r := s.shared(ctx, "alarms", 4*s.o.Every, func(ctx context.Context) (any, error) { return s.alarms(ctx) })
		found, _ := r.value.(alarms)
		v.uncertain = found.stillUncertain(&v)
		p.Attention = s.attention(&found, &v, now)
		if problem, _ := r.age(found.readAt); r.err != nil {
			p.Attention.Problem = problem.Problem
		}
	}
	if p.Sort == newestFirst { // others alone has all in this order
		v.running, v.waiting, v.stuck = nil, nil, nil
	}
	p.Rows = s.rows(&v, now)
	if len(p.Rows) > 0 {
		for p.urgent < len(p.Rows) && slices.Contains([]string{uncertain, stuck}, p.Rows[p.urgent].Group) {
			p.urgent++
		}
		first := &p.Rows[0]
		if first.Section == others && p.Attention.none() { // nothing is above them
			first.Section = ""
		}
	}
	if p.Sorted != nil {
		p.Sorted.sort(p.Rows)
	}
	p.Codes = s.codes(ctx)
	p.Pills = p.pills(all, counted.fresh())
	p.Tally, _ = counted.age(time.Time{})
	if first, _ := oldest.value.(analysislock.Analysis); first.ID != "" && oldest.fresh() && p.After+p.Search == "" {
		p.Oldest = new(s.newRow(&first, now))
	}
	if p.Overview {
		r := s.shared(ctx, "backlog", 4*s.o.Every, func(ctx context.Context) (any, error) {
			return s.source.Backlog(ctx, len(v.stuck))
		})
		p.Backlog, _ = r.value.(repo.Backlog)
		p.Counted, _ = r.age(p.Backlog.At)
		p.Now = readIn(&p.Backlog)
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

// rows returns one row for each analysis of v: first those that need attention, then the waiting ones, then the
// running ones, then the others.
func (s *Server) rows(v *view, now time.Time) (rows []row) {
	listed := map[string]bool{}
	for _, section := range []struct {
		name string
		all  []analysislock.Analysis
	}{{uncertain, v.uncertain}, {stuck, v.stuck}, {waiting, v.waiting}, {running, v.running}, {others, v.others}} {
		start := len(rows)
		for i := range section.all {
			r := s.newRow(&section.all[i], now)
			if listed[r.ID] || section.name == waiting && r.Group == running {
				continue
			}
			listed[r.ID] = true
			r.KeyState = v.keys[r.ID]
			if section.name == stuck || section.name == uncertain {
				r.Group = section.name
			}
			rows = append(rows, r)
		}

		if len(rows) > start {
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
