package console

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"

	"github.com/labstack/echo/v4"

	"taskguard/lease"
	"taskguard/worker/printable"
)

// maxContents is how many bytes of an input or a result are shown.
const maxContents = 64 << 10

// detail is the page of one analysis.
type detail struct {
	frame
	Analysis shown
	Notice   string // what has just been done
	ReadAt   string
	All      bool // input and result are shown
	Contents []contents
}

// contents are an input or a result, as text.
type contents struct {
	Name  string
	Text  string // empty: there is none
	Bytes int    // of all of it
	Cut   bool
}

// address is the page of the analysis id.
func address(path, id string, more ...string) string {
	v := url.Values{"id": {id}}
	for i := 0; i+1 < len(more); i += 2 {
		v.Set(more[i], more[i+1])
	}
	return path + "?" + v.Encode()
}

// analysis is GET /analysis?id=, with show=all for input and result.
func (s *Server) analysis(c echo.Context) error {
	id, all := c.QueryParam("id"), c.QueryParam("show") == "all"
	w, err := s.read(c, id, all)
	if err != nil {
		return refused(err, "")
	}
	p := detail{frame: s.frame(c, printable.Line(id)), All: all, ReadAt: clock(w.At), Notice: done(c)}
	p.Analysis = show(&entry{Analysis: w.Analysis}, w.now(), s.o.Operator != nil)
	p.Poll, p.Live = address("/analysis", id), liveAt(w.now())
	if all {
		p.Contents = []contents{printed("Input", w.Input), printed("Result", w.Result)}
	}
	return s.render(c, http.StatusOK, "detail", p)
}

// read reads the analysis id.
func (s *Server) read(c echo.Context, id string, contents bool) (Whole, error) {
	if id == "" {
		return Whole{}, lease.ErrInvalidKey
	}
	return s.source.Get(c.Request().Context(), id, contents)
}

// changeable reads the analysis id, whose lock must be readable.
func (s *Server) changeable(c echo.Context, id string) (Whole, error) {
	w, err := s.read(c, id, false)
	if err == nil && w.Malformed != "" {
		err = lease.ErrMalformed
	}
	return w, err
}

// printed is JSON for people, cut where a page would grow too long.
func printed(name string, value json.RawMessage) contents {
	p := contents{Name: name, Bytes: len(value)}
	if value == nil {
		return p
	}
	var b bytes.Buffer
	if json.Indent(&b, value, "", "  ") != nil {
		b.Reset()
		b.Write(value)
	}
	text := b.Bytes()
	if p.Cut = len(text) > maxContents; p.Cut {
		text = text[:maxContents]
	}
	p.Text = printable.Lines(strings.ToValidUTF8(string(text), ""))
	return p
}
