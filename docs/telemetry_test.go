package docs

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"taskguard/internal/delivery"
	"taskguard/internal/telemetry"
)

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
	src := read(t, "../internal/telemetry/spans.go")
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
