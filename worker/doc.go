// Package worker is the guard behind POST /internal/tasks/analysis: it takes
// the analysis's lock, runs the analyzer under it, and answers Cloud Tasks so
// that nothing is lost. Guard decides a delivery's outcome and measures each step. The
// table in outcome.go maps an outcome to an HTTP status, the table in record.go to the
// fields of the log line. Server serves HTTP with Echo.
package worker
