// Package operatorpool lets the terminal sessions of one machine share a few
// operators, each operator serving one session at a time, through a file that
// programs in other languages read and write too.
//
// It is a face of package lease: the file is one record, [lease.Held] alone judges
// what has timed out, and [lease.Edit] makes each operation one step: entries that
// have timed out, or whose process is dead, go first; then comes the change; and
// all of it is written back in one commit (O5). [Storage] is the timed value of a
// session, whatever it is; [Pool] makes it an operator.
//
// # Guarantees
//
//   - Of any number of sessions that want an operator at once, one gets it. Whether
//     it is free is judged on the very state that the assignment replaces.
//   - A session keeps its operator until the one that it asked for is its own: both
//     change in one commit.
//   - A crash or a full disk leaves the state before or the state after.
//   - Fields and entries that are not known here survive. An updated_at that
//     cannot be read counts as the file's last write, one in the future as now, and
//     is put right with the next write: neither lost at once, nor kept for ever.
//   - A file that is no state counts as empty, and what it held is kept beside it,
//     in a file that ends in .corrupt, unless there is one already.
//
// # What is not guaranteed
//
//   - That a dead process's reservation is dropped before its time if another
//     process has its id by now: the two cannot be told apart. And a session named
//     by digits alone is taken for a process, whoever named it so.
//   - That processes are seen across containers which share the file but not their
//     process ids: what lives in one is dead to the others. Name the sessions.
//   - That hundreds of processes at one moment all get through within the 2 s that
//     each of them tries.
//   - Anything against programs that replace the file without taking the flock of
//     its guard: what they write between our reading and our locking is seen and
//     kept, what they write in the instant after is not.
package operatorpool
