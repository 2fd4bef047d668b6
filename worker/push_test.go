package worker_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"taskguard/internal/testing/emulatortest"
	"taskguard/worker"
)

func succeed(context.Context, worker.Job) (any, error) { return "done", nil }

type refuse struct{}

func (refuse) Check(*http.Request) error { return worker.ErrForbidden }

// message is the body of a push request of Pub/Sub, with these fields of the message.
func message(fields string) string {
	return `{"message":{` + fields + `,"messageId":"7","message_id":"7","publishTime":"2026-01-01T00:00:00Z"},` +
		`"subscription":"projects/p/subscriptions/s"}`
}

// data is the data of a message.
func data(s string) string { return `"data":"` + base64.StdEncoding.EncodeToString([]byte(s)) + `"` }

// deliver sends an event to h.
func deliver(t *testing.T, h http.Handler, document string, headers ...string) (code int, answer string) {
	t.Helper()
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, worker.Event(t, document, headers...))
	return rec.Code, strings.TrimSpace(rec.Body.String())
}

// requests_test.go has all forms of a message.
func TestWork_PubSub(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, log := openLogged(t, emulatortest.Embedded(t), nil)
		work := g.MustRegister(jobs(succeed))
		if _, err := work.Submit(t.Context(), "x", 21); err != nil {
			t.Fatal(err)
		}
		check := func(body string, code int, want string, rejected int) {
			t.Helper()
			checkPost(t, work.PubSub(), "/", body, code, want)
			if n := strings.Count(log.String(), "level=ERROR msg=rejected"); n != rejected {
				t.Errorf("%.100s: %d lines of rejections, want %d: %s", body, n, rejected, log)
			}
		}
		check(message(`"attributes":{"job_id":"x"}`), 200, `"status":"READY","lock_token":1}`, 0)
		check(message(data(`{"job_id":"y"}`)), 404, `"not_found"}`, 0) // the first try
		check(`{"job_id":"x"}`, 400, `"bad_request"`, 0)               // no message
		check(message(data(`{}`)), 200, `"bad_request"`, 1)
		check(message(data(strings.Repeat(" ", 1<<20))), 200, `{"reason":"too_large","rejected":true}`, 2)
	})
}

// The event is of a document that another program has written.
func TestWork_Eventarc(t *testing.T) {
	withGuard(t, func(t *testing.T, b *emulatortest.Backend, g *worker.Guard) {
		nested := jobs(succeed)
		nested.Name, nested.Collection, nested.Path = "nested", "tenants/a/jobs", "/tasks/nested"
		root := g.MustRegister(jobs(succeed)).Eventarc()
		handlers := map[string]http.Handler{"jobs": root, "tenants/a/jobs": g.MustRegister(nested).Eventarc()}
		for _, document := range []string{"jobs/x", "tenants/a/jobs/Helvétios", "jobs/a%2Fb", "jobs/a b"} {
			doc := collection(t, b, path.Dir(document)).Doc(path.Base(document))
			set(t, doc, map[string]any{"state": "PENDING", "payload": 21})
			for _, want := range []string{`"status":"READY","lock_token":1}`, `"reason":"already_finished"}`} {
				code, answer := deliver(t, handlers[path.Dir(document)], document)
				if code != 200 || !strings.HasSuffix(answer, want) {
					t.Errorf("%s: %d %s, want %s", document, code, answer, want)
				}
			}
			checkRecord(t, doc, map[string]any{"state": "DONE", "output": "done"})
		}

		check := func(h http.Handler, document, header, want string) {
			t.Helper()
			if code, answer := deliver(t, h, document, header); !strings.Contains(fmt.Sprint(code, answer), want) {
				t.Errorf("%s, %s: %d %s, want %s", document, header, code, answer, want)
			}
		}
		check(root, "jobs/x", "ce-project: "+b.Project, `"already_finished"`)
		check(root, "jobs/x", "ce-project: other", `"rejected":true`)
		check(root, "jobs/x", "ce-id: ", "400") // not an event
		other := open(t, b, func(o *worker.Options) { o.Database = "other" }).MustRegister(jobs(succeed)).Eventarc()
		check(other, "jobs/x", "ce-database: other", `"not_found"`)
		check(other, "jobs/x", "ce-database: (default)", `"rejected":true`)
		mine := open(t, b, func(o *worker.Options) { o.Collection = "mine" }).MustRegister(worker.Kind{Run: succeed})
		check(mine.Eventarc(), "mine/none", "ce-project: "+b.Project, `"not_found"`)
	})
}

