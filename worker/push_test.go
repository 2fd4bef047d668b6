package worker_test

import (
	"bufio"
	"context"
	"encoding/base64"
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

// message is the body of a push request of Pub/Sub, with these fields of the message.
func message(fields string) string {
	return `{"message":{` + fields + `,"messageId":"7","message_id":"7","publishTime":"2026-01-01T00:00:00Z"},"subscription":"projects/p/subscriptions/s"}`
}

// data is the data of a message.
func data(s string) string { return `"data":"` + base64.StdEncoding.EncodeToString([]byte(s)) + `"` }

// event is a request of Eventarc as it is sent, for the creation of a document. Its body begins
// as protobuf of a document does.
func event(document string, headers ...string) string {
	return "POST /events HTTP/1.1\r\nHost: worker.example\r\nce-id: 3f0c-1\r\nce-specversion: 1.0\r\n" +
		strings.Join(append(headers, "ce-type: google.cloud.firestore.document.v1.created"), "\r\n") +
		"\r\nce-database: (default)\r\nce-document: " + document + "\r\nce-subject: documents/" + document +
		"\r\ncontent-type: application/protobuf\r\ncontent-length: 5\r\n\r\n\n\xc3\x03\n\x54"
}

// deliver sends a request in its HTTP form.
func deliver(t *testing.T, h http.Handler, request string) (code int, answer string) {
	t.Helper()
	r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(request)))
	if err != nil {
		t.Fatal(err)
	}
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, r.WithContext(t.Context()))
	return rec.Code, strings.TrimSpace(rec.Body.String())
}

func TestAMessageOfPubSubIsHandledAsATask(t *testing.T) {
	const (
		done     = `{"job_id":"x","acquired":true,"status":"READY","lock_token":1}`
		rejected = `"rejected":true`
	)
	for name, c := range map[string]struct {
		body     string
		code     int
		answer   string // contains
		rejected bool
	}{
		"an attribute":             {message(`"attributes":{"job_id":"x","other":null}`), 200, done, false},
		"data":                     {message(data(`{"job_id":"x","more":1}`)), 200, done, false},
		"an attribute beside data": {message(`"attributes":{"job_id":"x"},` + data(`no JSON`)), 200, done, false},
		"a try":                    {strings.Replace(message(data(`{"job_id":"x"}`)), `"sub`, `"deliveryAttempt":9,"sub`, 1), 200, done, false},

		"no id":                     {message(data(`{}`)), 200, `the message's data: job_id is missing`, true},
		"an empty attribute":        {message(`"attributes":{"job_id":""}`), 200, `"bad_request"`, true},
		"data that is no JSON":      {message(data(`x`)), 200, `the message's data: the body is not the JSON object`, true},
		"data that is not base64":   {message(`"data":"-"`), 200, `not a wrapped message`, true},
		"over 1 MiB":                {message(data(strings.Repeat(" ", 1<<20))), 200, `{"reason":"too_large",` + rejected + `}`, true},
		"missing, at the sixth try": {strings.Replace(message(data(`{"job_id":"y"}`)), `"sub`, `"deliveryAttempt":6,"sub`, 1), 200, `"not_found",` + rejected, true},

		"missing, at an unknown try": {message(data(`{"job_id":"y"}`)), 404, `"not_found"}`, false},
		"missing, at a negative try": {strings.Replace(message(data(`{"job_id":"y"}`)), `"sub`, `"deliveryAttempt":-9,"sub`, 1), 404, `"not_found"}`, false},
		"not wrapped":                {`{"job_id":"x"}`, 400, `not a wrapped message`, false},
		"no message's id":            {`{"message":{"attributes":{"job_id":"x"}}}`, 400, `not a wrapped message`, false},
		"no UTF-8":                   {message("\"attributes\":{\"job_id\":\"\xff\"}"), 200, `not a wrapped message`, true},
	} {
		worker.Subtest(t, name, func(t *testing.T) {
			g, log := openLogged(t, emulatortest.Embedded(t), nil)
			work := g.MustRegister(jobs(succeed))
			if _, err := work.Submit(t.Context(), "x", 21); err != nil {
				t.Fatal(err)
			}
			code, answer := post(t, work.PubSub(), "/messages", c.body)
			if code != c.code || !strings.Contains(answer, c.answer) || strings.Contains(answer, rejected) != c.rejected {
				t.Errorf("%d %s, want %d %s", code, answer, c.code, c.answer)
			}
			if errs := strings.Count(log.String(), "level=ERROR msg=rejected"); errs != 1 && c.rejected || errs > 0 && !c.rejected {
				t.Errorf("log: %s", log)
			}
		})
	}
}

