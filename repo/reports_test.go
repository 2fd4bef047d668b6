package repo

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/type/latlng"

	"taskguard/internal/testing/emulatortest"
	"taskguard/lease"
	"taskguard/lease/analysislock"
)

// given acquires x, and checks the checkpoint that the run is given.
func (w *worker) given(t *testing.T, owner, want string) *analysislock.Hold {
	t.Helper()
	mustAcquire(t, w, "x", owner)
	err := w.run(t.Context(), owner, func(_ context.Context, work analysislock.Work) error {
		if got := string(work.Checkpoint); got != want || string(work.Input) != `"in"` {
			t.Errorf("%s is given %q with the input %s, want %q", owner, got, work.Input, want)
		}
		return nil
	})
	check(t, err)
	return w.holds[owner]
}

// report returns the changes of a report: its progress and its checkpoint.
func report(message string, checkpoint any) []analysislock.Change {
	return []analysislock.Change{
		analysislock.Progressed(analysislock.Progress{Message: message}),
		analysislock.Checkpointed(&analysislock.Checkpoint{Value: checkpoint}),
	}
}

func TestTheNextAttemptIsGivenTheNewestCheckpointUntilReadyOrFresh(t *testing.T) {
	emulatortest.EachKind(t, func(t *testing.T, b *emulatortest.Backend) {
		a := open(t, b)
		b.Put(t, "x", map[string]any{"status": analysislock.Queued, "input": "in"})
		check := func(errs ...error) {
			t.Helper()
			fatal(t, errors.Join(errs...))
		}
		requeue := func(fresh bool) error {
			_, err := a.Requeue(t.Context(), "x", "", nil, fresh, "")
			return err
		}
		has := func(want ...string) {
			t.Helper()
			fields, got := b.Fields(t, "x"), []string(nil)
			for _, name := range []string{"checkpoint", "progress", "startedAt"} {
				if _, found := fields[name]; found {
					got = append(got, name)
				}
			}
			same(t, want, got)
		}
		h := a.given(t, "w/1", "")
		h.Send(report("one", map[string]any{"n": int64(1)})...)
		check(h.Flush(t.Context()))
		h.Send(report("two", map[string]any{"n": int64(1<<62 + 1), "s": "<"})...)
		err := h.End(t.Context(), analysislock.Retrying(h.Now(), "c", "m", time.Time{}, "", false))
		check(err)
		has("checkpoint", "progress", "startedAt")
		if d, err := a.Get(t.Context(), "x"); err != nil || d.Checkpoint == nil || cmp.Diff(map[string]any{"n": int64(1<<62 + 1), "s": "<"}, d.Checkpoint.Value) != "" {
			t.Errorf("read with the checkpoint %+v, %v", d.Checkpoint, err)
		}

		h = a.given(t, "w/2", `{"n":4611686018427387905,"s":"<"}`)
		h.Send(report("three", []any{"three"})...)
		check(h.End(t.Context(), analysislock.Failing(h.Now(), "c", "m")))
		has("checkpoint", "progress", "startedAt")
		check(requeue(false))
		has("checkpoint")

		h = a.given(t, "w/3", `["three"]`)
		check(h.End(t.Context(), analysislock.Failing(h.Now(), "c", "m")))
		check(requeue(true))
		has()
		if d, err := a.Get(t.Context(), "x"); err != nil || d.Checkpoint != nil {
			t.Errorf("read with the checkpoint %+v, %v; want none", d.Checkpoint, err)
		}
		h = a.given(t, "w/4", "")
		h.Send(report("four", "four")...)
		check(h.Flush(t.Context()))
		if err := h.End(t.Context(), analysislock.Completing(h.Now(), uint8(1))); !errors.Is(err, lease.ErrRefused) {
			t.Errorf("a result of another type: %v", err)
		}
		h.Send(report("last", "last")...)
		check(h.End(t.Context(), analysislock.Completing(h.Now(), "done")))
		has("startedAt")
	})
}

