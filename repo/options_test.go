package repo

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/api/option"

	"taskguard/internal/testing/emulatortest"
	"taskguard/internal/testing/must"
	"taskguard/lease"
	"taskguard/lease/analysislock"
)

// jobs is another vocabulary than that of analyses, and crossed one that has the same words
// with other meanings.
var (
	jobs    = Fields(emulatortest.Jobs().Vocabulary)
	crossed = Fields{Queued: "READY", Processing: "QUEUED", Finished: "finished"}
)

func TestFields_Status(t *testing.T) {
	for _, tc := range []struct {
		fields       Fields
		word, status string
	}{
		{Fields{}, "READY", "READY"},
		{Fields{}, "DONE", "DONE"},
		{Fields{}, "", ""},
		{jobs, "PENDING", "QUEUED"},
		{jobs, "RUNNING", "PROCESSING"},
		{jobs, "DONE", "READY"},
		{jobs, "ERROR", "FAILED"},
		{jobs, "READY", "(READY)"},
		{jobs, "(a map)", "(a map)"},
		{crossed, "READY", "QUEUED"},
		{crossed, "QUEUED", "PROCESSING"},
		{crossed, "finished", "READY"},
		{crossed, "PROCESSING", "(PROCESSING)"},
	} {
		f := tc.fields.filled()
		same(t, tc.status, f.status(tc.word), tc.word)
		if got := f.word(tc.status); got != tc.word && !strings.HasPrefix(tc.status, "(") {
			t.Errorf("word of %q = %q, want %q", tc.status, got, tc.word)
		}
	}
}

func TestCheckCollection(t *testing.T) {
	for path, want := range map[string]bool{
		"a": true, "a/b/c": true, "a/b": false, "": false, "a//c": false, "a/../c": false,
	} {
		same(t, want, CheckCollection(path) == nil, path)
	}
}

func TestOpen_Refused(t *testing.T) {
	for name, o := range map[string]Options{
		"a path of a document":            {Collection: "analyses/x"},
		"a negative TTL":                  {Policy: lease.Policy{TTL: -1}},
		"a name that is taken":            {Fields: Fields{Result: "checkpoint"}},
		"two equal names":                 {Fields: Fields{Input: "data", Result: "data"}},
		"the name of another's default":   {Fields: Fields{Status: "error"}},
		"a path":                          {Fields: Fields{Error: "a.b"}},
		"a name that Firestore has taken": {Fields: Fields{Status: "__name__"}},
		"a digit at the beginning":        {Fields: Fields{Input: "1a"}},
		"two equal words":                 {Fields: Fields{Processing: "ON", Failed: "ON"}},
		"the word of another's default":   {Fields: Fields{Queued: "PROCESSING"}},
		"a final word of its own":         {Fields: Fields{Final: []string{"READY"}}},
		"two equal final words":           {Fields: Fields{Final: []string{"A", "A"}}},
		"an empty final word":             {Fields: Fields{Final: []string{""}}},
		"seven final words":               {Fields: Fields{Final: strings.Fields("a b c d e f g")}},
		"a negative time":                 {Keep: -1},
		"a time shorter than the TTL":     {Keep: time.Minute, KeepAll: true},
	} {
		if a, err := Open(t.Context(), "p", o, emulatortest.Embedded(t).Client(t)...); err == nil {
			t.Errorf("%s: no error", name)
			_ = a.Close()
		}
	}
	for _, name := range strings.Fields("attempts bookedTask parkedAt parkedFor starts checkpoint createdAt effects " +
		"expireAt finishedBy history lastError lockExpiresAt lockHeartbeatAt lockOwner lockToken nextAttemptAt " +
		"openEffects params progress startedAt unfinishedEffects updatedAt status input result") {
		same(t, true, Fields{Error: name}.Check() != nil, name)
	}
	broken := option.WithAuthCredentialsFile(option.ServiceAccount, "/nonexistent")
	for name, err := range map[string]error{
		"no project":                errorOf(Open(t.Context(), "", Options{Emulator: "127.0.0.1:1"})),
		"no credentials":            errorOf(Open(t.Context(), "p", Options{}, broken)),
		"rooms without credentials": errorOf(OpenRooms(t.Context(), "p", Options{}, broken)),
	} {
		same(t, true, err != nil, name)
	}
}

