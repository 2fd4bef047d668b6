package repo

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"

	"taskguard/lease/analysislock"
)

// Fields maps the vocabulary of a collection's documents: the names of fields, and the
// words of the status. An empty one is that of analyses. All other fields of the contract,
// such as lockOwner and attempts, have the same names in each collection.
type Fields struct {
	Status     string `json:"status,omitempty"`     // the field that contains one of these words; empty: status
	Queued     string `json:"queued,omitempty"`     // empty: QUEUED
	Processing string `json:"processing,omitempty"` // empty: PROCESSING
	Finished   string `json:"finished,omitempty"`   // empty: READY
	Failed     string `json:"failed,omitempty"`     // empty: FAILED

	Input  string `json:"input,omitempty"`  // the field; empty: input
	Result string `json:"result,omitempty"` // the field; empty: result
	Error  string `json:"error,omitempty"`  // the field, a map of code and message; empty: error
}

// simpleName matches a field's name that needs no quotes in a path.
var simpleName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// Check returns an error if two fields would have the same name or two words would be equal.
func (f Fields) Check() error {
	f = f.filled()
	names := []string{f.Status, f.Input, f.Result, f.Error}
	taken := []string{
		"attempts", "checkpoint", "createdAt", "expireAt", "finishedBy", "history", "lastError", "lockExpiresAt", "lockHeartbeatAt",
		"lockOwner", "lockToken", "nextAttemptAt", "params", "progress", "startedAt", "updatedAt",
	}
	for i, name := range names {
		switch {
		case !simpleName.MatchString(name):
			return fmt.Errorf("repo: fields: %q is not letters, digits and _", name)
		case slices.Contains(taken, name) || slices.Contains(names[:i], name):
			return fmt.Errorf("repo: fields: the name %q is taken", name)
		}
	}
	words := []string{f.Queued, f.Processing, f.Finished, f.Failed}
	slices.Sort(words)
	if len(slices.Compact(words)) != len(names) {
		return errors.New("repo: fields: two words of the status are equal")
	}
	return nil
}

func (f Fields) filled() Fields {
	f.Status, f.Input, f.Result, f.Error = cmp.Or(f.Status, "status"), cmp.Or(f.Input, "input"), cmp.Or(f.Result, "result"), cmp.Or(f.Error, "error")
	f.Queued, f.Processing = cmp.Or(f.Queued, analysislock.Queued), cmp.Or(f.Processing, analysislock.Processing)
	f.Finished, f.Failed = cmp.Or(f.Finished, analysislock.Ready), cmp.Or(f.Failed, analysislock.Failed)
	return f
}
