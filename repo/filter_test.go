package repo

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"taskguard/internal/testing/emulatortest"
	"taskguard/internal/testing/must"
	"taskguard/lease"
)

// foundIDs returns the ids that a filter finds, sorted.
func foundIDs(t *testing.T, a *worker, f Filter, limit int) string {
	t.Helper()
	all := must.Get(a.Find(t.Context(), f, "", limit))(t)
	return sorted(ids(all))
}

// code is the value of an error's field.
func code(c any) doc { return doc{"code": c} }

func TestFind(t *testing.T) {
	emulatortest.EachKind(t, func(t *testing.T, b *backend) {
		a := open(t, b)
		since, before := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC), time.Date(2026, 1, 31, 13, 0, 0, 0, time.UTC)
		for id, at := range map[string]time.Time{
			"early": since.Add(-time.Millisecond), "first": since,
			"last": before.Add(-time.Millisecond), "late": before,
		} {
			b.Put(t, id+"-text", doc{"updatedAt": timeValue(at), "status": "FAILED"})
			b.Put(t, id+"-time", doc{"updatedAt": at, "status": "FAILED"})
			b.Put(t, id+"-number", doc{"updatedAt": at.UnixMilli(), "status": "QUEUED"})
		}
		for _, zone := range []string{"+09:00", "-09:00"} { // as strings, they are between the limits
			b.Put(t, zone, doc{"updatedAt": "2026-01-31T12:30:00" + zone, "status": "FAILED"})
		}
		b.Put(t, "undated", doc{"status": "FAILED"})
		for want, f := range map[string]Filter{
			"first-number first-text first-time last-number last-text last-time": {Since: since, Before: before},
			"first-number last-number":           {Since: since, Before: before, Status: "QUEUED"},
			"late-number late-text late-time":    {Since: before},
			"early-number early-text early-time": {Before: since},
		} {
			same(t, want, foundIDs(t, a, f, 100), f)
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

// All queries together take longer than one may.
func TestFind_Slow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := emulatortest.Embedded(t)
		a := open(t, b, eachStream(func(s grpc.ClientStream) grpc.ClientStream { return slowly{s} }))
		const n = 3500
		for i := range n {
			b.Put(t, fmt.Sprint("x", i), doc{"status": "FAILED", "updatedAt": time.Now()})
		}
		behind := time.Now().UTC().Format("2006-01-02T15:04:05") + "+09:00"
		for i := range findPage + 1 { // more than a page that the filter excludes
			b.Put(t, fmt.Sprint("o", i), doc{"status": "FAILED", "updatedAt": behind})
		}
		for _, limit := range []int{n - 1, n, math.MaxInt} {
			f := Filter{Status: "FAILED", Since: time.Now().Add(-time.Hour)}
			all := strings.Fields(foundIDs(t, a, f, limit))
			if want := min(limit, n); len(all) != want || len(slices.Compact(all)) != want {
				t.Errorf("at most %d: %d, %d ids", limit, len(all), len(slices.Compact(all)))
			}
		}
	})
}

// paged returns the ids that a filter finds, in pages of limit.
func paged(t *testing.T, a *worker, f Filter, limit int) string {
	t.Helper()
	var all []string
	next := ""
	for pages := 0; pages == 0 || next != ""; pages++ {
		found, after, read, err := a.Page(t.Context(), f, next, limit)
		must.OK(t, err)
		if pages > 20 || len(found) > limit {
			t.Fatalf("%+v: page %d has %d", f, pages, len(found))
		}
		same(t, false, read.IsZero())
		all, next = append(all, strings.Fields(ids(found))...), after
	}
	return strings.Join(all, " ")
}

