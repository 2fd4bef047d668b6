package repo

import (
	"context"
	"errors"
	"time"

	"cloud.google.com/go/firestore"
	"google.golang.org/api/iterator"
)

// Newest is when the analysis with the latest updatedAt was last written, whatever
// of it was, by Firestore's own time; zero: no analysis has an updatedAt. at is
// Firestore's time of the reading. What WatchRecent has told of a time that is not
// before written holds it; so this tells a stream that has nothing to say from one
// that says nothing, which Google's client does not: it opens a stream that is
// refused again and again, without a word.
//
// One read within 5 s, and two where there is none. Firestore's automatic index of
// updatedAt serves it. Errors: lease.ErrUnavailable; lease.ErrRefused.
func (a *Analyses) Newest(ctx context.Context) (written, at time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	docs := a.documents.collection.OrderBy("updatedAt", firestore.Desc).Limit(1).Select("updatedAt").Documents(ctx)
	defer docs.Stop()
	snap, err := docs.Next()
	switch {
	case errors.Is(err, iterator.Done):
		at, err = a.documents.now(ctx) // the reply without a document has a time, which the client drops
		return written, at, err
	case err != nil:
		return written, at, queryError("find the newest analysis", err)
	}
	return snap.UpdateTime, snap.ReadTime, nil
}
