package worker_test

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/type/latlng"
)

const (
	long = time.Hour      // ago: longer than any TTL here
	day  = 24 * time.Hour // from now on an expiry is not credible
)

func hostiles() []hostile {
	return slices.Concat(hostileShapes(), hostileTokens(), hostileOwners(), hostileExpiries(), hostileAttempts(), hostileStatuses(), hostileTimes(), hostileErrors(), hostileInputs())
}

func hostileShapes() []hostile {
	null := map[string]any{}
	for _, name := range []string{"status", "input", "result", "error", "attempts", "createdAt", "updatedAt", "finishedBy", "lockOwner", "lockExpiresAt", "lockHeartbeatAt", "lockToken", "lastError"} {
		null[name] = nil
	}
	odd := map[string]any{"lockOwner.x": "them", "lockToken.x": "five", "`lockToken`": "five", "lockExpiresAt ": true, "status\\": 1, "lock owner": nest(), "ключ": math.Inf(-1), "鍵.`\\ ": thousand(), "LOCKOWNER": "them", "-": nil}
	return []hostile{
		runs("a document with no fields at all", map[string]any{}).with(func(h *hostile) { h.during, h.input = "PROCESSING", "null" }),
		runs("every field is null", null),
		runs("names of fields with dots, backticks, spaces and unicode", odd).with(func(h *hostile) { h.kept = slices.Collect(maps.Keys(odd)) }),
		runs("20 levels in every field that no decision needs", map[string]any{
			"input": nest(), "result": nest(), "error": nest(), "lastError": nest(), "finishedBy": nest(), "theirs": nest(),
			"progress": nest(), "checkpoint": nest(), "history": nest(), "nextAttemptAt": nest(), "startedAt": nest(),
		}).with(func(h *hostile) { h.kept = []string{"input", "theirs"} }),
		lockedBy("20 levels in every field of the lock but its token", map[string]any{
			"lockOwner": nest(), "lockExpiresAt": nest(), "lockHeartbeatAt": nest(), "attempts": nest(), "status": nest(),
		}, "*").with(func(h *hostile) { h.expires = true }),
		lockedBy("1,000 elements in every field of the lock but its token", map[string]any{
			"lockOwner": thousand(), "lockExpiresAt": thousand(), "lockHeartbeatAt": thousand(), "attempts": thousand(), "status": thousand(),
		}, "*").with(func(h *hostile) { h.expires = true }),
		lockedBy("NaN in every field of the lock but its token", map[string]any{
			"lockOwner": math.NaN(), "lockExpiresAt": math.NaN(), "lockHeartbeatAt": math.NaN(), "attempts": math.NaN(), "status": math.NaN(),
		}, "*").with(func(h *hostile) { h.expires = true }),
	}
}

// One that is no integer is malformed, unless the document is finished.
func hostileTokens() []hostile {
	all := []hostile{
		runs("lockToken is 0", map[string]any{"lockToken": 0}),
		runs("lockToken is -0.0", map[string]any{"lockToken": math.Copysign(0, -1)}),
		runs("lockToken is 3.0, as JavaScript may write it", map[string]any{"lockToken": 3.0}).with(func(h *hostile) { h.after["lockToken"] = int64(4) }),
		runs("lockToken is 2^63-2", map[string]any{"lockToken": int64(math.MaxInt64 - 1)}).with(func(h *hostile) { h.after["lockToken"] = int64(math.MaxInt64) }),
	}
	bad := map[string]any{
		"2^63-1, after which there is none": int64(math.MaxInt64), "-1": -1, "-2^63": int64(math.MinInt64),
		"1.5": 1.5, "1e300": 1e300, "NaN": math.NaN(), "Infinity": math.Inf(1), "-Infinity": math.Inf(-1),
		"a number in a string": "3", "an empty string": "", "a word": "five", "true": true, "bytes": []byte{1}, "a Timestamp": stampIn(0),
		"a geo point": &latlng.LatLng{Latitude: 1}, "a map": map[string]any{"n": 1}, "20 levels": nest(), "an array": []any{1}, "1,000 elements": thousand(),
	}
	for _, name := range slices.Sorted(maps.Keys(bad)) {
		all = append(all, malformed(name, bad[name]), finished(name, "READY", bad[name]), finished(name, "FAILED", bad[name]).with(func(h *hostile) { h.virtual = true }))
	}
	return all
}

