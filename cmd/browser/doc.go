// Package browser holds the tests that drive web pages in Chromium: the document lock's
// page and module, also by Laravel Echo, and the operators' console as `taskguard console`
// serves it. If BROWSER_SHOTS names a directory, pictures of the pages are saved there.
//
// A machine without Chromium shows:
//
//	ok  	taskguard/cmd/browser	0.01s [no tests to run]
//
// With REQUIRE_CHROMIUM set (to anything but "" or "0") its absence is a failure
// instead; TASKGUARD_NO_CHROMIUM hides Chromium.
package browser
