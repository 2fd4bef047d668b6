package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	fs "cloud.google.com/go/firestore"

	"taskguard/internal/testing/must"
	guarded "taskguard/worker"
	"taskguard/worker/workertest"
)

// moved is the kind of docs/from-your-own-lock.md, for documents and tasks that exist already.
func moved(writeReport func(ctx context.Context, job guarded.Job) (any, error)) guarded.Kind {
	return guarded.Kind{
		Name: "report", Collection: "reports", Path: "/tasks/report", IDField: "reportId",
		Fields: guarded.Fields{
			Status: "state", Queued: "NEW", Processing: "RUNNING", Finished: "DONE", Failed: "ERROR",
		},
		Run: writeReport,
	}
}

// move opens a worker of a kind, and the documents of its collection.
func move(t *testing.T, kind guarded.Kind) (docs *fs.CollectionRef, deliver func(body string) int) {
	t.Helper()
	rig := workertest.New(t)
	options := rig.Options(guarded.Options{})
	db := must.Get(fs.NewClient(t.Context(), options.Project, options.FirestoreOptions...))(t)
	work := rig.Guard(guarded.Options{}).MustRegister(kind)
	rig.Mux.Handle("POST "+work.Path, work.Handler())
	return db.Collection(work.Collection), func(body string) int {
		answer := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, work.Path, strings.NewReader(body))
		rig.Mux.ServeHTTP(answer, r)
		return answer.Code
	}
}

func get(t *testing.T, doc *fs.DocumentRef) map[string]any {
	t.Helper()
	return must.Get(doc.Get(t.Context()))(t).Data()
}

func TestMove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		docs, deliver := move(t, moved(func(context.Context, guarded.Job) (any, error) { return "a report", nil }))
		held := time.Now().Add(time.Hour).UTC()
		old := map[string]any{"state": "NEW", "lockedBy": "old", "lockedUntil": held}
		must.Get(docs.Doc("x").Set(t.Context(), old))(t)

		if code := deliver(`{"reportId": "x", "priority": 1}`); code != http.StatusOK {
			t.Errorf("answered %d", code)
		}
		got := get(t, docs.Doc("x"))
		if got["state"] != "DONE" || got["result"] != "a report" {
			t.Errorf("%v, want DONE with the report: the old lock has another name, and holds nobody", got)
		}
		if until, _ := got["lockedUntil"].(time.Time); got["lockedBy"] != "old" || !until.Equal(held) {
			t.Errorf("the application's own fields are %v and %v", got["lockedBy"], got["lockedUntil"])
		}
	})
}

// designed decides as the original design does, by the machine's clock.
func designed(fields map[string]any) (acquired bool) {
	if fields["status"] == "READY" || fields["status"] == "FAILED" {
		return false
	}
	text, _ := fields["lockExpiresAt"].(string)
	until, err := time.Parse("2006-01-02T15:04:05.000Z", text)
	return fields["lockOwner"] == nil || err != nil || !until.After(time.Now())
}

func TestMove_SameFields(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var runs atomic.Int32
		docs, deliver := move(t, guarded.Kind{Run: func(context.Context, guarded.Job) (any, error) {
			runs.Add(1)
			time.Sleep(12 * time.Minute)
			return "done", nil
		}})
		doc := docs.Doc("x")
		until := time.Now().Add(5 * time.Minute).UTC().Format("2006-01-02T15:04:05.000Z")
		old := map[string]any{"status": "QUEUED", "lockOwner": "old", "lockExpiresAt": until}
		must.Get(doc.Set(t.Context(), old))(t)

		if code := deliver(`{"analysis_id": "x"}`); code != http.StatusOK || runs.Load() > 0 {
			t.Errorf("answered %d after %d runs, while the old worker has the lock", code, runs.Load())
		}
		for range 16 { // the follow-up comes when the old lock has expired
			time.Sleep(time.Minute)
			if fields := get(t, doc); runs.Load() == 1 && designed(fields) {
				t.Errorf("after %d runs the old worker would take %v", runs.Load(), fields)
			}
		}
		time.Sleep(5 * time.Minute)
		fields := get(t, doc)
		if runs.Load() != 1 || fields["status"] != "READY" {
			t.Errorf("%d runs, then %v", runs.Load(), fields)
		}
		if designed(fields) {
			t.Errorf("the old worker would take %v", fields)
		}
	})
}