// A message or an event then books one task, which runs.
func TestWork_WithoutRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, q := emulatortest.Embedded(t), worker.StartQueue(t)
		var runs atomic.Int32
		g := open(t, b, q.Use)
		work := g.MustRegister(jobs(func(context.Context, worker.Job) (any, error) {
			runs.Add(1)
			time.Sleep(20 * time.Minute) // longer than any acknowledgement deadline
			return "done", nil
		}))
		q.Serve(work.Handler())
		docs := collection(t, b, "jobs")
		for _, id := range []string{"x", "y"} {
			set(t, docs.Doc(id), map[string]any{"state": "PENDING"})
		}
		booking := work.WithoutRun()
		messages := booking.PubSub()
		check := func(h http.Handler, body, want string, code, tasks int) {
			t.Helper()
			checkPost(t, h, "/", body, code, want)
			if len(q.Tasks()) != tasks {
				t.Errorf("%s: tasks %v, want %d", body, q.Tasks(), tasks)
			}
		}
		const booked = `,"acquired":false,"reason":"booked"}`
		check(booking.Handler(), `{"job_id":"x"}`, "", 500, 0) // a task has to run it
		if work.Kind.Run == nil {
			t.Error("the kind itself has no Run any more")
		}

		began := time.Now()
		for n := range 2 { // the second is a duplicate
			check(messages, message(data(`{"job_id":"x"}`)), booked, 200, n+1)
			code, answer := deliver(t, booking.Eventarc(), "jobs/y")
			if code != 200 || !strings.Contains(answer, booked) {
				t.Errorf("an event: %d %s", code, answer)
			}
		}
		if took := time.Since(began); took > time.Minute {
			t.Errorf("the answers took %v", took)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if n := runs.Load(); n != 2 || len(q.Tasks()) != 2 {
			t.Errorf("%d runs of 2 documents, tasks %v", n, q.Tasks())
		}
		for _, id := range []string{"x", "y"} {
			checkRecord(t, docs.Doc(id), map[string]any{"state": "DONE"})
		}

		check(messages, strings.Replace(message(`"attributes":{"job_id":"x"}`), `"7"`, `"8"`, 1), booked, 200, 3)
		check(messages, message(data(`{"job_id":"a/b"}`)), `"rejected":true}`, 200, 3)
		other := g.MustRegister(worker.Kind{Name: "other", Collection: "others"}).PubSub()
		check(other, message(`"attributes":{"other_id":"x"}`), booked, 200, 4) // message 7, of another kind
		q.Fail(codes.PermissionDenied)
		check(messages, message(data(`{"job_id":"y"}`)), `"acquired":false,"reason":"unavailable"`, 503, 4)
	})
}

// A handler needs a Run or a Queue, and a check of its callers.
func TestGuard_Routes(t *testing.T) {
	withGuard(t, func(t *testing.T, b *emulatortest.Backend, g *worker.Guard) {
		unchecked := open(t, b, func(o *worker.Options) { o.Auth = nil })
		if work, err := unchecked.Register(jobs(succeed)); err == nil {
			t.Errorf("a guard without an Authenticator registers %v", work)
		}
		if _, err := unchecked.Routes(); err == nil {
			t.Error("a guard without an Authenticator has routes")
		}
		checkPost(t, unchecked.Recovery(), "/", "", http.StatusUnauthorized, "")
		checkPost(t, unchecked.MustRegister(jobs(nil)).PubSub(), "/", "", http.StatusUnauthorized, "")

		work := g.MustRegister(jobs(nil))
		for _, wrong := range []*worker.Work{nil, work, open(t, b, nil).MustRegister(jobs(succeed))} {
			if _, err := g.Routes(wrong); err == nil {
				t.Errorf("routes of %+v", wrong)
			}
		}
		for _, h := range []http.Handler{work.Handler(), work.PubSub(), work.Eventarc()} {
			checkPost(t, h, "/", `{"job_id":"x"}`, http.StatusInternalServerError, "")
			if code := get(t, h, "/"); code != http.StatusMethodNotAllowed {
				t.Errorf("GET is answered %d", code)
			}
		}
		wrong := jobs(succeed)
		wrong.Collection = "a/b"
		checkPanic(t, `a/b`, func() { g.MustRegister(wrong) })
	})
}
