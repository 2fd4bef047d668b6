// Package node holds the tests of the examples for applications in Node. They run if
// REQUIRE_NODE is set (to anything but "" or "0"), and need npm's registry.
package node
