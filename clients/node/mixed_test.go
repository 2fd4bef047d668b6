package node

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"taskguard/internal/testing/emulatortest"
	"taskguard/internal/testing/examplestest"
	"taskguard/internal/testing/must"
)

// The mixed run: 40 analyses, each delivered four times, of which 20 are killed with their worker.
const (
	analyses   = 40
	deliveries = 4
	kills      = 20
	ttl        = "6"             // seconds; less than the clocks are wrong by
	limit      = 3 * time.Minute // of a delivery, of which most take seconds
)

// mixed is a run of workers in Go and in Node on the same documents.
type mixed struct {
	t       *testing.T
	b       *emulatortest.Backend
	journal string
	slots   []*slot
	sent    sync.WaitGroup // the deliveries that are not yet acknowledged

	mu      sync.Mutex
	refused int // deliveries that were answered 409
}

// slot runs one worker after another.
type slot struct {
	start func(ctx context.Context) *exec.Cmd

	mu      sync.Mutex
	cmd     *exec.Cmd
	address string // empty: the worker does not serve yet
}

// Workers in Go and in Node, whose clocks are 8 s fast and 8 s slow, exclude each other, also if they are
// killed: no runs overlap, nothing is finished twice and no lock is left.
func TestNodeLock_MixedWorkers(t *testing.T) {
	t.Parallel()
	b, node := emulatortest.Embedded(t), examplestest.Find(t, "NODE", "node")[0]
	host, dir := b.Listen(t), filepath.Join(installed(t), "testdata")
	m := &mixed{t: t, b: b, journal: filepath.Join(dir, "journal")}
	must.OK(t, os.WriteFile(m.journal, nil, 0o600))

	program := examplestest.Build(t, "taskguard/cmd/worker")
	inGo := func(ctx context.Context) *exec.Cmd {
		cmd := exec.CommandContext(ctx, program)
		cmd.Env = environment(b, host, "PORT=0", "TASK_AUTH=none", "LOCK_TTL="+ttl+"s", "LOCK_HEARTBEAT=2s",
			"MAX_ATTEMPTS=1000", "ANALYZER=exec:/bin/sh "+filepath.Join(dir, "analyzer.sh")+" "+m.journal)
		return cmd
	}
	inNode := func(offset string) func(ctx context.Context) *exec.Cmd {
		return func(ctx context.Context) *exec.Cmd {
			cmd := exec.CommandContext(ctx, node, "--import", "./clock.mjs", "worker.mjs")
			cmd.Env = environment(b, host, "TTL="+ttl, "JOURNAL="+m.journal, "CLOCK_OFFSET="+offset)
			return cmd
		}
	}
	for _, start := range []func(context.Context) *exec.Cmd{inGo, inNode("8000"), inGo, inNode("-8000")} {
		s := &slot{start: start}
		m.slots = append(m.slots, s)
		m.serve(s, dir)
	}

	m.deliverAndKill()
	m.sent.Wait()
	m.judge()
}

// serve starts the worker of a slot until the end of the test.
func (m *mixed) serve(s *slot, dir string) {
	cmd := s.start(m.t.Context())
	cmd.Dir = dir
	var errs bytes.Buffer
	cmd.Stderr, cmd.WaitDelay = &errs, time.Second
	out, err := cmd.StdoutPipe()
	must.OK(m.t, errors.Join(err, cmd.Start()))
	s.mu.Lock()
	s.cmd, s.address = cmd, ""
	s.mu.Unlock()

	follow := func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			var line struct{ Message, Address string }
			if json.Unmarshal(lines.Bytes(), &line) == nil && line.Message == "serving" {
				s.mu.Lock()
				s.address = strings.Replace(line.Address, "[::]", "127.0.0.1", 1)
				s.mu.Unlock()
			}
		}
		_ = cmd.Wait() // the test has killed it
		if errs.Len() > 0 {
			m.t.Logf("%s: %s", cmd.Path, &errs)
		}
	}
	followed := make(chan struct{})
	go func() { defer close(followed); follow() }()
	m.t.Cleanup(func() { <-followed })
}

// deliverAndKill starts all deliveries, and kills 20 runs with their workers, one after the other. Every
// fifth of them has renewed its lock before.
func (m *mixed) deliverAndKill() {
	for i := range kills {
		plain, killed := fmt.Sprint("plain-", i), fmt.Sprint("killed-", i)
		if i >= kills-4 {
			plain = fmt.Sprint("long-", i)
		}
		for _, id := range []string{plain, killed} {
			m.b.Put(m.t, id, map[string]any{"status": "QUEUED", "updatedAt": time.Now()})
		}

		m.deliver(killed, m.slots[i%len(m.slots)])
		pid := m.await(killed)
		for range deliveries - 1 {
			m.deliver(killed, nil)
		}
		for range deliveries {
			m.deliver(plain, nil)
		}
		if i%5 == 0 {
			m.awaitRenewal(killed)
		}
		m.kill(pid)
	}
}

// await waits until a run of the analysis has begun, and returns the process of its worker.
func (m *mixed) await(id string) (pid int) {
	m.t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		for _, e := range m.events() {
			if e.id == id {
				return e.pid
			}
		}
	}
	m.t.Fatalf("%s does not begin", id)
	return 0
}

func (m *mixed) awaitRenewal(id string) {
	m.t.Helper()
	expiry := func() any { return m.b.Fields(m.t, id)["lockExpiresAt"] }
	first := expiry()
	for end := time.Now().Add(time.Minute); expiry() == first; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			m.t.Fatalf("the lock on %s is not renewed", id)
		}
	}
}

