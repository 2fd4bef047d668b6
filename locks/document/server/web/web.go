// Package web contains the files that the document lock's server gives to browsers: the
// project lock as one module, /locks.js with its types, and a page at / to try it.
package web

import "embed"

// Files contains the files. They have no inline script or style and use nothing of other
// origins, so they work with a Content-Security-Policy of default-src 'self'; worker-src blob:.
//
//go:embed index.html locks.js locks.d.ts page.css page.js
var Files embed.FS
