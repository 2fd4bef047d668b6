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
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/labstack/echo/v4"

	"taskguard/cmd/internal/cli"
	"taskguard/cmd/internal/printable"
	"taskguard/internal/lifecycle"
	"taskguard/internal/taskauth"
	"taskguard/lease"
	"taskguard/repo"
	"taskguard/worker"
)

// DefaultLimit is how many analyses a page lists.
const DefaultLimit = 50

// Options of NewServer.
type Options struct {
	Place    string        // shown in the page's header: project, database and collection
	Project  string        // Google Cloud project with the workers' log lines; empty: no page links them
	Program  string        // what starts taskguard in the commands that pages name; empty: taskguard
	Root     string        // the path under which the caller serves the pages and which it strips; empty: /
	Called   bool          // no deliveries run the work, but its callers, as that of Do
	Kinds    []Kind        // all kinds with their pages; several are linked in the header
	Lock     lease.Policy  // the workers' policy
	Fields   repo.Fields   // the vocabulary of the documents
	Limit    int           // zero: DefaultLimit
	Identity Identity      // nil: the console admits everybody, but only on the loopback interface
	User     string        // everybody's name without an Identity
	Operator Operator      // makes changes; nil: nothing can be changed
	Books    bool          // the Operator books deliveries
	Every    time.Duration // the shortest time between two reads of what a page shows; zero: 8 s
	Log      *slog.Logger  // nil: no log
}

// Kind is a kind of work, whose Server is at Root.
type Kind struct{ Name, Root string }

// Source reads the documents of a kind, as a *worker.Operator does.
type Source interface {
	worker.Documents
	ActKey(id, act string) string // the idempotency key of an act; empty: unknown
}

// Server serves the pages. It is safe for concurrent use.
type Server struct {
	*lifecycle.Lifecycle
	source Source
	o      Options
	echo   *echo.Echo
	html   *template.Template

	mu       sync.Mutex // guards the readings
	readings map[string]*reading

	work context.Context // ends when the server is to stop
}

//go:embed assets
var assets embed.FS

// pages are parsed once; they are part of the program. Each Server executes a clone.
var pages = template.Must(template.New("").Funcs(template.FuncMap{
	"legible": printable.Line, "shorten": shorten, "span": cli.Span, "age": age, "stamp": stamp,
	"clock": clock, "ms": time.Time.UnixMilli, "number": number, "took": took, "message": message, "headline": headline, "line": oneLine, "lower": strings.ToLower,
	"repeats": strings.HasSuffix, "utc": utc, "percent": percent, "fold": fold, "root": func() string { return "" },
	"program": func() string { return "" },
}).ParseFS(assets, "assets/*.html"))

// NewServer returns a Server of the analyses of source. It is ready until work ends.
func NewServer(work context.Context, source Source, o Options) *Server {
	o.Limit, o.Every = cmp.Or(o.Limit, DefaultLimit), cmp.Or(o.Every, 8*time.Second)
	o.Program = cmp.Or(o.Program, "taskguard")
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}

	s := &Server{
		Lifecycle: lifecycle.New(work, o.Log), source: source, o: o, echo: echo.New(),
		html: template.Must(pages.Clone()).Funcs(template.FuncMap{
			"root": func() string { return o.Root }, "program": func() string { return o.Program },
		}),
		readings: map[string]*reading{},
		work:     work,
	}
	s.echo.HTTPErrorHandler = s.handleError
	s.echo.Use(s.RecoverPanics, headers, s.admit)
	s.routes()
	return s
}

// routes adds the pages, and the changes if there is an Operator.
func (s *Server) routes() {
	page := func(path string, h echo.HandlerFunc) {
		s.echo.Match([]string{http.MethodGet, http.MethodHead}, path, h)
	}
	page("/", s.list)
	page("/analysis", s.detail)
	page("/failures", s.failed)
	page("/run-times", s.runs)
	for _, name := range []string{"console.css", "console.js", "icon.svg"} {
		page("/"+name, echo.StaticFileHandler("assets/"+name, assets))
	}

	change := func(path string, ask, apply echo.HandlerFunc) {
		if s.o.Operator == nil {
			ask = func(echo.Context) error { return readOnly }
			apply = ask
		}
		page(path, ask)
		s.echo.POST(path, apply)
	}
	for _, v := range verbs {
		if v.Name == Requeue || v.Name == Cancel { // only these two have a change of all
			change("/all/"+string(v.Name), s.all(v), s.all(v))
			change("/selected/"+string(v.Name), func(echo.Context) error { return noneSelected }, s.selected(v))
		}
		change("/"+string(v.Name), s.confirm(v), s.change(v))
	}
	change(failuresPath, s.all(requeue), s.all(requeue))
}

