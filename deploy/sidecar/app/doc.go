// Package app holds the tests of app.py behind a worker. They run if REQUIRE_PYTHON is set
// (to anything but "" or "0").
package app
