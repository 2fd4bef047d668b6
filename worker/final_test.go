package worker_test

import (
	"context"
	"maps"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"taskguard/internal/testing/emulatortest"
	"taskguard/worker"
)

func TestADocumentWithAFinalWordIsLeftAlone(t *testing.T) {
	const past = "1999-12-31T00:00:00.000Z"
	left := map[string]any{ // by a run that has crashed
		"attempts": int64(1), "lockOwner": "them", "lockToken": int64(3), "lockExpiresAt": past,
		"nextAttemptAt": past, "createdAt": past, "updatedAt": past,
	}
	for name, k := range map[string]worker.Kind{"analysis": {}, "another vocabulary": jobs(nil)} {
		synctest.Test(t, func(t *testing.T) {
			b, q := emulatortest.Embedded(t), worker.StartQueue(t)
			g := open(t, b, q.Use)
			docs, field, result, path := collection(t, b, "analyses"), "status", "result", "/internal/tasks/analysis"
			if k.Name == "job" {
				docs, field, result, path = collection(t, b, "jobs"), "state", "output", "/tasks/job"
			}
			k.Fields.Final = strings.Fields("VOID ARCHIVED u v w x") // as many as there can be
			k.Run = func(context.Context, worker.Job) (any, error) {
				set(t, docs.Doc("running"), map[string]any{field: "ARCHIVED", result: "theirs"})
				return "dropped", nil
			}
			h := g.Routes(k)
			deliver := func(id, want string) {
				t.Helper()
				body := `{"analysis_id":"` + id + `","job_id":"` + id + `"}`
				if code, answer := post(t, h, path, body); code != http.StatusOK || !strings.Contains(answer, want) {
					t.Errorf("%s: the delivery of %s is answered %d %s, want %s", name, id, code, answer, want)
				}
			}

			archived := maps.Clone(left)
			archived[field] = "ARCHIVED"
			set(t, docs.Doc("archived"), archived)
			deliver("archived", `"status":"ARCHIVED","reason":"already_finished"`)
			if s, err := worker.Submit(t.Context(), g, k, "archived", nil); err != nil || s.Booked || s.Status != "ARCHIVED" {
				t.Errorf("%s: submitted again: %+v, %v", name, s, err)
			}
			if err := worker.Book(t.Context(), g, k, "archived"); err != nil || len(q.Tasks()) > 0 {
				t.Errorf("%s: booked %q, %v", name, q.Tasks(), err)
			}
			if _, answer := post(t, h, "/internal/tasks/recover", ""); !strings.Contains(answer, `"found":0,`) {
				t.Errorf("%s: recovery answers %s", name, answer)
			}
			if diff := cmp.Diff(archived, fields(t, docs.Doc("archived"))); diff != "" {
				t.Errorf("%s: the document has changed (-was +is):\n%s", name, diff)
			}

			set(t, docs.Doc("running"), map[string]any{field: "archived"}) // another word
			deliver("running", `"acquired":true,"status":"ARCHIVED"`)
			checkRecord(t, docs.Doc("running"), map[string]any{field: "ARCHIVED", result: "theirs", "lockOwner": nil})
			deliver("running", `"status":"ARCHIVED","reason":"already_finished"`)
		})
	}
}
