package node

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"taskguard/internal/testing/emulatortest"
	"taskguard/internal/testing/examplestest"
	"taskguard/internal/testing/must"
)

// environment returns the variables of a program that calls the Firestore of host.
func environment(b *emulatortest.Backend, host string, more ...string) []string {
	return append(more, "PATH="+os.Getenv("PATH"), "METADATA_SERVER_DETECTION=none",
		"GOOGLE_CLOUD_PROJECT="+b.Project, "FIRESTORE_EMULATOR_HOST="+host)
}

// caller calls the module's functions in a process of Node.
type caller struct {
	t   *testing.T
	in  io.Writer
	out *json.Decoder
}

// call is one call of a function.
type call struct {
	Name    string         `json:"name"`
	Args    []any          `json:"args"` // the id, the owner or many owners, and the rest
	Options map[string]any `json:"options,omitempty"`
}

// answer is what a call resolved to, or the code or the name of the error with which it rejected.
type answer struct {
	Acquired          bool
	Reason, ExpiresAt string
	Token             int64
	Attempt           int
	Status            string // that finishAnalysis resolved to
	Error             string
	Warnings          []string
}

// newCaller starts Node beside an embedded Firestore, in which the analysis a is queued.
func newCaller(t *testing.T, variables ...string) (*emulatortest.Backend, *caller) {
	t.Helper()
	b := emulatortest.Embedded(t)
	b.Put(t, "a", map[string]any{"status": "QUEUED"})
	return b, startCaller(t, b, 8*time.Second, variables...)
}

// startCaller starts Node, whose clock is ahead of Firestore's.
func startCaller(t *testing.T, b *emulatortest.Backend, ahead time.Duration, variables ...string) *caller {
	t.Helper()
	node := examplestest.Find(t, "NODE", "node")[0]
	cmd := exec.CommandContext(t.Context(), node, "--import", "./clock.mjs", "calls.mjs")
	cmd.Dir = filepath.Join(installed(t), "testdata")
	listen := b.Listen
	if b.Google() {
		listen = emulatortest.Google
	}
	variables = append(variables, "TZ=Asia/Tokyo", fmt.Sprint("CLOCK_OFFSET=", ahead.Milliseconds()))
	cmd.Env = environment(b, listen(t), variables...)
	cmd.Stderr = os.Stderr

	in, noIn := cmd.StdinPipe()
	out, noOut := cmd.StdoutPipe()
	must.OK(t, errors.Join(noIn, noOut, cmd.Start()))
	t.Cleanup(func() { _ = cmd.Wait() }) // the context of the test has ended it
	return &caller{t: t, in: in, out: json.NewDecoder(bufio.NewReader(out))}
}

func (c *caller) call(request call) (got answer) {
	c.t.Helper()
	return c.calls(request, 1)[0]
}

// calls returns the answers of n owners that make a call at the same time.
func (c *caller) calls(request call, n int) []answer {
	c.t.Helper()
	must.OK(c.t, json.NewEncoder(c.in).Encode(request))
	got := make([]answer, n)
	for i := range got {
		must.OK(c.t, c.out.Decode(&got[i]))
	}
	return got
}

func (c *caller) acquire(id, owner string) answer {
	c.t.Helper()
	return c.call(call{Name: "acquireAnalysisLock", Args: []any{id, owner}})
}

func (c *caller) refresh(id, owner string, ttl ...any) answer {
	c.t.Helper()
	return c.call(call{Name: "refreshAnalysisLock", Args: append([]any{id, owner}, ttl...)})
}

func (c *caller) release(id, owner string) answer {
	c.t.Helper()
	return c.call(call{Name: "releaseAnalysisLock", Args: []any{id, owner}})
}

func (c *caller) finish(id, owner string, outcome any) answer {
	c.t.Helper()
	return c.call(call{Name: "finishAnalysis", Args: []any{id, owner, outcome}})
}
