// Package python holds the tests of the Python package taskguard. They run if REQUIRE_PYTHON is set
// (to anything but "" or "0").
package python
