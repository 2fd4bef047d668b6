// Package analysislock is the lock on an analysis, and what a worker records under
// it: one worker runs the analysis at a time, and it is finished once (seed 003).
//
// It uses package lease: the rules of lease decide, and lease.Edit reads and writes.
// Each change of an analysis is one commit, which fails unless the lock is still held.
// Package repo keeps analyses in Firestore.
package analysislock
