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

	"taskguard/internal/printable"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/lease/iso8601"
)

// choice selects the analyses that a page shows, as its address does.
type choice struct {
	State, Code  string // empty: all
	Since, Older string // as ParseTime reads them
	Search       string // the beginning of the id; if it is not empty, nothing else is compared
	After        string // the Next of the page before; empty: the first page
}

// query returns c as part of an address.
func (c choice) query() string {
	v := url.Values{}
	for name, value := range map[string]string{"state": c.State, "code": c.Code, "since": c.Since, "older": c.Older, "q": c.Search, "after": c.After} {
		if value != "" {
			v.Set(name, value)
		}
	}
	return "?" + v.Encode()
}

// unreadable returns a sentence about a time of c that cannot be read; empty: there is none.
func (c choice) unreadable() string {
	for _, text := range []string{c.Since, c.Older} {
		if _, err := ParseTime(text); err != nil && text != "" {
			return "“" + shorten(printable.Line(text)) + "” is no time: want 90m or 2026-01-31T12:00:00Z."
		}
	}
	return ""
}

// at returns the Filter of c at now. A time that cannot be read is ignored.
func (c choice) at(now time.Time) Filter {
	f := Filter{Status: c.State, Code: c.Code, Prefix: c.Search}
	if since, err := ParseTime(c.Since); err == nil {
		f.Since = since(now)
	}
	if before, err := ParseTime(c.Older); err == nil {
		f.Before = before(now)
	}
	return f
}

// ParseTime reads a time such as 2026-01-31T12:00:00Z, or how long ago it was, such as 90m.
func ParseTime(text string) (at func(now time.Time) time.Time, err error) {
	if fixed, ok := iso8601.Parse(text); ok {
		return func(time.Time) time.Time { return fixed }, nil
	}
	days, rest := "0", text
	if before, after, found := strings.Cut(text, "d"); found {
		days, rest = before, cmp.Or(after, "0")
	}
	n, err := strconv.ParseUint(days, 10, 16)
	ago, restErr := time.ParseDuration(rest)
	if ago += time.Duration(n) * 24 * time.Hour; err != nil || restErr != nil || ago < 0 {
		return nil, errors.New("want a duration such as 90m or 2d, or a time such as 2026-01-31T12:00:00Z")
	}
	return func(now time.Time) time.Time { return now.Add(-ago) }, nil
}

// matches reports whether f selects a.
func (f Filter) matches(a *analysislock.Analysis) bool {
	has := func(e *analysislock.Error) bool { return e != nil && e.Code == f.Code }
	return f.Prefix != "" && strings.HasPrefix(a.ID, f.Prefix) || f.Prefix == "" &&
		(f.Status == "" || f.Status == a.Status) &&
		(f.Code == "" || has(a.Error) || f.Status != analysislock.Failed && has(a.LastError)) &&
		!a.UpdatedAt.Before(f.Since) && (f.Before.IsZero() || a.UpdatedAt.Before(f.Before))
}

// listPage is a page of many analyses.
type listPage struct {
	frame
	choice
	Filtered bool // choice selects not all
	Rows     []row
	Missing  string // a sentence: why the list is incomplete
	Oldest   *row   // the unfinished analysis that was created first
	All      pill
	States   []pill
	Newer    string // the query of the first page, if this is another
	Next     string // the query of the next page
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
	ch := choice{c.QueryParam("state"), c.QueryParam("code"), c.QueryParam("since"), c.QueryParam("older"), c.QueryParam("q"), c.QueryParam("after")}
	p := listPage{frame: s.frame(c, "Analyses"), choice: ch}
	ch.After = ""
	if p.Filtered = ch != (choice{}); p.After != "" {
		p.Newer = ch.query()
	}
	p.Poll = "/" + p.query()
	s.listed(c.Request().Context(), &p)
	return s.render(c, http.StatusOK, "list", p)
}

