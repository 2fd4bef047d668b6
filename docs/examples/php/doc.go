// Package php holds the test of session.php, the example that makes a session of the
// document lock in PHP. The test of confirm.php is in locks/document/server. It is a package
// of its own so that a machine without PHP shows:
//
//	ok  	taskguard/docs/examples/php	0.01s [no tests to run]
//
// With REQUIRE_PHP set (to anything but "" or "0") its absence is a failure instead;
// TASKGUARD_NO_PHP hides it.
package php
