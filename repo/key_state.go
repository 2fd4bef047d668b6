package repo

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"cloud.google.com/go/firestore"

	"taskguard/lease"
	"taskguard/lease/analysislock"
)

// KeyState says why an analysis with a concurrency key runs or waits.
type KeyState struct {
	Key string `json:"key"` // as the document of the key has it
	// Limit is how many may run, as the worker that changed the key last had it. Zero: not known.
	Limit    int      `json:"limit,omitempty"`
	Paused   bool     `json:"paused,omitempty"`   // that worker's limit was zero or less: none may run
	Running  []string `json:"running"`            // ids of the analyses that have a slot
	Reserved []string `json:"reserved,omitempty"` // ids of those whose next attempt has one
	Parked   bool     `json:"parked"`             // the analysis waits for a slot, and no delivery is booked
	// Before is how many wait before the analysis, if it is parked and they were counted. MaxBefore stands for more.
	Before *int64 `json:"before,omitempty"`
}

// MaxBefore bounds KeyState.Before.
const MaxBefore = 1000

// KeyState reads the state of d's key. It is empty if d has none, or if nothing of the key runs or waits. It makes
// one read. If d is parked, count also counts the analyses before it, which Firestore bills as another read.
func (a *Analyses) KeyState(ctx context.Context, d *analysislock.Analysis, count bool) (s KeyState, err error) {
	id, _, parked := strings.Cut(d.Place, " ") // a Kind.Key of the worker's may not be known here
	parked = parked && !d.ParkedAt.IsZero()
	switch {
	case a.Keys == nil || d.Finished() || !parked && d.Key == "":
		return s, nil
	case !parked:
		id = analysislock.KeyID(d.Key)
	}
	c, err := a.Keys.Store.Load(ctx, id, lease.EvenMalformed)
	if err != nil || !parked && !c.Doc.Kept() {
		return s, err
	}

	s = KeyState{Key: cmp.Or(c.Doc.Value, d.Key), Limit: max(0, c.Doc.Limit), Parked: parked}
	s.Paused = c.Doc.Limit == analysislock.Paused
	s.Running, s.Reserved = c.Doc.Taken(c.At)
	if parked && count {
		before, err := a.before(ctx, d, id)
		s.Before = &before
		return s, err
	}
	return s, nil
}

// before counts the analyses that are parked before d, up to MaxBefore.
func (a *Analyses) before(ctx context.Context, d *analysislock.Analysis, keyID string) (int64, error) {
	return count(ctx, a.documents.collection.Where("parkedFor", ">", keyID+" ").
		OrderBy("parkedFor", firestore.Asc).OrderBy(firestore.DocumentID, firestore.Asc).
		EndBefore(d.Place, d.ID).Limit(MaxBefore))
}

// maxNamed bounds the ids in a text of a KeyState.
const maxNamed = 10

// String returns the state in one line; empty: there is no key.
func (s KeyState) String() string {
	if s.Key == "" {
		return ""
	}
	text := "key " + s.Key + ": " + s.Runs()
	if s.Parked {
		text = "parked behind " + text
	}
	text += named(": ", s.Running) + named("; kept for the next attempt of ", s.Reserved)
	if s.Before != nil {
		text += "; " + s.Queue()
	}
	return text
}

// Queue returns how many wait before the analysis, such as "2 wait before it"; empty: they were not counted.
func (s KeyState) Queue() string {
	switch {
	case s.Before == nil:
		return ""
	case *s.Before == 0:
		return "none waits before it"
	case *s.Before == 1:
		return "1 waits before it"
	case *s.Before >= MaxBefore:
		return fmt.Sprintf("%d or more wait before it", MaxBefore)
	}
	return fmt.Sprintf("%d wait before it", *s.Before)
}

// Runs returns how many run, such as "2 of 3 run".
func (s KeyState) Runs() string {
	switch {
	case s.Paused:
		return fmt.Sprintf("paused: the limit is 0; %d run", len(s.Running))
	case s.Limit == 0:
		return fmt.Sprintf("%d run", len(s.Running))
	}
	return fmt.Sprintf("%d of %d run", len(s.Running), s.Limit)
}

// named lists ids after an introduction; empty: there are none.
func named(introduction string, ids []string) string {
	if len(ids) == 0 {
		return ""
	}
	more := ""
	if n := len(ids) - maxNamed; n > 0 {
		more = fmt.Sprintf(" and %d more", n)
	}
	return introduction + strings.Join(ids[:min(maxNamed, len(ids))], ", ") + more
}
