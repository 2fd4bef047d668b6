package console

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"taskguard/lease"
)

// maxOverdue is how many overdue analyses are listed.
const maxOverdue = 50

// choice selects the analyses that a page shows.
type choice struct {
	State  string // as in row; empty: all
	Lock   string // a state of the lock, or stuck; empty: all
	Search string // part of the id, upper or lower case
}

// query returns c as part of an address.
func (c choice) query() string {
	v := url.Values{}
	for name, value := range map[string]string{"state": c.State, "lock": c.Lock, "q": c.Search} {
		if value != "" {
			v.Set(name, value)
		}
	}
	return "?" + v.Encode()
}

func (c choice) matches(r *row) bool {
	return (c.State == "" || c.State == r.State) &&
		(c.Lock == "" || c.Lock == r.LockState || c.Lock == stuck && r.Overdue) &&
		(c.Search == "" || strings.Contains(strings.ToLower(r.ID), strings.ToLower(c.Search)))
}

// listPage is the page of many analyses.
type listPage struct {
	frame
	choice
	Filtered bool // choice selects not all
	Known    bool // State is one of the four statuses
	Rows     []row
	Limit    int
	Overdue  int    // the limit of the overdue analyses
	Missing  string // a sentence: why the list is incomplete
	Found    *row   // the analysis found by its exact id, if it is not in Rows
	Missed   string // a sentence: why no analysis was found by its exact id; empty: none was looked for

	All           filter
	States, Locks []filter
}

// filter is one state with the number of its analyses. States count all analyses, Locks only
// those listed.
type filter struct {
	Name, Kind string
	N          string // empty: unknown
	Current    bool   // the page shows this filter's analyses
	Query      string // of the address of that page
}

// list handles GET /.
func (s *Server) list(c echo.Context) error {
	ch := choice{State: c.QueryParam("state"), Lock: c.QueryParam("lock"), Search: c.QueryParam("q")}
	p := listPage{
		frame: s.frame(c, "Analyses"), choice: ch, Filtered: ch != choice{}, Known: slices.Contains(kinds, ch.State),
		Limit: s.o.Limit, Overdue: maxOverdue,
	}
	p.Poll = "/" + ch.query()
	rows, counts := s.listed(c.Request().Context(), &p)
	p.count(rows, counts)
	for i := range rows {
		if ch.matches(&rows[i]) {
			p.Rows = append(p.Rows, rows[i])
		}
	}
	if ch.Search != "" && p.Live.Status == "static" && !slices.ContainsFunc(rows, func(r row) bool { return r.ID == ch.Search }) {
		p.Found, p.Missed = s.exact(c, ch.Search)
	}
	return s.render(c, http.StatusOK, "list", p)
}

// listed returns the rows of the overdue analyses, of the newest, and of up to Limit others
// in p.State if that is one of the four statuses. It also returns the counts, nil if they
// are unknown.
func (s *Server) listed(ctx context.Context, p *listPage) ([]row, Counts) {
	newest, overdue, counts := s.refresh(ctx)
	if !counts.fresh() {
		counts.value = nil
	}
	if newest.asked.IsZero() { // the store's time is unknown
		p.Live = live{Status: "unavailable", Problem: problem(newest.err) + ". Nothing is known yet."}
		return nil, counts.value
	}
	now, all := newest.value.At, slices.Clone(newest.value.All)
	if !newest.fresh() { // judged as of the last read: a holder may have renewed its lock since
		p.Live = liveAt(now)
		p.Live.Status, p.Live.Problem = "unavailable", problem(newest.err)+". What is shown is as of "+p.Live.At+"."
	} else {
		// The estimate is late by the time of the answer: a lock may be shown as held
		// for that much too long, never as stale too soon.
		now = now.Add(time.Since(newest.value.Asked))
		p.Live = liveAt(now)
		if !overdue.fresh() {
			overdue.value = nil
			p.Missing = "Which analyses are stuck is not known now: " + problem(overdue.err) + "."
		}
		if p.Known {
			ctx, cancel := context.WithTimeout(ctx, maxRead)
			defer cancel()
			more, err := s.source.InState(ctx, p.State, s.o.Limit)
			if all = append(all, more...); err != nil {
				p.Missing = "Older analyses in this state are not known now: " + problem(err) + "."
			}
		}
	}
	analyses := merged(all, overdue.value)
	rows := make([]row, len(analyses))
	for i := range analyses {
		rows[i] = newRow(analyses[i], now, p.Write)
	}
	return rows, counts.value
}

