package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"taskguard/cmd/internal/cli"
	"taskguard/internal/testing/emulatortest"
)

// googles calls an endpoint of Google's emulator.
func googles(t *testing.T, env vars, method, path string, body map[string]string) {
	t.Helper()
	data, err := json.Marshal(body)
	check(t, err)
	url := "http://" + env["FIRESTORE_EMULATOR_HOST"] + "/emulator/v1/projects/" + env["GOOGLE_CLOUD_PROJECT"] + path
	request, err := http.NewRequestWithContext(t.Context(), method, url, bytes.NewReader(data))
	check(t, err)
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	check(t, err)
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		t.Fatalf("%s %s: %s", method, path, response.Status)
	}
}

// The steps of docs/backup.md after an export. Google's emulator has no point-in-time recovery
// and no buckets: it exports to a folder.
func TestARestoredDatabaseIsRunAgainWithHigherTokens(t *testing.T) {
	t.Parallel()
	host := emulatortest.Google(t)
	q := newQueue(t)
	q.env["FIRESTORE_EMULATOR_HOST"], q.env["GOOGLE_CLOUD_PROJECT"] = host, emulatortest.Project()
	q.env["LOCK_TTL"], q.env["LOCK_HEARTBEAT"] = "3s", "1s"
	database := "projects/" + q.env["GOOGLE_CLOUD_PROJECT"] + "/databases/(default)"
	folder := t.TempDir()
	put(t, q.env, "unfinished", map[string]any{"status": "QUEUED", "updatedAt": "2020-01-01T00:00:00.000Z", "lockToken": 7})
	put(t, q.env, "ready", map[string]any{"status": "READY", "result": "kept", "updatedAt": "2020-01-01T00:00:00.000Z", "lockToken": 8})

	googles(t, q.env, http.MethodPost, ":export", map[string]string{"database": database, "export_directory": folder, "export_name": "e"})
	put(t, q.env, "unfinished", map[string]any{"status": "READY", "result": "lost", "lockToken": 9})
	googles(t, q.env, http.MethodDelete, "/databases/(default)/documents", nil)
	put(t, q.env, "later", map[string]any{"status": "READY", "lockToken": 1})
	googles(t, q.env, http.MethodPost, ":import", map[string]string{
		"database": database, "export_directory": filepath.Join(folder, "e", "e.overall_export_metadata"),
	})

	before := time.Now().Add(-time.Minute).UnixMicro()
	taskguard(t, q.env, "restore", "--min-token", "now").want(t, cli.ExitDone, "3 documents: 3 tokens raised")
	for id, status := range map[string]string{"unfinished": "QUEUED", "ready": "READY", "later": "READY"} {
		snap, err := fieldsOf(t, q.env, "x").Parent.Doc(id).Get(t.Context())
		check(t, err)
		if f := snap.Data(); f["status"] != status || f["lockToken"].(int64) < before {
			t.Errorf("%s is restored as %v", id, f)
		}
	}
	until := time.Now().Add(time.Minute)
	for !strings.Contains(taskguard(t, q.env, "recover", "--json").want(t, cli.ExitDone).out, `"found":1,"booked":1`) {
		if time.Now().After(until) {
			t.Fatal("recovery does not book the unfinished analysis")
		}
		time.Sleep(time.Second)
	}
	if tasks := q.tasks(t); len(tasks) != 1 || !strings.Contains(string(tasks[0].GetHttpRequest().GetBody()), `"unfinished"`) {
		t.Errorf("recovery has booked %v", tasks)
	}
}
