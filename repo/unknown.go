package repo

import (
	"context"
	"slices"
)

// UnknownStatus reads up to limit analyses whose status is none of the four, in one
// query that needs no index of its own, and returns the ID and Status of those that
// were never acquired, which recovery does not find. Errors: those of List.
func (a *Analyses) UnknownStatus(ctx context.Context, limit int) ([]Analysis, error) {
	ctx, cancel := context.WithTimeout(ctx, abandonedTimeout)
	defer cancel()
	found, err := a.summaries(ctx, "find analyses of unknown status", a.documents.collection.
		Where("status", "not-in", []string{Queued, Processing, Ready, Failed}).
		Select("status", "lockToken").Limit(limit))
	return slices.DeleteFunc(found, func(d Analysis) bool { return d.Malformed != nil || d.Lock.Token != 0 }), err
}
