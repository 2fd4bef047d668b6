package console

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"taskguard/lease/analysislock"
	"taskguard/repo"
)

// maxCodes is how many codes the page of failures lists.
const maxCodes = 50

// failuresPage is the page of the failures by code and line.
type failuresPage struct {
	frame
	Groups []group
	Rest   int64 // how many have another code or none
}

// group is a code with the lines that the messages of its newest analyses have.
type group struct {
	repo.Failure
	Cancelled bool // by operators, as far as Newest shows
	Lines     []line
	Others    int // further lines
}

// line is the headline of a message with the number of the analyses that have it.
type line struct {
	Text   string
	N      int64
	Newest row
}

// maxLines is how many lines a group lists.
const maxLines = 8

// grouped returns the group of f, the most frequent line first.
func (s *Server) grouped(f *repo.Failure) group {
	g := group{Failure: *f, Cancelled: f.Code == analysislock.Cancelled}

	for i := range f.Newest {
		a := &f.Newest[i]
		g.Cancelled = g.Cancelled && a.Lock.FinishedBy == analysislock.Operator
		text := headline(a.Error.Message)
		at := slices.IndexFunc(g.Lines, func(l line) bool { return l.Text == text })
		if at < 0 {
			at = len(g.Lines)
			g.Lines = append(g.Lines, line{Text: text, Newest: s.newRow(a, a.ReadAt)})
		}
		g.Lines[at].N++
	}

	slices.SortStableFunc(g.Lines, func(a, b line) int { return cmp.Compare(b.N, a.N) })
	shown := min(maxLines, len(g.Lines))
	g.Lines, g.Others = g.Lines[:shown], len(g.Lines)-shown
	return g
}

// failed handles GET /failures.
func (s *Server) failed(c echo.Context) error {
	p := failuresPage{frame: s.frame(c, "Failures")}
	all, _ := s.totals()
	r := s.shared("failures", 2*s.o.Every, func(ctx context.Context) (any, error) {
		return s.source.Failures(ctx, maxCodes)
	})
	failures, _ := r.value.([]repo.Failure)

	p.Rest = all.counts[analysislock.Failed]
	var at time.Time
	for i := range failures {
		f := &failures[i]
		p.Rest -= f.N
		at = f.Newest[0].ReadAt
		p.Groups = append(p.Groups, s.grouped(f))
	}
	failed := func(g group) int64 {
		if g.Cancelled {
			return 0
		}
		return g.N
	}
	slices.SortStableFunc(p.Groups, func(a, b group) int { return cmp.Compare(failed(b), failed(a)) })

	if p.Live, _ = r.age(at); r.busy != nil && !r.fresh() { // this page has no script
		c.Response().Header().Set("Refresh", "2")
	}
	return s.render(c, http.StatusOK, "failures", p)
}

const (
	failuresPath = "/failures/requeue"
	maxBulk      = 5000             // analyses that one request changes
	bulkTimeout  = 20 * time.Second // for one request to begin changes
)

// bulkPage is the page before and after a change of all that a filter selects.
type bulkPage struct {
	frame
	Bulk   // of the dry run, or of the change
	Verb   verb
	Filter choice
	Action string // its address
	Back   string // the address of the list
	Done   bool
	Left   int64  // of those that a form confirms
	More   bool   // the form may change some of them
	Seen   string // identifies what the form confirms: the time, the number and After
	Books  bool
}

// all handles /all/requeue and /all/cancel, and /failures/requeue?code=. GET makes a dry run,
// and POST changes what was confirmed.
func (s *Server) all(v verb) echo.HandlerFunc {
	return func(c echo.Context) error {
		r := c.Request()
		if r.Method != http.MethodPost {
			return s.bulk(c, v, Bulk{}, 0)
		}
		defer s.Track()() // a stop waits for the changes under way
		r.Body = http.MaxBytesReader(c.Response(), r.Body, maxForm)
		if foreign(r) {
			return foreignForm
		}

		var before, n int64
		seen, after, _ := strings.Cut(r.PostFormValue("seen"), ".")
		if _, err := fmt.Sscanf(seen, "%d-%d", &before, &n); err != nil || n < 1 || before < 1 {
			return unconfirmed
		}
		return s.bulk(c, v, Bulk{Before: time.UnixMilli(before), After: after}, n)
	}
}

// bulk changes the confirmed number of the analyses that the address selects, after those of
// last, until its time is up or the server stops, even if the operator leaves the page during
// it. Without a number it makes a dry run.
func (s *Server) bulk(c echo.Context, v verb, last Bulk, confirmed int64) error {
	p := bulkPage{
		frame: s.frame(c, v.Button+" all"), Verb: v, Filter: chosen(c), Action: c.Path(),
		Done: confirmed > 0, Books: s.o.Books,
	}
	if c.Path() == failuresPath {
		p.Filter = choice{State: analysislock.Failed, Code: p.Filter.Code}
	}
	p.Filter.After = ""
	if !p.Filter.narrow() || c.Path() == failuresPath && p.Filter.Code == "" {
		return noFilter
	}
	if err := p.Filter.check(); err != nil {
		return err
	}
	p.Action += p.Filter.query()
	p.Back = "/" + p.Filter.query()

	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.Request().Context()), bulkTimeout)
	defer cancel()
	defer context.AfterFunc(s.work, cancel)()

	limit := int(min(cmp.Or(confirmed, maxBulk), maxBulk))
	b, err := s.o.Operator.ChangeAll(ctx, v.Name, p.Filter.at, p.Who, last, limit, !p.Done)
	if p.Done {
		s.forget()
	}
	if err != nil {
		return refused(err, p.Back)
	}

	p.Bulk = b
	unseen := max(min(cmp.Or(confirmed, p.Matched), p.Matched)-p.Changed-p.Skipped-p.Failed, 0)
	if p.Left = unseen; !p.Done { // nothing is changed yet
		p.Left, p.After = p.Matched, ""
	}
	p.More = p.Left > 0 && (p.Changed > 0 || p.Skipped > 0 && unseen > 0)
	p.Seen = fmt.Sprintf("%d-%d.%s", p.Before.UnixMilli(), p.Left, p.After)
	return s.render(c, http.StatusOK, "bulk", p)
}
