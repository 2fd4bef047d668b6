package repo

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"taskguard/internal/testing/emulatortest"
	"taskguard/lease"
)

// foundIDs returns the ids that a filter finds, sorted.
func foundIDs(t *testing.T, a *worker, f Filter, limit int) []string {
	t.Helper()
	all, err := a.Find(t.Context(), f, "", limit)
	fatal(t, err)
	got := strings.Fields(ids(all))
	slices.Sort(got)
	return got
}

func TestFindComparesEachTypeOfUpdatedAt(t *testing.T) {
	emulatortest.EachKind(t, func(t *testing.T, b *emulatortest.Backend) {
		a := open(t, b)
		since, before := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC), time.Date(2026, 1, 31, 13, 0, 0, 0, time.UTC)
		for name, at := range map[string]time.Time{"a-early": since.Add(-time.Millisecond), "b-since": since, "c-last": before.Add(-time.Millisecond), "d-before": before} {
			b.Put(t, name+"-text", map[string]any{"updatedAt": at.Format("2006-01-02T15:04:05.000Z"), "status": "FAILED", "error": map[string]any{"code": "c"}})
			b.Put(t, name+"-time", map[string]any{"updatedAt": at, "status": "FAILED", "error": map[string]any{"code": "attempts_exhausted"}, "lastError": map[string]any{"code": "c"}})
			b.Put(t, name+"-number", map[string]any{"updatedAt": at.UnixMilli(), "status": "QUEUED", "error": map[string]any{"code": "c"}, "lastError": map[string]any{"code": "c"}})
		}
		for _, zone := range []string{"+09:00", "-09:00"} { // 03:30 and 21:30 UTC: as strings, they are between the limits
			b.Put(t, zone, map[string]any{"updatedAt": "2026-01-31T12:30:00" + zone, "status": "FAILED"})
		}
		b.Put(t, "none", map[string]any{"status": "FAILED", "error": map[string]any{"code": "c"}})
		in := []string{"b-since-number", "b-since-text", "b-since-time", "c-last-number", "c-last-text", "c-last-time"}
		for _, tc := range []struct {
			name   string
			filter Filter
			want   []string
		}{
			{"both limits", Filter{Since: since, Before: before}, in},
			{"both limits and a code", Filter{Since: since, Before: before, Code: "c"}, in},
			{"all conditions", Filter{Since: since, Before: before, Code: "c", Status: "QUEUED"}, []string{"b-since-number", "c-last-number"}},
			{"another code", Filter{Code: "d"}, nil},
			{"since", Filter{Since: before}, []string{"d-before-number", "d-before-text", "d-before-time"}},
			{"before", Filter{Before: since}, []string{"a-early-number", "a-early-text", "a-early-time"}},
		} {
			if got := foundIDs(t, a, tc.filter, 100); !slices.Equal(got, tc.want) {
				t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
			}
		}
		if got := foundIDs(t, a, Filter{}, 5); len(got) != 5 {
			t.Errorf("%q, want 5", got)
		}
	})
}

// slowly is a stream that takes a while for each message.
type slowly struct{ grpc.ClientStream }

func (s slowly) RecvMsg(m any) error {
	time.Sleep(14 * time.Millisecond)
	if err := s.Context().Err(); err != nil { // else gRPC delivers what has arrived
		return status.FromContextError(err).Err()
	}
	return s.ClientStream.RecvMsg(m)
}

func TestFindMayTakeLongerThanAnyOfItsQueries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := emulatortest.Embedded(t)
		a := open(t, b, eachStream(func(s grpc.ClientStream) grpc.ClientStream { return slowly{s} }))
		const n = 3500
		for i := range n {
			b.Put(t, fmt.Sprint("x", i), map[string]any{"status": "FAILED", "updatedAt": time.Now()})
		}
		for i := range 1001 { // more than a page that the filter excludes
			b.Put(t, fmt.Sprint("o", i), map[string]any{"status": "FAILED", "updatedAt": time.Now().UTC().Format("2006-01-02T15:04:05") + "+09:00"})
		}
		for _, limit := range []int{n - 1, n, math.MaxInt} {
			f := Filter{Status: "FAILED", Since: time.Now().Add(-time.Hour)}
			all := foundIDs(t, a, f, limit)
			if want := min(limit, n); len(all) != want || len(slices.Compact(all)) != want {
				t.Errorf("at most %d: %d, %d ids", limit, len(all), len(slices.Compact(all)))
			}
		}
	})
}