// reading is a value that all open pages share, and the result of the last attempt to read
// it.
type reading[T any] struct {
	every time.Duration // the shortest time between two attempts
	value T
	asked time.Time // local time of the request for value; zero: it was never read
	ended time.Time // local time at which the last attempt ended
	err   error     // of the last attempt
}

// refresh reads the value if its last attempt was long enough ago.
func (r *reading[T]) refresh(s *Server, what string, read func() (T, error)) {
	if time.Since(r.ended) < r.every {
		return
	}
	asked := time.Now()
	value, err := read()
	if err == nil {
		r.value, r.asked = value, asked
	} else if r.err == nil {
		s.o.Log.Warn("console cannot read Firestore", "what", what, "error", err)
	}
	r.err, r.ended = err, time.Now()
}

// fresh reports whether the value is current. It still is after one failed attempt.
func (r *reading[T]) fresh() bool { return time.Since(r.asked) < 2*r.every+5*time.Second }

// maxRead is the time limit of the shared reads of one page, and of the read of InState.
const maxRead = 5 * time.Second

// refresh reads the values that are due. Other pages wait for it and share the values.
func (s *Server) refresh(ctx context.Context) (reading[Listing], reading[[]Analysis], reading[Counts]) {
	s.reading <- struct{}{}
	defer func() { <-s.reading }()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), maxRead)
	defer cancel()
	s.newest.refresh(s, "the newest analyses", func() (Listing, error) { return s.source.Newest(ctx, s.o.Limit) })
	s.overdue.refresh(s, "the overdue analyses", func() ([]Analysis, error) { return s.source.Overdue(ctx, maxOverdue) })
	s.counts.refresh(s, "the numbers of analyses", func() (Counts, error) { return s.source.Count(ctx, kinds) })
	return s.newest, s.overdue, s.counts
}

// merged lists the overdue first, then the others by their creation, an order that
// heartbeats do not change. An analysis that was updated since it was read as overdue
// is not overdue.
func merged(newest, overdue []Analysis) []Analysis {
	others := make(map[string]Analysis, len(newest))
	for i := range newest {
		others[newest[i].ID] = newest[i]
	}
	var first []Analysis
	for i := range overdue {
		a := overdue[i]
		if now, found := others[a.ID]; found && now.Updated.After(a.Updated) {
			continue
		} else if found {
			a = now
		}
		delete(others, a.ID)
		a.Overdue = true
		first = append(first, a)
	}
	return append(first, slices.SortedFunc(maps.Values(others), func(a, b Analysis) int {
		return cmp.Or(b.Created.Compare(a.Created), cmp.Compare(a.ID, b.ID))
	})...)
}

// exact reads the analysis id, which is not listed.
func (s *Server) exact(c echo.Context, id string) (found *row, missed string) {
	w, err := s.read(c, id, false)
	switch {
	case err == nil:
		r := s.row(&w)
		return &r, ""
	case errors.Is(err, lease.ErrNotFound), errors.Is(err, lease.ErrInvalidKey):
		return nil, "No analysis has this exact id."
	}
	return nil, "Whether an older analysis has this exact id could not be read."
}

// count makes the filters.
func (p *listPage) count(rows []row, counts Counts) {
	locks := map[string]int{}
	for i := range rows {
		locks[rows[i].LockState]++
		if rows[i].Overdue {
			locks[stuck]++
		}
	}
	number := func(status string) string {
		if n, known := counts[status]; known {
			return strconv.FormatInt(n, 10)
		}
		return ""
	}
	p.All = filter{Name: "All", N: number(""), Current: p.State == "" && p.Lock == "", Query: choice{Search: p.Search}.query()}
	for _, status := range kinds {
		p.States = append(p.States, filter{status, kindOf(status), number(status), p.State == status, choice{State: status, Search: p.Search}.query()})
	}
	for _, name := range []string{lockHeld, lockStale, stuck, lockMalformed} {
		n := ""
		if p.Live.At != "" {
			n = strconv.Itoa(locks[name])
		}
		p.Locks = append(p.Locks, filter{name, name, n, p.Lock == name, choice{Lock: name, Search: p.Search}.query()})
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

// problem describes why the store has not answered, as the beginning of a sentence.
func problem(err error) string {
	var r *Refusal
	if errors.As(err, &r) {
		return "Firestore refuses: " + r.Text
	}
	return "Firestore does not answer"
}
