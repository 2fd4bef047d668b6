package browser

import (
	"bufio"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"

	"taskguard/cmd/chromiumtest"
	"taskguard/emulator/cloudtasks"
	"taskguard/emulator/emulatortest"
	"taskguard/lease/iso8601"
)

// site is a console, what it shows, and a worker that only notes what is delivered.
type site struct {
	*emulatortest.Backend
	t     *testing.T
	env   []string
	flags []string
	link  *link // between the console and Firestore
	url   string
	stop  func() error // ends the console as Ctrl-C does
	runs  *os.Process  // the console

	mu        sync.Mutex
	delivered []string // bodies
}

// newSite starts `taskguard console` with these flags besides, on any port.
func newSite(t *testing.T, flags ...string) *site {
	t.Helper()
	s := &site{Backend: emulatortest.Embedded(t), t: t, flags: flags}
	store := listen(t, "127.0.0.1:0")
	var serving sync.WaitGroup
	serving.Go(func() { _ = s.Server.Serve(store) }) // until it is closed
	t.Cleanup(func() { s.Server.Close(); serving.Wait() })
	s.link = newLink(t, store.Addr().String())
	worker := httptest.NewServer(http.HandlerFunc(s.deliver))
	t.Cleanup(worker.Close)
	queue := "projects/" + s.Project + "/locations/local/queues/analyses"
	s.env = append(os.Environ(), "GOOGLE_CLOUD_PROJECT="+s.Project, "FIRESTORE_EMULATOR_HOST="+s.link.address,
		"TASK_QUEUE="+queue, "TASK_TARGET_URL="+worker.URL, "CLOUD_TASKS_EMULATOR_HOST="+serveTasks(t, queue))
	s.start("0")
	t.Cleanup(func() {
		if err := s.stop(); err != nil {
			t.Errorf("the console: %v", err)
		}
	})
	return s
}

func listen(t *testing.T, address string) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// serveTasks answers the address of a Cloud Tasks that has this queue.
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
	_, err = cloudtaskspb.NewCloudTasksClient(conn).CreateQueue(t.Context(), &cloudtaskspb.CreateQueueRequest{Parent: location, Queue: &cloudtaskspb.Queue{Name: queue}})
	if err != nil {
		t.Fatal(err)
	}
	return l.Addr().String()
}

func (s *site) deliver(_ http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body) // a delivery that breaks off comes again
	s.mu.Lock()
	defer s.mu.Unlock()
	s.delivered = append(s.delivered, string(body))
}

var addressSaid = regexp.MustCompile(`the console: (http://[^/]+)/`)

// start is a process of the console on port.
func (s *site) start(port string) {
	s.t.Helper()
	path, err := taskguard()
	if err != nil {
		s.t.Fatal(err)
	}
	cmd := exec.Command(path, append([]string{"console", "--port", port}, s.flags...)...)
	cmd.Env = s.env
	said, err := cmd.StderrPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.runs = cmd.Process
	found := make(chan string, 1)
	var reading sync.WaitGroup
	reading.Go(func() {
		defer close(found)
		for lines := bufio.NewScanner(said); lines.Scan(); {
			if m := addressSaid.FindStringSubmatch(lines.Text()); m != nil {
				found <- m[1]
			}
		}
	})
	s.stop = sync.OnceValue(func() error {
		_ = cmd.Process.Signal(os.Interrupt) // it may have ended, which Wait says
		reading.Wait()
		return cmd.Wait()
	})
	url, ok := <-found
	if !ok {
		s.t.Fatalf("the console does not start: %v", s.stop())
	}
	s.url = url
}

// analysis writes the analysis id as another program would: created at, and updated
// now, unless fields say otherwise.
func (s *site) analysis(id string, fields map[string]any) {
	s.t.Helper()
	now := iso8601.Format(time.Now())
	all := map[string]any{"createdAt": now, "updatedAt": now}
	maps.Copy(all, fields)
	maps.DeleteFunc(all, func(_ string, v any) bool { return v == nil })
	s.Put(s.t, id, all)
}

// locked are the fields of an analysis that somebody works on for this much longer.
func locked(left time.Duration) map[string]any {
	return map[string]any{
		"status": "PROCESSING", "attempts": 1, "lockOwner": "taskguard-worker-00042-kib/0087244a81b5c3/9f2c4d", "lockToken": 7,
		"lockHeartbeatAt": iso8601.Format(time.Now()), "lockExpiresAt": iso8601.Format(time.Now().Add(left)),
	}
}

// deliveries are the bodies of what was delivered so far.
func (s *site) deliveries() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.delivered)
}

// wantDelivery waits for the one delivery of the analysis id.
func (s *site) wantDelivery(id string) {
	s.t.Helper()
	deadline := time.Now().Add(chromiumtest.Patience)
	for len(s.deliveries()) == 0 && time.Now().Before(deadline) {
		time.Sleep(20 * time.Millisecond)
	}
	if got := s.deliveries(); len(got) != 1 || !strings.Contains(got[0], `"`+id+`"`) {
		s.t.Errorf("delivered are %q, want %s", got, id)
	}
}

// get is an answer of the console to a browser's address bar.
func (s *site) get(path string) (status int, body string) {
	s.t.Helper()
	resp, err := http.Get(s.url + path)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return resp.StatusCode, string(data)
}
