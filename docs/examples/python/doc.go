// Package python holds the tests of the examples in Python: of submit.py on
// imitations of Google's packages, and of emulator_test.py on the packages
// google-cloud-firestore and google-cloud-tasks. It is a package of its own so
// that a machine without Python, or without those packages, shows:
//
//	ok  	taskguard/docs/examples/python	0.01s [no tests to run]
//
// With REQUIRE_PYTHON and REQUIRE_PYTHON_CLIENTS set (to anything but "" or "0")
// their absence is a failure instead; TASKGUARD_NO_PYTHON hides Python.
package python