// Neither a time that two analyses share nor its type loses or repeats one.
func TestThePagesHaveEachAnalysisOnce(t *testing.T) {
	emulatortest.EachKind(t, func(t *testing.T, b *emulatortest.Backend) {
		a := open(t, b)
		at := time.Date(2026, 1, 31, 12, 0, 0, 123456000, time.UTC)
		for i, updated := range []any{"2026-01-31T12:00:00.123Z", at, at.UnixMilli(), float64(at.UnixMilli()) + 0.5, "not a time"} {
			for j := range 3 { // with the same updatedAt
				b.Put(t, fmt.Sprintf("x%d%d", i, j), map[string]any{"updatedAt": updated, "status": "FAILED", "error": map[string]any{"code": "c"}, "input": "in"})
			}
		}
		b.Put(t, "y", map[string]any{"updatedAt": at, "status": "READY", "error": map[string]any{"code": "d"}})
		for i := range 2 { // 04:00 UTC, which sorts as 13:00
			b.Put(t, fmt.Sprint("z", i), map[string]any{"updatedAt": "2026-01-31T13:00:00+09:00", "status": "READY"})
		}
		b.Put(t, "x😀", map[string]any{"status": "FAILED", "error": map[string]any{"code": "c"}})
		const all = "x42 x41 x40 z1 z0 x02 x01 x00 y x12 x11 x10 x32 x31 x30 x22 x21 x20"
		for want, f := range map[string]Filter{
			all: {},
			strings.NewReplacer("y ", "", "z1 z0 ", "").Replace(all):         {Status: "FAILED", Code: "c", Cause: true},
			all[len("x42 x41 x40 z1 z0 "):]:                                  {Since: at.Add(-time.Hour), Before: at.Add(2 * time.Hour)}, // a page may have none
			"x00 x01 x02 x10 x11 x12 x20 x21 x22 x30 x31 x32 x40 x41 x42 x😀": {Prefix: "x", Status: "READY"},
			"x😀": {Prefix: "x😀"},
			"":   {Prefix: "zz"},
		} {
			for _, limit := range []int{1, 2, 3, 100} {
				var got []string
				next := ""
				for pages := 0; pages == 0 || next != ""; pages++ {
					found, after, read, err := a.Page(t.Context(), f, next, limit)
					if err != nil || read.IsZero() || len(found) > limit || pages > 20 {
						t.Fatalf("%+v: %d, at %s, %v", f, len(found), read, err)
					}
					next = after
					for i := range found {
						got = append(got, found[i].ID)
					}
				}
				if strings.Join(got, " ") != want {
					t.Errorf("%+v in pages of %d: %q, want %s", f, limit, got, want)
				}
			}
		}
		within := Filter{Since: at.Add(-time.Second), Before: at.Add(time.Second)}
		b.Put(t, "x43", map[string]any{"updatedAt": "2026-01-31T12:00:00.500+09:00"}) // the query finds it, and it is not within
		if found, next, _, err := a.Page(t.Context(), within, "", 1); err != nil || len(found) != 0 || next == "" {
			t.Errorf("a page with one excluded row: %d, next %q, %v; want none and another page", len(found), next, err)
		}
		if got, err := a.Find(t.Context(), within, "", 100); err != nil || len(got) != 13 {
			t.Errorf("%d are found beside one that is excluded, %v; want 13", len(got), err)
		}
		for _, f := range []Filter{{Code: "\xff"}, {Status: "\xff"}, {Prefix: "\xff"}, {Prefix: "a/b"}, {Code: "\xff", Cause: true}} {
			_, _, _, err := a.Page(t.Context(), f, "", 1)
			_, findErr := a.Find(t.Context(), f, "", 1)
			_, countErr := a.Count(t.Context(), f)
			if !errors.Is(err, lease.ErrInvalidKey) || !errors.Is(findErr, lease.ErrInvalidKey) || !errors.Is(countErr, lease.ErrInvalidKey) {
				t.Errorf("%+v: %v; %v; %v", f, err, findErr, countErr)
			}
		}
		for _, after := range []string{"x", "e30", "eyJJRCI6ImEvYiIsIlVwZGF0ZWRBdCI6IngifQ", "eyJJRCI6ImEiLCJVcGRhdGVkQXQiOiJ4IiwiVGltZXN0YW1wIjp0cnVlfQ", "eyJJRCI6ImEifQ"} {
			if _, _, _, err := a.Page(t.Context(), Filter{}, after, 1); !errors.Is(err, lease.ErrInvalidKey) {
				t.Errorf("after %q: %v", after, err)
			}
		}
	})
}

