// Package repo keeps the analyses in Firestore. It is the only importer of
// Google's client library: Analyses is the one entry, and beneath it a
// lease.Store made of one document, its update time and Firestore's clock.
package repo