// kill kills a worker and starts another one. The journal has the kill before it happens: what its runs
// write after that line is of a run that is ending.
func (m *mixed) kill(pid int) {
	m.t.Helper()
	at := slices.IndexFunc(m.slots, func(s *slot) bool { return s.cmd.Process.Pid == pid })
	if at < 0 {
		m.t.Fatalf("no worker is the process %d", pid)
	}
	journal, err := os.OpenFile(m.journal, os.O_APPEND|os.O_WRONLY, 0)
	must.OK(m.t, err)
	_, err = fmt.Fprintf(journal, "kill - 0 %d\n", pid)
	must.OK(m.t, errors.Join(err, journal.Close(), m.slots[at].cmd.Process.Kill()))
	m.serve(m.slots[at], m.slots[at].cmd.Dir)
}

// deliver posts a delivery to the first worker, and then to any, until one acknowledges it.
func (m *mixed) deliver(id string, first *slot) {
	m.sent.Go(func() {
		ctx, cancel := context.WithTimeout(m.t.Context(), limit)
		defer cancel()
		for s := first; ctx.Err() == nil; s = nil {
			if s == nil {
				s = m.slots[rand.IntN(len(m.slots))]
			}
			if m.post(ctx, s, id) {
				return
			}
			time.Sleep(300 * time.Millisecond)
		}
	})
}

// post reports whether the worker has acknowledged the delivery.
func (m *mixed) post(ctx context.Context, s *slot, id string) bool {
	s.mu.Lock()
	url := "http://" + s.address + "/internal/tasks/analysis"
	s.mu.Unlock()
	body := strings.NewReader(fmt.Sprintf(`{"analysis_id":%q}`, id))
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, body)
	if err != nil {
		return false
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil { // the worker was killed, or does not serve yet
		return false
	}
	_, _ = io.Copy(io.Discard, response.Body)
	response.Body.Close()

	m.mu.Lock()
	defer m.mu.Unlock()
	if response.StatusCode == http.StatusConflict {
		m.refused++
	}
	return response.StatusCode == http.StatusOK
}

// event is a line of the journal.
type event struct {
	name, id string // name: begin, end or kill
	token    int64
	pid      int
}

func (m *mixed) events() (all []event) {
	text, err := os.ReadFile(m.journal)
	must.OK(m.t, err)
	for line := range strings.Lines(string(text)) {
		var e event
		if _, err := fmt.Sscan(line, &e.name, &e.id, &e.token, &e.pid); err == nil { // else it is not yet whole
			all = append(all, e)
		}
	}
	return all
}

// judge checks the journal and the documents.
func (m *mixed) judge() {
	last := m.judgeRuns()
	if len(last) != analyses {
		m.t.Errorf("%d analyses have run, want %d", len(last), analyses)
	}

	takeovers := map[string]int{} // of a crashed attempt, by the kinds of both workers
	for id, token := range last {
		doc := m.b.Fields(m.t, id)
		result, _ := doc["result"].(map[string]any)
		got, want := fmt.Sprint(doc["status"], result["token"], doc["lockToken"]), fmt.Sprint("READY", token, token)
		if got != want {
			m.t.Errorf("%s is %s, want %s: READY by the last run", id, got, want)
		}
		for _, field := range []string{"lockOwner", "lockExpiresAt", "lockHeartbeatAt"} {
			if doc[field] != nil {
				m.t.Errorf("%s has still the %s %v", id, field, doc[field])
			}
		}
		m.judgeHistory(id, doc["history"], takeovers)
	}
	if min(takeovers["go to node"], takeovers["node to go"]) == 0 || m.refused < kills {
		m.t.Errorf("the run shows too little: %d deliveries found the lock held, takeovers %v", m.refused, takeovers)
	}
}

// judgeRuns checks that no runs of an analysis overlap, and returns the token of each analysis's last run.
func (m *mixed) judgeRuns() (last map[string]int64) {
	last = map[string]int64{}
	open, killed := map[string]event{}, map[int]bool{}
	for _, e := range m.events() {
		running, overlaps := open[e.id]
		switch {
		case e.name == "kill":
			killed[e.pid] = true
		case e.name == "end":
			delete(open, e.id)
		case overlaps && !killed[running.pid]:
			m.t.Errorf("%s: the run %d begins during %d", e.id, e.token, running.token)
		case e.token <= last[e.id]:
			m.t.Errorf("%s: the run %d begins after %d", e.id, e.token, last[e.id])
		default:
			open[e.id], last[e.id] = e, e.token
		}
	}
	if len(killed) != kills {
		m.t.Errorf("%d workers were killed, want %d", len(killed), kills)
	}
	return last
}

// judgeHistory checks that one attempt, the last, has finished the analysis. It counts the takeovers.
func (m *mixed) judgeHistory(id string, history any, takeovers map[string]int) {
	entries, _ := history.([]any)
	before := ""
	for i, entry := range entries {
		attempt, _ := entry.(map[string]any)
		kind := "go"
		if owner, _ := attempt["owner"].(string); strings.HasPrefix(owner, "node-") {
			kind = "node"
		}
		if before != "" {
			takeovers[before+" to "+kind]++
		}
		before = ""
		if attempt["outcome"] == "crashed" {
			before = kind
		}
		if ready, end := attempt["outcome"] == "ready", i == len(entries)-1; ready != end {
			m.t.Errorf("%s: the attempt %d of %d is %v", id, i+1, len(entries), attempt["outcome"])
		}
	}
}
