// Package firestore is an embedded Firestore: a google.firestore.v1 server in
// memory that Google's client library talks to, over a TCP port as it talks to
// Google's emulator, or inside the process, also in a testing/synctest bubble.
//
// It answers as Google's emulator does: the package's conformance suite runs on
// both, and where they differ it is this one that is wrong. Guaranteed are
//
//   - atomic commits with preconditions, update masks and transforms;
//   - a store clock in whole microseconds that never runs backwards: no two
//     commits share a time, and a reading dated t shows exactly the commits
//     dated t or before;
//   - that a write which changes nothing keeps the document's update time;
//   - serializable read-write transactions by shared locks on what they read,
//     documents or queries. A commit waits for other transactions' locks for at
//     most 2 s and is then ABORTED; of transactions that wait for each other one
//     is ABORTED at once. A transaction unused for 60 s ends;
//   - read-only transactions that see the state they began with and lock nothing;
//   - Firestore's limits on names, documents, values and requests, and its order
//     of values in queries;
//   - listeners, to queries and documents, that are told of every commit that
//     changes what they show, in commit order, each in a snapshot dated as the
//     commit, and of no state that never was. A write that changes nothing is no
//     event. No commit waits for a listener: one that leaves 10,000 snapshots
//     unread is ended with UNAVAILABLE, upon which Google's library reconnects
//     and goes on from a whole snapshot.
//
// It differs from Google's emulator on purpose where that one is laxer or
// slower than the service: transforms keep to the limits of values (no array
// directly in an array, nesting 20 deep), a commit cannot name documents of
// another database, requests of up to 10 MiB are accepted (not 4), a write whose
// caller has gone is not applied later, a deadlock is not left to the 2 s, a
// listener is not sent all its documents again for each commit, and a target
// with once ends when it is current.
//
// A listener's target always begins with RESET and all its documents, also where
// it resumes from a token or a time: what the token was is not looked at, and
// existence filters are not needed.
//
// Not there: streaming writes, aggregations other than count, vector search,
// pipelines, security rules, indexes (no query fails for want of one), and
// reading at a time that lies before the database's last commit: beyond the
// read-only transactions under way, no history is kept.
package firestore
