// Package worker is the guard behind POST /internal/tasks/analysis: it takes
// the analysis's lock, runs the analyzer under it, and answers Cloud Tasks so
// that nothing is lost. Guard decides what a delivery comes to; outcome.go is
// the one table from that to a status; record.go the one of what a delivery's log
// line says; measure.go measures the Guard's calls, and changes none; Server is
// Echo.
package worker
