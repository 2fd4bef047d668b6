// Package delivery handles one delivery of a task: it acquires the lock on the analysis, runs
// the analyzer while it holds the lock, records the outcome, and books the next delivery where
// one is needed, so that no analysis is lost. Guard decides the Outcome of a delivery and
// measures each step. Package worker reads deliveries from HTTP requests and answers them.
package delivery
