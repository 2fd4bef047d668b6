package console

import (
	"net/url"
	"time"

	"github.com/labstack/echo/v4"

	"taskguard/cmd/internal/cli"
	"taskguard/cmd/internal/printable"
	"taskguard/lease/analysislock"
	"taskguard/repo"
)

// choice selects the analyses that a page shows, as its address does.
type choice struct {
	State, Code  string // empty: all
	Cause        bool   // Code is the code of a group on the page of failures
	Headline     string // the key of one headline of that group; empty: all
	Since, Older string // times, in the form that cli.ParseTime reads
	Search       string // the beginning of the id; if it is not empty, nothing else is compared
	After        string // where the page begins; empty: the first page
	Sort         string // the column by which the page is sorted; see columns
}

// chosen returns the choice of a request. It refuses values that no analysis has.
func (s *Server) chosen(c echo.Context) (choice, error) {
	q := c.QueryParam
	ch := choice{
		State: q("state"), Code: q("code"), Since: q("since"), Older: q("older"), Search: q("q"), After: q("after"),
		Sort: q("sort"),
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
	case ch.Sort != "" && sortColumn(ch.Sort) == nil:
		return ch, wrongSort
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
		"sort": c.Sort, "headline": c.Headline,
	} {
		if value != "" {
			v.Set(name, value)
		}
	}
	return "?" + v.Encode()
}

// at returns the filter of c at now.
func (c choice) at(now time.Time) repo.Filter {
	if c.allByID() {
		return repo.Filter{All: true}
	}
	f := repo.Filter{Status: c.State, Code: c.Code, Prefix: c.Search, Cause: c.Cause}
	if since, err := cli.ParseTime(c.Since); err == nil {
		f.Since = since(now)
	}
	if olderThan, err := cli.ParseTime(c.Older); err == nil {
		f.Before = olderThan(now)
	}
	return f
}
