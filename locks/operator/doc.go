// Package operator lets the terminal sessions of one machine share a few operators.
// An operator serves one session at a time. The sessions share a file, which programs
// in other languages read and write too.
//
// The file is one record of package lease. Each operation is one step: expired
// entries and the entries of dead processes are removed, then the change is made, and the
// state is written back in one commit. A [Pool] is the operators as one session sees them.
//
// # Guarantees
//
//   - Of all sessions that want an operator at once, one gets it.
//   - A session keeps its operator until it has the new one: both
//     change in one commit.
//   - A crash or a full disk leaves the state before or the state after.
//   - Unknown fields and entries survive. An unreadable updated_at counts as the
//     file's last write, and a future one counts as now; the next write corrects it.
//   - A corrupt file counts as empty; its content is kept in a file that ends in
//     .corrupt, unless that exists.
//
// # Not guaranteed
//
//   - That a dead process's reservation ends early if another process has its ID by
//     now. A session whose name has only digits is treated as a process ID.
//   - Process checks across containers that share the file but not their process
//     IDs: name the sessions there.
//   - That hundreds of simultaneous processes all succeed within 2 s each.
//   - Safety against programs that write the file without its lock: the directory FILE.lock, which the
//     Node module proper-lockfile makes, and which this package makes too for each write.
//   - That the lock of a program that died is free before 10 s have passed.
package operator
