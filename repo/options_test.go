package repo

import (
	"errors"
	"log/slog"
	"reflect"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/firestore"

	"taskguard/internal/testing/emulatortest"
	"taskguard/lease"
	"taskguard/lease/analysislock"
)

// jobs is another vocabulary than that of analyses, and crossed one that has the same words
// with other meanings.
var (
	jobs    = Fields(emulatortest.Jobs().Vocabulary)
	crossed = Fields{Queued: "READY", Processing: "QUEUED", Finished: "finished"}
)

func TestStatusesAreTranslated(t *testing.T) {
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
		if got := f.word(tc.status); got != tc.word && !strings.HasPrefix(tc.status, "(") {
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
		"a digit at the beginning":        {Fields: Fields{Input: "1a"}},
		"a beginning that is reserved":    {Fields: Fields{Result: "__x"}},
		"two equal words":                 {Fields: Fields{Finished: "QUEUED"}},
		"two equal words of its own":      {Fields: Fields{Processing: "ON", Failed: "ON"}},
		"the word of another's default":   {Fields: Fields{Queued: "PROCESSING"}},
		"a final word of its own":         {Fields: Fields{Final: []string{"READY"}}},
		"two equal final words":           {Fields: Fields{Final: []string{"A", "A"}}},
		"an empty final word":             {Fields: Fields{Final: []string{""}}},
		"a negative time":                 {Keep: -1},
		"a time shorter than the TTL":     {Keep: time.Minute, KeepAll: true},
	} {
		if a, err := Open(t.Context(), "p", o, emulatortest.Embedded(t).Client(t)...); err == nil {
			t.Errorf("%s: no error", name)
			_ = a.Close()
		}
	}
	const tooMany = "repo: fields: 7 final words are over 6"
	if err := (Fields{Final: strings.Fields("a b c d e f g")}).Check(); err == nil || err.Error() != tooMany {
		t.Errorf("%v, want %s", err, tooMany)
	}
	for _, name := range strings.Fields("attempts bookedTask parkedAt parkedFor starts checkpoint createdAt effects expireAt finishedBy history lastError lockExpiresAt lockHeartbeatAt lockOwner lockToken nextAttemptAt openEffects params progress startedAt unfinishedEffects updatedAt status input result") {
		if err := (Fields{Error: name}).Check(); err == nil {
			t.Errorf("the error in the field %s: no error", name)
		}
	}
}

// A document is deleted at expireAt: never while it is unfinished, unless every commit
// moves that time.
func TestTheTimeToDeleteIsSetByTheFinish(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	finish := func(a *analysislock.Analysis) { a.Status = analysislock.Ready }
	cancel := func(a *analysislock.Analysis) { a.Status = analysislock.Failed }
	reopen := func(a *analysislock.Analysis) { a.Status, a.Lock.Finished = analysislock.Queued, false }
	acquire := func(a *analysislock.Analysis) { a.Lock.Token++ }
	renew := func(a *analysislock.Analysis) { a.Lock.ExpiresAt = now }
	nothing := func(*analysislock.Analysis) {}
	begin := func(a *analysislock.Analysis) {
		a.Acts, a.OpenActs = analysislock.Acts{"act": {State: analysislock.ActStarted}}, 1
	}
	end := func(a *analysislock.Analysis) {
		a.Acts, a.OpenActs = analysislock.Acts{"act": {State: analysislock.ActDone}}, 0
	}
	later, gone := any(now.Add(time.Hour)), any(firestore.Delete)
	open, done := analysislock.ActStarted, analysislock.ActDone
	for name, tc := range map[string]struct {
		change                           func(*analysislock.Analysis)
		status                           string
		act                              string // its state before the change, which no count shows
		withoutKeep, withKeep, ofKeepAll any    // expireAt
	}{
		"finish":                        {finish, "PROCESSING", "", nil, later, later},
		"cancel":                        {cancel, "QUEUED", "", nil, later, later},
		"reopen":                        {reopen, "FAILED", "", gone, gone, later},
		"acquire":                       {acquire, "QUEUED", "", gone, gone, later}, // another program may have opened it again, of a worker with Keep
		"renew":                         {renew, "PROCESSING", "", nil, nil, later},
		"begin an act":                  {begin, "PROCESSING", "", gone, gone, gone},
		"renew with an act open":        {renew, "PROCESSING", open, gone, gone, gone},
		"acquire with an act open":      {acquire, "QUEUED", open, gone, gone, gone},
		"finish with an act open":       {finish, "PROCESSING", open, gone, gone, gone},
		"answer an act of the finished": {end, "READY", open, nil, later, later},
		"end an act":                    {end, "PROCESSING", open, nil, nil, gone},
		"renew with an act done":        {renew, "PROCESSING", done, nil, nil, gone},
		"acquire with an act done":      {acquire, "QUEUED", done, gone, gone, gone},
		"finish with an act done":       {finish, "PROCESSING", done, nil, later, later},
		"reopen with an act done":       {reopen, "READY", done, gone, gone, gone},
		"nothing":                       {nothing, "READY", "", nil, nil, nil},
	} {
		for _, k := range []struct {
			keep time.Duration
			all  bool
			want any
		}{{0, false, tc.withoutKeep}, {time.Hour, false, tc.withKeep}, {time.Hour, true, tc.ofKeepAll}} {
			codec := analysisCodec{lockCodec: lockCodec{log: slog.New(slog.DiscardHandler)}, fields: Fields{}.filled(), keep: k.keep, keepAll: k.all}
			fields := map[string]any{"status": tc.status}
			if tc.act != "" {
				fields["effects"] = map[string]any{"act": map[string]any{"state": tc.act}}
			}
			prev, rev, err := codec.decode(reading{id: "x", exists: true, fields: fields, at: now.Add(-time.Minute), updated: now.Add(-time.Minute)})
			fatal(t, err)
			next := prev
			tc.change(&next)
			if got := codec.changes(prev, &next, &rev, now)["expireAt"]; got != k.want {
				t.Errorf("%s, kept for %v, in each commit %v: expireAt = %v, want %v", name, k.keep, k.all, got, k.want)
			}
		}
	}
}

