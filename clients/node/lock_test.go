// Package node has the tests of the analysis lock for workers in Node. They run if REQUIRE_NODE is
// set (to anything but "" or "0"), and need npm's registry.
package node

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"taskguard/internal/testing/emulatortest"
	"taskguard/internal/testing/examplestest"
	"taskguard/internal/testing/must"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/lease/iso8601"
	"taskguard/repo"
)

func TestMain(m *testing.M) {
	emulatortest.Isolate()
	os.Exit(examplestest.Main(m, "NODE"))
}

// The functions in Node and in Go answer alike and leave the same documents, whatever the documents are,
// whatever the clock of Node's machine is, and whether a reply is lost or only a transaction succeeds.
func TestNodeLock_AsGo(t *testing.T) {
	clocks := map[string]time.Duration{"none": time.Hour, "lost": -time.Hour, "contended": -8 * time.Second}
	for fault, ahead := range clocks {
		t.Run(fault, func(t *testing.T) { compareAll(t, emulatortest.Embedded(t), fault, ahead) })
	}
	t.Run("google", func(t *testing.T) { compareAll(t, emulatortest.OnGoogle(t), "lost", 0) })
}

// compareAll makes the same calls in Node and in Go on all documents.
func compareAll(t *testing.T, b *emulatortest.Backend, fault string, ahead time.Duration) {
	t.Helper()
	inGo := must.Get(repo.Open(t.Context(), b.Project, repo.Options{}, b.Client(t)...))(t)
	t.Cleanup(func() { _ = inGo.Close() })
	p := &pair{t: t, b: b, inNode: startCaller(t, b, ahead, "FAULT="+fault), inGo: inGo}

	acquired := 0
	for name, fields := range documents(time.Now()) {
		if p.acquire(name, fields) {
			acquired++
			p.release(name)
			p.finish(name, acquired%2 == 0)
		}
	}
	if acquired < 20 {
		t.Errorf("%d documents were acquired, want many more", acquired)
	}
}

// pair makes the same calls in Node and in Go, on a document each.
type pair struct {
	t      *testing.T
	b      *emulatortest.Backend
	inNode *caller
	inGo   *repo.Analyses
	began  time.Time // when the calls on the present document began
}

func (p *pair) compare(step string, inNode, inGo any) {
	p.t.Helper()
	got, want := stripped(p.b.Fields(p.t, "node"), p.began), stripped(p.b.Fields(p.t, "go"), p.began)
	if !reflect.DeepEqual(inNode, inGo) || !reflect.DeepEqual(got, want) {
		p.t.Errorf("%s: Node answers %+v and leaves %v\nGo answers %+v and leaves %v", step, inNode, got, inGo, want)
	}
}

// acquire reports whether the lock on such a document was acquired.
func (p *pair) acquire(name string, fields map[string]any) bool {
	p.t.Helper()
	p.began = time.Now()
	p.b.Put(p.t, "node", fields)
	p.b.Put(p.t, "go", fields)
	got := p.inNode.acquire("node", "w/2/y")
	want, err := p.inGo.AcquireAnalysisLock(p.t.Context(), "go", "w/2/y", 0, analysislock.AcquireOptions{})

	decided := answer{Acquired: got.Acquired, Reason: got.Reason, Error: got.Error}
	p.compare(name+": acquire", decided, answerOf(want, err))
	if !got.Acquired {
		return false
	}
	if got.Token != want.Grant.Token || got.Attempt != want.Attempt {
		p.t.Errorf("%s: Node answers %+v, Go %+v", name, got, want)
	}
	return true
}

// release refreshes and releases the lock.
func (p *pair) release(name string) {
	p.t.Helper()
	got := p.inNode.refresh("node", "w/2/y", 60)
	err := p.inGo.RefreshAnalysisLock(p.t.Context(), "go", "w/2/y", time.Minute)
	p.compare(name+": refresh", got.Error, codeOf(err))

	got = p.inNode.release("node", "w/2/y")
	must.OK(p.t, p.inGo.ReleaseAnalysisLock(p.t.Context(), "go", "w/2/y"))
	p.compare(name+": release", len(got.Warnings), 0)
}

