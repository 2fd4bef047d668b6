// Package browser holds the tests that drive the document lock's page and module
// in Chromium. It is a package of its own so that a machine without Chromium
// shows:
//
//	ok  	taskguard/cmd/doclock/browser	0.01s [no tests to run]
//
// With REQUIRE_CHROMIUM set (to anything but "" or "0") its absence is a failure
// instead; TASKGUARD_NO_CHROMIUM hides it. BROWSER_SHOTS names a directory for pictures of the page.
package browser
