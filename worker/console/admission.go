package console

import (
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/labstack/echo/v4"
)

// whoKey is where a request's context keeps who sends it.
const whoKey = "who"

// headers go with every answer: nothing of another site runs in the page, nor the
// page in another site's frame, and nothing of it is kept. The policy of referrers
// is one with which browsers still name the origin of a form.
func (s *Server) headers(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		h := c.Response().Header()
		h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
		h.Set("X-Frame-Options", "DENY")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		return next(c)
	}
}

// admitted lets a request in: one that names this host, where the host is known,
// from this site or the address bar, of somebody who may look.
func (s *Server) admitted(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		r := c.Request()
		if !s.o.AnyHost && !loopback(r.Host) {
			return notHere
		}
		if !readable(r) {
			return foreignSite
		}
		who, err := s.o.Identity.Identify(r)
		if err == nil {
			c.Set(whoKey, who)
			return next(c)
		}
		s.refusals.log(s.o.Log, err)
		return unidentified(err)
	}
}

// refusals tell a log why somebody was not let in, each reason once a minute: who
// is refused may ask without end. The zero value has told nothing.
type refusals struct {
	mu   sync.Mutex
	told map[string]time.Time
}

func (t *refusals) log(log *slog.Logger, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	why := err.Error()
	if at, ok := t.told[why]; ok && time.Since(at) < time.Minute {
		return
	}
	if t.told == nil {
		t.told = map[string]time.Time{}
	}
	t.told[why] = time.Now()
	log.Warn("not let in; the same is not logged again for a minute", "error", err)
}

// loopback reports whether host, as in a request, names this machine's loopback
// interface. A name of somebody else's that resolves to it does not (DNS rebinding).
func loopback(host string) bool {
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	name = strings.TrimSuffix(strings.TrimPrefix(name, "["), "]")
	if strings.EqualFold(name, "localhost") {
		return true
	}
	address, err := netip.ParseAddr(name)
	return err == nil && address.IsLoopback()
}

// readable reports whether a request is not one that another site's page makes
// behind its user's back: a stream would be reads that somebody pays for.
func readable(r *http.Request) bool {
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "none", "same-origin":
		return true
	}
	return r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document"
}

// sameOrigin reports whether the browser says that a page of this console has sent
// the form. It wants a proof: a browser that sends neither header gets nowhere.
func sameOrigin(r *http.Request) bool {
	if site := r.Header.Get("Sec-Fetch-Site"); site != "" {
		return site == "same-origin"
	}
	origin, err := url.Parse(r.Header.Get("Origin"))
	return err == nil && origin.Host != "" && strings.EqualFold(origin.Host, r.Host)
}
