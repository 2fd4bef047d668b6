package chaos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	fs "cloud.google.com/go/firestore"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"taskguard/emulator/emulatortest"
	"taskguard/emulator/firestore"
	"taskguard/emulator/google"
)

// patience is when a test gives up on something that should come at once, or
// when a TTL has passed.
const patience = time.Minute

// stage is where a test plays: a Firestore behind a proxy, and an analyzer.
type stage struct {
	project  string
	docs     *fs.Client // another program's: past the proxy
	proxy    *proxy
	analyzer *analyzer
	queue    *queue       // nil: workers have none
	workers  atomic.Int64 // started so far
}

// newStage is on Google's emulator where it is installed, else on an embedded
// Firestore.
func newStage(t testing.TB, analyze func(*run) int) *stage {
	t.Helper()
	_, err := google.Find()
	if errors.Is(err, google.ErrNotFound) && !emulatortest.Required() {
		return newStageOn(t, embedded(t), analyze)
	}
	return newStageOn(t, emulatortest.Google(t), analyze)
}

func embedded(t testing.TB) (host string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := firestore.NewServer(firestore.Options{})
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Close()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

func newStageOn(t testing.TB, host string, analyze func(*run) int) *stage {
	t.Helper()
	s := &stage{project: emulatortest.Project(), proxy: newProxy(t, host), analyzer: newAnalyzer(t, analyze)}
	conn, err := grpc.NewClient(host, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithPerRPCCredentials(owner{}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if s.docs, err = fs.NewClient(t.Context(), s.project, option.WithGRPCConn(conn)); err != nil {
		t.Fatal(err)
	}
	return s
}

// owner is what Google's library says to emulators.
type owner struct{}

func (owner) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer owner"}, nil
}

func (owner) RequireTransportSecurity() bool { return false }

// environment is that of the next worker, whose number is also answered.
func (s *stage) environment(env ...string) (number int, all []string, err error) {
	number = int(s.workers.Add(1))
	host, err := s.proxy.listen(number)
	if err != nil {
		return 0, nil, err
	}
	all = []string{
		"PORT=0", "TASK_AUTH=none", "GOOGLE_CLOUD_PROJECT=" + s.project, "FIRESTORE_EMULATOR_HOST=" + host,
		"LOCK_TTL=4s", "LOCK_HEARTBEAT=1s", s.analyzer.spec(number),
	}
	if s.queue != nil {
		all = append(all, "TASK_QUEUE="+s.queue.name, "TASK_TARGET_URL=http://worker.test", "CLOUD_TASKS_EMULATOR_HOST="+s.queue.host)
	}
	return number, append(all, env...), nil
}

// start starts a worker, to which the queue delivers from now on, if there is
// one.
func (s *stage) start(t testing.TB, env ...string) *process {
	t.Helper()
	number, p := s.startApart(t, env...)
	if s.queue != nil {
		s.queue.front.join(number, p.address)
	}
	return p
}

// startApart starts a worker to which the queue does not deliver.
func (s *stage) startApart(t testing.TB, env ...string) (number int, p *process) {
	t.Helper()
	number, all, err := s.environment(env...)
	if err != nil {
		t.Fatal(err)
	}
	if p, err = start("worker", all...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.end)
	return number, p
}

// create makes an analysis, with some fields that differ from those of a new
// one.
func (s *stage) create(t testing.TB, id string, fields map[string]any) {
	t.Helper()
	now := iso(time.Now())
	all := map[string]any{"status": "QUEUED", "attempts": 0, "createdAt": now, "updatedAt": now}
	for k, v := range fields {
		all[k] = v
	}
	if _, err := s.doc(id).Create(t.Context(), all); err != nil {
		t.Fatal(err)
	}
}

func iso(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

func (s *stage) doc(id string) *fs.DocumentRef { return s.docs.Collection("analyses").Doc(id) }

// get reads an analysis, which may be missing.
func (s *stage) get(t testing.TB, id string) *fs.DocumentSnapshot {
	t.Helper()
	snap, err := s.doc(id).Get(t.Context())
	if err != nil && status.Code(err) != codes.NotFound {
		t.Fatal(err)
	}
	return snap
}

// until polls an analysis until ok.
func (s *stage) until(t testing.TB, id, what string, ok func(map[string]any) bool) *fs.DocumentSnapshot {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if snap := s.get(t, id); ok(snap.Data()) {
			return snap
		}
	}
	t.Fatalf("%s: never %s: %v", id, what, s.get(t, id).Data())
	return nil
}

func ready(doc map[string]any) bool { return doc["status"] == "READY" }

// reply is a worker's answer to a delivery: "200 {…}", or why there was none.
type reply string

func (r reply) is(code int, reason string) bool {
	return strings.HasPrefix(string(r), fmt.Sprint(code)) && strings.Contains(string(r), reason)
}

// deliver delivers an analysis to a worker, as Cloud Tasks would.
func (p *process) deliver(ctx context.Context, id string) reply {
	return p.post(ctx, "/internal/tasks/analysis", fmt.Sprintf(`{"analysis_id":%q}`, id))
}

func (p *process) post(ctx context.Context, route, body string) reply {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+p.address+route, strings.NewReader(body))
	if err != nil {
		return reply(err.Error())
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return reply(err.Error())
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return reply(err.Error())
	}
	return reply(fmt.Sprint(resp.StatusCode, " ", strings.TrimSpace(string(text))))
}

// delivered delivers in the background, and sends the answer; it ends with the
// process, at the latest.
func (p *process) delivered(t testing.TB, id string) <-chan reply {
	answer := make(chan reply, 1)
	ctx := context.WithoutCancel(t.Context())
	go func() { answer <- p.deliver(ctx, id) }()
	return answer
}

func await[T any](t testing.TB, what string, c <-chan T) (v T) {
	t.Helper()
	hung := time.NewTimer(patience)
	defer hung.Stop()
	select {
	case v = <-c:
	case <-hung.C:
		t.Fatalf("%s does not come", what)
	}
	return v
}
