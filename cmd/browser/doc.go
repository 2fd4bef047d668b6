// Package browser holds the tests that drive web pages in Chromium: the document lock's
// page and module, also by Laravel Echo, which is tested in Node too, and the operators'
// console as `taskguard console` serves it. If BROWSER_SHOTS names a directory, pictures of
// the pages are saved there.
//
// They run if REQUIRE_CHROMIUM is set (to anything but "" or "0").
package browser