func TestAnEventOfADocumentOfAnotherProgramRunsIt(t *testing.T) {
	withGuard(t, func(t *testing.T, b *emulatortest.Backend, g *worker.Guard) {
		nested := jobs(succeed)
		nested.Name, nested.Collection, nested.Path = "nested", "tenants/a/jobs", "/tasks/nested"
		handlers := map[string]http.Handler{"jobs": g.MustRegister(jobs(succeed)).Eventarc(), "tenants/a/jobs": g.MustRegister(nested).Eventarc()}
		for _, document := range []string{"jobs/x", "tenants/a/jobs/x", "jobs/Helvétios", "jobs/a%2Fb", "jobs/a b"} {
			parent, id := path.Split(document)
			parent = strings.TrimSuffix(parent, "/")
			doc := collection(t, b, parent).Doc(id)
			set(t, doc, map[string]any{"state": "PENDING", "payload": 21}) // by another program
			for _, want := range []string{`"acquired":true,"status":"READY","lock_token":1}`, `"reason":"already_finished"}`} {
				if code, answer := deliver(t, handlers[parent], event(document)); code != 200 || !strings.HasSuffix(answer, want) {
					t.Errorf("%s: %d %s, want %s", document, code, answer, want)
				}
			}
			checkRecord(t, doc, map[string]any{"state": "DONE", "output": "done"})
		}
		for _, header := range []string{"ce-type: google.cloud.firestore.document.v1.created.withAuthContext", "ce-project: " + b.Project} {
			if code, answer := deliver(t, handlers["jobs"], event("jobs/x", header)); code != 200 || !strings.Contains(answer, "already_finished") {
				t.Errorf("with %s: %d %s", header, code, answer)
			}
		}
		for name, request := range map[string]string{
			"another type":                    event("jobs/x", "ce-type: google.cloud.firestore.document.v1.written"),
			"another type, so far unknown":    event("jobs/x", "ce-type: google.cloud.firestore.document.v1.created.other"),
			"another database":                event("jobs/x", "ce-database: other"),
			"another project":                 event("jobs/x", "ce-project: other"),
			"another collection":              event("works/x"),
			"a collection of the same suffix": event("tenants/a/jobs/x"),
			"a collection of the same prefix": event("jobsx/x"),
			"a document of a document":        event("jobs/x/parts/y"),
			"the collection":                  event("jobs/"),
			"no document":                     event(""),
		} {
			if code, answer := deliver(t, handlers["jobs"], request); code != 200 || !strings.Contains(answer, `"reason":"bad_request"`) || !strings.HasSuffix(answer, `"rejected":true}`) {
				t.Errorf("%s: %d %s", name, code, answer)
			}
			if _, answer := deliver(t, handlers["jobs"], request); name == "another project" && !strings.Contains(answer, "the event is not from the project "+b.Project) {
				t.Errorf("%s: %s", name, answer)
			}
		}
		other := open(t, b, func(o *worker.Options) { o.Database = "other" }).MustRegister(jobs(succeed)).Eventarc()
		for header, want := range map[string]string{"ce-database: other": `"reason":"not_found"`, "ce-database: (default)": `"rejected":true`} {
			if _, answer := deliver(t, other, event("jobs/x", header)); !strings.Contains(answer, want) {
				t.Errorf("to a guard of another database, with %s: %s", header, answer)
			}
		}
		mine := open(t, b, func(o *worker.Options) { o.Collection = "mine" }).MustRegister(worker.Kind{Run: succeed}).Eventarc()
		if _, answer := deliver(t, mine, event("mine/none")); !strings.Contains(answer, `"reason":"not_found"`) {
			t.Errorf("the collection of the options: %s", answer)
		}
		structured := strings.Replace(event("jobs/x"), "ce-id: 3f0c-1\r\n", "", 1)
		if code, answer := deliver(t, handlers["jobs"], structured); code != 400 {
			t.Errorf("without ce-id: %d %s", code, answer)
		}
	})
}