// finish acquires the lock again, and finishes the analysis.
func (p *pair) finish(name string, failing bool) {
	p.t.Helper()
	got := p.inNode.acquire("node", "w/3/z")
	want, err := p.inGo.AcquireAnalysisLock(p.t.Context(), "go", "w/3/z", 0, analysislock.AcquireOptions{})
	p.compare(name+": acquire again", answer{Acquired: got.Acquired, Error: got.Error}, answerOf(want, err))

	outcome, ending := map[string]any{"result": "r"}, analysislock.Completing(want.Hold.Now(), "r")
	if failing {
		outcome = map[string]any{"error": map[string]any{"code": "c", "message": "m"}}
		ending = analysislock.Failing(want.Hold.Now(), "c", "m")
	}
	got = p.inNode.finish("node", "w/3/z", outcome)
	p.compare(name+": finish", got.Error, codeOf(want.Hold.End(p.t.Context(), ending)))
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
		ttls := map[string]time.Duration{"now": 0, "now + 60 s": time.Minute, "now + 300 s": 5 * time.Minute}
		for name, ttl := range ttls {
			if since := at.Sub(began) - ttl; since > -time.Second && since < 30*time.Second {
				return name
			}
		}
	}
	return v
}

func TestNodeLock_ManyOwners(t *testing.T) {
	b, node := newCaller(t)
	owners := make([]string, 20)
	for i := range owners {
		owners[i] = fmt.Sprint("owner-", i)
	}
	reasons := map[string]int{}
	for _, got := range node.calls(call{Name: "acquireAnalysisLock", Args: []any{"a", owners}}, len(owners)) {
		reasons[got.Reason+got.Error]++
	}
	token, want := b.Fields(t, "a")["lockToken"], map[string]int{"": 1, "locked": 19}
	if !reflect.DeepEqual(reasons, want) || token != int64(1) {
		t.Errorf("%v with the token %v, want %v with the token 1", reasons, token, want)
	}
}

