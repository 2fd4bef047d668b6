// Package delivery handles POST /internal/tasks/analysis: it acquires the lock on the
// analysis, runs the analyzer while it holds the lock, and answers Cloud Tasks so that
// no analysis is lost. Guard decides a delivery's outcome and measures each step. The
// table in outcome.go maps an outcome to an HTTP status, the table in record.go to the
// fields of the log line. Server serves HTTP with Echo.
package delivery
