package console

import (
	"errors"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/labstack/echo/v4"

	"taskguard/lease"
)

// choiceOf reads which analyses a page is to show.
func choiceOf(c echo.Context) choice {
	return choice{State: c.QueryParam("state"), Lock: c.QueryParam("lock"), Search: c.QueryParam("q")}
}

// query is c as it stands in an address.
func (c choice) query() string {
	v := url.Values{}
	for name, value := range map[string]string{"state": c.State, "lock": c.Lock, "q": c.Search} {
		if value != "" {
			v.Set(name, value)
		}
	}
	if len(v) == 0 {
		return ""
	}
	return "?" + v.Encode()
}

// listPage is the page of many analyses.
type listPage struct {
	frame
	choice
	Tally   tally
	Rows    []shown
	Limit   int
	Overdue int    // limit of the overdue ones
	Missing string // why overdue ones are not listed
	Found   *shown // by its exact id, and not among those listed
	Missed  string // why the exact id was not found; empty: it was not asked for
}

// list is GET /.
func (s *Server) list(c echo.Context) error {
	l := s.listing(c.Request().Context(), c.QueryParam("state"))
	p := listPage{frame: s.frame(c, "Analyses"), choice: choiceOf(c), Limit: s.o.Limit, Overdue: maxOverdue, Missing: l.missing}
	p.Poll, p.Live = "/"+p.query(), l.live
	p.Tally = l.tally(p.choice)
	for i := range l.known {
		if p.takes(&l.known[i], l.now) {
			p.Rows = append(p.Rows, show(&l.known[i], l.now, s.o.Operator != nil))
		}
	}
	if p.Search != "" && p.Live.Word == "static" && !slices.ContainsFunc(l.known, func(e entry) bool { return e.ID == p.Search }) {
		p.Found, p.Missed = s.exact(c, p.Search)
	}
	return s.render(c, http.StatusOK, "list", p)
}

// exact reads the analysis id, which is not listed.
func (s *Server) exact(c echo.Context, id string) (found *shown, missed string) {
	w, err := s.source.Get(c.Request().Context(), id, false)
	switch {
	case err == nil:
		v := show(&entry{Analysis: w.Analysis}, w.now(), s.o.Operator != nil)
		return &v, ""
	case errors.Is(err, lease.ErrNotFound):
		return nil, "No analysis has this very id."
	case errors.Is(err, lease.ErrInvalidKey):
		return nil, "No analysis can have this very id."
	}
	return nil, "Whether an older analysis has this very id could not be read."
}

// now is the store's time, as estimated.
func (w *Whole) now() time.Time { return w.At.Add(time.Since(w.Asked)) }