// Neither a time that two analyses share nor its type loses or repeats one.
func TestPage(t *testing.T) {
	emulatortest.EachKind(t, func(t *testing.T, b *backend) {
		a := open(t, b)
		at := time.Date(2026, 1, 31, 12, 0, 0, 123456000, time.UTC)
		half := float64(at.UnixMilli()) + 0.5
		for i, updated := range []any{"2026-01-31T12:00:00.123Z", at, at.UnixMilli(), half, "not a time"} {
			for j := range 3 { // with the same updatedAt
				b.Put(t, fmt.Sprintf("x%d%d", i, j), doc{"updatedAt": updated, "status": "FAILED", "error": code("c")})
			}
		}
		b.Put(t, "y", doc{"updatedAt": at, "status": "READY", "error": code("d")})
		for i := range 2 { // 04:00 UTC, which sorts as 13:00
			b.Put(t, fmt.Sprint("z", i), doc{"updatedAt": "2026-01-31T13:00:00+09:00", "status": "READY"})
		}
		b.Put(t, "x😀", doc{"status": "FAILED", "error": code("c")})
		const undated, within = "x42 x41 x40 z1 z0 ", "x02 x01 x00 y x12 x11 x10 x32 x31 x30 x22 x21 x20"
		const failed = "x42 x41 x40 x02 x01 x00 x12 x11 x10 x32 x31 x30 x22 x21 x20"
		for want, f := range map[string]Filter{
			undated + within: {},
			within:           {Since: at.Add(-time.Hour), Before: at.Add(2 * time.Hour)},
			failed:           {Status: "FAILED", Code: "c", Cause: true},
			"x00 x01 x02 x10 x11 x12 x20 x21 x22 x30 x31 x32 x40 x41 x42 x😀": {Prefix: "x", Status: "READY"},
			"": {Prefix: "zz"},
		} {
			for _, limit := range []int{1, 2, 3, 100} {
				same(t, want, paged(t, a, f, limit), f, limit)
			}
		}

		b.Put(t, "x43", doc{"updatedAt": "2026-01-31T12:00:00.500+09:00"}) // the query finds it, and it is not within
		second := Filter{Since: at.Add(-time.Second), Before: at.Add(time.Second)}
		found, next, _, err := a.Page(t.Context(), second, "", 1)
		if len(found) != 0 || next == "" {
			t.Errorf("a page with one excluded row: %d, next %q, %v; want none and another page", len(found), next, err)
		}
	})
}

func TestFilter_Refused(t *testing.T) {
	a := open(t, emulatortest.Embedded(t))
	for _, f := range []Filter{{Code: "\xff"}, {Status: "\xff"}, {Prefix: "\xff"}, {Prefix: "a/b"}} {
		_, _, _, err := a.Page(t.Context(), f, "", 1)
		for _, err := range []error{err, errorOf(a.Find(t.Context(), f, "", 1)), errorOf(a.Count(t.Context(), f))} {
			wantErr(t, lease.ErrInvalidKey, err, f)
		}
	}
	for name, after := range map[string]string{
		"no base64":             "x",
		"an empty object":       "e30",
		"a path as its id":      "eyJJRCI6ImEvYiIsIlVwZGF0ZWRBdCI6IngifQ",
		"a Timestamp that is x": "eyJJRCI6ImEiLCJVcGRhdGVkQXQiOiJ4IiwiVGltZXN0YW1wIjp0cnVlfQ",
		"no update":             "eyJJRCI6ImEifQ",
	} {
		_, _, _, err := a.Page(t.Context(), Filter{}, after, 1)
		wantErr(t, lease.ErrInvalidKey, err, name)
	}
}

func TestFailures(t *testing.T) {
	emulatortest.EachKind(t, func(t *testing.T, b *backend) {
		a := open(t, b)
		for i, c := range []any{"b", "a", "b", "b", 7, "é \U0010FFFF", nil} {
			b.Put(t, fmt.Sprint("x", i), doc{
				"updatedAt": fmt.Sprintf("2026-01-0%dT00:00:00.000Z", i+1), "status": "FAILED", "finishedBy": "w",
				"error": code(c), "lastError": code("b"), "history": []any{doc{"attempt": 1}},
			})
		}
		const day = "2026-01-09T00:00:00.000Z"
		for id, fields := range map[string]doc{
			"ready":     {"status": "READY", "error": code("b")},
			"ready old": {"status": "READY", "error": code("old")},
			"queued":    {"status": "QUEUED", "lastError": code("b")},
			"last":      {"status": "QUEUED", "lastError": code("last")},
		} {
			b.Put(t, id, with(fields, doc{"updatedAt": day}))
		}
		for limit, want := range map[int]string{50: "a b last old é \U0010FFFF", 1: "a b"} {
			same(t, want, strings.Join(must.Get(a.Codes(t.Context(), limit))(t), " "))
		}
		const b3, a1 = "b 3 x3 x2 x0, ", "a 1 x1, "
		for limit, want := range map[int]string{50: b3 + a1 + "é \U0010FFFF 1 x5, 0", 2: b3 + a1 + "1", 1: b3 + "2"} {
			got := ""
			all, left, err := a.Failures(t.Context(), limit)
			for _, f := range all {
				got += fmt.Sprint(f.Code, " ", f.N, " ", ids(f.Newest), ", ")
			}
			if got += fmt.Sprint(left); got != want || err != nil {
				t.Fatalf("at most %d: %s, %v; want %s", limit, got, err, want)
			}
			newest := all[0].Newest[0] // what its page shows, and no more
			same(t, []any{0, "w"}, []any{len(newest.History), newest.Lock.FinishedBy})
		}

		for i := range 101 {
			b.Put(t, fmt.Sprint("y", i), doc{"updatedAt": time.Now(), "status": "FAILED", "error": code("a")})
		}
		all, _, err := a.Failures(t.Context(), 1)
		must.OK(t, err)
		same(t, []int{102, sample}, []int{int(all[0].N), len(all[0].Newest)})
	})
}

