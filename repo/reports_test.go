package repo

import (
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/type/latlng"

	"taskguard/internal/testing/emulatortest"
	"taskguard/internal/testing/must"
	"taskguard/lease"
	"taskguard/lease/analysislock"
)

// report returns the changes of a report: its progress and its checkpoint.
func report(message string, checkpoint any) []analysislock.Change {
	return []analysislock.Change{
		analysislock.Progressed(analysislock.Progress{Message: message}),
		analysislock.Checkpointed(&analysislock.Checkpoint{Value: checkpoint}),
	}
}

// given acquires x, and checks the checkpoint that the run is given.
func (w *worker) given(t *testing.T, owner, want string) *analysislock.Hold {
	t.Helper()
	mustAcquire(t, w, "x", owner)
	if work := w.runs(t, owner); string(work.Checkpoint) != want || string(work.Input) != `"in"` {
		t.Errorf("%s is given %q with the input %s, want %q", owner, work.Checkpoint, work.Input, want)
	}
	return w.holds[owner]
}

func TestCheckpoint(t *testing.T) {
	emulatortest.EachKind(t, func(t *testing.T, b *backend) {
		a := open(t, b)
		b.Put(t, "x", doc{"status": "QUEUED", "input": "in"})
		h := a.given(t, "w/1", "")
		h.Send(report("one", doc{"n": int64(1)})...)
		must.OK(t, h.Flush(t.Context()))
		h.Send(report("two", doc{"n": int64(1<<62 + 1), "s": "<"})...)
		must.OK(t, a.retry(t))
		d := must.Get(a.Get(t.Context(), "x"))(t)
		same(t, []any{"two", doc{"n": int64(1<<62 + 1), "s": "<"}}, []any{d.Progress.Message, d.Checkpoint.Value})

		a.given(t, "w/2", `{"n":4611686018427387905,"s":"<"}`)
		wantErr(t, lease.ErrRefused, a.complete(t, "w/2", uint8(1)))
		must.OK(t, a.complete(t, "w/2", "done"))
		fields := b.Fields(t, "x")
		same(t, []any{nil, nil}, []any{fields["checkpoint"], fields["progress"]})
	})
}

// The reasons are the size of the document and an array directly in an array.
func TestCheckpoint_Refused(t *testing.T) {
	for name, checkpoint := range map[string]any{
		"too large": strings.Repeat("c", 200<<10), "nested": doc{"a": []any{[]any{int64(1)}}},
	} {
		for kind, exclusive := range map[string]bool{commit: false, exclusiveCommit: true} {
			t.Run(name+", "+kind, func(t *testing.T) {
				emulatortest.EachKind(t, func(t *testing.T, b *backend) {
					a := open(t, b)
					if exclusive {
						a.decideInTransactions(t)
					}
					input := strings.Repeat("x", 900<<10)
					b.Put(t, "x", doc{"status": "QUEUED", "input": input, "checkpoint": "earlier"})
					mustAcquire(t, a, "x", "w/1")
					before := b.Fields(t, "x")["lockHeartbeatAt"]
					time.Sleep(2 * time.Millisecond)
					var outcome error
					changes := report("written", checkpoint)
					changes[1].Done = func(err error) { outcome = err }
					a.holds["w/1"].Send(changes...)
					must.OK(t, a.holds["w/1"].Flush(t.Context()))
					got := b.Fields(t, "x")
					progress, _ := got["progress"].(doc)
					same(t, []any{"earlier", "written"}, []any{got["checkpoint"], progress["message"]})
					if !errors.Is(outcome, lease.ErrRefused) || got["lockHeartbeatAt"] == before {
						t.Errorf("%v; want it refused, and the lock renewed", outcome)
					}
					check(t, a.release(t, "w/1"))
				})
			})
		}
	}
}

