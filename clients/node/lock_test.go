// Package node has the tests of the analysis lock for workers in Node. They run if REQUIRE_NODE is
// set (to anything but "" or "0"), and need npm's registry.
package node

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"taskguard/internal/testing/emulatortest"
	"taskguard/internal/testing/examplestest"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/lease/iso8601"
	"taskguard/repo"
)

func TestMain(m *testing.M) {
	emulatortest.Isolate()
	os.Exit(examplestest.Main(m, "NODE"))
}

// directory returns a directory with the module, files of testdata and Google's client.
func directory(t *testing.T, npm string, files ...string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	modules := examplestest.Modules(t, npm, "../../docs/examples/node")
	if err := os.Symlink(modules, filepath.Join(dir, "node_modules")); err != nil {
		t.Fatal(err)
	}
	examplestest.Copy(t, dir, "lock.mjs", "lock.d.mts")
	for _, file := range files {
		text, err := os.ReadFile(filepath.Join("testdata", file))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, file), text, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

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
	Args    []any          `json:"args"`
	Options map[string]any `json:"options,omitempty"`
}

// answer is what a call resolved to, or the code or the name of the error with which it rejected.
type answer struct {
	Acquired          bool
	Reason, ExpiresAt string
	Token             int64
	Attempt           int
	Error             string
	Warnings          []string
}

// startCaller starts Node, whose clock is ahead of Firestore's.
func startCaller(t *testing.T, b *emulatortest.Backend, ahead time.Duration, variables ...string) *caller {
	t.Helper()
	paths := examplestest.Find(t, "NODE", "node", "npm")
	cmd := exec.CommandContext(t.Context(), paths[0], "--import", "./clock.mjs", "calls.mjs")
	cmd.Dir = directory(t, paths[1], "calls.mjs", "clock.mjs")
	cmd.Env = environment(b, b.Listen(t), append(variables, fmt.Sprint("CLOCK_OFFSET=", ahead.Milliseconds()))...)
	cmd.Stderr = os.Stderr

	in, noIn := cmd.StdinPipe()
	out, noOut := cmd.StdoutPipe()
	if err := errors.Join(noIn, noOut, cmd.Start()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Wait() }) // the context of the test has ended it
	return &caller{t: t, in: in, out: json.NewDecoder(bufio.NewReader(out))}
}