func TestOneConnectionServesSeveralCollections(t *testing.T) {
	b := emulatortest.Embedded(t)
	db, err := Connect(t.Context(), b.Project, Options{}, b.Client(t)...)
	fatal(t, err)
	own := map[string]*Analyses{}
	for path, fields := range map[string]Fields{"analyses": {}, "tenants/a/jobs": jobs} {
		a, err := db.Analyses(Options{Collection: path, Fields: fields})
		fatal(t, err)
		if !reflect.DeepEqual(a.Fields(), fields.filled()) {
			t.Errorf("collection %q has %+v, want %+v", path, a.Fields(), fields)
		}
		fatal(t, a.Create(t.Context(), "x", path, CreateOptions{}))
		own[path] = a
	}
	check(t, own["analyses"].Close())
	for path, a := range own {
		if d, err := a.Get(t.Context(), "x"); err != nil || d.Status != analysislock.Queued || d.Input != path {
			t.Errorf("%s, when another's Analyses are closed: %+v, %v", path, d, err)
		}
	}
	check(t, db.Close())
	for path, a := range own {
		if err := a.Ping(t.Context()); err == nil {
			t.Errorf("%s: an answer on a closed connection", path)
		}
	}
}

// A record is deleted some time after its last commit. The next one with its id has larger
// tokens.
func TestARecordKeepsItsResultForATime(t *testing.T) {
	emulatortest.EachKind(t, func(t *testing.T, b *emulatortest.Backend) {
		const keep = time.Hour
		a, err := Open(t.Context(), b.Project, optionsFor(b, Options{Policy: lease.Policy{TTL: ttl(b)}, Keep: keep, KeepAll: true}), b.Client(t)...)
		fatal(t, err)
		created := func(read time.Time) { // expireAt counts from a reading before the commit
			t.Helper()
			fields := b.Fields(t, "x")
			expires, _ := fields["expireAt"].(time.Time)
			updated, _ := parseTime(fields["updatedAt"])
			if expires.Before(read.Add(keep)) || expires.After(updated.Add(keep)) {
				t.Errorf("created between %v and %v, deleted at %v; want %v later", read, updated, expires, keep)
			}
		}
		var last int64
		for range 2 {
			read, err := a.documents.now(t.Context())
			fatal(t, err)
			fatal(t, a.Create(t.Context(), "x", "in", CreateOptions{Params: "hash"}))
			created(read)
			acq, err := a.AcquireAnalysisLock(t.Context(), "x", "w/1", 0, analysislock.AcquireOptions{})
			if err != nil || !acq.Acquired || acq.Grant.Token <= last {
				t.Fatalf("%+v, %v; want a token larger than %d", acq, err, last)
			}
			last = acq.Grant.Token
			fatal(t, acq.Hold.End(t.Context(), analysislock.Completing(acq.Hold.Now(), "out")))
			before := b.Calls.Total()
			d, params, err := a.Outcome(t.Context(), "x")
			if err != nil || d.Status != analysislock.Ready || d.Result != "out" || d.Input != nil || params != "hash" {
				t.Errorf("outcome: %+v, %q, %v", d, params, err)
			}
			if n := b.Calls.Total() - before; n != 1 {
				t.Errorf("an outcome is read in %d calls, want 1", n)
			}
			if _, err := open(t, b).Requeue(t.Context(), "x", "", nil, false, ""); err != nil { // an operator, who keeps nothing
				t.Fatal(err)
			}
			if at := b.Fields(t, "x")["expireAt"]; at != nil {
				t.Errorf("opened again, and deleted at %v", at)
			}
			b.Delete(t, "x")
			time.Sleep(time.Millisecond)
			if _, _, err := a.Outcome(t.Context(), "x"); !errors.Is(err, lease.ErrNotFound) {
				t.Errorf("%v, want ErrNotFound", err)
			}
		}
		finished, err := Open(t.Context(), b.Project, optionsFor(b, Options{Keep: keep}), b.Client(t)...)
		fatal(t, err)
		b.Put(t, "y", map[string]any{"status": analysislock.Queued}) // by any program
		acq, err := finished.AcquireAnalysisLock(t.Context(), "y", "w/1", 0, analysislock.AcquireOptions{})
		if err != nil || acq.Grant.Token <= last {
			t.Errorf("%+v, %v; its tokens begin anew", acq.Grant, err)
		}
	})
}
