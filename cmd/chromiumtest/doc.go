// Package chromiumtest drives a page in Chromium, for tests only: it starts the browser,
// opens tabs, and checks that the page fits its window. If BROWSER_SHOTS names a
// directory, pictures are saved there.
//
// A package of tests calls Main from its TestMain, so that a machine without
// Chromium shows:
//
//	ok  	taskguard/cmd/doclock/browser	0.01s [no tests to run]
//
// With REQUIRE_CHROMIUM set (to anything but "" or "0") its absence is a failure
// instead; TASKGUARD_NO_CHROMIUM hides it.
package chromiumtest
