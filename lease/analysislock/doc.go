// Package analysislock is the lock on an analysis, and what a worker records under
// it: one worker runs the analysis at a time, and it is finished once (seed 003).
//
// It uses package lease: the lease's rules decide, lease.Edit tries, and each change
// of an analysis is in one commit with the proof that its lock is still held. Package
// repo keeps analyses in Firestore.
package analysislock
