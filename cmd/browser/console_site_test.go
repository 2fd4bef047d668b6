package browser

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"

	"taskguard/cmd/internal/cli"
	"taskguard/cmd/internal/operate"
	"taskguard/emulator/cloudtasks"
	"taskguard/internal/testing/emulatortest"
	"taskguard/lease/iso8601"
)

// site is a console, what it shows, and a worker that records what is delivered.
type site struct {
	*emulatortest.Backend
	t     *testing.T
	env   map[string]string
	flags []string
	store *link // between the console and Firestore
	front *link // between the browser and the console; nil: none
	url   string
	stop  func() // ends the console as Ctrl-C does

	profile *Profile

	mu        sync.Mutex
	delivered []string // paths and bodies
}

// newSite starts `taskguard console` with these flags.
func newSite(t *testing.T, flags ...string) *site {
	t.Helper()
	s := &site{Backend: emulatortest.Embedded(t), t: t, flags: flags, profile: NewProfile(t)}
	store := listen(t, "127.0.0.1:0")
	var serving sync.WaitGroup
	serving.Go(func() { _ = s.Server.Serve(store) }) // until it is closed
	t.Cleanup(func() { s.Server.Close(); serving.Wait() })
	s.store = newLink(t, store.Addr().String())
	worker := httptest.NewServer(http.HandlerFunc(s.deliver))
	t.Cleanup(worker.Close)
	queue := "projects/" + s.Project + "/locations/local/queues/analyses"
	s.env = map[string]string{
		"GOOGLE_CLOUD_PROJECT": s.Project, "FIRESTORE_EMULATOR_HOST": s.store.address,
		"TASK_QUEUE": queue, "TASK_TARGET_URL": worker.URL, "CLOUD_TASKS_EMULATOR_HOST": serveTasks(t, queue),
	}
	s.start("0")
	t.Cleanup(func() { s.stop() })
	return s
}

// behindLink puts a link between the browser and the console.
func (s *site) behindLink() {
	s.front = newLink(s.t, strings.TrimPrefix(s.url, "http://"))
	s.url = "http://" + s.front.address
}

// pollFaster is a script that makes a page poll every second instead of every four.
const pollFaster = `const wait = setTimeout;
	globalThis.setTimeout = (call, ms) => wait(call, ms / 4);`

// open opens a page of the console in which scripts run before the page's own.
func (s *site) open(path string, scripts ...string) *Tab {
	s.t.Helper()
	return s.profile.Open(s.url+path, append([]string{pollFaster}, scripts...)...)
}

var consoleAddress = regexp.MustCompile(`the console: (http://[^/]+)/`)

// start runs the console on port.
func (s *site) start(port string) {
	s.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	log, ended := &emulatortest.Log{}, make(chan int, 1)
	go func() {
		lookup := func(name string) (string, bool) { v, ok := s.env[name]; return v, ok }
		ended <- cli.Run(ctx, []cli.Command{{Name: "console", Run: operate.Console}}, append([]string{"console", "--port", port}, s.flags...),
			cli.Streams{In: strings.NewReader(""), Out: io.Discard, Err: log}, lookup)
	}()
	s.stop = sync.OnceFunc(func() {
		cancel()
		if code := <-ended; code != cli.ExitDone {
			s.t.Errorf("the console: exit %d\n%s", code, log)
		}
	})
	for deadline := time.Now().Add(Patience); ; time.Sleep(10 * time.Millisecond) {
		if m := consoleAddress.FindStringSubmatch(log.String()); m != nil {
			s.url = m[1]
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("the console does not start: %s", log)
		}
	}
}

func listen(t *testing.T, address string) net.Listener {
	t.Helper()
	l := must(net.Listen("tcp", address))(t)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// serveTasks returns the address of a Cloud Tasks emulator that has this queue.
func serveTasks(t *testing.T, queue string) (address string) {
	t.Helper()
	tasks, l := cloudtasks.NewServer(cloudtasks.Options{}), listen(t, "127.0.0.1:0")
	var serving sync.WaitGroup
	serving.Go(func() { _ = tasks.Serve(l) }) // until it is closed
	t.Cleanup(func() { tasks.Close(); serving.Wait() })
	conn, err := tasks.Dial()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close() //nolint:errcheck // nothing is under way
	location, _, _ := strings.Cut(queue, "/queues/")
	must(cloudtaskspb.NewCloudTasksClient(conn).CreateQueue(t.Context(), &cloudtaskspb.CreateQueueRequest{Parent: location, Queue: &cloudtaskspb.Queue{Name: queue}}))(t)
	return l.Addr().String()
}

func (s *site) deliver(_ http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body) // a delivery that breaks off is repeated
	s.mu.Lock()
	defer s.mu.Unlock()
	s.delivered = append(s.delivered, r.URL.Path+" "+string(body))
}

// analysis writes the analysis id as another program would: created and updated now,
// unless fields has these times.
func (s *site) analysis(id string, fields map[string]any) {
	s.t.Helper()
	now := iso8601.Format(time.Now())
	all := map[string]any{"createdAt": now, "updatedAt": now}
	maps.Copy(all, fields)
	maps.DeleteFunc(all, func(_ string, v any) bool { return v == nil })
	s.Put(s.t, id, all)
}