// The reasons are the size of the document and an array directly in an array.
func TestACheckpointThatTheDocumentCannotHoldIsDroppedAndTheLockRenewed(t *testing.T) {
	emulatortest.EachKind(t, func(t *testing.T, b *emulatortest.Backend) {
		for name, checkpoint := range map[string]any{"too large": strings.Repeat("c", 200<<10), "nested": map[string]any{"a": []any{[]any{int64(1)}}}} {
			for _, exclusive := range []bool{false, true} {
				a := open(t, b)
				if exclusive {
					a.decideInTransactions(t)
				}
				b.Put(t, "x", map[string]any{"status": analysislock.Queued, "input": strings.Repeat("x", 900<<10), "checkpoint": "earlier"})
				mustAcquire(t, a, "x", "w/1")
				before := b.Fields(t, "x")["lockHeartbeatAt"]
				h := a.holds["w/1"]
				var outcomes []error
				done := func(err error) { outcomes = append(outcomes, err) }
				time.Sleep(2 * time.Millisecond)
				changes := report("dropped", checkpoint)
				changes[1].Done = done
				h.Send(changes...) // but for its message
				if err := h.Flush(t.Context()); err != nil || len(outcomes) != 1 || !errors.Is(outcomes[0], lease.ErrRefused) {
					t.Errorf("%s: %v; outcomes %v", name, err, outcomes)
				}
				got := b.Fields(t, "x")
				if progress, _ := got["progress"].(map[string]any); got["checkpoint"] != "earlier" || got["lockHeartbeatAt"] == before || progress["message"] != "dropped" {
					t.Errorf("%s: checkpoint %v, heartbeat %v, progress %v", name, got["checkpoint"], got["lockHeartbeatAt"], got["progress"])
				}
				next := report("next", nil)[:1]
				next[0].Done = done
				h.Send(next...)
				if err := h.End(t.Context(), analysislock.Releasing(h.Now(), analysislock.OutcomeShuttingDown, "", true)); err != nil || len(outcomes) != 2 || outcomes[1] != nil {
					t.Errorf("%s: %v; outcomes %v", name, err, outcomes)
				}
				if d, err := a.Summary(t.Context(), "x"); err != nil || d.Progress == nil || d.Progress.Message != "next" {
					t.Errorf("%s: %+v, %v", name, d.Progress, err)
				}
			}
		}
	})
}

// Other programs may have written the fields before.
func TestValuesOfForeignTypesAreNoObstacle(t *testing.T) {
	for name, tc := range map[string]struct {
		field string
		value any
		want  string // what the run is given as its checkpoint
	}{
		"progress is a number":          {"progress", 50, ""},
		"progress is NaN":               {"progress", map[string]any{"fraction": math.NaN(), "message": 5, "at": true}, ""},
		"progress is over 1":            {"progress", map[string]any{"fraction": 101, "at": []any{"x"}}, ""},
		"history is a string":           {"history", "x", ""},
		"history is of anything":        {"history", []any{nil, "x", 5, map[string]any{"attempt": "x", "token": math.NaN(), "owner": 5, "startedAt": true, "outcome": []any{}}}, ""},
		"history is long":               {"history", []any{map[string]any{"owner": strings.Repeat("o", 100<<10)}, map[string]any{"token": 1}}, ""},
		"startedAt is a boolean":        {"startedAt", true, ""},
		"startedAt is in the year 9999": {"startedAt", "9999-01-01T00:00:00Z", ""},
		"checkpoint is null":            {"checkpoint", nil, ""},
		"checkpoint is of Firestore":    {"checkpoint", []any{math.NaN(), []byte("b"), time.Unix(0, 0), &latlng.LatLng{}}, `["NaN","Yg==","1970-01-01T00:00:00Z",{"latitude":0,"longitude":0}]`},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
				a := open(t, b)
				b.Put(t, "x", map[string]any{"status": analysislock.Queued, "input": "in", tc.field: tc.value})
				h := a.given(t, "w/1", tc.want)
				d, err := a.Get(t.Context(), "x")
				if _, unencodable := json.Marshal(d); err != nil || unencodable != nil {
					t.Errorf("%v, %v", err, unencodable)
				}
				if n := len(d.History); n == 0 || d.History[n-1].Token != 1 || d.History[n-1].Owner != "w/1" || d.StartedAt.IsZero() {
					t.Errorf("history %+v, started at %v", d.History, d.StartedAt)
				}
				h.Send(report("m", "c")...)
				check(t, h.End(t.Context(), analysislock.Failing(h.Now(), "c", "m")))
				got := b.Fields(t, "x")
				if p, _ := got["progress"].(map[string]any); got["checkpoint"] != "c" || p["message"] != "m" {
					t.Errorf("checkpoint %v, progress %v", got["checkpoint"], got["progress"])
				}
			})
		})
	}
}

