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

var (
	route = regexp.MustCompile(`\.(GET|POST|PUT|DELETE)\("(/[a-z/]*)"`)
	// defaultPath matches the path of a kind of work that names none.
	defaultPath = regexp.MustCompile(`DefaultPath += "(/[a-z/]*)"`)
	routed      = regexp.MustCompile("`(GET|POST|PUT|DELETE) (/[a-z/]*)`")
)

func TestTheReferenceHasTheRoutes(t *testing.T) {
	code := map[string]bool{}
	for _, path := range []string{"../worker/server.go", "../worker/guard.go", "../internal/taskqueue/queue.go", "../internal/lifecycle/lifecycle.go", "../locks/document/server/server.go"} {
		src := read(t, path)
		for _, r := range route.FindAllStringSubmatch(src, -1) {
			code[r[1]+" "+r[2]] = true
		}
		for _, r := range defaultPath.FindAllStringSubmatch(src, -1) {
			code["POST "+r[1]] = true
		}
	}
	text := read(t, "reference.md")
	page := map[string]bool{}
	for _, r := range routed.FindAllStringSubmatch(text, -1) {
		page[r[1]+" "+r[2]] = true
	}
	same(t, "route", sorted(page), sorted(code))
}

var (
	strategyName = regexp.MustCompile(`Strategy = "([a-z-]+)"`)
	eventName    = regexp.MustCompile(`EventType = "([a-z:-]+)"`)
)

func TestTheReferenceHasTheEventsAndStrategiesOfHold(t *testing.T) {
	code := map[string]bool{"strategy": true, "type": true} // the heads of the tables
	for _, name := range strategyName.FindAllStringSubmatch(read(t, "../locks/project/options.go"), -1) {
		code[name[1]] = true
	}
	for _, name := range eventName.FindAllStringSubmatch(read(t, "../locks/project/event.go"), -1) {
		code[name[1]] = true
	}
	same(t, "strategy or event", named(t, "#### `taskguard hold`"), sorted(code))
}

func TestTheReferenceHasTheFieldsOfTheDocument(t *testing.T) {
	b := emulatortest.Embedded(t)
	slots := 0
	keys := &repo.Concurrency{Fields: []string{"input"}, Limit: func(string) int { return slots }}
	a := must(repo.Open(t.Context(), b.Project, repo.Options{
		Policy: lease.Policy{MaxAttempts: 10}, Keep: time.Hour, KeepAll: true, Concurrency: keys,
	}, b.Client(t)...))(t)
	fields := map[string]bool{}
	step := func(err error) {
		t.Helper()
		check(t, err)
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
	step(errors.Join(a.Create(ctx, "ready", "input", repo.CreateOptions{}), a.Create(ctx, "failed", "input", repo.CreateOptions{})))
	take("ready", "parked")
	slots = 10
	first := take("ready", "a")
	begin := &analysislock.Beginning{Name: "charge", Token: first.Grant().Token, Now: first.Now()}
	first.Send(begin.Change(nil), analysislock.Progressed(analysislock.Progress{Message: "m"}),
		analysislock.Checkpointed(&analysislock.Checkpoint{Value: 1}))
	step(first.End(ctx, analysislock.Retrying(first.Now(), "code", "message", first.Now().Add(time.Minute), "task", false)))
	_, err := a.Start(ctx, "failed", "s", func(context.Context) error { return nil })
	step(err)
	ready, failed := take("ready", "b"), take("failed", "c")
	step(errors.Join(ready.End(ctx, analysislock.Completing(ready.Now(), "result")),
		failed.End(ctx, analysislock.Failing(failed.Now(), "code", "message"))))
	same(t, "field", named(t, "## The document"), sorted(fields))
}

var codeLiteral = regexp.MustCompile(`(?:(?:Code\w+|Exhausted|Cancelled|Crashed|NotStarted|Unrecordable|ActUncertain)\s+= |Permanent\()"(\w+)"`)

func TestTheReferenceHasTheCodesOfErrors(t *testing.T) {
	code := map[string]bool{}
	for _, path := range []string{"../orchestrator/errors.go", "../internal/delivery/runner.go", "../lease/analysislock/analysislock.go", "../lease/analysislock/analysis.go", "../lease/analysislock/full.go", "../lease/analysislock/operator.go", "../lease/analysislock/act.go", "../lease/analysislock/suspect.go", "../lease/analysislock/start.go", "../worker/kind.go"} {
		src := read(t, path)
		for _, c := range codeLiteral.FindAllStringSubmatch(src, -1) {
			code[c[1]] = true
		}
	}
	same(t, "code", named(t, "### Codes of errors"), sorted(code))
}

func TestTheReferenceHasTheLogFieldsWordForWord(t *testing.T) {
	var rows []string
	for _, f := range delivery.LogFields() {
		rows = append(rows, fmt.Sprintf("| `%s` | %s | %s |", f.Name, f.Type, f.Meaning))
	}
	hasRows(t, "### Fields", rows)
}

func TestTheReferenceHasTheMetricsWordForWord(t *testing.T) {
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

var (
	constant = regexp.MustCompile(`(?m)^\t[A-Z]\w+ += "([a-z_.]+)"$`)
	quoted   = regexp.MustCompile("`([a-z_.]+)`")
)

// The document lock's request span is beside the worker's: its name and attributes
// are OpenTelemetry's own.
func TestTheReferenceHasTheSpansAndTheirAttributes(t *testing.T) {
	src := read(t, "../internal/telemetry/telemetry.go")
	code := map[string]bool{"request": true, "http.request.method": true, "http.route": true, "http.response.status_code": true}
	for _, c := range constant.FindAllStringSubmatch(src, -1) {
		code[c[1]] = true
	}
	page := map[string]bool{}
	for _, name := range quoted.FindAllStringSubmatch(section(t, "### Spans"), -1) {
		if !slices.Contains([]string{"traceparent", "traceidratio"}, name[1]) {
			page[name[1]] = true
		}
	}
	same(t, "span or attribute", sorted(page), sorted(code))
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
