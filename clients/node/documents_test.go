package node

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"taskguard/lease/iso8601"
)

// documents are documents as applications and other workers leave them.
func documents(now time.Time) map[string]map[string]any {
	past, future := iso8601.Format(now.Add(-time.Hour)), iso8601.Format(now.Add(time.Hour))
	tomorrow := iso8601.Format(now.Add(25 * time.Hour))
	lastError := map[string]any{"code": "x", "message": "y"}
	crashed := []any{begun(past, nil)}
	earlier := []any{begun(past, map[string]any{"token": 40})}
	mixed := []any{"x", begun(past, map[string]any{"outcome": "retry", "alone": true, "delays": 2})}

	all := map[string]map[string]any{
		"new":            {"status": "QUEUED", "createdAt": now, "updatedAt": now, "input": "x"},
		"old times":      {"status": "QUEUED", "createdAt": past, "updatedAt": past, "startedAt": past},
		"no status":      {"input": "x"},
		"empty status":   {"status": ""},
		"another status": {"status": "PENDING"},
		"a number":       {"status": 7},
		"ready":          held(map[string]any{"status": "READY", "lockToken": "x"}),
		"failed":         held(map[string]any{"status": "FAILED"}),
		"booked":         {"nextAttemptAt": future, "bookedTask": "t", "expireAt": now, "attempts": 2.0, "starts": 3.0},
		"late start":     {"status": "QUEUED", "startedAt": tomorrow},
		"free":           {"status": "QUEUED", "lockToken": 41, "lockHeartbeatAt": past, "lockExpiresAt": future},
		"a double":       {"status": "QUEUED", "lockToken": 41.0},
		"a text":         {"status": "QUEUED", "lockToken": "41"},
		"negative":       {"status": "QUEUED", "lockToken": -1},
		"a fraction":     {"status": "QUEUED", "lockToken": 1.5},
		"an odd owner":   held(map[string]any{"lockOwner": 5, "lockExpiresAt": future}),
		"no expiry":      held(map[string]any{"lockHeartbeatAt": iso8601.Format(now)}),
		"no times":       held(nil),
		"new heartbeat":  held(map[string]any{"lockHeartbeatAt": iso8601.Format(now), "lockExpiresAt": "noon"}),
		"no heartbeat":   held(map[string]any{"lockExpiresAt": "noon"}),
		"odd heartbeat":  held(map[string]any{"lockHeartbeatAt": "noon", "lockExpiresAt": "noon"}),
		"too far ahead":  held(map[string]any{"lockHeartbeatAt": past, "lockExpiresAt": tomorrow}),
		"crashed": held(map[string]any{
			"lockExpiresAt": past, "lockHeartbeatAt": past, "history": crashed, "lastError": lastError,
		}),
		"crashed before": held(map[string]any{"lockExpiresAt": past, "history": earlier}),
		"unlocked":       {"status": "QUEUED", "lockToken": 41, "history": crashed},
		"not only maps":  {"history": mixed},
		"long history":   {"history": slices.Repeat([]any{begun(past, map[string]any{"outcome": "retry"})}, 12)},
		"large history": {"history": slices.Repeat(
			[]any{begun(past, map[string]any{"outcome": "retry", "message": strings.Repeat("あ", 300)})}, 12),
		},
	}
	for _, form := range forms(now) {
		all[fmt.Sprintf("expires at %v", form)] = held(map[string]any{"lockHeartbeatAt": past, "lockExpiresAt": form})
	}
	return all
}

// held returns a document of an analysis that was acquired, with more fields.
func held(fields map[string]any) map[string]any {
	all := map[string]any{"status": "PROCESSING", "lockOwner": "w/1/x", "lockToken": 41, "attempts": 3}
	maps.Copy(all, fields)
	return all
}

// begun returns an entry of a history, with more fields.
func begun(at string, fields map[string]any) map[string]any {
	entry := map[string]any{"attempt": 3, "token": 41, "owner": "w/1/x", "startedAt": at}
	maps.Copy(entry, fields)
	return entry
}

// forms are times before and after now, in forms that other programs write, and what is no time.
func forms(now time.Time) []any {
	all := []any{-5, true, "noon", "2026-13-31T12:00:00Z", "1769860800000"}
	for _, at := range []time.Time{now.Add(-time.Second), now.Add(2 * time.Hour), now.Add(30 * time.Hour)} {
		all = append(all, at, at.UnixMilli(), float64(at.UnixMilli()))
		for _, layout := range []string{
			"2006-01-02T15:04:05.000Z07:00", "2006-01-02T15:04:05.000000000Z07:00", "2006-01-02t15:04:05z07:00",
			"2006-01-02T15:04:05Z0700", "2006-01-02T15:04Z07:00", "20060102T150405Z07:00", "2006-01-02T15:04:05",
			"2006-01-02", "2006-01-02 15:04:05", "02 Jan 2006 15:04:05 MST",
		} {
			all = append(all, at.In(time.FixedZone("", 9*60*60)).Format(layout))
		}
	}
	return all
}
