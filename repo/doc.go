// Package repo keeps analyses, and the locks of documents' rooms, in Firestore. Only this
// package imports Google's client library. Analyses and Rooms are its entry points. Both
// use a lease.Store with one document for each record: the document's update time is the
// revision, and Firestore's clock is the store's time.
package repo
