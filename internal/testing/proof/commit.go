package proof

import (
	"slices"
	"time"

	"cloud.google.com/go/firestore/apiv1/firestorepb"
)

// Commit is a write to a document with a lock, as it is sent to Firestore.
type Commit struct{ *firestorepb.Write }

// Read returns what the commit, which was applied at that time, has changed. status is the field of
// the status, and final has the words of finished documents. The commits of an operator are read as
// if a worker had made them.
func (c Commit) Read(at time.Time, status string, final ...string) Write {
	fields := c.GetUpdate().GetFields()
	w := Write{Kind: c.kind(fields[status].GetStringValue(), final), Owner: fields["lockOwner"].GetStringValue(), At: at}
	if w.Token = fields["lockToken"].GetIntegerValue(); w.Kind == Finish {
		w.Owner = fields["finishedBy"].GetStringValue()
	}
	if beat, err := time.Parse(time.RFC3339, fields["lockHeartbeatAt"].GetStringValue()); err == nil {
		w.At = beat
	}
	w.Expires, _ = time.Parse(time.RFC3339, fields["lockExpiresAt"].GetStringValue())
	return w
}

// kind returns the kind of a commit that sets the status to word; empty: to no other.
func (c Commit) kind(word string, final []string) Kind {
	fields, finished := c.GetUpdate().GetFields(), slices.Contains(final, word)
	switch {
	case c.GetCurrentDocument() != nil && c.GetUpdateMask() == nil:
		return Create
	case finished && fields["lockToken"] != nil:
		return GiveUp
	case finished:
		return Finish
	case fields["lockToken"] != nil:
		return Acquire
	case c.Names("lockOwner") && fields["lockOwner"] == nil:
		return Release
	case c.Names("lockExpiresAt"):
		return Heartbeat
	case c.Names("nextAttemptAt"):
		return Mark
	}
	return Other
}

// Names reports whether the commit sets or deletes a field.
func (c Commit) Names(field string) bool {
	return slices.Contains(c.GetUpdateMask().GetFieldPaths(), field)
}