func (c *caller) call(request call) (got answer) {
	c.t.Helper()
	if err := json.NewEncoder(c.in).Encode(request); err != nil {
		c.t.Fatal(err)
	}
	if err := c.out.Decode(&got); err != nil {
		c.t.Fatal(err)
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

// documents are documents as applications and other workers leave them.
func documents(now time.Time) map[string]map[string]any {
	past, future := iso8601.Format(now.Add(-time.Hour)), iso8601.Format(now.Add(time.Hour))
	held := func(fields map[string]any) map[string]any {
		all := map[string]any{"status": "PROCESSING", "lockOwner": "w/1/x", "lockToken": 41, "attempts": 3}
		maps.Copy(all, fields)
		return all
	}
	begun := func(fields map[string]any) map[string]any {
		entry := map[string]any{"attempt": 3, "token": 41, "owner": "w/1/x", "startedAt": past}
		maps.Copy(entry, fields)
		return entry
	}
	long := make([]any, 12)
	for i := range long {
		long[i] = begun(map[string]any{"outcome": "retry", "endedAt": past, "token": 30 + i})
	}
	large := slices.Clone(long)
	for i := range large {
		large[i] = begun(map[string]any{"outcome": "retry", "message": strings.Repeat("あ", 300)})
	}

	all := map[string]map[string]any{
		"new":            {"status": "QUEUED", "createdAt": now, "updatedAt": now, "input": "x"},
		"old times":      {"status": "QUEUED", "createdAt": past, "updatedAt": past, "startedAt": past},
		"no status":      {"input": "x"},
		"empty status":   {"status": ""},
		"another status": {"status": "PENDING"},
		"a number":       {"status": 7},
		"ready":          held(map[string]any{"status": "READY", "lockToken": "x"}),
		"failed":         held(map[string]any{"status": "FAILED"}),
		"booked":         {"status": "QUEUED", "nextAttemptAt": future, "bookedTask": "t", "expireAt": now, "attempts": 2.0},
		"late start":     {"status": "QUEUED", "startedAt": iso8601.Format(now.Add(25 * time.Hour))},
		"free":           {"status": "QUEUED", "lockToken": 41, "lockHeartbeatAt": past, "lockExpiresAt": future},
		"a double":       {"status": "QUEUED", "lockToken": 41.0},
		"a text":         {"status": "QUEUED", "lockToken": "41"},
		"negative":       {"status": "QUEUED", "lockToken": -1},
		"a fraction":     {"status": "QUEUED", "lockToken": 1.5},
		"an odd owner":   held(map[string]any{"lockOwner": 5, "lockExpiresAt": future}),
		"no expiry":      held(map[string]any{"lockHeartbeatAt": past}),
		"new heartbeat":  held(map[string]any{"lockHeartbeatAt": iso8601.Format(now)}),
		"no times":       held(nil),
		"too far ahead":  held(map[string]any{"lockHeartbeatAt": past, "lockExpiresAt": iso8601.Format(now.Add(25 * time.Hour))}),
		"crashed": held(map[string]any{
			"lockExpiresAt": past, "lockHeartbeatAt": past, "history": []any{begun(nil)},
			"lastError": map[string]any{"code": "x", "message": "y"},
		}),
		"unlocked":      {"status": "QUEUED", "lockToken": 41, "history": []any{begun(nil)}},
		"crashed once":  held(map[string]any{"lockExpiresAt": past, "history": []any{begun(map[string]any{"token": 40})}}),
		"not a map":     {"history": []any{"x", begun(map[string]any{"outcome": "retry", "alone": true, "delays": 2})}},
		"long history":  {"history": long},
		"large history": {"history": large},
	}
	forms := []any{
		past, future, now.Add(-time.Second), now.Add(time.Hour), now.Add(-time.Second).UnixMilli(), now.Add(time.Hour).UnixMilli(),
		float64(now.Add(time.Hour).UnixMilli()), -5, true, "noon", "2026-13-31T12:00:00Z", "1769860800000",
	}
	for _, layout := range []string{
		"2006-01-02T15:04:05.000000000Z07:00", "2006-01-02t15:04:05z07:00", "2006-01-02T15:04:05Z0700", "2006-01-02T15:04Z07:00",
		"20060102T150405Z07:00", "2006-01-02T15:04:05", "2006-01-02", "2006-01-02 15:04:05", "02 Jan 2006 15:04:05 MST",
	} {
		for _, hours := range []time.Duration{-2, 2, 30} {
			forms = append(forms, now.Add(hours*time.Hour).In(time.FixedZone("", 9*60*60)).Format(layout))
		}
	}
	for _, form := range forms {
		all[fmt.Sprintf("expires at %v", form)] = held(map[string]any{"lockHeartbeatAt": past, "lockExpiresAt": form})
	}
	return all
}

// The functions in Node and in Go answer alike and leave the same documents, whatever the documents are,
// whatever the clock of Node's machine is, and whether a reply is lost or only a transaction succeeds.
func TestNodeDecidesAndWritesAsGoDoes(t *testing.T) {
	for fault, ahead := range map[string]time.Duration{"none": time.Hour, "lost": -time.Hour, "contended": -8 * time.Second} {
		t.Run(fault, func(t *testing.T) {
			b := emulatortest.Embedded(t)
			node := startCaller(t, b, ahead, "FAULT="+fault)
			goLocks, err := repo.Open(t.Context(), b.Project, repo.Options{}, b.Client(t)...)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = goLocks.Close() })

			now, n := time.Now(), 0
			compare := func(step string, gotAnswer, wantAnswer any) {
				t.Helper()
				got, want := stripped(b.Fields(t, "node"), now), stripped(b.Fields(t, "go"), now)
				if !reflect.DeepEqual(gotAnswer, wantAnswer) || !reflect.DeepEqual(got, want) {
					t.Errorf("%s: Node answers %+v and leaves %v\nGo answers %+v and leaves %v", step, gotAnswer, got, wantAnswer, want)
				}
			}
			for name, fields := range documents(now) {
				b.Put(t, "node", fields)
				b.Put(t, "go", fields)

				got := node.acquire("node", "w/2/y")
				acquired, err := goLocks.AcquireAnalysisLock(t.Context(), "go", "w/2/y", 0, analysislock.AcquireOptions{})
				compare(name+": acquire", answer{Acquired: got.Acquired, Reason: got.Reason, Error: got.Error}, answerOf(acquired, err))
				if !got.Acquired {
					continue
				}
				n++
				if got.Token != acquired.Grant.Token || got.Attempt != acquired.Attempt {
					t.Errorf("%s: Node answers %+v, Go %+v", name, got, acquired)
				}

				got, err = node.refresh("node", "w/2/y", 60), goLocks.RefreshAnalysisLock(t.Context(), "go", "w/2/y", time.Minute)
				compare(name+": refresh", got.Error, codeOf(err))
				got, err = node.release("node", "w/2/y"), goLocks.ReleaseAnalysisLock(t.Context(), "go", "w/2/y")
				compare(name+": release", len(got.Warnings), map[bool]int{true: 1}[err != nil])

				got = node.acquire("node", "w/3/z")
				acquired, err = goLocks.AcquireAnalysisLock(t.Context(), "go", "w/3/z", 0, analysislock.AcquireOptions{})
				compare(name+": acquire again", answer{Acquired: got.Acquired, Error: got.Error}, answerOf(acquired, err))
				outcome, ending := map[string]any{"result": "r"}, analysislock.Completing(acquired.Hold.Now(), "r")
				if n%2 == 0 {
					outcome = map[string]any{"error": map[string]any{"code": "c", "message": "m"}}
					ending = analysislock.Failing(acquired.Hold.Now(), "c", "m")
				}
				finished := call{Name: "finishAnalysis", Args: []any{"node", "w/3/z", outcome}}
				compare(name+": finish", node.call(finished).Error, codeOf(acquired.Hold.End(t.Context(), ending)))
			}
			if n < 20 {
				t.Errorf("%d documents were acquired, want many more", n)
			}
		})
	}
}

