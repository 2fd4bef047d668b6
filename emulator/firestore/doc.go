// Package firestore is an embedded Firestore: a google.firestore.v1 server in
// memory that Google's client libraries call, over a TCP port as they call
// Google's emulator, or inside the process, also in a testing/synctest bubble.
//
// It answers as Google's emulator does. The package's conformance suite runs on
// both, and a test compares their answers to random calls, many of them invalid;
// where they differ, this one is wrong. It guarantees
//
//   - atomic commits with preconditions, update masks, server timestamps and
//     increments;
//   - a store clock in whole microseconds that never runs backwards: no two
//     commits share a time, and a read dated t shows exactly the commits dated t
//     or before;
//   - that a write which changes nothing keeps the document's update time;
//   - serializable read-write transactions by shared locks on the documents and
//     queries that they read. A commit waits at most 2 s for the locks of other
//     transactions and is then ABORTED; a transaction that would wait for a
//     waiting transaction is ABORTED at once. A transaction that is unused for 60 s ends;
//   - Firestore's limits on names, documents, values, requests and queries, and its
//     order of values in queries, except that an integer and a double compare as
//     doubles. Equal filters in different places count each towards the limits;
//   - listeners on a query or on documents: one snapshot for each commit that
//     changes the results, in commit order, dated as the commit, and no other.
//     No commit waits for a listener.
//
// It differs from Google's emulator where that one is laxer or slower than the
// service: a commit cannot name documents of another database, requests of up to
// 10 MiB are accepted (not 4), a write whose caller has gone is not applied
// later, a deadlock does not last 2 s, a listener is not sent all its
// documents again for each commit, and a refused target ends its stream. The test
// of random calls has the rest, each with its reason.
//
// A listener's target always begins with RESET and all its documents, also where
// it resumes from a token: the token is not read.
//
// It implements what the services, their tests and ordinary programs call, and
// answers UNIMPLEMENTED to the rest, with the name of the call or feature:
// collection groups; the search for the nearest vectors; aggregations other than
// count; explained queries; the transforms maximum and minimum; read-only
// transactions and reads at a time; limits, offsets and once in listeners and
// several targets on a stream; lists of documents or collections, batch writes,
// streaming writes, pipelines, and the calls that read or write one document, for
// which client libraries use those for several. There are no security rules and no indexes: no query fails because an index is missing.
package firestore
