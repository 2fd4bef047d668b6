package console

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"

	"github.com/labstack/echo/v4"

	"taskguard/cmd/internal/printable"
	"taskguard/lease"
)

// maxContents is the number of bytes that are shown of an input or a result.
const maxContents = 64 << 10

// detailPage is the page of one analysis.
type detailPage struct {
	frame
	Analysis row
	Notice   string // describes the change before this page
	ReadAt   string
	All      bool // input and result are shown
	Contents []contents
}

// contents is an input or a result, as text.
type contents struct {
	Name  string
	Text  string // empty: there is none
	Bytes int    // of the whole value
	Cut   bool
}

// address returns the address of a page about the analysis id.
func address(path, id string) string {
	return path + "?" + url.Values{"id": {id}}.Encode()
}

// detail handles GET /analysis?id=. With show=all the page has the input and the result.
func (s *Server) detail(c echo.Context) error {
	id, all := c.QueryParam("id"), c.QueryParam("show") == "all"
	w, err := s.read(c, id, all)
	if err != nil {
		return refused(err, "")
	}

	p := detailPage{
		frame: s.frame(c, printable.Line(id)), Analysis: s.row(&w),
		ReadAt: clock(w.ReadAt), Notice: notice(c), All: all,
	}
	p.Poll, p.Live = address("/analysis", id), liveAt(w.ReadAt)
	if all {
		p.Contents = []contents{printed("Input", w.Input), printed("Result", w.Result)}
	}
	return s.render(c, http.StatusOK, "detail", p)
}

// read reads the analysis id.
func (s *Server) read(c echo.Context, id string, contents bool) (Detail, error) {
	if id == "" {
		return Detail{}, lease.ErrInvalidKey
	}
	ctx, cancel := context.WithTimeout(c.Request().Context(), maxWait)
	defer cancel()
	return s.source.Get(ctx, id, contents)
}

// row returns the row of w at the store's time of the read.
func (s *Server) row(w *Detail) row { return s.newRow(&w.Analysis, w.ReadAt) }

// printed indents JSON, and cuts it after maxContents.
func printed(name string, value json.RawMessage) contents {
	p := contents{Name: name, Bytes: len(value)}
	var b bytes.Buffer
	_ = json.Indent(&b, value, "", "  ") // without a value it writes nothing
	text := b.Bytes()
	if p.Cut = len(text) > maxContents; p.Cut {
		text = text[:maxContents]
	}
	p.Text = printable.Lines(strings.ToValidUTF8(string(text), ""))
	return p
}