func answerOf(a analysislock.Acquisition, err error) answer {
	return answer{Acquired: a.Acquired, Reason: a.Reason, Error: codeOf(err)}
}

func codeOf(err error) string {
	for code, target := range map[string]error{
		"not_found": lease.ErrNotFound, "malformed": lease.ErrMalformed, "lost": lease.ErrLost,
	} {
		if errors.Is(err, target) {
			return code
		}
	}
	if err != nil {
		return err.Error()
	}
	return ""
}

// stripped returns the value with names in the place of the times that a function of this test has written.
func stripped(v any, began time.Time) any {
	switch v := v.(type) {
	case map[string]any:
		all := map[string]any{}
		for name, field := range v {
			all[name] = stripped(field, began)
		}
		return all
	case []any:
		all := make([]any, len(v))
		for i, e := range v {
			all[i] = stripped(e, began)
		}
		return all
	case time.Time:
		return fmt.Sprintf("Timestamp %v", stripped(iso8601.Format(v), began))
	case string:
		at, ok := iso8601.Parse(v)
		if !ok || iso8601.Format(at) != v {
			return v
		}
		for name, ttl := range map[string]time.Duration{"now": 0, "now + 60 s": time.Minute, "now + 300 s": 5 * time.Minute} {
			if since := at.Sub(began) - ttl; since > -time.Second && since < 30*time.Second {
				return name
			}
		}
	}
	return v
}

func TestOnlyTheOwnerRefreshesAndReleases(t *testing.T) {
	b := emulatortest.Embedded(t)
	node := startCaller(t, b, 8*time.Second)
	b.Put(t, "a", map[string]any{"status": "QUEUED"})
	first := node.acquire("a", "one")
	second := node.acquire("a", "two")
	if !first.Acquired || second.Reason != "locked" || second.ExpiresAt != first.ExpiresAt {
		t.Errorf("%+v, then %+v; want the second locked until the first's expiry", first, second)
	}

	before := b.Fields(t, "a")
	refreshed, released := node.refresh("a", "two"), node.release("a", "two")
	finished := node.call(call{Name: "finishAnalysis", Args: []any{"a", "two", map[string]any{"result": 1}}})
	if refreshed.Error+finished.Error != "lostlost" || len(released.Warnings) > 0 || !reflect.DeepEqual(b.Fields(t, "a"), before) {
		t.Errorf("another owner: %+v, %+v, %+v, and the document is %v, was %v",
			refreshed, released, finished, b.Fields(t, "a"), before)
	}
	a, r, f := node.acquire("missing", "one"), node.release("missing", "one"), node.refresh("missing", "one")
	if a.Error != "not_found" || f.Error != "not_found" || len(r.Warnings) > 0 {
		t.Errorf("a missing document: %+v, %+v, %+v", a, f, r)
	}
	for _, args := range [][]any{{"", "one"}, {"a/b/c", "one"}, {"a", ""}, {"a", "one", 0}, {"a", "one", 43201}} {
		a, f := call{Name: "acquireAnalysisLock", Args: args}, call{Name: "refreshAnalysisLock", Args: args}
		if a, f := node.call(a), node.call(f); a.Error != "TypeError" || f.Error != "TypeError" {
			t.Errorf("%v: %+v, %+v; want TypeErrors", args, a, f)
		}
	}
}

