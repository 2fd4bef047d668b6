// Package php holds the test of session.php, the example that makes a session of the
// document lock in PHP. It runs if REQUIRE_PHP is set (to anything but "" or "0"). The test
// of confirm.php is in locks/document/server.
package php
