package console

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"
)

// maxCodes is how many codes the page of failures lists.
const maxCodes = 50

// failuresPage is the page of all failures by code.
type failuresPage struct {
	frame
	Groups  []group
	Codes   int    // the limit of Groups
	More    bool   // there are other codes
	Rest    string // how many have none of the codes; empty: none
	Problem string // a sentence: why they are not known
}

// group is a code with its analyses.
type group struct {
	Code, Key  string
	N          int64
	Newest     row
	List       string // the query of the list of its analyses
	RequeueURL string // empty: they cannot be requeued
}

// failed handles GET /failures.
func (s *Server) failed(c echo.Context) error {
	p := failuresPage{frame: s.frame(c, "Failures"), Codes: maxCodes}
	s.reading <- struct{}{}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.Request().Context()), 3*maxRead)
	defer cancel()
	s.failures.refresh(s, "the failures", func() (Failures, error) { return s.source.Failures(ctx, maxCodes) })
	r := s.failures
	<-s.reading
	if !r.fresh() {
		p.Problem = "The failures are not known now. " + problem(r.err) + "."
		return s.render(c, http.StatusOK, "failures", p)
	}
	p.Live, p.More = liveAt(r.value.At), r.value.More
	rest := r.value.Total
	for i := range r.value.All {
		f := &r.value.All[i]
		rest -= f.N
		g := group{Code: f.Code, Key: key(f.Code), N: f.N, Newest: s.newRow(&f.Newest, r.value.At.Add(time.Since(r.value.Asked))), List: choice{State: "FAILED", Code: f.Code}.query()}
		if p.Write {
			g.RequeueURL = requeueFailed + choice{Code: f.Code}.query()
		}
		p.Groups = append(p.Groups, g)
	}
	if rest > 0 {
		p.Rest = number(rest)
	}
	return s.render(c, http.StatusOK, "failures", p)
}

// requeueFailed is the path of the requeue of all failures with a code.
const requeueFailed = "/failures/requeue"

const (
	maxBulk     = 5000             // analyses that one request requeues
	bulkTimeout = 20 * time.Second // for one request to begin changes
)

// bulkPage is the page before and after a requeue of all failures with a code.
type bulkPage struct {
	frame
	Code  string
	Done  bool
	Bulk         // of the dry run, or of the requeue
	Left  int64  // that were confirmed, or would be
	Seen  string // identifies what a form confirms: the time and the number
	Limit int64
	Books bool
	List  string // the query of the list of these analyses
}

// confirmFailed handles GET /failures/requeue?code=: it makes a dry run.
func (s *Server) confirmFailed(c echo.Context) error {
	b, err := s.bulk(c, time.Time{}, maxBulk, true)
	if err != nil {
		return refused(err, "/failures")
	}
	return s.renderBulk(c, b, b.Matched, false)
}

// requeueFailed handles POST /failures/requeue?code=: it requeues what was confirmed, for a
// limited time.
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
	b, err := s.bulk(c, time.UnixMilli(before), min(n, maxBulk), false)
	if err != nil {
		return refused(err, "/failures")
	}
	return s.renderBulk(c, b, max(min(n, b.Matched)-b.Changed-b.Skipped-b.Failed, 0), true)
}

// bulk requeues the failures with the code of the address until the time is up or the server
// stops, even if the operator leaves the page during it.
func (s *Server) bulk(c echo.Context, before time.Time, limit int64, dryRun bool) (Bulk, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.Request().Context()), bulkTimeout)
	defer cancel()
	defer context.AfterFunc(s.work, cancel)()
	who, _ := c.Get(whoKey).(string)
	b, err := s.o.Operator.RequeueFailed(ctx, c.QueryParam("code"), who, before, int(limit), dryRun)
	return b, err
}

func (s *Server) renderBulk(c echo.Context, b Bulk, left int64, done bool) error {
	code := c.QueryParam("code")
	return s.render(c, http.StatusOK, "bulk", bulkPage{
		frame: s.frame(c, "Requeue failures"), Code: code, Done: done, Bulk: b, Left: left,
		Seen: fmt.Sprintf("%d-%d", b.Before.UnixMilli(), left), Limit: maxBulk, Books: s.o.Books, List: choice{State: "FAILED", Code: code}.query(),
	})
}
