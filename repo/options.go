package repo

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/firestore"

	"taskguard/lease"
	"taskguard/lease/analysislock"
)

// Options configures Open and OpenRooms. The zero value is the contract's default.
type Options struct {
	Database   string        // default: "(default)"
	Collection string        // default: "analyses"; for OpenRooms "documentLocks"
	Emulator   string        // the emulator's host:port; FIRESTORE_EMULATOR_HOST takes precedence
	Policy     lease.Policy  // rules of the locks
	MaxRunTime time.Duration // limit of all attempts together, see analysislock.New; zero: none
	Log        *slog.Logger  // nil: no log
	// Fields is the vocabulary of the documents. The methods of Analyses take and return
	// QUEUED, PROCESSING, READY and FAILED, whatever the words of the documents are.
	Fields Fields
	// Keep is how long a finished document is kept: the commit that finishes it sets the Timestamp
	// expireAt, and the commit that opens it again deletes expireAt. The collection needs a TTL policy
	// on that field. Fencing tokens then begin at the document's creation time, so they are larger than
	// the tokens of a deleted document with the same id. Zero: no expireAt, and tokens begin at 1.
	Keep time.Duration
	// KeepAll makes every commit set expireAt, Create's too. Keep must be longer than the lock's TTL.
	KeepAll bool
	// Concurrency limits how many analyses with one key run at a time; nil: no limit.
	Concurrency *Concurrency
	// Noun names a document in the errors of Analyses; default: "analysis".
	Noun string
}

// fill sets the defaults of Collection and Log, and checks Collection.
func (o *Options) fill(defaultCollection string) error {
	o.Collection, o.Log = cmp.Or(o.Collection, defaultCollection), cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	if err := CheckCollection(o.Collection); err != nil {
		return fmt.Errorf("repo: %w", err)
	}
	return nil
}

// CheckCollection returns an error unless path is the path of a collection, such as analyses
// or tenants/a/analyses.
func CheckCollection(path string) error {
	segments := strings.Split(path, "/")
	refused := func(s string) bool { return analysislock.CheckID(s) != nil }
	if len(segments)%2 == 0 || slices.ContainsFunc(segments, refused) {
		return fmt.Errorf("%q is not the path of a collection", path)
	}
	return nil
}

// Fields configures the names of fields and the words of the status in a collection's
// documents. An empty field has the default for analyses. All other fields of the
// contract, such as lockOwner and attempts, have the same names in each collection.
type Fields struct {
	Status     string `json:"status,omitempty"`     // name of the field; default: status
	Queued     string `json:"queued,omitempty"`     // word for QUEUED
	Processing string `json:"processing,omitempty"` // word for PROCESSING
	Finished   string `json:"finished,omitempty"`   // word for READY
	Failed     string `json:"failed,omitempty"`     // word for FAILED
	// Final lists further words of finished documents, at most six, which only other programs write.
	// Such a document is left alone, as a READY one is.
	Final []string `json:"final,omitempty"`

	Input  string `json:"input,omitempty"`  // name of the field; default: input
	Result string `json:"result,omitempty"` // name of the field; default: result
	Error  string `json:"error,omitempty"`  // name of the field, a map with code and message; default: error
}

// The fields that count acts. They only serve queries: a decision reads the acts.
const (
	openActs       = "openEffects"       // acts that have started and are not done
	unfinishedActs = "unfinishedEffects" // all acts of an unfinished record of Do
)

// simpleName matches a field's name that needs no quotes in a path.
var simpleName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// Check returns an error if two fields would have the same name, if two words would be equal, or if
// Final has an empty word or more than six.
func (f Fields) Check() error {
	f = f.filled()
	names := []string{f.Status, f.Input, f.Result, f.Error}
	taken := []string{
		"attempts", "bookedTask", "checkpoint", "createdAt", "effects", "expireAt", "finishedBy", "history",
		"lastError", "lockExpiresAt", "lockHeartbeatAt", "lockOwner", "lockToken", "nextAttemptAt", "openEffects",
		"params", "parkedAt", "parkedFor", "progress", "startedAt", "starts", "unfinishedEffects", "updatedAt",
	}
	for i, name := range names {
		switch {
		case !simpleName.MatchString(name) || strings.HasPrefix(name, "__"):
			return fmt.Errorf("repo: fields: %q is not letters, digits and _", name)
		case slices.Contains(taken, name) || slices.Contains(names[:i], name):
			return fmt.Errorf("repo: fields: the name %q is taken", name)
		}
	}

	words := f.vocabulary()
	slices.Sort(words)
	switch n := len(words); {
	case n > maxWords:
		return fmt.Errorf("repo: fields: %d final words are over %d", len(f.Final), maxWords-len(f.words()))
	case words[0] == "":
		return errors.New("repo: fields: a final word is empty")
	case len(slices.Compact(words)) != n:
		return errors.New("repo: fields: two words of the status are equal")
	}
	return nil
}