// listed fills p with what was read last. Other pages wait for it, and share what it reads.
func (s *Server) listed(ctx context.Context, p *listPage) {
	s.reading <- struct{}{}
	defer func() { <-s.reading }()
	page := s.refresh(ctx, p.choice)
	p.count(s.counts.value, s.counts.fresh())
	if s.changes.asked.IsZero() { // the store's time is unknown
		p.Live = live{Status: "unavailable", Problem: problem(s.changes.err) + ". Nothing is known yet."}
		return
	}
	now := s.changes.value.At
	if !s.changes.fresh() { // judged as of the last read: a holder may have renewed its lock since
		p.Live = liveAt(now)
		p.Live.Status, p.Live.Problem = "unavailable", problem(s.changes.err)+". What is shown is as of "+p.Live.At+"."
	} else {
		// The estimate is late by the time of the answer: a lock may be shown as held
		// for that much too long, never as stale too soon.
		now = now.Add(time.Since(s.changes.value.Asked))
		p.Live = liveAt(now)
		switch {
		case !page.fresh():
			p.Missing = "The list is not known now. " + problem(page.err) + "."
		case !s.active.fresh():
			p.Missing = "Which others run, wait or are stuck is not known now. " + problem(s.active.err) + "."
		}
	}
	if wrong := p.unreadable(); wrong != "" {
		p.Missing = wrong
		return
	}
	p.arrange(&page.value, &s.active.value, s.recent, func(a *analysislock.Analysis) row { return s.newRow(a, now) })
	if p.After == "" && s.oldest.fresh() && len(s.oldest.value) > 0 {
		r := s.newRow(&s.oldest.value[0], now)
		p.Oldest = &r
	}
	if page.value.Next != "" {
		next := p.choice
		next.After = page.value.Next
		p.Next = next.query()
	}
}

