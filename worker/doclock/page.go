package doclock

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"net/http"
	"path"
	"time"

	"github.com/labstack/echo/v4"
)

// headers adds security headers to every answer: the page runs no script of another
// site, and no other site can frame it.
func headers(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		h := c.Response().Header()
		h.Set("Content-Security-Policy", "default-src 'self'; worker-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-store")
		return next(c)
	}
}

// pages serves files, which are embedded, so that reading them cannot fail.
// index.html is / too, where a session begins.
func (s *Server) pages(files fs.FS) {
	_ = fs.WalkDir(files, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := fs.ReadFile(files, name)
		if err != nil {
			return err
		}
		page := file(name, data)
		s.echo.GET("/"+name, page)
		if name == "index.html" {
			s.echo.GET("/", func(c echo.Context) error {
				s.sessions.Begin(c.Response(), c.Request())
				return page(c)
			})
		}
		return nil
	})
}

// types are the content types by file extension; the machine's own list may differ.
var types = map[string]string{
	".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8",
}

// file serves data that clients revalidate each time: they belong to this server's
// version. Unchanged data are not sent again.
func file(name string, data []byte) echo.HandlerFunc {
	sum := sha256.Sum256(data)
	tag := `"` + hex.EncodeToString(sum[:16]) + `"`
	return func(c echo.Context) error {
		h := c.Response().Header()
		if kind := types[path.Ext(name)]; kind != "" {
			h.Set("Content-Type", kind)
		}
		h.Set("ETag", tag)
		h.Set("Cache-Control", "private, no-cache") // the page sets the session cookie
		http.ServeContent(c.Response(), c.Request(), name, time.Time{}, bytes.NewReader(data))
		return nil
	}
}