// The holder of an expired lock commits a checkpoint after the next one's decision was
// made, and after its work was read, but before its commit.
func TestAnAttemptIsGivenTheCheckpointOfTheHolderBeforeIt(t *testing.T) {
	inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
		b.Put(t, "x", map[string]any{"status": analysislock.Queued, "input": "in", "checkpoint": "earlier"})
		old := open(t, b)
		h := old.given(t, "w/1", `"earlier"`)
		time.Sleep(lease.DefaultTTL)
		meanwhile := func() {
			time.Sleep(time.Second) // until the work has been read
			h.Send(report("m", "newest")...)
			check(t, h.End(t.Context(), analysislock.Releasing(h.Now(), analysislock.OutcomeContinued, "", true)))
		}
		next, conn := openFaulty(t, b)
		conn.inject(map[string][]fault{commit: {overtaken(meanwhile)}})
		next.given(t, "w/2", `"newest"`)
	})
}

func TestProgressAndHistoryAreReadAsTheyWereWritten(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 678_000_000, time.UTC)
	all := []analysislock.Attempt{
		{Number: 1, Token: 2, Owner: "w/1", StartedAt: at, EndedAt: at.Add(time.Second), Outcome: "failed", Code: "c", Message: "m", Changes: []analysislock.OperatorChange{
			{Change: "unlocked", By: "ana", At: at.Add(time.Second)}, {Change: "requeued", By: "me@here", At: at.Add(2 * time.Second)},
		}},
		{Number: 2, Token: 3, Owner: "w/2", StartedAt: at.Add(time.Minute), Outcome: "crashed", Alone: true, Delays: 10},
		{Number: 3, Token: 4, Owner: "w/2", StartedAt: at.Add(time.Hour), Delays: 1},
	}
	same(t, all, decodeHistory(historyValue(all)))
	fraction := func(f float64) *float64 { return &f }
	for _, tc := range []struct {
		v    any
		want *float64
	}{{0.0, fraction(0)}, {int64(0), fraction(0)}, {0.5, fraction(0.5)}, {int64(1), fraction(1)}, {1.5, nil}, {int64(50), nil}, {-0.5, nil}, {math.NaN(), nil}, {"0.5", nil}, {nil, nil}} {
		want := &analysislock.Progress{Fraction: tc.want, Message: "m", At: at}
		same(t, want, decodeProgress(map[string]any{"fraction": tc.v, "message": "m", "at": at}))
		if got := decodeProgress(progressValue(want)); cmp.Diff(want, got) != "" {
			t.Errorf("progress written and read: %+v, want %+v", got, want)
		}
	}
}

// Earlier versions stored the result itself. A record that is done has a result, or tells why not.
func TestTheResultsOfActsAreDecoded(t *testing.T) {
	done := func(fields map[string]any) map[string]any { fields["state"] = "done"; return fields }
	for name, tc := range map[string]struct {
		record  any
		state   string
		result  string
		problem string
	}{
		"text":                       {done(map[string]any{"result": `{"id":[[1]]}`}), "done", `{"id":[[1]]}`, ""},
		"a string, as text":          {done(map[string]any{"result": `"ch_7"`}), "done", `"ch_7"`, ""},
		"a string, as it was":        {done(map[string]any{"result": "ch_7"}), "done", `"ch_7"`, ""},
		"a number, as it was":        {done(map[string]any{"result": int64(7)}), "done", "7", ""},
		"a map, as it was":           {done(map[string]any{"result": map[string]any{"a": []any{1.5}}}), "done", `{"a":[1.5]}`, ""},
		"null, as it was":            {done(map[string]any{"result": nil}), "done", "null", ""},
		"none":                       {done(map[string]any{"resultError": "NaN"}), "done", "", "NaN"},
		"lost":                       {done(map[string]any{}), "done", "", "the record has no result"},
		"of an act that is not done": {map[string]any{"state": "started", "result": "1", "resultError": "x"}, "started", "", ""},
	} {
		got := decodeActs(map[string]any{"a": tc.record})["a"]
		if got.State != tc.state || string(got.Result) != tc.result || got.ResultError != tc.problem {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