// arrange makes the rows. On the first page are all analyses of active: first those that run,
// then those that wait, then those that are stuck, then the others as page has them. Other pages have none of those. The
// recent ones were read after page or active, and replace their analyses.
func (p *listPage) arrange(page, active *Listing, recent map[string]analysislock.Analysis, newRow func(*analysislock.Analysis) row) {
	latest := func(of *Listing) (rows []row) {
		for i := range of.All {
			a := of.All[i]
			if r, found := recent[a.ID]; found && r.ReadAt.After(a.ReadAt) {
				a = r
			}
			rows = append(rows, newRow(&a))
		}
		return rows
	}
	all := append(latest(active), latest(page)...)
	top, shown := len(active.All), map[string]bool{}
	if p.Search != "" {
		all, top = latest(page), 0
	} else if p.After == "" {
		newer := slices.SortedFunc(maps.Values(recent), func(a, b analysislock.Analysis) int { return b.UpdatedAt.Compare(a.UpdatedAt) })
		newer = slices.DeleteFunc(newer, func(a analysislock.Analysis) bool { return !a.ReadAt.After(page.At) })
		all = slices.Insert(all, top, latest(&Listing{All: newer})...)
	}
	for i := range all {
		r := &all[i]
		f := p.at(r.now)
		if i < top && (r.Group == "" || !f.matches(&r.Analysis)) || shown[r.ID] {
			continue
		}
		if shown[r.ID] = true; f.matches(&r.Analysis) && (i >= top || p.After == "") {
			p.Rows = append(p.Rows, *r)
		}
	}
	if p.Search != "" || p.After != "" {
		return
	}
	order := []string{running, waiting, stuck, ""}
	slices.SortStableFunc(p.Rows, func(a, b row) int {
		order := cmp.Compare(slices.Index(order, a.Group), slices.Index(order, b.Group))
		if order != 0 || a.Group == "" {
			return order
		}
		switch a.Group {
		case waiting:
			return cmp.Or(a.NextAttemptAt.Compare(b.NextAttemptAt), cmp.Compare(a.ID, b.ID))
		case stuck:
			return cmp.Or(a.UpdatedAt.Compare(b.UpdatedAt), cmp.Compare(a.ID, b.ID))
		}
		return cmp.Or(a.Began().Compare(b.Began()), cmp.Compare(a.ID, b.ID))
	})
	for i := range p.Rows {
		p.Rows[i].First = p.Rows[0].Group != "" && (i == 0 || p.Rows[i].Group != p.Rows[i-1].Group)
	}
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

// refresh reads the value if its last attempt was long enough ago. After an error that is soon.
func (r *reading[T]) refresh(s *Server, what string, read func() (T, error)) {
	if since := time.Since(r.ended); since < s.o.Every || since < r.every && r.err == nil {
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

const (
	maxRead  = 5 * time.Second // the time limit of the shared reads of one page
	maxPages = 32              // are kept; then all are read again
	overlap  = 2 * time.Second // between two reads of the changes: a commit lands after the time that it writes
)

// refresh reads what is due of a page and of what all pages share. The changes are all analyses
// that were updated since the last read of them: the rest is read again only from time to time.
func (s *Server) refresh(ctx context.Context, ch choice) *reading[Listing] {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), maxRead)
	defer cancel()
	page := s.pages[ch]
	if page == nil {
		if len(s.pages) == maxPages {
			clear(s.pages)
		}
		page = &reading[Listing]{every: 10 * s.o.Every}
		s.pages[ch] = page
	}
	s.active.refresh(s, "the active analyses", func() (Listing, error) { return s.source.Active(ctx, s.o.Limit) })
	now := s.active.value.At.Add(time.Since(s.active.value.Asked))
	page.refresh(s, "the analyses", func() (Listing, error) { return s.source.Page(ctx, ch.at(now), ch.After, s.o.Limit) })
	s.changes.refresh(s, "the changes", func() (Listing, error) { return s.changed(ctx, page) })
	s.counts.refresh(s, "the numbers of analyses", func() (Counts, error) { return s.source.Count(ctx, kinds) })
	s.oldest.refresh(s, "the oldest unfinished analysis", func() ([]analysislock.Analysis, error) { return s.source.Oldest(ctx) })
	return page
}

// changed reads the changes, and keeps them until all pages were read again.
func (s *Server) changed(ctx context.Context, page *reading[Listing]) (Listing, error) {
	since := s.changes.value.At
	for _, at := range []time.Time{s.active.value.At, page.value.At} {
		if since.Before(at.Add(-time.Minute)) {
			since = at
		}
	}
	if since.IsZero() { // nothing was ever read
		return Listing{}, cmp.Or(page.err, s.active.err)
	}
	l, err := s.source.Page(ctx, Filter{Since: since.Add(-overlap)}, "", s.o.Limit)
	if err != nil {
		return l, err
	}
	maps.DeleteFunc(s.recent, func(_ string, a analysislock.Analysis) bool { return a.ReadAt.Before(l.At.Add(-30 * s.o.Every)) })
	for i := range l.All {
		s.recent[l.All[i].ID] = l.All[i]
	}
	return l, nil
}

// count makes the pills.
func (p *listPage) count(counts Counts, fresh bool) {
	to := func(change func(*choice)) string {
		ch := p.choice
		ch.Search, ch.After = "", ""
		change(&ch)
		return ch.query()
	}
	count := func(status string) string {
		if n, known := counts[status]; known && fresh {
			return number(n)
		}
		return ""
	}
	p.All = pill{Name: "All", N: count(""), Current: p.State == "" && p.Search == "", Query: to(func(ch *choice) { ch.State = "" })}
	for _, status := range kinds {
		p.States = append(p.States, pill{status, kindOf(status), count(status), p.State == status, to(func(ch *choice) { ch.State = status })})
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
	switch {
	case errors.As(err, &r):
		return "Firestore refuses: " + r.Text
	case errors.Is(err, lease.ErrInvalidKey):
		return "There can be no such id or page"
	}
	return "Firestore does not answer"
}