// One connection serves several collections.
func TestDatabase_Analyses(t *testing.T) {
	b := emulatortest.Embedded(t)
	db, err := Connect(t.Context(), b.Project, Options{}, b.Client(t)...)
	must.OK(t, err)
	own := map[string]*Analyses{}
	for path, fields := range map[string]Fields{"analyses": {}, "tenants/a/jobs": jobs} {
		own[path], err = db.Analyses(Options{Collection: path, Fields: fields})
		must.OK(t, err)
		same(t, fields.filled(), own[path].Fields())
		must.OK(t, own[path].Create(t.Context(), "x", path, CreateOptions{}))
	}
	check(t, own["analyses"].Close()) // not the connection
	for path, a := range own {
		d := must.Get(a.Get(t.Context(), "x"))(t)
		same(t, []any{"QUEUED", path}, []any{d.Status, d.Input})
	}
	check(t, db.Close())
	same(t, true, own["analyses"].Ping(t.Context()) != nil, "an error of a closed connection")
}

// A record is deleted some time after its last commit. The next one with its id has larger
// tokens.
func TestOptions_Keep(t *testing.T) {
	emulatortest.EachKind(t, func(t *testing.T, b *backend) {
		const keep = time.Hour
		a := openWith(t, b, Options{Policy: lease.Policy{TTL: ttl(b)}, Keep: keep, KeepAll: true})
		var last int64
		larger := func(w *worker, id string) {
			t.Helper()
			token := mustAcquire(t, w, id, "w/1").Grant.Token
			if token <= last {
				t.Errorf("token %d, want one larger than %d", token, last)
			}
			last = token
		}
		for range 2 {
			read := must.Get(a.documents.now(t.Context()))(t)
			must.OK(t, a.Create(t.Context(), "x", "in", CreateOptions{Params: "hash"}))
			fields := b.Fields(t, "x")
			expires, _ := fields["expireAt"].(time.Time) // from a reading before the commit
			updated, _ := parseTime(fields["updatedAt"])
			if expires.Before(read.Add(keep)) || expires.After(updated.Add(keep)) {
				t.Errorf("created between %v and %v, deleted at %v", read, updated, expires)
			}
			larger(a, "x")
			must.OK(t, a.complete(t, "w/1", "out"))
			before := b.Calls.Total()
			d, params, err := a.Outcome(t.Context(), "x")
			must.OK(t, err)
			same(t, []any{"READY", "out", nil, "hash"}, []any{d.Status, d.Result, d.Input, params})
			same(t, before+1, b.Calls.Total(), "calls")
			operator := open(t, b) // who keeps nothing
			check(t, errorOf(operator.Requeue(t.Context(), "x", "", nil, false, "")))
			same(t, nil, b.Fields(t, "x")["expireAt"])
			b.Delete(t, "x")
			time.Sleep(time.Millisecond)
			_, _, err = a.Outcome(t.Context(), "x")
			wantErr(t, lease.ErrNotFound, err)
		}
		b.Put(t, "y", doc{"status": "QUEUED"}) // by any program
		larger(openWith(t, b, Options{Keep: keep}), "y")
	})
}

// A status of another program is kept until the finish. No status, QUEUED and
// PROCESSING become PROCESSING, and QUEUED with the release.
func TestStatus_Foreign(t *testing.T) {
	step := doc{"step": int64(1)}
	for _, tc := range []struct{ status, held, free any }{
		{nil, analysislock.Processing, analysislock.Queued},
		{"", analysislock.Processing, analysislock.Queued},
		{analysislock.Queued, analysislock.Processing, analysislock.Queued},
		{"queued", "queued", "queued"},
		{int64(5), int64(5), int64(5)},
		{step, step, step},
	} {
		b := emulatortest.Embedded(t)
		a := open(t, b)
		b.Put(t, "x", doc{"status": tc.status, "result": "old"})
		mustAcquire(t, a, "x", "w/1")
		held := b.Fields(t, "x")["status"]
		check(t, a.release(t, "w/1"))
		free := b.Fields(t, "x")["status"]
		mustAcquire(t, a, "x", "w/2")
		check(t, a.complete(t, "w/2", nil))
		end := b.Fields(t, "x")
		result, recorded := end["result"]
		same(t, []any{tc.held, tc.free, "READY", nil, true}, []any{held, free, end["status"], result, recorded})
	}
}
