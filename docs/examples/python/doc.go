// Package python holds the test of submit.py, the example for applications in
// Python: on imitations of Google's packages. It is a package of its
// own so that a machine without Python shows:
//
//	ok  	taskguard/docs/examples/python	0.01s [no tests to run]
//
// With REQUIRE_PYTHON set (to anything but "" or "0") its absence is a failure
// instead; TASKGUARD_NO_PYTHON hides it.
package python