// words returns the words that stand for statuses, in the same order.
func (f Fields) words() []string { return []string{f.Queued, f.Processing, f.Finished, f.Failed} }

// maxWords is the limit of Firestore's operator not-in.
const maxWords = 10

// vocabulary returns words and Final.
func (f Fields) vocabulary() []string { return append(f.words(), f.Final...) }

// final reports whether a document's value of the status is one of Final.
func (f Fields) final(v any) bool {
	word, ok := v.(string)
	return ok && slices.Contains(f.Final, word)
}

// statuses lists the statuses that every vocabulary has a word for.
var statuses = []string{analysislock.Queued, analysislock.Processing, analysislock.Ready, analysislock.Failed}

// Statuses lists what a status can be called: the statuses of analyses, the words of f for them, and
// Final.
func (f Fields) Statuses() []string {
	all := slices.Clone(statuses)
	for _, word := range f.filled().vocabulary() {
		if !slices.Contains(all, word) {
			all = append(all, word)
		}
	}
	return all
}

// Named returns the status that one of Statuses stands for.
func (f Fields) Named(word string) string {
	if slices.Contains(statuses, word) {
		return word
	}
	return f.filled().status(word)
}

func (f Fields) filled() Fields {
	f.Status, f.Input = cmp.Or(f.Status, "status"), cmp.Or(f.Input, "input")
	f.Result, f.Error = cmp.Or(f.Result, "result"), cmp.Or(f.Error, "error")
	f.Queued, f.Processing = cmp.Or(f.Queued, analysislock.Queued), cmp.Or(f.Processing, analysislock.Processing)
	f.Finished, f.Failed = cmp.Or(f.Finished, analysislock.Ready), cmp.Or(f.Failed, analysislock.Failed)
	return f
}

// Document returns the fields of a QUEUED document with input, which is a value that
// orchestrator.Storable returns. Firestore sets its times to the commit time.
func (f Fields) Document(input any) map[string]any {
	f = f.filled()
	return map[string]any{
		f.Status: f.Queued, f.Input: input, "attempts": 0,
		"createdAt": firestore.ServerTimestamp, "updatedAt": firestore.ServerTimestamp,
	}
}

// summary lists the fields that a list shows. It leaves out the input, the result, the acts
// and the fields of other programs.
func (f Fields) summary() []string {
	return []string{
		f.Status, "attempts", "finishedBy", "createdAt", "updatedAt", "startedAt",
		"nextAttemptAt", "bookedTask", "starts",
		f.Error + ".code", f.Error + ".message", "lastError.code", "lastError.message",
		"lockToken", "lockOwner", "lockHeartbeatAt", "lockExpiresAt",
		"progress.fraction", "progress.message", "progress.at", "history", openActs,
	}
}

// status returns the status that a document's value stands for. It returns in parentheses
// the type of a value that is not a string, and a string that is a status of analyses but no
// word of f. The document keeps such values.
func (f Fields) status(v any) string {
	word, ok := v.(string)
	if !ok && v != nil {
		return "(" + kind(v) + ")"
	}
	word = cut(word)
	if i := slices.Index(f.words(), word); i >= 0 {
		return statuses[i]
	}
	if slices.Contains(statuses, word) {
		return "(" + word + ")"
	}
	return word
}

// word returns the string that a document of that status contains.
func (f Fields) word(status string) string {
	if i := slices.Index(statuses, status); i >= 0 {
		return f.words()[i]
	}
	return status
}
