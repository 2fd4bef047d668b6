// Package repo keeps analyses and the locks of documents' rooms in Firestore. It is
// the only importer of Google's client library: Analyses and Rooms are the two
// entries, and beneath each a lease.Store made of one document a record, its
// update time and Firestore's clock.
package repo