// What is no string is somebody's all the same; an empty one and null nobody's.
func hostileOwners() []hostile {
	all := []hostile{
		runs("lockOwner is an empty string", map[string]any{"lockOwner": "", "lockExpiresAt": isoIn(long)}),
		runs("lockOwner is null", map[string]any{"lockOwner": nil, "lockExpiresAt": isoIn(long)}),
	}
	values := map[string]any{
		"a number": 5, "NaN": math.NaN(), "true": true, "a map": map[string]any{}, "20 levels": nest(), "an array": []any{"them"}, "1,000 elements": thousand(),
		"bytes": []byte("them"), "a Timestamp": stampIn(0), "a space": " ", "64 KiB": strings.Repeat("ö", 32<<10),
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		all = append(all,
			lockedBy("lockOwner is "+name+", held", map[string]any{"lockOwner": values[name], "lockExpiresAt": isoIn(long)}, isoIn(long)),
			runs("lockOwner is "+name+", expired", map[string]any{"lockOwner": values[name], "lockExpiresAt": isoIn(-long)}),
		)
	}
	return all
}

// An expiry that cannot be read, or is more than 24 h ahead, is one TTL after the
// heartbeat, else after the last update.
func hostileExpiries() []hostile {
	all := []hostile{
		lockedBy("expires in an hour", map[string]any{"lockOwner": "js", "lockExpiresAt": isoIn(long)}, isoIn(long)),
		lockedBy("expires in an hour, a Timestamp", map[string]any{"lockOwner": "js", "lockExpiresAt": stampIn(long)}, isoIn(long)),
		lockedBy("expires in an hour, epoch milliseconds", map[string]any{"lockOwner": "js", "lockExpiresAt": millisIn(long)}, isoIn(long)),
		lockedBy("expires in 23 h", map[string]any{"lockOwner": "js", "lockExpiresAt": isoIn(day - long), "lockHeartbeatAt": isoIn(-long)}, isoIn(day-long)),
		runs("no expiry", map[string]any{"lockOwner": "js"}),
		runs("a null expiry", map[string]any{"lockOwner": "js", "lockExpiresAt": nil}),
		lockedBy("neither expiry nor heartbeat is credible", map[string]any{"lockOwner": "js", "lockExpiresAt": "9999-12-31T23:59:59.999Z", "lockHeartbeatAt": "9999-12-31T23:59:59.999Z"}, "*").
			with(func(h *hostile) { h.expires = true }),
	}
	past := map[string]any{
		"an hour ago": isoIn(-long), "an hour ago, a Timestamp": stampIn(-long), "an hour ago, epoch milliseconds": millisIn(-long),
		"the year 0": "0000-01-01T00:00:00.000Z", "the year 1": time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC), "1969": "1969-12-31T23:59:59.999Z", "1970": "1970-01-01T00:00:00.000Z",
		"0": 0, "-0.0": math.Copysign(0, -1), "1970, a Timestamp": time.Unix(0, 0),
	}
	for _, name := range slices.Sorted(maps.Keys(past)) { // whatever the heartbeat says
		all = append(all, runs("expires: "+name, map[string]any{"lockOwner": "js", "lockExpiresAt": past[name], "lockHeartbeatAt": isoIn(0)}))
	}
	incredible := map[string]any{
		"in 25 h": isoIn(day + long), "in 25 h, a Timestamp": stampIn(day + long), "in 25 h, epoch milliseconds": millisIn(day + long),
		"2999": "2999-01-01T00:00:00Z", "9999": "9999-12-31T23:59:59.999Z", "9999, a Timestamp": time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC),
		"9999, epoch milliseconds": int64(253402300799999), "10000": "+010000-01-01T00:00:00.000Z", "JavaScript's last": "+275760-09-13T00:00:00.000Z",
		"2^63-1": int64(math.MaxInt64), "1e300": 1e300, "NaN": math.NaN(), "Infinity": math.Inf(1),
		"a word": "soon", "an empty string": "", "true": true, "bytes": []byte("2999"), "a map": map[string]any{"seconds": 1}, "20 levels": nest(), "1,000 elements": thousand(),
		"a geo point": &latlng.LatLng{},
	}
	for _, name := range slices.Sorted(maps.Keys(incredible)) {
		lock := func(heartbeat any) map[string]any {
			return map[string]any{"lockOwner": "js", "lockExpiresAt": incredible[name], "lockHeartbeatAt": heartbeat}
		}
		all = append(all,
			runs("expires: "+name+", heartbeat long ago", lock(isoIn(-long))),
			lockedBy("expires: "+name+", heartbeat now", lock(isoIn(0)), inTTLs(1)).with(func(h *hostile) { h.expires = true }),
			lockedBy("expires: "+name+", no heartbeat", lock(nil), "*").with(func(h *hostile) { h.expires, h.virtual = true, true }),
		)
	}
	// Long past, or unreadable: over in either case.
	for name, v := range map[string]any{"the year -1": "-000001-01-01T00:00:00.000Z", "-1": -1, "-1.0": -1.0, "-86400000": -86400000, "-2^63": int64(math.MinInt64), "-Infinity": math.Inf(-1), "-1e300": -1e300} {
		all = append(all, runs("expires: "+name+", heartbeat long ago", map[string]any{"lockOwner": "js", "lockExpiresAt": v, "lockHeartbeatAt": isoIn(-long)}))
	}
	return all
}

