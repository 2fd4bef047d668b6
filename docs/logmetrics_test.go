package docs

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/zclconf/go-cty/cty"

	"taskguard/lease/analysislock"
	"taskguard/worker"
)

var (
	payloadField = regexp.MustCompile(`jsonPayload\.(\w+)`)
	exclusion    = regexp.MustCompile(` AND NOT \((.*?)\)`)
	payloadTest  = regexp.MustCompile(`jsonPayload\.(\w+)(>=|>|=~|=|:)("[^"]*"|[\w*]+)`)
)

// outcomes are what the worker's log line can say.
func outcomes() map[string]bool {
	all := map[string]bool{}
	for c := worker.Ran; c <= worker.NoQueue; c++ {
		all[c.String()] = true
	}
	return all
}

// A metric of a field that no line has stays at zero, and its alert silent, for ever.
func TestLogMetricsCountWhatTheWorkerWrites(t *testing.T) {
	types := map[string]string{"message": "string"}
	for _, f := range worker.LogFields() {
		types[f.Name] = f.Type
	}
	all := planned(t, everything).instances(t, "google_logging_metric")
	for address, v := range all {
		filter := text(t, v.GetAttr("filter"))
		if !strings.HasPrefix(filter, `resource.type="cloud_run_revision" AND resource.labels.service_name="taskguard-worker" AND jsonPayload.message="`) {
			t.Errorf("%s reads others' lines: %s", address, filter)
		}
		for _, c := range payloadTest.FindAllStringSubmatch(filter, -1) {
			if problem := compares(types[c[1]], c[1], c[2], strings.Trim(c[3], `"`)); problem != "" {
				t.Errorf("%s: %s: %s", address, c[0], problem)
			}
		}
		descriptor := v.GetAttr("metric_descriptor").Index(cty.Zero)
		var labels []string
		if descriptor.Type().HasAttribute("labels") {
			for _, l := range descriptor.GetAttr("labels").Elements() {
				labels = append(labels, text(t, l.GetAttr("key")))
			}
		}
		extracted := []string{}
		for label, from := range v.GetAttr("label_extractors").AsValueMap() {
			if want := "EXTRACT(jsonPayload." + label + ")"; text(t, from) != want || types[label] == "" {
				t.Errorf("%s: label %s is %s, a %q", address, label, text(t, from), types[label])
			}
			extracted = append(extracted, label)
		}
		if !slices.Equal(sortedTexts(labels), sortedTexts(extracted)) {
			t.Errorf("%s: labels %q, extracted %q", address, labels, extracted)
		}
		value, measured := v.GetAttr("value_extractor"), text(t, descriptor.GetAttr("value_type")) == "DISTRIBUTION"
		if measured == value.IsNull() {
			t.Errorf("%s: %#v of a %#v", address, value, descriptor.GetAttr("value_type"))
		} else if measured && types[payloadField.FindStringSubmatch(text(t, value))[1]] != "integer" {
			t.Errorf("%s: %s is no number", address, text(t, value))
		}
	}
	if len(all) < 5 {
		t.Errorf("%d metrics: does this test still see?", len(all))
	}
}

// compares says what is wrong with comparing a field of a type with a value.
func compares(kind, field, op, value string) string {
	switch {
	case kind == "":
		return "the worker writes no such field"
	case op == "=~" && kind == "string":
		return ""
	case strings.Contains(op, ">") != (kind == "integer"):
		return "it is a " + kind
	case kind == "boolean" && value != "true":
		return "it is true or not there"
	case field == "message" && value != "delivery" && value != "recovery":
		return "no line says so"
	case field == "code" && value != analysislock.AttemptsExhausted:
		return "no such code"
	}
	return ""
}

// What counts, line by line: of a filter that lets one more in an alert would be
// for ever, or never.
func TestLogMetricsCountTheseLinesAndNoOthers(t *testing.T) {
	filters := map[string]string{}
	for _, v := range planned(t, required).instances(t, "google_logging_metric") {
		filters[strings.TrimPrefix(text(t, v.GetAttr("name")), "taskguard/")] = text(t, v.GetAttr("filter"))
	}
	for _, c := range []struct {
		line map[string]any
		want []string
	}{
		{map[string]any{"message": "listening"}, nil},
		{map[string]any{"message": "recovery"}, []string{"recoveries"}},
		{map[string]any{"message": "recovery", "found": 0}, []string{"recoveries"}},
		{map[string]any{"message": "recovery", "found": 1}, []string{"recoveries", "stuck"}},
		{map[string]any{"message": "delivery"}, []string{"deliveries"}},
		{map[string]any{"message": "delivery", "analysis_id": "a", "acquire_ms": 0, "run_ms": 0, "attempt": 1}, []string{"acquire_ms", "attempts", "deliveries", "run_ms"}},
		{map[string]any{"message": "delivery", "analysis_id": "a", "code": "attempts_exhausted", "stolen": true}, []string{"deliveries", "exhausted", "steals"}},
		{map[string]any{"message": "delivery", "analysis_id": "a", "code": "run_timeout", "lost": "taken", "follow_up": "booked"}, []string{"deliveries", "follow_ups", "losses"}},
		{map[string]any{"message": "delivery", "analysis_id": "a-smoke-test-b"}, []string{"deliveries"}},
		{map[string]any{"message": "delivery", "analysis_id": "a", "outcome": "not_found"}, []string{"deliveries"}},
		{map[string]any{"message": "delivery", "analysis_id": "smoke-test-b", "outcome": "not_found"}, nil},
		{map[string]any{"message": "delivery", "analysis_id": "smoke-test-b", "outcome": "unavailable"}, []string{"deliveries"}}, // it is a 5xx of the service, too
	} {
		var got []string
		for name, filter := range filters {
			if counts(t, filter, c.line) {
				got = append(got, name)
			}
		}
		if got = sortedTexts(got); !slices.Equal(got, c.want) {
			t.Errorf("%v counts as %q, want %q", c.line, got, c.want)
		}
	}
	if release := read(t, "../deploy/release.sh"); !strings.Contains(release, `"analysis_id\":\"smoke-test-$BUILD`) {
		t.Error("the smoke test asks for something else")
	}
}

// counts is whether a filter of the module lets a line of the worker through: all
// its terms hold, and not all of those in NOT (…).
func counts(t *testing.T, filter string, line map[string]any) bool {
	t.Helper()
	if but := exclusion.FindStringSubmatch(filter); but != nil {
		return !counts(t, but[1], line) && counts(t, strings.Replace(filter, but[0], "", 1), line)
	}
	for term := range strings.SplitSeq(filter, " AND ") {
		if !strings.HasPrefix(term, "resource.") && !holds(t, term, line) {
			return false
		}
	}
	return true
}

// holds is whether one term does.
func holds(t *testing.T, term string, line map[string]any) bool {
	t.Helper()
	c := payloadTest.FindStringSubmatch(term)
	if c == nil {
		t.Fatalf("what is %s?", term)
	}
	value, there := line[c[1]]
	switch want := strings.Trim(c[3], `"`); c[2] {
	case "=":
		return there && fmt.Sprint(value) == want
	case "=~":
		return there && regexp.MustCompile(want).MatchString(fmt.Sprint(value))
	case ">", ">=":
		least, err := strconv.Atoi(want)
		if err != nil {
			t.Fatal(err)
		}
		n, _ := value.(int)
		return there && (n > least || c[2] == ">=" && n == least)
	}
	return there
}
