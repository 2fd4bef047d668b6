package proof

import (
	"cmp"
	"slices"
	"time"

	"cloud.google.com/go/firestore/apiv1/firestorepb"

	"taskguard/lease/analysislock"
	"taskguard/repo"
)

// Commit is a write to a document with a lock, as a worker sends it to Firestore.
type Commit struct {
	*firestorepb.Write

	Fields repo.Fields // the names of the document's fields
}

// Read returns what the commit changes, if Firestore has applied it at that time.
func (c Commit) Read(at time.Time) Write {
	fields := c.GetUpdate().GetFields()
	w := Write{Kind: c.kind(), Owner: fields["lockOwner"].GetStringValue(), At: at}
	if w.Token = fields["lockToken"].GetIntegerValue(); w.Kind == Finish {
		w.Owner = fields["finishedBy"].GetStringValue()
	}
	if beat, err := time.Parse(time.RFC3339, fields["lockHeartbeatAt"].GetStringValue()); err == nil {
		w.At = beat
	}
	w.Expires, _ = time.Parse(time.RFC3339, fields["lockExpiresAt"].GetStringValue())
	return w
}

// Finished returns the word of the status with which the commit finishes the document; empty: it does
// not.
func (c Commit) Finished() string {
	words := []string{cmp.Or(c.Fields.Finished, analysislock.Ready), cmp.Or(c.Fields.Failed, analysislock.Failed)}
	word := c.GetUpdate().GetFields()[cmp.Or(c.Fields.Status, "status")].GetStringValue()
	if slices.Contains(words, word) {
		return word
	}
	return ""
}

// Failure returns the code and the message of the error that the commit sets.
func (c Commit) Failure() (code, message string) {
	failure := c.GetUpdate().GetFields()[cmp.Or(c.Fields.Error, "error")].GetMapValue().GetFields()
	return failure["code"].GetStringValue(), failure["message"].GetStringValue()
}

// Open returns the names of the acts that have begun and are not recorded as done, if the commit
// writes the acts.
func (c Commit) Open() (names []string) {
	for name, act := range c.GetUpdate().GetFields()["effects"].GetMapValue().GetFields() {
		if act.GetMapValue().GetFields()["state"].GetStringValue() != analysislock.ActDone {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// kind returns the kind of the commit.
func (c Commit) kind() Kind {
	fields := c.GetUpdate().GetFields()
	switch {
	case c.GetCurrentDocument() != nil && c.GetUpdateMask() == nil:
		return Create
	case c.Finished() != "" && fields["lockToken"] != nil:
		return GiveUp
	case c.Finished() != "":
		return Finish
	case fields["lockToken"] != nil:
		return Acquire
	case fields["parkedAt"] != nil:
		return Park
	case c.delays():
		return Delay
	case c.Names("lockOwner") && fields["lockOwner"] == nil:
		return Release
	case c.Names("lockExpiresAt"):
		return Heartbeat
	case c.Names("nextAttemptAt"):
		return Mark
	}
	return Other
}

// delays reports whether the commit delays a suspect: it counts that with the last attempt.
func (c Commit) delays() bool {
	history := c.GetUpdate().GetFields()["history"].GetArrayValue().GetValues()
	return len(history) > 0 && history[len(history)-1].GetMapValue().GetFields()["delays"] != nil
}

// Step names the commit by what it is for: its kind, or what a heartbeat carries.
func (c Commit) Step() string {
	kind := c.kind()
	switch {
	case kind != Heartbeat:
	case c.Names("effects") && len(c.Open()) > 0:
		return "marker"
	case c.Names("effects"):
		return "outcome"
	case c.Names("checkpoint"):
		return "checkpoint"
	}
	return string(kind)
}

// Names reports whether the commit sets or deletes a field.
func (c Commit) Names(field string) bool {
	return slices.Contains(c.GetUpdateMask().GetFieldPaths(), field)
}
