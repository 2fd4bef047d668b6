package docs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"taskguard/internal/delivery"
	"taskguard/internal/telemetry"
	"taskguard/internal/testing/emulatortest"
	"taskguard/internal/testing/must"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/repo"
)

// section is what reference.md has under a heading, up to the next of any level.
func section(t *testing.T, heading string) string {
	t.Helper()
	page := read(t, "reference.md")
	_, after, found := strings.Cut(page, "\n"+heading+"\n")
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
		t.Errorf("the code has only %d of them", len(code))
	}
}

// What is no exported table is found in its declarations: each group of a pattern is a part of a name.
func TestReference_Names(t *testing.T) {
	for what, tc := range map[string]struct {
		files   []string
		pattern string
		others  []string // that are declared elsewhere
		page    []string
	}{
		"route": {
			files: []string{
				"../worker/server.go", "../worker/guard.go", "../internal/taskqueue/queue.go",
				"../internal/lifecycle/lifecycle.go", "../locks/document/server/server.go",
			},
			pattern: `\.(GET|POST|PUT|DELETE)\("(/[a-z/]*)"|(DefaultPath) += "(/[a-z/]*)"`, // of a kind that names none
			page:    found("`(GET|POST|PUT|DELETE) (/[a-z/]*)`", read(t, "reference.md")),
		},
		"strategy or event": {
			files:   []string{"../locks/project/options.go", "../locks/project/event.go"},
			pattern: `(?:Strategy|EventType) = "([a-z:-]+)"`,
			others:  []string{"strategy", "type"}, // the heads of the tables
			page:    named(t, "#### `taskguard hold`"),
		},
		"code": {
			files: []string{
				"../orchestrator/errors.go", "../internal/delivery/runner.go", "../worker/kind.go",
				"../lease/analysislock/analysislock.go", "../lease/analysislock/analysis.go",
				"../lease/analysislock/full.go", "../lease/analysislock/operator.go", "../lease/analysislock/act.go",
				"../lease/analysislock/suspect.go", "../lease/analysislock/start.go",
			},
			pattern: `(?:(?:Code\w+|Exhausted|Cancelled|Crashed|NotStarted|Unrecordable|ActUncertain)\s+= |Permanent\()"(\w+)"`,
			page:    named(t, "### Codes of errors"),
		},
		// The document lock's request span is beside the worker's: its name and attributes are OpenTelemetry's own.
		"span or attribute": {
			files:   []string{"../internal/telemetry/telemetry.go"},
			pattern: `(?m)^\t[A-Z]\w+ += "([a-z_.]+)"$`,
			others:  []string{"request", "http.request.method", "http.route", "http.response.status_code"},
			page: slices.DeleteFunc(found("`([a-z_.]+)`", section(t, "### Spans")), func(name string) bool {
				return name == "traceparent" || name == "traceidratio"
			}),
		},
	} {
		code := tc.others
		for _, file := range tc.files {
			code = append(code, found(tc.pattern, read(t, file))...)
		}
		same(t, what, tc.page, code)
	}
	same(t, "code", named(t, "### Codes of errors"), delivery.Codes())
}

// found returns what the groups of a pattern match in a text, with spaces between them.
func found(pattern, text string) (all []string) {
	for _, groups := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
		name := strings.TrimSpace(strings.Join(groups[1:], " "))
		all = append(all, strings.Replace(name, "DefaultPath", "POST", 1))
	}
	return all
}

func TestReference_Document(t *testing.T) {
	b := emulatortest.Embedded(t)
	slots := 0
	keys := &repo.Concurrency{Fields: []string{"input"}, Limit: func(string) int { return slots }}
	a := must.Get(repo.Open(t.Context(), b.Project, repo.Options{
		Policy: lease.Policy{MaxAttempts: 10}, Keep: time.Hour, KeepAll: true, Concurrency: keys,
	}, b.Client(t)...))(t)
	fields := map[string]bool{}
	step := func(err error) {
		t.Helper()
		must.OK(t, err)
		for _, id := range []string{"ready", "failed"} {
			for name := range b.Fields(t, id) {
				fields[name] = true
			}
		}
	}
	ctx := t.Context()
	take := func(id, owner string) *analysislock.Hold {
		got, err := a.AcquireAnalysisLock(ctx, id, owner, 0, analysislock.AcquireOptions{})
		step(err)
		return got.Hold
	}
	for _, id := range []string{"ready", "failed"} {
		step(a.Create(ctx, id, "input", repo.CreateOptions{}))
	}
	take("ready", "parked")
	slots = 10
	first := take("ready", "a")
	begin := &analysislock.Beginning{Name: "charge", Token: first.Grant().Token, Now: first.Now()}
	first.Send(begin.Change(nil), analysislock.Progressed(analysislock.Progress{Message: "m"}),
		analysislock.Checkpointed(&analysislock.Checkpoint{Value: 1}))
	later := first.Now().Add(time.Minute)
	step(first.End(ctx, analysislock.Retrying(first.Now(), "code", "message", later, "task", false)))
	_, err := a.Start(ctx, "failed", "s", func(context.Context) error { return nil })
	step(err)
	ready, failed := take("ready", "b"), take("failed", "c")
	step(errors.Join(ready.End(ctx, analysislock.Completing(ready.Now(), "result")),
		failed.End(ctx, analysislock.Failing(failed.Now(), "code", "message"))))
	same(t, "field", named(t, "## The document"), sorted(fields))
}

func TestReference_LogFields(t *testing.T) {
	var rows []string
	for _, f := range delivery.LogFields() {
		rows = append(rows, fmt.Sprintf("| `%s` | %s | %s |", f.Name, f.Type, f.Meaning))
	}
	hasRows(t, "### Fields", rows)
}

func TestReference_Metrics(t *testing.T) {
	var rows []string
	for _, m := range telemetry.Metrics() {
		by := ""
		if len(m.Attributes) > 0 {
			by = " By `" + strings.Join(m.Attributes, "`, `") + "`."
		}
		rows = append(rows, fmt.Sprintf("| `%s` | %s, `%s` | %s%s |", m.Name, m.Kind, m.Unit, m.Description, by))
	}
	hasRows(t, "### Metrics", rows)
}

// hasRows wants a section's table to consist of rows, in their order.
func hasRows(t *testing.T, heading string, rows []string) {
	t.Helper()
	var page []string
	for line := range strings.Lines(section(t, heading)) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "| `") {
			page = append(page, line)
		}
	}
	if got, want := strings.Join(page, "\n"), strings.Join(rows, "\n"); got != want {
		t.Errorf("under %q reference.md has\n%s\nand not\n%s", heading, got, want)
	}
	if len(rows) < 3 {
		t.Errorf("only %d rows", len(rows))
	}
}
