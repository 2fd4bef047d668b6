// Package web holds what the document lock's server gives to browsers: the
// project lock as one module, /locks.js, and a page at / to try it.
package web

import (
	"embed"
	"io/fs"
)

//go:embed index.html locks.js page.css page.js
var files embed.FS

// Files returns the files to serve, each under its own name, and index.html
// also as /. They need no inline script or style and nothing of other origins:
// a Content-Security-Policy of default-src 'self' lets all of it work.
func Files() fs.FS { return files }
