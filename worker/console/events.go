package console

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/labstack/echo/v4"

	"taskguard/worker/lifecycle"
)

// message is what a page is told: what differs from what it was told before.
type message struct {
	Rows   []row     `json:"rows,omitempty"`  // new, or changed
	Order  []string  `json:"order,omitempty"` // keys of all rows, where another than before
	Empty  bool      `json:"empty,omitempty"` // there is no row
	Tally  string    `json:"tally,omitempty"`
	Detail string    `json:"detail,omitempty"`
	Gone   bool      `json:"gone,omitempty"` // the page's analysis is not followed any more
	Feed   feedState `json:"feed"`
}

type row struct {
	Key  string `json:"key"`
	HTML string `json:"html"`
}

// told is what a page has been told. It holds no more than what the page shows.
type told struct {
	rows   map[string]version
	order  []string
	began  bool
	tally  string
	detail version
}

// version is when a row looks the same, but for the times that count on.
type version struct {
	n             int64
	held, overdue bool
}

// events is GET /events, for the page with the same query: an event with what has
// changed, and one from time to time when nothing has.
func (s *Server) events(c echo.Context) error {
	err := s.Begin(s.o.Streams)
	switch {
	case errors.Is(err, lifecycle.ErrFull):
		return tooMany
	case err != nil:
		return stopping
	}
	defer s.End()
	defer s.feed.look()()
	out := http.NewResponseController(c.Response())
	ctx, end := context.WithTimeout(c.Request().Context(), s.o.Pace.Stream)
	defer end()
	defer context.AfterFunc(s.work, end)()
	c.Response().Header().Set("Content-Type", "text/event-stream")
	c.Response().WriteHeader(http.StatusOK)
	s.tell(ctx, c, out)
	return nil
}

// tell sends the present state whenever there is another, until ctx ends or the
// page does not take it.
func (s *Server) tell(ctx context.Context, c echo.Context, out *http.ResponseController) {
	choice, id := choiceOf(c), c.QueryParam("id")
	var t told
	for {
		st, changed := s.feed.current()
		now := st.now()
		var m message
		var err error
		if id != "" {
			m, err = s.newsOfOne(&t, st, id, now)
		} else {
			m, err = s.newsOfAll(&t, st, choice, now)
		}
		if err != nil || !s.send(c, out, m) {
			return
		}
		if !pause(ctx, s.o.Pace.Frame, nil) || !pause(ctx, min(s.o.Pace.Beat, untilStale(st, now)), changed) {
			return
		}
	}
}

// pause waits for d, or less where changed is closed; false: ctx has ended.
func pause(ctx context.Context, d time.Duration, changed <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-changed:
	case <-timer.C:
	}
	return true
}

// send writes one event, for which the page has its time.
func (s *Server) send(c echo.Context, out *http.ResponseController, m message) bool {
	var b bytes.Buffer
	b.WriteString("data: ")
	to := json.NewEncoder(&b)
	to.SetEscapeHTML(false) // the fragments were escaped; this would double them
	if to.Encode(m) != nil {
		return false
	}
	b.WriteByte('\n')
	if out.SetWriteDeadline(time.Now().Add(s.o.Pace.Write)) != nil {
		return false
	}
	_, err := c.Response().Write(b.Bytes())
	return err == nil && out.Flush() == nil
}

// untilStale is when the first lock that is held will have run out.
func untilStale(st *state, now time.Time) time.Duration {
	first := time.Hour
	if !st.dark.IsZero() {
		return first // time stands still
	}
	for i := range st.known {
		if e := &st.known[i]; e.held(now) {
			left := e.Lock.ExpiresAt.Sub(now)
			first = min(first, left+time.Millisecond)
		}
	}
	return first
}

// newsOfAll is for the page of many.
func (s *Server) newsOfAll(t *told, st *state, c choice, now time.Time) (message, error) {
	m := message{Feed: s.feedState(st)}
	if !st.loaded { // nothing is known, which is not that there is nothing
		return m, nil
	}
	rows, order := map[string]version{}, []string{}
	for i := range st.known {
		e := &st.known[i]
		if !c.takes(e, now) {
			continue
		}
		is := version{e.version, e.held(now), e.overdue}
		rows[e.key], order = is, append(order, e.key)
		if t.rows[e.key] == is {
			continue
		}
		html, err := fragment("row", show(e, now, s.o.Operator != nil))
		if err != nil {
			return m, err
		}
		m.Rows = append(m.Rows, row{e.key, html})
	}
	if !t.began || !slices.Equal(order, t.order) {
		m.Order, m.Empty = order, len(order) == 0
	}
	tally, err := fragment("tally", st.count(c, now))
	if tally != t.tally {
		m.Tally = tally
	}
	t.rows, t.order, t.tally, t.began = rows, order, tally, true
	return m, err
}

// newsOfOne is for the page of the analysis id.
func (s *Server) newsOfOne(t *told, st *state, id string, now time.Time) (message, error) {
	m := message{Feed: s.feedState(st)}
	e, followed := st.find(id)
	if !followed {
		m.Gone = st.loaded
		t.detail = version{}
		return m, nil
	}
	is := version{e.version, e.held(now), e.overdue}
	if is == t.detail {
		return m, nil
	}
	t.detail = is
	var err error
	m.Detail, err = fragment("facts", show(&e, now, s.o.Operator != nil))
	return m, err
}
