// Package chromiumtest drives a page in Chromium, for tests alone: it starts the
// browser, opens tabs, and looks at what is shown: whether every text is legible,
// whether the page is wider than its window, and a picture of it where BROWSER_SHOTS
// names a directory for them.
//
// A package of tests calls Main from its TestMain, so that a machine without
// Chromium shows:
//
//	ok  	taskguard/cmd/doclock/browser	0.01s [no tests to run]
//
// With REQUIRE_CHROMIUM set (to anything but "" or "0") its absence is a failure
// instead; TASKGUARD_NO_CHROMIUM hides it.
package chromiumtest
