package console

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/labstack/echo/v4"
)

// maxCodes is how many codes the page of failures lists.
const maxCodes = 50

// failuresPage is the page of the failures by code.
type failuresPage struct {
	frame
	Groups  []group
	Rest    int64  // how many have another code or none
	Problem string // a sentence: why they are not known
}

// group is a code with its analyses.
type group struct {
	Failure
	Newest row // of Failure
}

// failed handles GET /failures.
func (s *Server) failed(c echo.Context) error {
	p := failuresPage{frame: s.frame(c, "Failures")}
	s.reading <- struct{}{}
	defer func() { <-s.reading }()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.Request().Context()), 3*maxRead)
	defer cancel()
	s.failures.refresh(s, "the failures", func() ([]Failure, error) { return s.source.Failures(ctx, maxCodes) })
	s.counts.refresh(s, "the numbers of analyses", func() (Counts, error) { return s.source.Count(ctx, kinds) })
	if !s.failures.fresh() || !s.counts.fresh() {
		p.Problem = "The failures are not known now. " + problem(cmp.Or(s.failures.err, s.counts.err)) + "."
		return s.render(c, http.StatusOK, "failures", p)
	}
	p.Rest = s.counts.value["FAILED"]
	for i := range s.failures.value {
		f := &s.failures.value[i]
		p.Rest -= f.N
		p.Live = liveAt(f.Newest.ReadAt)
		p.Groups = append(p.Groups, group{*f, s.newRow(&f.Newest, f.Newest.ReadAt)})
	}
	slices.SortStableFunc(p.Groups, func(a, b group) int { return cmp.Compare(b.N, a.N) })
	return s.render(c, http.StatusOK, "failures", p)
}

const (
	maxBulk     = 5000             // analyses that one request requeues
	bulkTimeout = 20 * time.Second // for one request to begin changes
)

// bulkPage is the page before and after a requeue of the failures with a code.
type bulkPage struct {
	frame
	Bulk         // of the dry run, or of the requeue
	Code  string // of the address
	Done  bool
	Left  int64  // of those that a form confirms
	Seen  string // identifies what the form confirms: the time and the number
	Books bool
}

// confirmFailed handles GET /failures/requeue?code=: it makes a dry run.
func (s *Server) confirmFailed(c echo.Context) error { return s.bulk(c, time.Time{}, 0) }

// requeueFailed handles POST /failures/requeue?code=: it requeues what was confirmed.
func (s *Server) requeueFailed(c echo.Context) error {
	defer s.Track()() // a stop waits for the changes under way
	r := c.Request()
	r.Body = http.MaxBytesReader(c.Response(), r.Body, maxForm)
	if foreign(r) {
		return refusal{foreignForm.code, foreignForm.message, "/failures"}
	}
	var before, n int64
	if _, err := fmt.Sscanf(r.PostFormValue("seen"), "%d-%d", &before, &n); err != nil || n < 1 || before < 1 {
		return refusal{http.StatusConflict, "The form does not name what was confirmed. Nothing is changed.", "/failures"}
	}
	return s.bulk(c, time.UnixMilli(before), n)
}

// bulk requeues the confirmed number of failures with the code of the address, until its time
// is up or the server stops, even if the operator leaves the page during it. Without a number
// it makes a dry run.
func (s *Server) bulk(c echo.Context, before time.Time, confirmed int64) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.Request().Context()), bulkTimeout)
	defer cancel()
	defer context.AfterFunc(s.work, cancel)()
	p := bulkPage{frame: s.frame(c, "Requeue failures"), Code: c.QueryParam("code"), Done: confirmed > 0, Books: s.o.Books}
	b, err := s.o.Operator.RequeueFailed(ctx, p.Code, p.Who, before, int(min(cmp.Or(confirmed, maxBulk), maxBulk)), !p.Done)
	if p.Done { // the next page reads the numbers again
		s.reading <- struct{}{}
		s.failures.ended, s.counts.ended = time.Time{}, time.Time{}
		<-s.reading
	}
	if err != nil {
		return refused(err, "/failures")
	}
	p.Bulk = b
	if p.Left = p.Matched; p.Done {
		p.Left = max(min(confirmed, p.Matched)-p.Changed-p.Skipped-p.Failed, 0)
	}
	p.Seen = fmt.Sprintf("%d-%d", p.Before.UnixMilli(), p.Left)
	return s.render(c, http.StatusOK, "bulk", p)
}