// ServeHTTP makes Server an http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.echo.ServeHTTP(w, r) }

// headers adds security headers to every answer: the page runs no script of another site,
// no site can frame it, and no cache keeps it. With this Referrer-Policy browsers still
// send the origin of a form.
func headers(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		h := c.Response().Header()
		lifecycle.Secure(h, c.Request(), "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "+
			"connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
		h.Set("Referrer-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		return next(c)
	}
}

// whoKey is the key under which a request's context has the name of its sender.
const whoKey = "who"

// admit refuses a request of another site's page, a request whose sender is not identified, and a
// value that is not UTF-8. Without an Identity, it also refuses a host other than the loopback
// interface.
func (s *Server) admit(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		r, who := c.Request(), s.o.User
		switch {
		case s.o.Identity == nil && !loopback(r.Host):
			return wrongHost
		case subrequest(r):
			return foreignSite
		}

		if s.o.Identity != nil {
			var err error
			if who, err = s.o.Identity.Identify(r); err != nil {
				s.o.Log.WarnContext(r.Context(), "caller refused", "error", err)
				if errors.Is(err, taskauth.ErrNoKeys) {
					return noKeys
				}
				return noProof
			}
		}
		c.Set(whoKey, who)

		for _, values := range c.QueryParams() {
			if slices.ContainsFunc(values, func(v string) bool { return !utf8.ValidString(v) }) {
				return badValue
			}
		}
		return next(c)
	}
}

// subrequest reports whether a page of another site, or of another port of this machine, has
// caused r other than by leading the browser's window here.
func subrequest(r *http.Request) bool {
	site := r.Header.Get("Sec-Fetch-Site")
	navigates := r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document"
	return (site == "cross-site" || site == "same-site") && !navigates
}

// loopback reports whether host, as in a request, names this machine's loopback
// interface. Another name that resolves to it does not (DNS rebinding).
func loopback(host string) bool {
	name := (&url.URL{Host: host}).Hostname()
	address, err := netip.ParseAddr(name)
	return strings.EqualFold(name, "localhost") || err == nil && address.IsLoopback()
}

// frame contains the data that all pages have.
type frame struct {
	Title string
	Many  string // what the list is called: Analyses, or the name of another kind
	Kind  string // the name of a kind that a command needs to know; empty: it needs none
	Place string
	Kinds []Kind
	Who   string
	Write bool
	Poll  string // address at which the page asks for its next state; empty: it does not
	Live  live
}

func (s *Server) frame(c echo.Context, title string) frame {
	who, _ := c.Get(whoKey).(string)
	f := frame{Title: title, Many: "Analyses", Place: s.o.Place, Kinds: s.o.Kinds, Who: who, Write: s.o.Operator != nil}
	i := slices.IndexFunc(s.o.Kinds, func(k Kind) bool { return k.Root == s.o.Root })
	if i < 0 {
		return f
	}
	if name := s.o.Kinds[i].Name; name != "analysis" {
		f.Many = name
	}
	if i > 0 { // commands use the first without --kind
		f.Kind = s.o.Kinds[i].Name
	}
	return f
}

// render answers a page.
func (s *Server) render(c echo.Context, code int, name string, data any) error {
	var b bytes.Buffer
	if err := s.html.ExecuteTemplate(&b, name, data); err != nil {
		return err
	}
	return c.HTMLBlob(code, b.Bytes())
}

// problemPage has one sentence and a link.
type problemPage struct {
	frame
	Code    int
	Message string
	Back    string // an address
}

// handleError writes the page for an error of a handler.
func (s *Server) handleError(err error, c echo.Context) {
	if c.Response().Committed {
		return
	}
	r := broken
	var he *echo.HTTPError
	if errors.As(err, &he) {
		r = refusal{code: he.Code, message: http.StatusText(he.Code) + "."}
	} else if !errors.As(err, &r) {
		s.o.Log.Warn("page not made", "error", err)
	}
	name, title := "problem", http.StatusText(r.code)
	p := problemPage{frame: s.frame(c, title), Code: r.code, Message: r.message, Back: cmp.Or(r.back, "/")}
	if c.Get(whoKey) == nil { // not admitted: the page has nothing about the analyses
		name, p.frame = "refused", frame{Title: title}
	}
	if err := s.render(c, p.Code, name, p); err != nil {
		s.o.Log.Warn("answer not sent", "error", err)
	}
}
