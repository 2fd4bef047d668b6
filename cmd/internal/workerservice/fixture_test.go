package workerservice

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"taskguard/internal/telemetry"
	"taskguard/internal/testing/emulatortest"
	"taskguard/internal/testing/must"
	"taskguard/orchestrator"
)

func TestMain(m *testing.M) {
	emulatortest.Isolate()
	os.Exit(m.Run())
}

// environ returns an environment of settings such as PORT=1.
func environ(words ...string) func(string) (string, bool) {
	env := map[string]string{}
	for _, w := range words {
		k, v, _ := strings.Cut(w, "=")
		env[k] = v
	}
	return func(k string) (string, bool) { v, ok := env[k]; return v, ok }
}

func parse(words ...string) (Config, error) { return ParseConfig(environ(words...)) }

func listen(t *testing.T) net.Listener {
	t.Helper()
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// hang is how long a test waits for something that should happen at once.
const hang = 30 * time.Second

// served is a worker inside the test's process.
type served struct {
	*emulatortest.Backend
	url      string
	stop     context.CancelFunc
	returned chan error
	log      *emulatortest.Log
}

// serve starts a worker on an embedded Firestore, with an analysis x and the
// environment more. Its log is Cloud Logging's.
func serve(t *testing.T, analyzer orchestrator.AnalyzerFunc, adapt func(*Config), more ...string) *served {
	t.Helper()
	b := emulatortest.Embedded(t)
	t.Setenv("FIRESTORE_EMULATOR_HOST", b.Listen(t))
	b.Put(t, "x", map[string]any{"status": "QUEUED"})
	cfg := must.Get(parse(append([]string{"TASK_AUTH=iam", "GOOGLE_CLOUD_PROJECT=" + b.Project}, more...)...))(t)
	cfg.Analyzer = analyzer
	adapt(&cfg)
	l := listen(t)
	ctx, stop := context.WithCancel(t.Context())
	t.Cleanup(stop)
	s := &served{
		Backend: b, url: "http://" + l.Addr().String(), stop: stop,
		returned: make(chan error, 1), log: &emulatortest.Log{},
	}
	go func() { s.returned <- Serve(ctx, cfg, l, telemetry.NewLogger(s.log, "json", 0)) }()
	return s
}

// wait checks that Serve returns without an error.
func (s *served) wait(t *testing.T) {
	t.Helper()
	select {
	case err := <-s.returned:
		must.OK(t, err)
	case <-time.After(hang):
		t.Fatal("Serve does not return")
	}
}

// delivered delivers x in the background, and sends the answer.
func (s *served) delivered() <-chan string {
	answer := make(chan string, 1)
	go func() {
		resp, err := http.Post(s.url+"/internal/tasks/analysis", "", strings.NewReader(`{"analysis_id":"x"}`))
		if err != nil {
			answer <- err.Error()
			return
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		answer <- fmt.Sprint(resp.StatusCode, " ", string(body), err)
	}()
	return answer
}
