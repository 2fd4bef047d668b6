package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"taskguard/internal/testing/emulatortest"
	"taskguard/internal/testing/must"
)

func TestRecover(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	t.Run("what it does not find is reported, and a requeue runs it", func(t *testing.T) {
		for id, status := range map[string]any{"lower": "queued", "number": 7, "old": "archived", "ready": "READY"} {
			put(t, q.env, id, doc{"status": status})
		}
		put(t, q.env, "ours", doc{"status": "ANALYZING", "lockToken": 1})
		put(t, q.env, "undated", doc{"status": "QUEUED"})
		put(t, q.env, "yesterday", doc{"status": "QUEUED", "updatedAt": "yesterday"})
		put(t, q.env, "without", doc{"input": 1})
		o := taskguard(t, q.env, "recover --json").done(t,
			"3 never run", `"lower" ("queued")`, `"number" ("(the number 7)")`, `"old"`,
			"3 not found", `"without" ("")`, `"undated"`, `"yesterday"`).lacks(t, "ready", "ours")
		object := wantKeys(t, o.object(t), "found booked waiting more")
		wantValues(t, object, doc{"found": 0.0, "booked": 0.0, "more": false})
		taskguard(t, q.env, "status --unfinished").done(t, "yesterday", "without", "undated")
		taskguard(t, q.env, "requeue without lower").done(t)
		taskguard(t, q.env, "recover").done(t, "2 never run", "2 not found")
	})
	t.Run("one that fails reports what it has done", func(t *testing.T) {
		q := newQueue(t)
		orphaned(t, q.env, "a")
		put(t, q.env, "malformed", doc{"status": "QUEUED", "updatedAt": longAgo, "lockToken": "7"})
		taskguard(t, q.missing(), "recover").fails(t,
			"analysis_id=malformed", "found 1, enqueued 0; then it failed\n", "correct TASK_QUEUE")
		orphaned(t, q.env, "a") // the first call has marked it
		object := taskguard(t, q.missing(), "recover --json").fails(t, "NotFound").object(t)
		wantValues(t, object, doc{"found": 1.0, "booked": 0.0, "more": true})
	})
}

// A restored document may be one that was never acquired, or has no updatedAt.
func TestRestore(t *testing.T) {
	t.Parallel()
	env := store(t)
	put(t, env, "never-acquired", doc{"status": "QUEUED"})
	put(t, env, "ready", doc{"status": "READY", "result": "kept", "lockToken": 7, "updatedAt": longAgo})
	put(t, env, "at-the-limit", doc{"status": "QUEUED", "lockToken": 1000, "updatedAt": longAgo})
	put(t, env, "above", doc{"status": "QUEUED", "lockToken": 1001})
	put(t, env, "stale", doc{"status": "PROCESSING", "lockToken": 3, "lockOwner": "w/1", "lockExpiresAt": longAgo})

	object := taskguard(t, env, "restore --min-token 1000 --json").done(t).object(t)
	wantValues(t, object, doc{"documents": 5.0, "raised": 3.0, "failed": 0.0, "min_token": 1000.0})
	for id, want := range map[string]doc{
		"never-acquired": {"lockToken": int64(1000)},
		"ready":          {"lockToken": int64(1000), "status": "READY", "result": "kept"},
		"at-the-limit":   {"lockToken": int64(1000), "updatedAt": longAgo},
		"above":          {"lockToken": int64(1001)},
		"stale":          {"lockToken": int64(1000)},
	} {
		wantValues(t, fieldsOf(t, env, id), want)
	}

	locked(t, analyses(t, env), "held")
	put(t, env, "odd", doc{"status": "QUEUED", "lockToken": "x"})
	o := taskguard(t, env, "restore --min-token 1000 --json").fails(t, `"odd"`, "taskguard unlock", `"held"`)
	wantValues(t, o.object(t), doc{"documents": 7.0, "raised": 0.0, "failed": 2.0})
	wantValues(t, fieldsOf(t, env, "held"), doc{"lockToken": int64(1)})

	before := time.Now().Add(-time.Minute).UnixMicro()
	taskguard(t, env, "restore --min-token now").fails(t, "5 tokens raised")
	if token := fieldsOf(t, env, "above")["lockToken"].(int64); token < before {
		t.Errorf("now: %d", token)
	}
	for _, bad := range []any{"", 0, "x", time.Now().Add(time.Hour).UnixMicro()} {
		taskguard(t, env, fmt.Sprint("restore --min-token=", bad)).refused(t, "--min-token")
	}
}

// googles calls an endpoint of Google's emulator.
func googles(t *testing.T, env vars, method, path string, body map[string]string) {
	t.Helper()
	url := "http://" + env["FIRESTORE_EMULATOR_HOST"] + "/emulator/v1/projects/" + env["GOOGLE_CLOUD_PROJECT"] + path
	data := bytes.NewReader(must.Get(json.Marshal(body))(t))
	request := must.Get(http.NewRequestWithContext(t.Context(), method, url, data))(t)
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	must.OK(t, err)
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		t.Fatalf("%s %s: %s", method, path, response.Status)
	}
}

// The steps of docs/backup.md after an export. Google's emulator has no point-in-time recovery
// and no buckets: it exports to a folder.
func TestRestore_Google(t *testing.T) {
	t.Parallel()
	host := emulatortest.Google(t)
	q := newQueue(t)
	q.env["FIRESTORE_EMULATOR_HOST"], q.env["GOOGLE_CLOUD_PROJECT"] = host, emulatortest.Project()
	q.env["LOCK_TTL"], q.env["LOCK_HEARTBEAT"] = "3s", "1s"
	database := "projects/" + q.env["GOOGLE_CLOUD_PROJECT"] + "/databases/(default)"
	folder := t.TempDir()
	put(t, q.env, "unfinished", doc{"status": "QUEUED", "updatedAt": longAgo, "lockToken": 7})
	put(t, q.env, "ready", doc{"status": "READY", "result": "kept", "updatedAt": longAgo, "lockToken": 8})

	googles(t, q.env, http.MethodPost, ":export", map[string]string{
		"database": database, "export_directory": folder, "export_name": "e",
	})
	put(t, q.env, "unfinished", doc{"status": "READY", "result": "lost", "lockToken": 9})
	googles(t, q.env, http.MethodDelete, "/databases/(default)/documents", nil)
	put(t, q.env, "later", doc{"status": "READY", "lockToken": 1})
	googles(t, q.env, http.MethodPost, ":import", map[string]string{
		"database": database, "export_directory": filepath.Join(folder, "e", "e.overall_export_metadata"),
	})

	before := time.Now().Add(-time.Minute).UnixMicro()
	taskguard(t, q.env, "restore --min-token now").done(t, "3 documents: 3 tokens raised")
	for id, status := range map[string]string{"unfinished": "QUEUED", "ready": "READY", "later": "READY"} {
		if f := fieldsOf(t, q.env, id); f["status"] != status || f["lockToken"].(int64) < before {
			t.Errorf("%s is restored as %v", id, f)
		}
	}
	eventually(t, "recovery books the unfinished analysis", func() bool {
		recovered := taskguard(t, q.env, "recover --json").done(t).object(t)
		return recovered["found"] == 1.0 && recovered["booked"] == 1.0
	})
	q.wantBooked(t, `/internal/tasks/analysis {"analysis_id":"unfinished"}`)
}
