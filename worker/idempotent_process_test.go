package worker_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"taskguard/emulator/firestore"
	"taskguard/internal/testing/emulatortest"
	"taskguard/worker"
)

// With these variables set, the test binary is a service of orders.
const (
	providerVariable = "IDEMPOTENT_TEST_PROVIDER"
	projectVariable  = "IDEMPOTENT_TEST_PROJECT"
	hostVariable     = "IDEMPOTENT_TEST_FIRESTORE"
)

// serveOrders charges each order at the provider, as a marked act.
func serveOrders(provider string) error {
	g, err := worker.Open(context.Background(), worker.Options{
		Project: os.Getenv(projectVariable), Emulator: os.Getenv(hostVariable),
	})
	if err != nil {
		return err
	}
	askFor := func(phase, key string) (charge string, err error) {
		form := url.Values{"process": {fmt.Sprint(os.Getpid())}, "key": {key}}
		answer, err := http.PostForm(provider+phase, form)
		if err != nil {
			return "", err
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		return string(text), err
	}
	h := g.Idempotent(worker.IdempotentOptions{Scope: account})(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		job, _ := worker.JobFromContext(r.Context())
		ask := func(phase string) (charge string, err error) { return askFor(phase, job.Key("charge")) }
		act := func(context.Context) (string, error) {
			if _, err := ask("/begun"); err != nil {
				return "", err
			}
			return ask("/charge")
		}
		find := func(context.Context) (string, bool, error) {
			charge, err := ask("/find")
			return charge, charge != "", err
		}

		_, err := ask("/before")
		charge := ""
		if err == nil {
			charge, err = worker.Once(r.Context(), job, "charge", act, worker.Find(find))
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprint(w, charge)
		_, _ = ask("/after") // or this process is killed
	}))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println("http://" + l.Addr().String())
	return http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { //nolint:gosec // for a test
		h.ServeHTTP(sending{w, func() { _, _ = askFor("/stored", "") }}, r)
	}))
}

// sending is a ResponseWriter that calls stored before it sends the response of the handler.
type sending struct {
	http.ResponseWriter

	stored func()
}

func (s sending) WriteHeader(status int) {
	if status == http.StatusCreated && s.Header().Get("Idempotency-Replayed") == "" {
		s.stored()
	}
	s.ResponseWriter.WriteHeader(status)
}

// provider makes charges, whatever their keys, and kills the first process that reaches a phase.
// Then the clock of Firestore passes the lock's TTL.
type provider struct {
	phase     string // empty: none is killed
	clock     atomic.Int64
	mu        sync.Mutex
	processes map[string]*exec.Cmd // by id
	charges   []string             // the key of each
}

func (p *provider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	key := r.FormValue("key")
	if r.URL.Path == "/charge" {
		p.charges = append(p.charges, key)
	}
	if r.URL.Path == p.phase {
		killed := p.processes[r.FormValue("process")]
		_ = killed.Process.Kill()
		_ = killed.Wait() // killed
		p.phase = ""
		p.clock.Add(int64(30 * time.Second))
	}
	if found := slices.Index(p.charges, key); found >= 0 {
		_, _ = fmt.Fprint(w, "charge ", found)
	}
}

// start starts a service until the end of the test, and returns its address.
func (p *provider) start(t *testing.T, env ...string) (address string) {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program)
	cmd.Env, cmd.Stderr = append(os.Environ(), env...), t.Output()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		_ = cmd.Process.Kill() // or it is killed already
		_ = cmd.Wait()
	})
	p.mu.Lock()
	p.processes[fmt.Sprint(cmd.Process.Pid)] = cmd
	p.mu.Unlock()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(line)
}

// 64 clients send the same request to four processes, one of which is killed. A client without an
// answer asks the next process. The act is marked, so it is not repeated.
func TestIdempotentOverFourProcesses(t *testing.T) {
	for _, phase := range []string{"", "/before", "/begun", "/charge", "/after", "/stored"} {
		t.Run(phase, func(t *testing.T) {
			t.Parallel()
			p := &provider{phase: phase, processes: map[string]*exec.Cmd{}}
			b := emulatortest.Embedded(t)
			b.Server = firestore.NewServer(firestore.Options{Now: func() time.Time { return time.Now().Add(time.Duration(p.clock.Load())) }})
			server := httptest.NewServer(p)
			t.Cleanup(server.Close)
			host := b.Listen(t)
			var services []string
			for range 4 {
				services = append(services, p.start(t, providerVariable+"="+server.URL, projectVariable+"="+b.Project, hostVariable+"="+host))
			}

			var all sync.WaitGroup
			var mu sync.Mutex
			answers := map[string]int{}
			for client := range 64 {
				all.Go(func() {
					for i := client; t.Context().Err() == nil; i++ {
						r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, services[i%4]+"/orders", strings.NewReader("{}"))
						if err != nil {
							t.Error(err)
							return
						}
						r.Header.Set("Account", "a")
						r.Header.Set("Idempotency-Key", "k")
						response, err := http.DefaultClient.Do(r)
						if err != nil {
							continue // killed
						}
						recorded := &httptest.ResponseRecorder{Code: response.StatusCode, HeaderMap: response.Header, Body: &bytes.Buffer{}}
						_, _ = recorded.Body.ReadFrom(response.Body)
						_ = response.Body.Close()
						got := summary(t, recorded)
						if got != "409 in-progress" && got != "503 not-processed" { // on a slow machine Firestore may be late
							mu.Lock()
							answers[got]++
							mu.Unlock()
							return
						}
						time.Sleep(20 * time.Millisecond) // less than Retry-After
					}
				})
			}
			all.Wait()

			want := map[string]int{"201 charge 0": 1, "201 replayed charge 0": 63}
			if phase == "/stored" { // the killed process would have sent the first
				want = map[string]int{"201 replayed charge 0": 64}
			}
			if !maps.Equal(answers, want) {
				t.Errorf("answers %v, want %v", answers, want)
			}
			if len(p.charges) != 1 || p.phase != "" {
				t.Errorf("charges %q, want one; the phase %q is not reached", p.charges, p.phase)
			}
		})
	}
}
