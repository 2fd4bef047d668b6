// Package node holds the tests of the examples for applications in Node.
// It is a package of its own so that a machine without Node, or without its
// packages' registry, shows:
//
//	ok  	taskguard/docs/examples/node	0.01s [no tests to run]
//
// With REQUIRE_NODE set (to anything but "" or "0") their absence is a failure
// instead; TASKGUARD_NO_NODE hides them.
package node
