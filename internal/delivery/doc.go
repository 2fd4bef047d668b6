// Package delivery handles one delivery of a task. Runner.Deliver, in deliver.go, acquires the lock on the
// analysis, runs the analyzer while it holds the lock, and settles how the run ended: it records the
// outcome, and books the next delivery where one is needed, so that no analysis is lost. The table in
// result.go says for each Reason when the task is acknowledged. Package worker reads deliveries from HTTP
// requests and answers them.
package delivery
