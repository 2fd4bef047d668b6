package server

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"mime"
	"net/http"
	"path"
	"slices"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"

	"taskguard/internal/lifecycle"
	"taskguard/locks/document/server/web"
)

const contentPolicy = "default-src 'self'; worker-src 'self' blob:; connect-src 'self'; " +
	"base-uri 'none'; form-action 'self'; frame-ancestors 'none'"

// headers adds security headers to every answer: the page runs no script of another
// site, and no other site can frame it.
func headers(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		h := c.Response().Header()
		lifecycle.Secure(h, c.Request(), contentPolicy)
		h.Set("Referrer-Policy", "no-referrer")
		return next(c)
	}
}

// crossOrigin returns a middleware that lets pages of these origins read answers, and send cookies
// and any headers (CORS). The browser refuses other origins, as it gets no such header.
func crossOrigin(origins []string) echo.MiddlewareFunc {
	return middleware.CORSWithConfig(middleware.CORSConfig{
		AllowOriginFunc:  func(origin string) (bool, error) { return slices.Contains(origins, origin), nil },
		AllowMethods:     []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete},
		AllowCredentials: true,
		MaxAge:           600,
	})
}

// pages serves the files of package web. index.html is / too, where a session begins.
func (s *Server) pages() {
	for _, name := range []string{"index.html", "locks.js", "locks.d.ts", "page.css", "page.js"} {
		s.echo.GET("/"+name, file(name))
	}
	index := file("index.html")
	s.echo.GET("/", func(c echo.Context) error {
		_, _ = s.sessions.Caller(c.Response(), c.Request(), true) // the page is for everybody
		return index(c)
	})
}

// ownEndpoint is added to /locks.js: pages that import it from this server use this server.
const ownEndpoint = "\ndefaults.endpoint = new URL('/api/documents', import.meta.url).href;\n"

// file serves one of the files. They belong to this server's version, so browsers ask each
// time, and get an unchanged file only once. With no-store they would not restore the page
// by the back button.
func file(name string) echo.HandlerFunc {
	data, _ := web.Files.ReadFile(name) // embedded
	if name == "locks.js" {
		data = append(data, ownEndpoint...)
	}
	tag, kind := fmt.Sprintf(`"%x"`, sha256.Sum256(data)), mime.TypeByExtension(path.Ext(name))
	if name == "locks.d.ts" {
		kind = "text/plain; charset=utf-8" // some systems map .ts to a video type
	}

	return func(c echo.Context) error {
		h := c.Response().Header()
		h.Set("Cache-Control", "private, no-cache")
		h.Set("ETag", tag)
		h.Set("Content-Type", kind)
		http.ServeContent(c.Response(), c.Request(), name, time.Time{}, bytes.NewReader(data))
		return nil
	}
}
