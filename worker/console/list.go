package console

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"time"

	"github.com/labstack/echo/v4"

	"taskguard/lease"
)

// choiceOf reads which analyses a page or a stream is to show.
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

// listing is the page of many analyses.
type listing struct {
	frame
	choice
	Tally  tally
	Rows   []shown
	Found  *shown // by its exact id, and not among those followed
	Missed string // why the exact id was not found; empty: it was not asked for
}

// list is GET /.
func (s *Server) list(c echo.Context) error {
	defer s.feed.look()()
	ctx, done := context.WithTimeout(c.Request().Context(), s.o.Pace.First)
	st := s.feed.first(ctx)
	done()
	p := listing{frame: s.frame(c, "Analyses", st), choice: choiceOf(c)}
	now := st.now()
	p.Events = "/events" + p.query()
	p.Tally = st.count(p.choice, now)
	p.Rows = s.rows(st, p.choice, now)
	if p.Search != "" && st.dark.IsZero() {
		p.Found, p.Missed = s.exact(c, st, p.Search)
	}
	return s.render(c, http.StatusOK, "list", p)
}

func (s *Server) rows(st *state, c choice, now time.Time) []shown {
	rows := []shown{}
	for i := range st.known {
		if c.takes(&st.known[i], now) {
			rows = append(rows, show(&st.known[i], now, s.o.Operator != nil))
		}
	}
	return rows
}

// exact reads the analysis id where it is not followed.
func (s *Server) exact(c echo.Context, st *state, id string) (found *shown, missed string) {
	if _, followed := st.find(id); followed {
		return nil, ""
	}
	w, err := s.source.Get(c.Request().Context(), id, false)
	switch {
	case err == nil:
		v := show(&entry{Analysis: w.Analysis}, w.At, s.o.Operator != nil)
		return &v, ""
	case errors.Is(err, lease.ErrNotFound):
		return nil, "No analysis has this very id."
	case errors.Is(err, lease.ErrInvalidKey):
		return nil, "No analysis can have this very id."
	case errors.Is(err, lease.ErrMalformed):
		return nil, "An analysis has this very id, and its lock cannot be made out."
	}
	return nil, "Whether an older analysis has this very id could not be read."
}
