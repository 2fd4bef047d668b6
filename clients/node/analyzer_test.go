package node

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"taskguard/internal/testing/emulatortest"
	"taskguard/internal/testing/examplestest"
)

// The module sends what the protocol vectors say, which orchestrator/protocol_test.go feeds to the workers' code.
func TestNodeSpeaksTheProtocol(t *testing.T) {
	node := examplestest.Find(t, "NODE", "node")[0]
	out, err := exec.CommandContext(t.Context(), node, "--test", "testdata/protocol.test.mjs").CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// A run continues after each kill -9 of its worker: of the pages only the one that was not yet committed is read
// again, and the charge is made once, although the second worker is killed during it.
func TestARunIsKilledAndResumed(t *testing.T) {
	t.Run("program", func(t *testing.T) {
		paths := examplestest.Find(t, "NODE", "node")
		killAndResume(t, "exec:"+paths[0]+" testdata/program.mjs")
	})
	t.Run("service", func(t *testing.T) {
		paths := examplestest.Find(t, "NODE", "node")
		cmd := exec.CommandContext(t.Context(), paths[0], "testdata/service.mjs")
		cmd.Env = append(os.Environ(), "PORT=0")
		port, err := start(t, cmd).ReadString('\n')
		check(t, err)
		killAndResume(t, "http://localhost:"+strings.TrimSpace(port))
	})
}

// start starts a process that is killed at the end of the test, and returns its output.
func start(t *testing.T, cmd *exec.Cmd) *bufio.Reader {
	t.Helper()
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	check(t, errors.Join(err, cmd.Start()))
	t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
	return bufio.NewReader(out)
}

func killAndResume(t *testing.T, analyzer string) {
	const id, pages = "an-id", 6
	b, ledger := emulatortest.Embedded(t), filepath.Join(t.TempDir(), "ledger")
	check(t, os.WriteFile(ledger, nil, 0o600))
	lines := func(kind string) (all []string) {
		text, err := os.ReadFile(ledger)
		check(t, err)
		for line := range strings.Lines(string(text)) {
			if strings.HasPrefix(line, kind) {
				all = append(all, strings.TrimSpace(line))
			}
		}
		return all
	}
	input := map[string]any{"pages": pages, "seconds": 0.4, "ledger": ledger, "hangs": 60}
	b.Put(t, id, map[string]any{"status": "QUEUED", "updatedAt": time.Now(), "input": input})

	host, program := b.Listen(t), examplestest.Build(t, "taskguard/cmd/worker")
	deliver := func(until func() bool) {
		t.Helper()
		w := serveAnalyzer(t, b, host, program, analyzer)
		defer w.kill()
		for end := time.Now().Add(2 * time.Minute); !until(); time.Sleep(50 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("the document is %v, after %q", b.Fields(t, id), lines(""))
			}
			w.post(id)
		}
	}
	deliver(func() bool { checkpoint, _ := b.Fields(t, id)["checkpoint"].(map[string]any); return checkpoint != nil })
	read := len(lines("page"))
	deliver(func() bool { return len(lines("charge")) > 0 })
	deliver(func() bool { return b.Fields(t, id)["status"] == "READY" })

	result, _ := json.Marshal(b.Fields(t, id)["result"])
	if want := `{"charged":21,"sum":21}`; string(result) != want {
		t.Errorf("the result is %s, want %s", result, want)
	}
	if read == 0 || read == pages || len(lines("page")) > pages+2 || len(lines("charge")) != 1 {
		t.Errorf("killed after %d pages; the ledger has %q", read, lines(""))
	}
}

// analyzerWorker is a process of cmd/worker.
type analyzerWorker struct {
	cmd     *exec.Cmd
	address string
	posting chan struct{} // has a place for each delivery that is not answered
}

func serveAnalyzer(t *testing.T, b *emulatortest.Backend, host, program, analyzer string) *analyzerWorker {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program)
	cmd.Env = environment(b, host, "PORT=0", "TASK_AUTH=none", "LOCK_TTL=3s", "LOCK_HEARTBEAT=1s",
		"CHECKPOINT_INTERVAL=1s", "ANALYZER_OUTPUT=json", "ANALYZER="+analyzer)
	w := &analyzerWorker{cmd: cmd, posting: make(chan struct{}, 1)}
	for out := start(t, cmd); w.address == ""; {
		line, err := out.ReadBytes('\n')
		check(t, err)
		var serving struct{ Message, Address string }
		if json.Unmarshal(line, &serving) == nil && serving.Message == "serving" {
			w.address = strings.Replace(serving.Address, "[::]", "127.0.0.1", 1)
			go func() { _, _ = io.Copy(io.Discard, out) }() // until the process ends
		}
	}
	return w
}

// post posts a delivery, unless one is in progress.
func (w *analyzerWorker) post(id string) {
	select {
	case w.posting <- struct{}{}:
	default:
		return
	}
	go func() {
		defer func() { <-w.posting }()
		body := strings.NewReader(fmt.Sprintf(`{"analysis_id":%q}`, id))
		if response, err := http.Post("http://"+w.address+"/internal/tasks/analysis", "application/json", body); err == nil {
			response.Body.Close()
		}
	}()
}

func (w *analyzerWorker) kill() { _, _ = w.cmd.Process.Kill(), w.cmd.Wait() }