func TestFailuresAreCountedByTheirCode(t *testing.T) {
	emulatortest.EachKind(t, func(t *testing.T, b *emulatortest.Backend) {
		a := open(t, b)
		for i, code := range []any{"b", "a", "b", "b", 7, "é \U0010FFFF", nil} {
			b.Put(t, fmt.Sprint("x", i), map[string]any{
				"updatedAt": fmt.Sprintf("2026-01-0%dT00:00:00.000Z", i+1), "status": "FAILED", "error": map[string]any{"code": code, "message": fmt.Sprint("m", i)}, "lastError": map[string]any{"code": "b"},
				"lockToken": 7, "history": []any{map[string]any{"attempt": 1}}, "progress": map[string]any{"message": "m"}, "finishedBy": "w",
			})
		}
		for _, code := range []string{"b", "old"} {
			b.Put(t, "ready "+code, map[string]any{"updatedAt": "2026-01-09T00:00:00.000Z", "status": "READY", "error": map[string]any{"code": code}})
		}
		b.Put(t, "last", map[string]any{"updatedAt": "2026-01-09T00:00:00.000Z", "status": "QUEUED", "lastError": map[string]any{"code": "last"}})
		b.Put(t, "queued", map[string]any{"updatedAt": "2026-01-09T00:00:00.000Z", "status": "QUEUED", "lastError": map[string]any{"code": "b"}})
		for limit, want := range map[int]string{50: "a b last old é \U0010FFFF", 1: "a b"} {
			if got, err := a.Codes(t.Context(), limit); strings.Join(got, " ") != want || err != nil {
				t.Errorf("at most %d codes: %q, %v, want %s", limit, got, err, want)
			}
		}
		for limit, want := range map[int]string{50: "b 3 m3 m2 m0, a 1 m1, é \U0010FFFF 1 m5, 0", 2: "b 3 m3 m2 m0, a 1 m1, 1", 1: "b 3 m3 m2 m0, 2"} {
			got := ""
			all, left, err := a.Failures(t.Context(), limit)
			for _, f := range all {
				got += fmt.Sprint(f.Code, " ", f.N)
				for i := range f.Newest {
					d := &f.Newest[i]
					got += " " + d.Error.Message
					if d.History != nil || d.Lock.FinishedBy != "w" || d.UpdatedAt.IsZero() {
						t.Errorf("of %s more, or less, is read than its page shows: %+v", d.ID, d)
					}
				}
				got += ", "
			}
			if got += fmt.Sprint(left); got != want || err != nil {
				t.Errorf("at most %d: %s, %v; want %s", limit, got, err, want)
			}
		}
		for i := range 101 {
			b.Put(t, fmt.Sprint("y", i), map[string]any{"updatedAt": time.Now(), "status": "FAILED", "error": map[string]any{"code": "a"}})
		}
		if all, _, err := a.Failures(t.Context(), 1); err != nil || len(all) != 1 || all[0].N != 102 || len(all[0].Newest) != 20 {
			t.Errorf("of many: %d, %v", len(all), err)
		}
	})
}

// Three have run out of attempts: two with a last error, one as a worker in another language leaves it.
func TestAFailureWithoutAttemptsLeftIsGroupedByItsLastError(t *testing.T) {
	emulatortest.EachKind(t, func(t *testing.T, b *emulatortest.Backend) {
		a := open(t, b)
		for id, codes := range map[string][2]any{
			"own": {"declined", nil}, "out": {"attempts_exhausted", "declined"}, "down": {"attempts_exhausted", "away"}, "bare": {"attempts_exhausted", nil},
			"repeated": {"final", "declined"}, "near": {"attempts_exhausted_2", "declined"},
		} {
			b.Put(t, id, map[string]any{"updatedAt": time.Now(), "status": "FAILED", "error": map[string]any{"code": codes[0]}, "lastError": map[string]any{"code": codes[1]}})
		}
		b.Put(t, "opened", map[string]any{"updatedAt": time.Now(), "status": "QUEUED", "error": map[string]any{"code": "attempts_exhausted"}, "lastError": map[string]any{"code": "declined"}})
		all, left, err := a.Failures(t.Context(), 9)
		got := map[string]string{}
		for _, f := range all {
			got[f.Code] = fmt.Sprint(f.N, " ", foundIDs(t, a, Filter{Status: "FAILED", Code: f.Code, Cause: true}, 9))
			if len(f.Newest) != int(f.N) {
				t.Errorf("%s: %d are read of %d", f.Code, len(f.Newest), f.N)
			}
		}
		want := map[string]string{"declined": "2 [out own]", "away": "1 [down]", "attempts_exhausted": "1 [bare]", "final": "1 [repeated]", "attempts_exhausted_2": "1 [near]"}
		if !maps.Equal(got, want) || left != 0 || err != nil {
			t.Errorf("%v, %d left, %v; want %v", got, left, err, want)
		}
	})
}

