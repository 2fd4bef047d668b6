// Package app holds the tests of app.py behind a worker. It is a package of its
// own so that a machine without Python shows:
//
//	ok  	taskguard/deploy/sidecar/app	0.01s [no tests to run]
//
// With REQUIRE_PYTHON set (to anything but "" or "0") its absence is a failure
// instead; TASKGUARD_NO_PYTHON hides it.
package app
