// Package repo keeps analyses, and the locks of documents' rooms, in Firestore. Open gives
// access to the analyses of one collection, Connect to several collections, and OpenRooms to
// the rooms.
//
// Each is a lease.Store with one document for each record: the document's update time is
// the revision, and Firestore's clock is the store's time.
package repo