// A run that has written READY or FAILED has finished the analysis: its release records that, and keeps the
// status.
func TestAReleaseRecordsTheFinishOfItsRun(t *testing.T) {
	b := emulatortest.Embedded(t)
	node := startCaller(t, b, 0)
	for status, outcome := range map[string]string{"READY": "ready", "FAILED": "failed"} {
		b.Put(t, "a", map[string]any{"status": "QUEUED", "checkpoint": 1, "progress": 1})
		got := node.acquire("a", "one")
		b.Merge(t, "a", map[string]any{"status": status, "nextAttemptAt": "x"})
		refreshed, released := node.refresh("a", "one"), node.release("a", "one")
		if !got.Acquired || refreshed.Error != "lost" || len(released.Warnings) > 0 {
			t.Errorf("%+v, %+v, %+v", got, refreshed, released)
		}

		doc := b.Fields(t, "a")
		history, _ := doc["history"].([]any)
		delete(doc, "history")
		want := map[string]any{
			"status": status, "attempts": int64(1), "lockToken": int64(1), "finishedBy": "one",
			"startedAt": doc["startedAt"], "updatedAt": doc["updatedAt"],
		}
		if status == "FAILED" {
			want["checkpoint"], want["progress"] = int64(1), int64(1)
		}
		entry, _ := history[0].(map[string]any)
		if !reflect.DeepEqual(doc, want) || entry["outcome"] != outcome || entry["endedAt"] != doc["updatedAt"] {
			t.Errorf("the document is %v with %v, want %v with the outcome %s", doc, entry, want, outcome)
		}
	}
}

// A client with useBigInt reads integers as BigInts. With keepFinished, tokens begin at the time of the
// document's creation in microseconds.
func TestBigIntsAndDocumentsThatExpire(t *testing.T) {
	b := emulatortest.Embedded(t)
	node := startCaller(t, b, 0, `SETTINGS={"useBigInt":true}`, "FAULT=lost")
	entry := map[string]any{"attempt": 3, "token": 41, "owner": "w/1/x"}
	b.Put(t, "a", map[string]any{"attempts": 3, "lockToken": 41, "history": []any{entry}})
	got := node.acquire("a", "one")
	history, _ := b.Fields(t, "a")["history"].([]any)
	if !got.Acquired || got.Token != 42 || got.Attempt != 4 || len(history) != 2 {
		t.Errorf("%+v with %v, want the attempt 4 with the token 42", got, history)
	}

	began := time.Now().UnixMicro()
	b.Put(t, "b", map[string]any{"status": "QUEUED"})
	got = node.call(call{Name: "acquireAnalysisLock", Args: []any{"b", "one"}, Options: map[string]any{"keepFinished": true}})
	if !got.Acquired || got.Token < began || got.Token > time.Now().UnixMicro() {
		t.Errorf("%+v, want a token since %d", got, began)
	}
}

func TestCodeOfTheOriginalDesignCompiles(t *testing.T) {
	paths := examplestest.Find(t, "NODE", "node", "npm")
	dir := directory(t, paths[1], "seed.mts")
	tsc := filepath.Join(examplestest.Modules(t, paths[1], "../../locks/document/server/web/testdata"), "typescript", "bin", "tsc")
	cmd := exec.CommandContext(t.Context(), paths[0], tsc, "--noEmit", "--strict", "--exactOptionalPropertyTypes",
		"--skipLibCheck", "--target", "es2022", "--module", "nodenext", "seed.mts")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