// A FAILED analysis that has run out of attempts failed of its last error, and any other of its own.
func TestFilter_Code(t *testing.T) {
	emulatortest.EachKind(t, func(t *testing.T, b *backend) {
		a := open(t, b)
		put := func(id, status string, own, last any) {
			b.Put(t, id, doc{"updatedAt": time.Now(), "status": status, "error": code(own), "lastError": code(last)})
		}
		put("own", "FAILED", "declined", "stalled")
		put("out", "FAILED", "attempts_exhausted", "declined")
		put("down", "FAILED", "attempts_exhausted", "away")
		put("bare", "FAILED", "attempts_exhausted", nil) // as a worker in another language leaves it
		put("bad", "FAILED", "bad_input", "declined")
		put("unnamed", "FAILED", nil, "declined")
		put("opened", "QUEUED", "attempts_exhausted", "declined")
		put("other", "", nil, "declined")
		put("ready", "READY", nil, "declined")
		for f, want := range map[Filter]string{
			{Code: "declined"}:                                          "opened other out own",
			{Code: "declined", Status: "FAILED"}:                        "out own",
			{Code: "declined", Status: "FAILED", Cause: true}:           "out own",
			{Code: "attempts_exhausted"}:                                "bare down opened out",
			{Code: "attempts_exhausted", Status: "FAILED", Cause: true}: "bare",
			{Code: "stalled"}:                                           "",
		} {
			same(t, want, foundIDs(t, a, f, 9), f)
		}
		same(t, int64(2), must.Get(a.Count(t.Context(), Filter{Code: "declined", Status: "FAILED"}))(t))

		groups, left, err := a.Failures(t.Context(), 9)
		got := map[string]string{}
		for _, f := range groups {
			got[f.Code] = fmt.Sprint(f.N, " ", sorted(ids(f.Newest)))
		}
		must.OK(t, err)
		same(t, 0, left)
		same(t, map[string]string{
			"declined": "2 out own", "away": "1 down", "attempts_exhausted": "1 bare", "bad_input": "1 bad",
		}, got)
	})
}

func TestActive(t *testing.T) {
	emulatortest.EachKind(t, func(t *testing.T, b *backend) {
		a := openWith(t, b, Options{}) // of the default TTL, also in real time
		hours := func(n int) time.Time { return time.Now().Add(time.Duration(n) * time.Hour) }
		for i, h := range []int{-1, 1, 2, 3} {
			at := []any{hours(h), hours(h).UnixMilli(), hours(h), timeValue(hours(h))}[i]
			updated := hours(-5 - i)
			b.Put(t, fmt.Sprint("run", i), doc{
				"status": "PROCESSING", "lockOwner": "w", "lockExpiresAt": at, "updatedAt": timeValue(updated),
			})
			b.Put(t, fmt.Sprint("wait", i), doc{"status": "PROCESSING", "nextAttemptAt": at, "updatedAt": updated})
			b.Put(t, fmt.Sprint("stuck", i), doc{"status": "QUEUED", "updatedAt": hours(i - 4)})
		}
		b.Merge(t, "wait3", doc{"updatedAt": time.Now()})
		for id, fields := range map[string]doc{
			"fresh":       {"updatedAt": time.Now()},
			"marked soon": {"updatedAt": time.Now().Add(-lease.DefaultTTL - time.Minute)},
			"odd":         {"updatedAt": timeValue(hours(-9)), "lockToken": "7"},
			"soon":        {"updatedAt": timeValue(hours(-9)), "nextAttemptAt": time.Now().Add(-time.Minute)},
			"ready":       {"updatedAt": hours(-9), "status": "READY"},
			"ahead23":     {"updatedAt": hours(23)},
			"ahead25":     {"updatedAt": hours(25)},
		} {
			b.Put(t, id, with(doc{"status": "QUEUED"}, fields))
		}
		running, waiting, stuck, at, err := a.Active(t.Context(), 50)
		if err != nil || time.Since(at).Abs() > time.Minute {
			t.Fatal(at, err)
		}
		same(t, "run1 run2 run3", ids(running))
		same(t, "wait1 wait2 wait3", ids(waiting))
		same(t, "wait0 stuck0 stuck1 stuck2 stuck3 ahead25 run0", ids(stuck))
		running, waiting, stuck, _, _ = a.Active(t.Context(), 3)
		same(t, []int{3, 3, 3}, []int{len(running), len(waiting), len(stuck)})
	})
}
