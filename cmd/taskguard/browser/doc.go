// Package browser holds the tests that drive the operators' console, as
// `taskguard console` serves it, in Chromium: on an embedded Firestore, with an
// embedded Cloud Tasks for the deliveries that it books. Package chromiumtest documents
// the variables that they read, and what a machine without Chromium shows.
package browser
