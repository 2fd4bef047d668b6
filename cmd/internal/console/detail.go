package console

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/url"

	"github.com/labstack/echo/v4"

	"taskguard/cmd/internal/printable"
	"taskguard/cmd/internal/why"
	"taskguard/internal/text"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/repo"
)

// maxContents is the number of bytes that are shown of an input or a result.
const maxContents = 64 << 10

// detailPage is the page of one analysis.
type detailPage struct {
	frame
	Analysis row
	Why      string // why it does not run, or what happens next
	Notice   string // what the operator has just changed
	ReadAt   string
	Contents []contents // input and result; empty: not shown
}

// contents is an input or a result, as text.
type contents struct {
	Name  string
	Text  string // empty: the value is missing
	Bytes int    // the size of the whole value
	Cut   bool
}

// address returns the address of a page about the analysis id.
func address(path, id string) string {
	return path + "?" + url.Values{"id": {id}}.Encode()
}

// detail handles GET /analysis?id=. With show=all the page has the input and the result.
func (s *Server) detail(c echo.Context) error {
	id, read := c.QueryParam("id"), s.source.Summary
	all := c.QueryParam("show") == "all"
	if all {
		read = s.source.Get
	}
	a, err := s.read(c, read)
	if err != nil {
		return refusalOf(err, "")
	}

	p := detailPage{
		frame: s.frame(c, printable.Line(id)), Notice: notice(c),
		Analysis: s.newRow(&a, a.ReadAt), ReadAt: clock(a.ReadAt),
	}
	if p.Analysis.KeyState, err = s.keyState(c.Request().Context(), &a, true); err != nil {
		return refusalOf(err, "")
	}
	p.Why = why.Of(&a, why.Options{Lock: s.o.Lock, Key: p.Analysis.KeyState, Called: s.o.Called}).Text
	p.Poll, p.Live = address("/analysis", id), liveAt(a.ReadAt)
	if all {
		p.Contents = []contents{printed("Input", a.Input), printed("Result", a.Result)}
	}
	return s.render(c, http.StatusOK, "detail", p)
}

// read reads the analysis that a request names.
func (s *Server) read(
	c echo.Context, read func(ctx context.Context, id string) (analysislock.Analysis, error),
) (analysislock.Analysis, error) {
	id := c.QueryParam("id")
	if id == "" {
		return analysislock.Analysis{}, lease.ErrInvalidKey
	}
	ctx, cancel := context.WithTimeout(c.Request().Context(), maxWait)
	defer cancel()
	return read(ctx, id)
}

// keyState reads the state of the key of an analysis that has one and is not finished.
func (s *Server) keyState(ctx context.Context, a *analysislock.Analysis, count bool) (repo.KeyState, error) {
	if a.Finished() || a.Key == "" && a.ParkedAt.IsZero() {
		return repo.KeyState{}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, maxWait)
	defer cancel()
	return s.source.KeyState(ctx, a, count)
}

// printed returns a value as indented JSON, cut after maxContents.
func printed(name string, value any) contents {
	if value == nil {
		return contents{Name: name}
	}
	plain, err := repo.Plain(value)
	if err != nil {
		return contents{Name: name, Text: printable.Line(err.Error())}
	}

	p := contents{Name: name, Bytes: len(plain)}
	var b bytes.Buffer
	_ = json.Indent(&b, plain, "", "  ") // it is JSON
	p.Text, p.Cut = printable.Lines(text.Head(b.String(), maxContents)), b.Len() > maxContents
	return p
}