// Other programs may have written the fields before. They cost no attempt, and are replaced.
func TestReports_Foreign(t *testing.T) {
	long := strings.Repeat("o", 100<<10)
	mixed := doc{"attempt": "x", "token": math.NaN(), "owner": 5, "startedAt": true, "changes": []any{"x"}}
	for name, fields := range map[string]doc{
		"scalars":      {"progress": 50, "history": "x", "startedAt": true, "checkpoint": nil},
		"of anything":  {"progress": doc{"fraction": math.NaN(), "message": 5}, "history": []any{nil, "x", mixed}},
		"far and long": {"startedAt": "9999-01-01T00:00:00Z", "history": []any{doc{"owner": long}, doc{"token": 1}}},
		"Firestore's":  {"progress": doc{"at": []any{"x"}}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *backend) {
				a := open(t, b)
				b.Put(t, "x", with(doc{"status": "QUEUED", "input": "in"}, fields))
				a.given(t, "w/1", "").Send(report("m", "c")...)
				must.OK(t, a.retry(t))
				d := must.Get(a.Get(t.Context(), "x"))(t)
				must.OK(t, errorOf(json.Marshal(d)))
				last := d.History[len(d.History)-1]
				same(t, []any{"w/1", "m", "c", false}, []any{
					last.Owner, d.Progress.Message, d.Checkpoint.Value, d.StartedAt.IsZero(),
				})
			})
		})
	}
	inBubble(t, func(t *testing.T, b *backend) {
		checkpoint := []any{math.NaN(), []byte("b"), time.Unix(0, 0), &latlng.LatLng{}}
		b.Put(t, "x", doc{"status": "QUEUED", "input": "in", "checkpoint": checkpoint})
		open(t, b).given(t, "w/1", `["NaN","Yg==","1970-01-01T00:00:00Z",{"latitude":0,"longitude":0}]`)
	})
}

// The holder of an expired lock commits a checkpoint after the next one's decision was
// made, and after its work was read, but before its commit.
func TestCheckpoint_Overtaken(t *testing.T) {
	inBubble(t, func(t *testing.T, b *backend) {
		b.Put(t, "x", doc{"status": "QUEUED", "input": "in", "checkpoint": "earlier"})
		old := open(t, b)
		h := old.given(t, "w/1", `"earlier"`)
		time.Sleep(lease.DefaultTTL)
		next, conn := openFaulty(t, b)
		conn.inject(faults{commit: {overtaken(func() {
			time.Sleep(time.Second) // until the work has been read
			h.Send(report("m", "newest")...)
			check(t, old.release(t, "w/1"))
		})}})
		next.given(t, "w/2", `"newest"`)
	})
}

func TestHistory_RoundTrip(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 678_000_000, time.UTC)
	changes := []analysislock.OperatorChange{
		{Change: "unlocked", By: "ana", At: at}, {Change: "requeued", By: "me@here", At: at.Add(time.Second)},
	}
	all := []analysislock.Attempt{
		{
			Number: 1, Token: 2, Owner: "w/1", StartedAt: at, EndedAt: at.Add(time.Second), Outcome: "failed",
			Code: "c", Message: "m", Uncounted: 3, Changes: changes,
		},
		{Number: 2, Token: 3, Owner: "w/2", StartedAt: at, Outcome: "crashed", Alone: true, Delays: 10},
	}
	same(t, all, decodeHistory(historyValue(all)))
}

func TestProgress_RoundTrip(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 678_000_000, time.UTC)
	for value, want := range map[any]any{
		0.0: 0.0, int64(0): 0.0, 0.5: 0.5, int64(1): 1.0, 1.5: nil, -0.5: nil, math.NaN(): nil, "0.5": nil, nil: nil,
	} {
		p := &analysislock.Progress{Message: "m", At: at}
		if f, ok := want.(float64); ok {
			p.Fraction = &f
		}
		same(t, p, decodeProgress(doc{"fraction": value, "message": "m", "at": at}))
		same(t, p, decodeProgress(progressValue(p)))
	}
}

// Earlier versions stored the result itself. A record that is done has a result, or tells why not.
func TestActs_Result(t *testing.T) {
	for want, record := range map[string]doc{
		`done {"id":[[1]]} `: {"state": "done", "result": `{"id":[[1]]}`},
		`done "ch_7" `:       {"state": "done", "result": "ch_7"},
		`done "ch_8" `:       {"state": "done", "result": `"ch_8"`},
		`done 7 `:            {"state": "done", "result": int64(7)},
		`done {"a":[1.5]} `:  {"state": "done", "result": doc{"a": []any{1.5}}},
		`done null `:         {"state": "done", "result": nil},
		`done  NaN`:          {"state": "done", "resultError": "NaN"},
		`started  `:          {"state": "started", "result": "1", "resultError": "x"},
	} {
		act := decodeActs(doc{"a": record})["a"]
		same(t, want, act.State+" "+string(act.Result)+" "+act.ResultError, record)
	}
	if lost := decodeActs(doc{"a": doc{"state": "done"}})["a"]; lost.ResultError == "" {
		t.Errorf("neither a result nor a reason: %+v", lost)
	}
}