func TestNodeLock_Owner(t *testing.T) {
	b, node := newCaller(t)
	first := node.acquire("a", "one")
	second := node.acquire("a", "two")
	if second.Reason != "locked" || second.ExpiresAt != first.ExpiresAt {
		t.Errorf("%+v, then %+v; want the second locked until the first's expiry", first, second)
	}

	before := b.Fields(t, "a")
	refreshed, released := node.refresh("a", "two"), node.release("a", "two")
	finished := node.finish("a", "two", map[string]any{"result": 1})
	if got := refreshed.Error + " " + finished.Error; got != "lost lost" || len(released.Warnings) > 0 {
		t.Errorf("another owner: %s, %v", got, released.Warnings)
	}
	if after := b.Fields(t, "a"); !reflect.DeepEqual(after, before) {
		t.Errorf("another owner changes %v to %v", before, after)
	}
	acquired := node.acquire("none", "one")
	refreshed, released = node.refresh("none", "one"), node.release("none", "one")
	if got := acquired.Error + " " + refreshed.Error; got != "not_found not_found" || len(released.Warnings) > 0 {
		t.Errorf("a missing document: %s, %v", got, released.Warnings)
	}
	b.Merge(t, "a", map[string]any{"lockToken": "x"})
	if r := node.release("a", "one"); r.Error != "" || len(r.Warnings) != 1 {
		t.Errorf("a release that fails: %+v, want a warning", r)
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
func TestNodeLock_Release(t *testing.T) {
	b, node := newCaller(t)
	for status, outcome := range map[string]string{"READY": "ready", "FAILED": "failed"} {
		b.Put(t, "a", map[string]any{"status": "QUEUED", "checkpoint": 1, "progress": 1})
		got := node.acquire("a", "one")
		b.Merge(t, "a", map[string]any{"status": status, "nextAttemptAt": "x"})
		refreshed, released := node.refresh("a", "one"), node.release("a", "one")
		if !got.Acquired {
			t.Fatalf("%+v", got)
		}
		if refreshed.Error != "lost" || len(released.Warnings) > 0 {
			t.Errorf("%+v, %+v", refreshed, released)
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
		if !reflect.DeepEqual(doc, want) {
			t.Errorf("the document is %v, want %v", doc, want)
		}
		if entry["outcome"] != outcome || entry["endedAt"] != doc["updatedAt"] {
			t.Errorf("the history has %v, want the outcome %s", entry, outcome)
		}
	}
}

// A client with useBigInt reads integers as BigInts. With keepFinished, tokens begin at the time of the
// document's creation in microseconds.
func TestNodeLock_BigInts(t *testing.T) {
	b, node := newCaller(t, `SETTINGS={"useBigInt":true}`, "FAULT=lost")
	entry := map[string]any{"attempt": 3, "token": 41, "owner": "w/1/x"}
	b.Put(t, "a", map[string]any{"attempts": 3, "lockToken": 41, "history": []any{entry}})
	got := node.acquire("a", "one")
	history, _ := b.Fields(t, "a")["history"].([]any)
	if got.Token != 42 || got.Attempt != 4 {
		t.Errorf("%+v, want the attempt 4 with the token 42", got)
	}
	if len(history) != 2 {
		t.Errorf("the history is %v, want two attempts", history)
	}

	began := time.Now().UnixMicro()
	b.Put(t, "b", map[string]any{"status": "QUEUED"})
	keeping := map[string]any{"keepFinished": true}
	got = node.call(call{Name: "acquireAnalysisLock", Args: []any{"b", "one"}, Options: keeping})
	if got.Token < began || got.Token > time.Now().UnixMicro() {
		t.Errorf("%+v, want a token since %d", got, began)
	}
}

// js is an argument that JSON cannot have: the value of an expression.
func js(expression string) map[string]string { return map[string]string{"$": expression} }

func TestNodeLock_Outcome(t *testing.T) {
	b, node := newCaller(t)
	node.acquire("a", "one")
	before := b.Fields(t, "a")
	for _, outcome := range []string{
		"undefined", "null", "7", "{}", "{result: undefined}", "{results: 1}",
		"{result: 1, error: {code: 'c', message: 'm'}}",
		"{result: 1, error: null}",
		"{error: 'boom'}", "{error: {}}", "{error: new Error('boom')}",
		"{error: {code: 7, message: 'm'}}", "{error: {code: '', message: 'm'}}", "{error: {code: 'c'}}",
		"{error: {code: 'c', message: 'm', detail: 1}}", "{error: {code: 'c', message: 'm'}, more: 1}",
	} {
		if got := node.finish("a", "one", js(outcome)); got.Error != "TypeError" {
			t.Errorf("%s: %+v, want a TypeError", outcome, got)
		}
	}
	if after := b.Fields(t, "a"); !reflect.DeepEqual(after, before) {
		t.Errorf("the document is %v, want %v", after, before)
	}

	for outcome, want := range map[string]string{
		"{result: null}": "READY", "{error: {code: 'c', message: ''}}": "FAILED",
		"{error: Object.assign(new Error('m'), {code: 'c', errno: 1}), result: undefined}": "FAILED",
	} {
		b.Put(t, "b", map[string]any{"status": "QUEUED"})
		node.acquire("b", "one")
		if got := node.finish("b", "one", js(outcome)); got.Status != want || b.Fields(t, "b")["status"] != want {
			t.Errorf("%s: %+v, want %s", outcome, got, want)
		}
	}
}

// A retry would meet the same refusal.
func TestNodeLock_InvalidResult(t *testing.T) {
	for _, fault := range []string{"none", "lost"} {
		b, node := newCaller(t, "FAULT="+fault)
		for _, result := range []string{
			"'x'.repeat(2 ** 20)", "'x'.repeat(12 * 2 ** 20)", "[[1]]", "() => 1",
			"({a: [Symbol()]})", "({a: undefined})",
			"new (class X {})()", "({'': 1})",
			"Array.from({length: 25}).reduce((inner) => ({a: inner}), 1)",
		} {
			b.Put(t, "a", map[string]any{"status": "QUEUED"})
			node.acquire("a", "one")
			got := node.finish("a", "one", js("{result: "+result+"}"))
			doc := b.Fields(t, "a")
			failed, _ := doc["error"].(map[string]any)
			left := fmt.Sprint(got.Status, " ", doc["status"], " ", failed["code"])
			if want := "FAILED FAILED result_invalid"; left != want {
				t.Errorf("%s: %s, want %s", result, left, want)
			}
		}
	}
}

func TestNodeLock_Options(t *testing.T) {
	_, node := newCaller(t)
	for name, value := range map[string]any{"colection": "x", "collection": "", "keepFinished": "yes", "warn": "x"} {
		options := map[string]any{name: value}
		got := node.call(call{Name: "acquireAnalysisLock", Args: []any{"a", "one"}, Options: options})
		if got.Error != "TypeError" {
			t.Errorf("%v: %+v, want a TypeError", options, got)
		}
	}
}

// The next token would be one that JavaScript cannot tell from others.
func TestNodeLock_LastToken(t *testing.T) {
	b, node := newCaller(t)
	for token, want := range map[int64]string{1<<53 - 2: "", 1<<53 - 1: "malformed"} {
		b.Put(t, "a", map[string]any{"lockToken": token})
		if got := node.acquire("a", "one"); got.Error != want {
			t.Errorf("%d: %+v, want the error %q", token, got, want)
		}
	}
}

func TestNodeLock_Types(t *testing.T) {
	paths, dir := examplestest.Find(t, "NODE", "node", "npm"), installed(t)
	modules := examplestest.Modules(t, paths[1], "../../locks/document/server/web/testdata")
	tsc := filepath.Join(modules, "typescript", "bin", "tsc")
	cmd := exec.CommandContext(t.Context(), paths[0], tsc, "--noEmit", "--strict", "--exactOptionalPropertyTypes",
		"--skipLibCheck", "--target", "es2022", "--module", "nodenext", "seed.mts", "types.mts")
	cmd.Dir = filepath.Join(dir, "testdata")
	examplestest.Output(t, cmd)
}
