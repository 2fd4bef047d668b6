package main

import (
	"fmt"
	"testing"
	"time"

	"taskguard/cmd/internal/cli"
)

// A restored document may be one that was never acquired, or has no updatedAt.
func TestRestoreRaisesTheTokensOfAllThatAreNotLocked(t *testing.T) {
	t.Parallel()
	env := store(t)
	put(t, env, "never acquired", map[string]any{"status": "QUEUED"})
	put(t, env, "ready", map[string]any{"status": "READY", "result": "kept", "lockToken": 7, "updatedAt": "2026-01-01T00:00:00.000Z"})
	put(t, env, "at the limit", map[string]any{"status": "QUEUED", "lockToken": 1000, "updatedAt": "2026-01-01T00:00:00.000Z"})
	put(t, env, "above", map[string]any{"status": "QUEUED", "lockToken": 1001})
	put(t, env, "stale", map[string]any{"status": "PROCESSING", "lockToken": 3, "lockOwner": "w/1", "lockExpiresAt": "2026-01-01T00:00:00.000Z"})
	all := fieldsOf(t, env, "x").Parent

	fields := func(id string) map[string]any {
		t.Helper()
		snap, err := all.Doc(id).Get(t.Context())
		check(t, err)
		return snap.Data()
	}

	taskguard(t, env, "restore", "--min-token", "1000").want(t, cli.ExitDone, "5 documents: 3 tokens raised to 1000, 0 failed")
	want := map[string]int64{"never acquired": 1000, "ready": 1000, "at the limit": 1000, "above": 1001, "stale": 1000}
	for id, token := range want {
		if f := fields(id); f["lockToken"] != token || id == "ready" && (f["status"] != "READY" || f["result"] != "kept") ||
			id == "at the limit" && f["updatedAt"] != "2026-01-01T00:00:00.000Z" {
			t.Errorf("%s: %v, want the token %d", id, f, token)
		}
	}

	locked(t, analyses(t, env), "held")
	put(t, env, "odd", map[string]any{"status": "QUEUED", "lockToken": "x"})
	taskguard(t, env, "restore", "--min-token", "1000", "--json").want(t, cli.ExitFailed, `"documents":7,"failed":2,"min_token":1000,"raised":0`, `"odd"`, "taskguard unlock", `"held" is locked by `)
	if token := fields("held")["lockToken"]; token != int64(1) {
		t.Errorf("the token of a lock that is held became %v", token)
	}

	before := time.Now().Add(-time.Minute).UnixMicro()
	taskguard(t, env, "restore", "--min-token", "now").want(t, cli.ExitFailed, "5 tokens raised")
	if token := fields("above")["lockToken"].(int64); token < before {
		t.Errorf("now: %d", token)
	}
	for _, bad := range []string{"", "0", "-1", "x", "1.5", fmt.Sprint(time.Now().Add(time.Hour).UnixMicro())} {
		taskguard(t, env, "restore", "--min-token", bad).want(t, cli.ExitUsage, "--min-token must be ")
	}
}
