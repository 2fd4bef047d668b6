// Package echo holds the tests of the document lock with Laravel Echo and pusher-js in
// Node, and Check, the scenario that the tests in Chromium use too. It is a package of its
// own so that a machine without Node, or without its packages' registry, shows:
//
//	ok  	taskguard/cmd/doclock/echo	0.01s [no tests to run]
//
// With REQUIRE_NODE set (to anything but "" or "0") their absence is a failure
// instead; TASKGUARD_NO_NODE hides them.
package echo