// One that is no number is none; a negative one is none either.
func hostileAttempts() []hostile {
	all := []hostile{
		exhausted("3, as many as there may be", 3), exhausted("2^63-1", int64(math.MaxInt64)), exhausted("2^31", int64(1)<<31), exhausted("3.0", 3.0),
		runs("attempts is 2.0", map[string]any{"attempts": 2.0}).with(func(h *hostile) { h.after["attempts"] = int64(3) }),
	}
	for name, v := range map[string]any{
		"-1": -1, "-2^63": int64(math.MinInt64), "-0.5": -0.5, "2.5": 2.5, "NaN": math.NaN(), "Infinity": math.Inf(1), "-Infinity": math.Inf(-1),
		"a number in a string": "3", "true": true, "a map": map[string]any{"n": 3}, "20 levels": nest(), "1,000 elements": thousand(), "bytes": []byte{3}, "a Timestamp": stampIn(0),
	} {
		all = append(all, runs("attempts is "+name, map[string]any{"attempts": v}))
	}
	return all
}

// PROCESSING is written over no status, QUEUED and PROCESSING alone.
func hostileStatuses() []hostile {
	var all []hostile
	for _, status := range []string{"", "QUEUED", "PROCESSING"} {
		all = append(all, runs(fmt.Sprintf("status is %q", status), map[string]any{"status": status}).with(func(h *hostile) { h.during = "PROCESSING" }))
	}
	for _, status := range []any{
		"ANALYZING", "queued", "PENDING", "ready", "READY ", "ARCHIVED", "статус", strings.Repeat("X", 10_000), 1, 1.5, true, time.UnixMilli(1e12).UTC(),
	} {
		name := "status is " + shortened(status)
		during := status
		if n, ok := status.(int); ok {
			during = int64(n)
		}
		all = append(all,
			runs(name, map[string]any{"status": status}).with(func(h *hostile) { h.during = during }),
			hostile{
				name: name + ", and the run fails for now", doc: map[string]any{"status": status}, fail: errors.New("flaky"),
				code: 500, answer: map[string]any{"acquired": true, "reason": "retry"},
				after: map[string]any{"attempts": int64(1), "lockToken": int64(1), "lockOwner": nil, "lockExpiresAt": nil}, kept: []string{"status"}, during: during, virtual: true,
			})
	}
	for name, v := range map[string]any{"NaN": math.NaN(), "a map": map[string]any{"s": "READY"}, "20 levels": nest(), "1,000 elements": thousand(), "bytes": []byte("READY")} {
		all = append(all, runs("status is "+name, map[string]any{"status": v}), hostile{
			name: "status is " + name + ", and the run fails for now", doc: map[string]any{"status": v}, fail: errors.New("flaky"),
			code: 500, answer: map[string]any{"acquired": true, "reason": "retry"}, kept: []string{"status"}, virtual: true,
		})
	}
	return all
}