// update changes fields as a worker does, with updatedAt.
func (s *site) update(id string, fields map[string]any) {
	s.t.Helper()
	all := map[string]any{"updatedAt": iso8601.Format(time.Now())}
	maps.Copy(all, fields)
	s.Merge(s.t, id, all)
}

// locked returns the fields of an analysis whose lock ends after left.
func locked(left time.Duration) map[string]any {
	return map[string]any{
		"status": "PROCESSING", "attempts": 1, "lockOwner": "taskguard-worker-00042-kib/0087244a81b5c3/9f2c4d", "lockToken": 7,
		"lockHeartbeatAt": iso8601.Format(time.Now()), "lockExpiresAt": iso8601.Format(time.Now().Add(left)),
	}
}

// reported adds to fields what a run has reported, and its attempts.
func reported(fields map[string]any) map[string]any {
	at := func(ago time.Duration) string { return iso8601.Format(time.Now().Add(-ago)) }
	fields["progress"] = map[string]any{"fraction": 0.4, "message": words, "at": at(3 * time.Second)}
	fields["history"] = []any{
		map[string]any{"attempt": 1, "token": 5, "owner": words, "startedAt": at(time.Hour), "endedAt": at(50 * time.Minute), "outcome": "retry", "code": "exit_1", "message": words[:256]},
		map[string]any{"attempt": 2, "token": 6, "owner": "w/2", "startedAt": at(20 * time.Minute)},
		map[string]any{"attempt": 3, "token": 7, "owner": fields["lockOwner"], "startedAt": at(time.Minute)},
	}
	return fields
}

// deliveries returns the paths and bodies delivered so far.
func (s *site) deliveries() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.delivered)
}

// wantDelivery waits for the one delivery of the analysis id.
func (s *site) wantDelivery(id string) {
	s.t.Helper()
	deadline := time.Now().Add(Patience)
	for len(s.deliveries()) == 0 && time.Now().Before(deadline) {
		time.Sleep(20 * time.Millisecond)
	}
	if got := s.deliveries(); len(got) != 1 || !strings.Contains(got[0], `"`+id+`"`) {
		s.t.Errorf("delivered are %q, want %s", got, id)
	}
}

// words is a long text of a document that contains markup.
var words = "<b>the</b> document's text is not \"UTF-8\" & cannot be read; " + strings.Repeat("a-very-long-word-without-a-place-to-break-it", 8)

// traceback is a message whose last line is its meaning.
var traceback = "Traceback (most recent call last):\n  File \"/app/analyze.py\", line 41, in main\n" + strings.Repeat("    step(document)\n", 12) + "KeyError: 'invoice_number'\n"

// states has an analysis in each state.
var states = []struct {
	id, state, lock string
	fields          func() map[string]any
}{
	{"queued", "QUEUED", "free", func() map[string]any {
		return map[string]any{"status": "QUEUED", "input": map[string]any{"text": "the input"}, "lastError": map[string]any{"code": "failed", "message": words}, "attempts": 1}
	}},
	{"held", "PROCESSING", "held", func() map[string]any { return reported(locked(5 * time.Minute)) }},
	{"stale", "PROCESSING", "stale", func() map[string]any { return locked(-time.Minute) }},
	{"ready", "READY", "free", func() map[string]any {
		return map[string]any{"status": "READY", "attempts": 1, "result": map[string]any{"words": 5, "top": "the result"}, "lockToken": 3, "finishedBy": "a/b/c"}
	}},
	{"failed", "FAILED", "free", func() map[string]any {
		return map[string]any{"status": "FAILED", "attempts": 10, "lockToken": 10, "checkpoint": "page 7", "error": map[string]any{"code": "attempts_exhausted", "message": "attempt 10 was the last: " + traceback}, "lastError": map[string]any{"code": "exit_1", "message": traceback}}
	}},
	{"foreign", "ARCHIVED", "free", func() map[string]any { return map[string]any{"status": "ARCHIVED"} }},
	{"without", "no status", "free", func() map[string]any { return map[string]any{"input": "the input"} }},
	{"malformed", "PROCESSING", "malformed", func() map[string]any {
		return map[string]any{"status": "PROCESSING", "lockOwner": "unknown", "lockToken": "seven", "lockExpiresAt": "tomorrow"}
	}},
}

// longID is longer than a column of the list.
var longID = "2026/11/21—Überweisung—" + strings.Repeat("0123456789", 20)

// withStates returns a site with an analysis in each state, and one with a long id.
func withStates(t *testing.T, flags ...string) *site {
	t.Helper()
	s := newSite(t, flags...)
	for _, c := range states {
		s.analysis(c.id, c.fields())
	}
	s.analysis(strings.ReplaceAll(longID, "/", "-"), map[string]any{"status": strings.Repeat("EINGEFROREN", 12), "attempts": 123456})
	return s
}

// row returns a script for the row of the analysis id.
func row(id string) string {
	return fmt.Sprintf(`document.querySelector('#rows [data-id=%q]')`, id)
}
