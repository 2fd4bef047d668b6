// Package worker is the guard behind POST /internal/tasks/analysis: it takes
// the analysis's lock, runs the analyzer under it, and answers Cloud Tasks so
// that nothing is lost. Guard decides a delivery's outcome, and measures each step;
// outcome.go is the one table from the outcome to a status; record.go is the one table
// of the log line's fields; Server is Echo.
package worker