func shortened(v any) string {
	s := fmt.Sprint(v)
	if len(s) > 60 {
		return fmt.Sprintf("%.60s… (%d bytes)", s, len(s))
	}
	return s
}

// A time that is none becomes a string when it is written.
func hostileTimes() []hostile {
	var all []hostile
	for name, v := range map[string]any{
		"a number": -1, "NaN": math.NaN(), "a word": "yesterday", "a map": map[string]any{}, "20 levels": nest(), "1,000 elements": thousand(), "the year 0": "0000-01-01T00:00:00.000Z", "9999": "9999-12-31T23:59:59.999Z",
	} {
		all = append(all, runs("createdAt and updatedAt are "+name, map[string]any{"createdAt": v, "updatedAt": v}).with(func(h *hostile) { h.kept = []string{"createdAt"} }))
	}
	return all
}

// What READY has none of goes, whatever it was.
func hostileErrors() []hostile {
	var all []hostile
	for name, v := range map[string]any{
		"a word": "broken", "a number": 5, "NaN": math.NaN(), "an array": []any{"c", "m"}, "1,000 elements": thousand(), "20 levels": nest(),
		"a map of others": map[string]any{"status": 1}, "a map of wrong types": map[string]any{"code": 5, "message": []any{"m"}}, "an empty map": map[string]any{},
	} {
		doc := map[string]any{"error": v, "lastError": v, "result": v}
		all = append(all,
			runs("error, lastError and result are "+name, doc),
			hostile{
				name: "error, lastError and result are " + name + ", and the run fails for now", doc: map[string]any{"error": v, "lastError": v, "result": v}, fail: errors.New("flaky"),
				code: 500, answer: map[string]any{"acquired": true, "reason": "retry"}, after: map[string]any{"status": "QUEUED", "lockOwner": nil, "lastError": "*"}, virtual: true,
			},
			exhausted("3, and lastError is "+name, 3).with(func(h *hostile) { h.doc["lastError"], h.virtual = v, true }))
	}
	return all
}

// What JSON lacks has a documented form.
func hostileInputs() []hostile {
	deep := strings.Repeat(`{"a":`, 19) + "{}" + strings.Repeat("}", 19)
	var all []hostile
	for _, c := range []struct {
		name, want string
		input      any
	}{
		{"null", `null`, nil},
		{"20 levels", deep, nest()},
		{"numbers that JSON lacks", `["NaN","Infinity","-Infinity",9223372036854775807,-9223372036854775808]`, []any{math.NaN(), math.Inf(1), math.Inf(-1), int64(math.MaxInt64), int64(math.MinInt64)}},
		{"keys with dots, backticks, spaces and unicode", "{\" \":1,\"<&>\":5,\"`\":3,\"a.b\":2,\"ключ\":4}", map[string]any{" ": 1, "a.b": 2, "`": 3, "ключ": 4, "<&>": 5}},
		{"bytes, a Timestamp and a geo point", `["AP8=","2001-09-09T01:46:40Z",{"latitude":-90,"longitude":180}]`, []any{[]byte{0, 255}, time.Unix(1e9, 0), &latlng.LatLng{Latitude: -90, Longitude: 180}}},
		{"text that looks like JSON", `"{\"a\": 1,"`, `{"a": 1,`},
		{"a lock", `{"lockOwner":"them","lockToken":"five","status":"READY"}`, map[string]any{"lockOwner": "them", "lockToken": "five", "status": "READY"}},
	} {
		all = append(all, runs("input is "+c.name, map[string]any{"input": c.input}).with(func(h *hostile) { h.input, h.kept = c.want, []string{"input"} }))
	}
	return all
}
