package repo

import (
	"context"
	"errors"
	"time"

	"cloud.google.com/go/firestore"
	"google.golang.org/api/iterator"
)

// Recent is what WatchRecent tells: how the analyses watched have changed since
// the last one.
type Recent struct {
	At    time.Time // Firestore's time of this state
	Asked time.Time // the local time at which it arrived: At was then, or shortly before
	All   bool      // Changed is all there is: what was told before does not count
	// Changed are new or changed, each without its input and result, and with
	// Malformed set where nothing can be done with its lock or by its id.
	Changed []Analysis
	Gone    []string // ids of those deleted, or not among the latest any more
}

// WatchRecent tells of the limit analyses with the latest updatedAt: of all of
// them first, then of each change, until ctx ends or Firestore refuses. One that
// has no updatedAt is not among them; strings come before Timestamps. It is one
// stream, which Google's client opens again by itself where it breaks or its
// connection falls silent (see dial); that is not told, and takes up to a minute.
// each is called in this goroutine.
//
// Firestore's automatic index of updatedAt serves it. Each document is a read when
// it is first told and when it changes. Documents travel whole, and the client
// keeps each of them decoded, as Firestore refuses to select fields of a stream
// ("'select' clauses are not supported for real-time queries"): a document of
// 1 MiB takes 1.2 MiB of memory where it is text, and ten where it is numbers.
//
// Errors: lease.ErrUnavailable, also at the end of ctx; lease.ErrRefused.
func (a *Analyses) WatchRecent(ctx context.Context, limit int, each func(Recent)) error {
	ctx, cancel := context.WithCancel(ctx) // ends the stream: its Stop is not safe beside Next
	defer cancel()
	stream := a.documents.collection.OrderBy("updatedAt", firestore.Desc).Limit(limit).Snapshots(ctx)
	for all := true; ; all = false {
		q, err := stream.Next()
		if err != nil {
			return queryError("watch analyses", err)
		}
		r := Recent{At: q.ReadTime, Asked: time.Now(), All: all}
		for _, change := range q.Changes {
			if change.Kind == firestore.DocumentRemoved {
				r.Gone = append(r.Gone, change.Doc.Ref.ID)
				continue
			}
			r.Changed = append(r.Changed, a.glimpse(change.Doc))
		}
		each(r)
	}
}

// glimpse is what can be read of a document, but for its input and result.
func (a *Analyses) glimpse(snap *firestore.DocumentSnapshot) Analysis {
	doc, err := a.documents.codec.decode(snapshot(snap))
	doc.Malformed = errors.Join(CheckID(snap.Ref.ID), err)
	doc.Input, doc.Result = nil, nil
	return doc
}

// Overdue reads, without inputs and results, up to limit analyses that are QUEUED
// or PROCESSING although their last update is older than one TTL, oldest first;
// Malformed is set as by WatchRecent. It takes a read, one for each that is found,
// and 15 s at most. Where there are more than limit, those with a Timestamp come
// before those with a string.
//
// Errors: those of Abandoned, whose index it needs.
func (a *Analyses) Overdue(ctx context.Context, limit int) ([]Analysis, error) {
	ctx, cancel := context.WithTimeout(ctx, abandonedTimeout)
	defer cancel()
	now, err := a.documents.now(ctx)
	if err != nil {
		return nil, err
	}
	found, err := a.glimpses(ctx, "find overdue analyses", briefly(updatedBefore(a.unfinished(limit), now.Add(-a.lessor.Policy().TTL))))
	oldestFirst(found)
	return found, err
}

// Unfinished reads as Overdue does, but whenever the last update was, as what is
// worked on has just had one. It spares the reading of the time. An analysis
// without an updatedAt is not found.
func (a *Analyses) Unfinished(ctx context.Context, limit int) ([]Analysis, error) {
	ctx, cancel := context.WithTimeout(ctx, abandonedTimeout)
	defer cancel()
	found, err := a.glimpses(ctx, "list unfinished analyses", briefly(a.unfinished(limit)))
	oldestFirst(found)
	return found, err
}

// briefly asks for all that is known of an analysis but its input and result.
func briefly(q firestore.Query) firestore.Query {
	return q.Select("status", "attempts", "error", "lastError", "createdAt", "updatedAt", "finishedBy",
		"lockToken", "lockOwner", "lockHeartbeatAt", "lockExpiresAt")
}

// glimpses are what a query finds; what names it in an error.
func (a *Analyses) glimpses(ctx context.Context, what string, q firestore.Query) (found []Analysis, err error) {
	docs := q.Documents(ctx)
	defer docs.Stop()
	for {
		snap, err := docs.Next()
		switch {
		case errors.Is(err, iterator.Done):
			return found, nil
		case err != nil:
			return nil, queryError(what, err)
		}
		found = append(found, a.glimpse(snap))
	}
}
