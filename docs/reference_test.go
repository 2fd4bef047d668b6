package docs

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	doclock "taskguard/cmd/doclock/service"
	worker "taskguard/cmd/worker/service"
	"taskguard/emulator/emulatortest"
	"taskguard/lease"
	"taskguard/repo"
)

// section is what reference.md has under a heading, up to the next of any level.
func section(t *testing.T, heading string) string {
	t.Helper()
	page, err := os.ReadFile("reference.md")
	if err != nil {
		t.Fatal(err)
	}
	_, after, found := strings.Cut(string(page), "\n"+heading+"\n")
	if !found {
		t.Fatalf("reference.md has no %q", heading)
	}
	text, _, _ := strings.Cut(after, "\n#")
	return text
}

var (
	firstColumn = regexp.MustCompile(`(?m)^\| ([^|]*) \|`)
	quotedName  = regexp.MustCompile("`([^`]+)`")
)

// named are the names in the first column of a section's tables.
func named(t *testing.T, heading string) []string {
	t.Helper()
	all := map[string]bool{}
	for _, cell := range firstColumn.FindAllStringSubmatch(section(t, heading), -1) {
		for _, name := range quotedName.FindAllStringSubmatch(cell[1], -1) {
			all[name[1]] = true
		}
	}
	return sorted(all)
}

func sorted(names map[string]bool) []string { return slices.Sorted(maps.Keys(names)) }

// same wants the page to list just what the code has.
func same(t *testing.T, what string, page, code []string) {
	t.Helper()
	for _, name := range code {
		if !slices.Contains(page, name) {
			t.Errorf("reference.md lacks the %s %s", what, name)
		}
	}
	for _, name := range page {
		if !slices.Contains(code, name) {
			t.Errorf("reference.md has the %s %s, which the code does not", what, name)
		}
	}
	if len(code) < 3 {
		t.Errorf("the code has %d of them: does this test still see?", len(code))
	}
}

// asked are the variables that parse looks up: of several environments, since
// what one says decides what else is read.
func asked(parse func(lookup func(string) (string, bool)), environments ...map[string]string) []string {
	names := map[string]bool{}
	for _, env := range environments {
		parse(func(name string) (string, bool) {
			names[name] = true
			v, ok := env[name]
			return v, ok
		})
	}
	return sorted(names)
}

func TestTheReferenceHasTheVariablesThatTheServicesRead(t *testing.T) {
	environments := []map[string]string{nil, {"TASK_AUTH": "oidc", "SESSION_AUTH": "oidc"}, {"TASK_AUTH": "iam", "TASK_QUEUE": "projects/p/locations/l/queues/q"}}
	// What they say of these environments is of no interest.
	same(t, "variable", named(t, "### `worker`"), asked(func(lookup func(string) (string, bool)) { _, _ = worker.ParseConfig(lookup) }, environments...))
	same(t, "variable", named(t, "### `doclock`"), asked(func(lookup func(string) (string, bool)) { _, _ = doclock.ParseConfig(lookup) }, environments...))
}

var (
	route  = regexp.MustCompile(`\.(GET|POST|PUT|DELETE)\("(/[a-z/]*)"`)
	routed = regexp.MustCompile("`(GET|POST|PUT|DELETE) (/[a-z/]*)`")
)

func TestTheReferenceHasTheRoutes(t *testing.T) {
	code := map[string]bool{}
	for _, path := range []string{"../worker/server.go", "../worker/lifecycle/lifecycle.go", "../worker/doclock/server.go"} {
		src, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range route.FindAllStringSubmatch(string(src), -1) {
			code[r[1]+" "+r[2]] = true
		}
	}
	text, err := os.ReadFile("reference.md")
	if err != nil {
		t.Fatal(err)
	}
	page := map[string]bool{}
	for _, r := range routed.FindAllStringSubmatch(string(text), -1) {
		page[r[1]+" "+r[2]] = true
	}
	delete(page, "GET /") // the page of cmd/doclock, beside its assets
	same(t, "route", sorted(page), sorted(code))
}

// What the code writes is seen in what it has written.
func TestTheReferenceHasTheFieldsOfTheDocument(t *testing.T) {
	b := emulatortest.Embedded(t)
	a, err := repo.Open(t.Context(), b.Project, repo.Options{Policy: lease.Policy{MaxAttempts: 10}}, b.Client(t)...)
	if err != nil {
		t.Fatal(err)
	}
	fields := map[string]bool{}
	step := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range []string{"ready", "failed"} {
			for name := range b.Fields(t, id) {
				fields[name] = true
			}
		}
	}
	ctx := t.Context()
	take := func(id, owner string) error {
		got, err := a.AcquireAnalysisLock(ctx, id, owner, 0)
		if err == nil && !got.Acquired {
			err = errors.New(got.Reason)
		}
		return err
	}
	step(errors.Join(a.Create(ctx, "ready", "input"), a.Create(ctx, "failed", "input")))
	step(take("ready", "a"))
	step(a.HoldAnalysisLock(ctx, "ready", "a", func(context.Context, json.RawMessage) error { return nil }))
	step(a.Retry(ctx, "ready", "a", "code", "message"))
	step(errors.Join(take("ready", "b"), take("failed", "c")))
	step(errors.Join(a.Complete(ctx, "ready", "b", "result"), a.Fail(ctx, "failed", "c", "code", "message")))
	page := slices.DeleteFunc(named(t, "## The document"), func(name string) bool { return strings.Contains(name, "_") }) // codes
	same(t, "field", page, sorted(fields))
}

var (
	codeLiteral = regexp.MustCompile(`(?:Code\w+\s+=|code(?:, reason)? :?=|code, err =|AttemptsExhausted =|Retry\(ctx, id, owner,) "(\w+)"`)
	unmarked    = "unrecordable" // told in the log alone: the document could not hold it
)

func TestTheReferenceHasTheCodesOfErrors(t *testing.T) {
	code := map[string]bool{}
	for _, path := range []string{"../orchestrator/errors.go", "../worker/guard.go", "../lease/analysislock/acquisition.go"} {
		src, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range codeLiteral.FindAllStringSubmatch(string(src), -1) {
			code[c[1]] = true
		}
	}
	delete(code, unmarked)
	page := slices.DeleteFunc(named(t, "## The document"), func(name string) bool { return !strings.Contains(name, "_") })
	same(t, "code", page, sorted(code))
}