func TestAMessageForAKindWithoutRunBooksOneTaskThatRuns(t *testing.T) {
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
		messages, events := booking.PubSub(), booking.Eventarc()
		if code, _ := post(t, booking.Handler(), "/tasks/job", `{"job_id":"x"}`); code != 500 || work.Kind.Run == nil {
			t.Errorf("a task of a kind without Run is answered %d; the kind has its Run: %t", code, work.Kind.Run != nil)
		}
		const want = `","acquired":false,"reason":"booked"}`
		began := time.Now()
		for range 2 { // the second is a duplicate
			if code, answer := post(t, messages, "/", message(data(`{"job_id":"x"}`))); code != 200 || strings.TrimSpace(answer) != `{"job_id":"x`+want {
				t.Errorf("%d %s, want %s", code, answer, want)
			}
			if code, answer := deliver(t, events, event("jobs/y")); code != 200 || answer != `{"job_id":"y`+want {
				t.Errorf("%d %s, want %s", code, answer, want)
			}
		}
		if took := time.Since(began); took > time.Minute {
			t.Errorf("the answers took %v", took)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if names := q.Tasks(); runs.Load() != 2 || len(names) != 2 {
			t.Errorf("%d runs, tasks %v", runs.Load(), names)
		}
		another := strings.Replace(message(`"attributes":{"job_id":"x"}`), `"7"`, `"8"`, 1)
		if code, answer := post(t, messages, "/", another); code != 200 || !strings.Contains(answer, want) || len(q.Tasks()) != 3 {
			t.Errorf("another message for the same document: %d %s, tasks %v", code, answer, q.Tasks())
		}
		for _, id := range []string{"x", "y"} {
			checkRecord(t, docs.Doc(id), map[string]any{"state": "DONE"})
		}
		if code, answer := post(t, messages, "/", message(data(`{"job_id":"a/b"}`))); code != 200 || !strings.HasSuffix(strings.TrimSpace(answer), `"rejected":true}`) {
			t.Errorf("an id that is a path: %d %s", code, answer)
		}
		other := message(`"attributes":{"other_id":"x"}`) // of the same id, for the same id of another kind
		if code, answer := post(t, g.MustRegister(worker.Kind{Name: "other", Collection: "others"}).PubSub(), "/", other); code != 200 || len(q.Tasks()) != 4 {
			t.Errorf("a message of another kind: %d %s, tasks %v", code, answer, q.Tasks())
		}
		q.Fail(codes.PermissionDenied)
		if code, answer := post(t, messages, "/", message(data(`{"job_id":"y"}`))); code != 503 || !strings.Contains(answer, `"acquired":false,"reason":"unavailable"`) {
			t.Errorf("not booked: %d %s", code, answer)
		}
	})
}

type refuse struct{}

func (refuse) Check(*http.Request) error { return worker.ErrForbidden }

func TestAHandlerNeedsARunOrAQueueAndACheckOfItsCallers(t *testing.T) {
	withGuard(t, func(t *testing.T, b *emulatortest.Backend, g *worker.Guard) {
		unchecked := open(t, b, func(o *worker.Options) { o.Auth = nil })
		if work, err := unchecked.Register(jobs(succeed)); err == nil || !strings.Contains(err.Error(), "nothing checks the callers") {
			t.Errorf("a guard without an Authenticator: %v, %v", work, err)
		}
		for name, h := range map[string]http.Handler{"recovery": unchecked.Recovery(), "messages": unchecked.MustRegister(jobs(nil)).PubSub()} {
			if code, answer := post(t, h, "/", ""); code != http.StatusUnauthorized {
				t.Errorf("%s without an Authenticator: %d %s", name, code, answer)
			}
		}
		if _, err := unchecked.Routes(); err == nil || !strings.Contains(err.Error(), "nothing checks the callers") {
			t.Errorf("routes without an Authenticator: %v", err)
		}

		work := g.MustRegister(jobs(nil))
		for name, foreign := range map[string]*worker.Work{"nil": nil, "another guard's": open(t, b, nil).MustRegister(jobs(nil))} {
			if _, err := g.Routes(foreign); err == nil || !strings.Contains(err.Error(), "Register of this Guard") {
				t.Errorf("routes of %s: %v", name, err)
			}
		}
		if _, err := g.Routes(work); err == nil || !strings.Contains(err.Error(), `kind "job" has no Run`) {
			t.Errorf("routes of a kind without Run: %v", err)
		}
		for name, h := range map[string]http.Handler{"tasks": work.Handler(), "messages": work.PubSub(), "events": work.Eventarc()} {
			if code, answer := post(t, h, "/", `{"job_id":"x"}`); code != http.StatusInternalServerError {
				t.Errorf("%s of a kind without Run: %d %s", name, code, answer)
			}
		}
		wrong := jobs(succeed)
		wrong.Collection = "a/b"
		checkPanic(t, `a/b`, func() { g.MustRegister(wrong) })
	})
}
