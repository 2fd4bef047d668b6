// Package browser holds the tests that drive the operators' console, as
// `taskguard console` serves it, in Chromium: on an embedded Firestore, with an
// embedded Cloud Tasks for the deliveries that it books. See chromiumtest for what
// a machine without Chromium shows, and for pictures of the pages.
package browser
