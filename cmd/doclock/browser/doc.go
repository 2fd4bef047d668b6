// Package browser holds the tests that drive the document lock's page and module
// in Chromium. Package chromiumtest documents the variables that they read, and what a
// machine without Chromium shows.
package browser