// A FAILED analysis keeps the last error of an attempt that was repeated. It is not why the analysis failed.
func TestACodeSelectsByAnEarlierAttemptsErrorOnlyWhatItEnded(t *testing.T) {
	emulatortest.EachKind(t, func(t *testing.T, b *emulatortest.Backend) {
		a := open(t, b)
		for id, doc := range map[string][3]any{
			"own": {"FAILED", "crashed", "stalled"}, "out": {"FAILED", "attempts_exhausted", "crashed"}, "retried": {"QUEUED", nil, "crashed"}, "other": {"", nil, "crashed"},
			"bad": {"FAILED", "bad_input", "crashed"}, "refused": {"FAILED", nil, "crashed"}, "late": {"FAILED", "run_time_exhausted", "crashed"}, "ready": {"READY", nil, "crashed"},
		} {
			b.Put(t, id, map[string]any{"updatedAt": time.Now(), "status": doc[0], "error": map[string]any{"code": doc[1]}, "lastError": map[string]any{"code": doc[2]}})
		}
		for _, tc := range []struct {
			filter Filter
			want   []string
		}{
			{Filter{Code: "crashed"}, []string{"other", "out", "own", "retried"}},
			{Filter{Code: "crashed", Status: "FAILED"}, []string{"out", "own"}},
			{Filter{Code: "attempts_exhausted"}, []string{"out"}},
			{Filter{Code: "attempts_exhausted", Status: "FAILED"}, []string{"out"}},
			{Filter{Code: "stalled"}, nil},
		} {
			if got := foundIDs(t, a, tc.filter, 9); !slices.Equal(got, tc.want) {
				t.Errorf("%+v: %q, want %q", tc.filter, got, tc.want)
			}
		}
		if n, err := a.Count(t.Context(), Filter{Code: "crashed", Status: "FAILED"}); n != 2 || err != nil {
			t.Errorf("%d are counted, %v; want 2", n, err)
		}
	})
}

func TestActiveAnalysesRunWaitOrAreStuck(t *testing.T) {
	emulatortest.EachKind(t, func(t *testing.T, b *emulatortest.Backend) {
		a, err := Open(t.Context(), b.Project, optionsFor(b, Options{}), b.Client(t)...) // of the default TTL, also in real time
		fatal(t, err)
		for field, name := range map[string]string{"lockExpiresAt": "run", "nextAttemptAt": "wait"} {
			for i, hours := range []int{-1, 1, 2, 3} {
				at := time.Now().Add(time.Duration(hours) * time.Hour)
				b.Put(t, fmt.Sprint(name, i), map[string]any{"status": "PROCESSING", "lockOwner": "w", field: []any{at, at.UnixMilli(), at, at.UTC().Format("2006-01-02T15:04:05.000Z")}[i]})
			}
		}
		for i := range 4 {
			b.Put(t, fmt.Sprint("stuck", i), map[string]any{"status": "QUEUED", "updatedAt": time.Now().Add(time.Duration(i-4) * time.Hour)})
			at := time.Now().Add(-time.Duration(i+5) * time.Hour)
			b.Merge(t, fmt.Sprint("run", i), map[string]any{"updatedAt": at.UTC().Format("2006-01-02T15:04:05.000Z")})
			b.Merge(t, fmt.Sprint("wait", i), map[string]any{"updatedAt": at})
		}
		for id, fields := range map[string]map[string]any{
			"fresh": {"status": "QUEUED", "updatedAt": time.Now()}, "marked soon": {"status": "QUEUED", "updatedAt": time.Now().Add(-lease.DefaultTTL - time.Minute)}, "ready": {"status": "READY", "updatedAt": 1}, "odd": {"status": "QUEUED", "updatedAt": "2020-01-01T00:00:00Z", "lockToken": "7"}, "soon": {"status": "QUEUED", "updatedAt": "2020-01-01T00:00:00Z", "nextAttemptAt": time.Now().Add(-time.Minute)},
		} {
			b.Put(t, id, fields)
		}
		for i, ahead := range []time.Duration{23 * time.Hour, 25 * time.Hour} {
			b.Put(t, fmt.Sprint("ahead", i), map[string]any{"status": "QUEUED", "updatedAt": time.Now().Add(ahead)})
		}
		b.Merge(t, "wait3", map[string]any{"updatedAt": time.Now()})
		running, waiting, stuck, at, err := a.Active(t.Context(), 50)
		if err != nil || time.Since(at).Abs() > time.Minute {
			t.Fatal(at, err)
		}
		got := ""
		for _, d := range slices.Concat(running, waiting, stuck) {
			got += d.ID + " "
		}
		if want := "run1 run2 run3 wait1 wait2 wait3 wait0 stuck0 stuck1 stuck2 stuck3 ahead1 run0 "; got != want {
			t.Errorf("%s, want %s", got, want)
		}
		if running, waiting, stuck, _, err = a.Active(t.Context(), 3); err != nil || len(running) != 3 || len(waiting) != 3 || len(stuck) != 3 {
			t.Errorf("at most three: %d, %d, %d, %v", len(running), len(waiting), len(stuck), err)
		}
	})
}
