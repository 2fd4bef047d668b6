package repo

import (
	"log/slog"
	"testing"
	"time"

	"cloud.google.com/go/firestore"

	"taskguard/internal/emulatortest"
	"taskguard/lease/analysislock"
)

// jobs is another vocabulary than that of analyses, and crossed one that has the same words
// with other meanings.
var (
	jobs = Fields{
		Status: "state", Queued: "PENDING", Processing: "RUNNING", Finished: "DONE", Failed: "ERROR",
		Input: "payload", Result: "output", Error: "failure",
	}
	crossed = Fields{Queued: "READY", Processing: "QUEUED", Finished: "finished"}
)

func TestStatusesAreTranslatedBothWays(t *testing.T) {
	for _, tc := range []struct {
		fields Fields
		word   any
		status string
	}{
		{Fields{}, "READY", analysislock.Ready},
		{Fields{}, "DONE", "DONE"},
		{Fields{}, "", ""},
		{jobs, "PENDING", analysislock.Queued},
		{jobs, "RUNNING", analysislock.Processing},
		{jobs, "DONE", analysislock.Ready},
		{jobs, "ERROR", analysislock.Failed},
		{jobs, "READY", "(READY)"},
		{jobs, "FAILED", "(FAILED)"},
		{jobs, "(a map)", "(a map)"},
		{crossed, "READY", analysislock.Queued},
		{crossed, "QUEUED", analysislock.Processing},
		{crossed, "finished", analysislock.Ready},
		{crossed, "PROCESSING", "(PROCESSING)"},
	} {
		f := tc.fields.filled()
		if got := f.status(tc.word); got != tc.status {
			t.Errorf("status of %q = %q, want %q", tc.word, got, tc.status)
		}
		if got := f.word(tc.status); got != tc.word {
			t.Errorf("word of %q = %q, want %q", tc.status, got, tc.word)
		}
	}
}

func TestVocabulariesThatCannotBeUsedAreRefused(t *testing.T) {
	for name, o := range map[string]Options{
		"a name that is taken":            {Fields: Fields{Result: "checkpoint"}},
		"two equal names":                 {Fields: Fields{Input: "data", Result: "data"}},
		"the name of another's default":   {Fields: Fields{Status: "error"}},
		"a path":                          {Fields: Fields{Error: "a.b"}},
		"a name that Firestore has taken": {Fields: Fields{Status: "__name__"}},
		"two equal words":                 {Fields: Fields{Finished: "QUEUED"}},
		"a negative time":                 {Keep: -1},
		"a time shorter than the TTL":     {Keep: time.Minute, KeepAll: true},
	} {
		if a, err := Open(t.Context(), "p", o, emulatortest.Embedded(t).Client(t)...); err == nil {
			t.Errorf("%s: no error", name)
			_ = a.Close()
		}
	}
}

// A document is deleted at expireAt: never while it is unfinished, unless every commit
// moves that time.
func TestTheTimeToDeleteIsSetByTheFinish(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	finish := func(a *analysislock.Analysis) { a.Status = analysislock.Ready }
	cancel := func(a *analysislock.Analysis) { a.Status = analysislock.Failed }
	reopen := func(a *analysislock.Analysis) { a.Status = analysislock.Queued }
	acquire := func(a *analysislock.Analysis) { a.Lock.Token++ }
	renew := func(a *analysislock.Analysis) { a.Lock.ExpiresAt = now }
	nothing := func(*analysislock.Analysis) {}
	later, gone := any(now.Add(time.Hour)), any(firestore.Delete)
	for name, tc := range map[string]struct {
		change                           func(*analysislock.Analysis)
		status                           string
		withoutKeep, withKeep, ofKeepAll any // expireAt
	}{
		"finish":  {finish, "PROCESSING", nil, later, later},
		"cancel":  {cancel, "QUEUED", nil, later, later},
		"reopen":  {reopen, "FAILED", gone, gone, later},
		"acquire": {acquire, "QUEUED", nil, gone, later}, // another program may have opened it again
		"renew":   {renew, "PROCESSING", nil, nil, later},
		"nothing": {nothing, "READY", nil, nil, nil},
	} {
		for _, k := range []struct {
			keep time.Duration
			all  bool
			want any
		}{{0, false, tc.withoutKeep}, {time.Hour, false, tc.withKeep}, {time.Hour, true, tc.ofKeepAll}} {
			codec := analysisCodec{lockCodec: lockCodec{log: slog.New(slog.DiscardHandler)}, fields: Fields{}.filled(), keep: k.keep, keepAll: k.all}
			prev, err := codec.decode(reading{id: "x", exists: true, fields: map[string]any{"status": tc.status}, at: now, updated: now})
			if err != nil {
				t.Fatal(err)
			}
			next := prev
			tc.change(&next)
			var got any
			for _, u := range codec.changes(prev, &next, now) {
				if u.Path == "expireAt" {
					got = u.Value
				}
			}
			if got != k.want {
				t.Errorf("%s, kept for %v, in each commit %v: expireAt = %v, want %v", name, k.keep, k.all, got, k.want)
			}
		}
	}
}
