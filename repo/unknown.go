package repo

import (
	"context"
	"slices"
	"taskguard/lease/analysislock"
)

// UnknownStatus reads up to limit analyses whose status is none of the four, in one
// query that needs no index of its own, and returns the ID and Status of those that
// were never acquired, which recovery does not find. Errors: those of List.
func (a *Analyses) UnknownStatus(ctx context.Context, limit int) ([]analysislock.Analysis, error) {
	ctx, cancel := context.WithTimeout(ctx, abandonedTimeout)
	defer cancel()
	found, err := a.summaries(ctx, "find analyses of unknown status", a.documents.collection.
		Where("status", "not-in", []string{analysislock.Queued, analysislock.Processing, analysislock.Ready, analysislock.Failed}).
		Select("status", "lockToken").Limit(limit))
	return slices.DeleteFunc(found, func(d analysislock.Analysis) bool { return d.Malformed != nil || d.Lock.Token != 0 }), err
}
