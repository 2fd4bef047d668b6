package console

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"html/template"
	"log/slog"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"taskguard/worker/lifecycle"
)

// DefaultLimit is how many analyses a page lists.
const DefaultLimit = 50

// Pace is how long things take. The zero value of each field is its default.
type Pace struct {
	Linger   time.Duration // the source is followed for this and up to twice as long after the last look: 30 s
	Probe    time.Duration // between two questions whether the store answers, and has told all: 15 s
	Patience time.Duration // for the first news, at first, and for later ones: 10 s
	Retry    time.Duration // before the next attempt, at first: 1 s
	First    time.Duration // how long a page waits for the first news: 3 s
	Frame    time.Duration // between two messages to a page, at least: 250 ms
	Beat     time.Duration // between two messages to a page, at most: 10 s
	Write    time.Duration // for a page to take a message: 10 s
	Stream   time.Duration // of one stream of updates; the page opens the next, and proves again who it is: 10 min
}

func (p Pace) filled() Pace {
	fill := func(d *time.Duration, def time.Duration) {
		if *d <= 0 {
			*d = def
		}
	}
	fill(&p.Linger, 30*time.Second)
	fill(&p.Probe, 15*time.Second)
	fill(&p.Patience, 10*time.Second)
	fill(&p.Retry, time.Second)
	fill(&p.First, 3*time.Second)
	fill(&p.Frame, 250*time.Millisecond)
	fill(&p.Beat, 10*time.Second)
	fill(&p.Write, 10*time.Second)
	fill(&p.Stream, 10*time.Minute)
	return p
}

// Options of NewServer. The zero value is one that is safe nowhere but on the
// loopback interface.
type Options struct {
	Place    string   // where the analyses are, for people
	Limit    int      // zero: DefaultLimit
	Streams  int      // pages with updates at once; zero: 100
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
	feed     *feed
	o        Options
	work     context.Context // ends when the streams are to end
	echo     *echo.Echo
	refusals refusals
}

//go:embed assets
var assets embed.FS

// pages are read once; they are part of the program.
var pages = template.Must(template.New("").Funcs(template.FuncMap{
	"legible": Legible, "brief": brief, "span": span, "age": age,
	"ms": func(d time.Duration) int64 { return d.Milliseconds() },
}).ParseFS(assets, "assets/*.html"))

// NewServer serves what source has. Streams of updates end with work; Run is to be
// running.
func NewServer(work context.Context, source Source, o Options) *Server {
	if o.Limit <= 0 {
		o.Limit = DefaultLimit
	}
	if o.Streams <= 0 {
		o.Streams = 100
	}
	if o.Identity == nil {
		o.Identity = Everybody("")
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.Pace = o.Pace.filled()
	s := &Server{
		Lifecycle: lifecycle.New(work, o.Log), source: source, feed: newFeed(source, o.Limit, o.Pace, o.Log),
		o: o, work: work, echo: echo.New(),
	}
	s.echo.HTTPErrorHandler = s.fault
	s.echo.Use(s.Recovered, s.headers, s.admitted)
	page := func(path string, h echo.HandlerFunc) {
		s.echo.Match([]string{http.MethodGet, http.MethodHead}, path, h)
	}
	page("/", s.list)
	page("/analysis", s.analysis)
	s.echo.GET("/events", s.events) // without end, so there is no HEAD of it
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

// Run follows the source while anybody looks, until ctx ends. It is called once.
func (s *Server) Run(ctx context.Context) { s.feed.run(ctx) }

// frame is what all pages have.
type frame struct {
	Title  string
	Place  string
	Who    string
	Write  bool
	Events string // address of the updates; empty: there are none
	Full   bool   // as many pages as may have them
	Feed   feedState
}

func (s *Server) frame(c echo.Context, title string, st *state) frame {
	who, _ := c.Get(whoKey).(string)
	return frame{Title: title, Place: s.o.Place, Who: who, Write: s.o.Operator != nil, Full: s.full(), Feed: s.feedState(st)}
}

// full reports whether no other page would get updates now.
func (s *Server) full() bool {
	err := s.Begin(s.o.Streams)
	if err == nil {
		s.End()
	}
	return errors.Is(err, lifecycle.ErrFull)
}

// render answers a page.
func (s *Server) render(c echo.Context, code int, name string, data any) error {
	html, err := fragment(name, data)
	if err != nil {
		return err
	}
	return c.HTML(code, html)
}

// fragment is a template's text; a part of a page, or a whole one.
func fragment(name string, data any) (string, error) {
	var b bytes.Buffer
	err := pages.ExecuteTemplate(&b, name, data)
	return b.String(), err
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
		st, _ := s.feed.current()
		p.frame = s.frame(c, http.StatusText(p.Code), st)
	}
	if err := s.render(c, p.Code, name, p); err != nil {
		s.o.Log.Warn("answer not sent", "error", err)
	}
}
