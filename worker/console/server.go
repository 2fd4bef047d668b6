package console

import (
	"bytes"
	"cmp"
	"context"
	"embed"
	"errors"
	"html/template"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"taskguard/worker/lifecycle"
	"taskguard/worker/printable"
)

// DefaultLimit is how many analyses a page lists.
const DefaultLimit = 50

// Pace is how long things take. The zero value of each field is its default.
type Pace struct {
	Newest time.Duration // between two readings of the newest analyses, at least: 3 s
	Beside time.Duration // between two readings of the numbers, and of half the overdue ones: 15 s
	First  time.Duration // how long a page waits for a reading, at most: 3 s
}

func (p Pace) filled() Pace {
	return Pace{cmp.Or(p.Newest, 3*time.Second), cmp.Or(p.Beside, 15*time.Second), cmp.Or(p.First, 3*time.Second)}
}

// Options of NewServer. The zero value is one that is safe nowhere but on the
// loopback interface.
type Options struct {
	Place    string   // where the analyses are, for people
	Limit    int      // zero: DefaultLimit
	Identity Identity // who asks; nil: everybody who reaches the loopback interface, without a name
	AnyHost  bool     // requests may name any host, as Identity wants a proof that no other site can have
	Operator Operator // makes changes; nil: nothing can be changed
	Books    bool     // the Operator books deliveries
	Pace     Pace
	Log      *slog.Logger // nil: silent
}

// Server is the page. It is safe for concurrent use.
type Server struct {
	*lifecycle.Lifecycle
	source   Source
	newest   *poll[Listing]
	overdue  *poll[[]Analysis]
	counts   *poll[Counts]
	o        Options
	echo     *echo.Echo
	refusals refusals
}

//go:embed assets
var assets embed.FS

// pages are read once; they are part of the program.
var pages = template.Must(template.New("").Funcs(template.FuncMap{
	"legible": printable.Line, "brief": brief, "span": span, "age": age,
	"ms": time.Time.UnixMilli,
}).ParseFS(assets, "assets/*.html"))

// NewServer serves what source has until work ends. Run must be running.
func NewServer(work context.Context, source Source, o Options) *Server {
	if o.Limit <= 0 {
		o.Limit = DefaultLimit
	}
	if o.Identity == nil {
		o.Identity = Everybody("")
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.Pace = o.Pace.filled()
	s := &Server{
		Lifecycle: lifecycle.New(work, o.Log), source: source, o: o, echo: echo.New(),
		newest: newPoll("the newest analyses", o.Pace.Newest, o.Log, func(ctx context.Context) (Listing, error) {
			return source.Newest(ctx, o.Limit)
		}),
		overdue: newPoll("the overdue analyses", 2*o.Pace.Beside, o.Log, func(ctx context.Context) ([]Analysis, error) {
			return source.Overdue(ctx, maxOverdue)
		}),
		counts: newPoll("the numbers of analyses", o.Pace.Beside, o.Log, func(ctx context.Context) (Counts, error) {
			return source.Count(ctx, kinds)
		}),
	}
	s.echo.HTTPErrorHandler = s.fault
	s.echo.Use(s.Recovered, s.headers, s.admitted)
	page := func(path string, h echo.HandlerFunc) {
		s.echo.Match([]string{http.MethodGet, http.MethodHead}, path, h)
	}
	page("/", s.list)
	page("/analysis", s.analysis)
	for _, v := range verbs {
		page("/"+v.Name, s.confirm(v))
		s.echo.POST("/"+v.Name, s.change(v))
	}
	for name, kind := range map[string]string{
		"console.css": "text/css; charset=utf-8", "console.js": "text/javascript; charset=utf-8", "icon.svg": "image/svg+xml",
	} {
		data, err := assets.ReadFile("assets/" + name)
		if err != nil {
			panic(err) // it is embedded
		}
		page("/"+name, func(c echo.Context) error { return c.Blob(http.StatusOK, kind, data) })
	}
	return s
}

// ServeHTTP makes Server an http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.echo.ServeHTTP(w, r) }

// Run reads the source when a page asks for it, until ctx ends. It is called once.
func (s *Server) Run(ctx context.Context) {
	var polls sync.WaitGroup
	polls.Go(func() { s.newest.run(ctx) })
	polls.Go(func() { s.overdue.run(ctx) })
	polls.Go(func() { s.counts.run(ctx) })
	polls.Wait()
}

// frame is what all pages have.
type frame struct {
	Title string
	Place string
	Who   string
	Write bool
	Poll  string // address at which the page asks for its next state; empty: it does not
	Live  live
}

func (s *Server) frame(c echo.Context, title string) frame {
	who, _ := c.Get(whoKey).(string)
	return frame{Title: title, Place: s.o.Place, Who: who, Write: s.o.Operator != nil}
}

// render answers a page.
func (s *Server) render(c echo.Context, code int, name string, data any) error {
	var b bytes.Buffer
	if err := pages.ExecuteTemplate(&b, name, data); err != nil {
		return err
	}
	return c.HTMLBlob(code, b.Bytes())
}

// problem is a page that says why there is no other.
type problem struct {
	frame
	Code    int
	Message string
	Back    string // an address
}

// fault answers what a handler did not.
func (s *Server) fault(err error, c echo.Context) {
	if c.Response().Committed {
		return
	}
	p := problem{Code: broken.code, Message: broken.message, Back: "/"}
	var he *echo.HTTPError
	var r refusal
	switch {
	case errors.As(err, &r):
		p.Code, p.Message = r.code, r.message
		if r.back != "" {
			p.Back = r.back
		}
	case errors.As(err, &he):
		p.Code, p.Message = he.Code, http.StatusText(he.Code)+"."
	}
	if p.Code == broken.code {
		s.o.Log.Warn("no answer", "error", err)
	}
	name := "problem"
	if c.Get(whoKey) == nil { // not admitted: it is told nothing of what is here
		name, p.Title = "refused", http.StatusText(p.Code)
	} else {
		p.frame = s.frame(c, http.StatusText(p.Code))
	}
	if err := s.render(c, p.Code, name, p); err != nil {
		s.o.Log.Warn("answer not sent", "error", err)
	}
}
