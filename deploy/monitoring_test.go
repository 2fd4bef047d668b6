package deploy

import (
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/api/logging/v2"
	dashboards "google.golang.org/api/monitoring/v1"
	monitoringapi "google.golang.org/api/monitoring/v3"

	"taskguard/internal/delivery"
	"taskguard/lease/analysislock"
)

// monitoring holds the module's log metrics, alerts and charts, of the files that
// deploy/terraform makes for gcloud and compares with the module.
type monitoring struct {
	LogMetrics map[string]logMetric
	Alerts     map[string]alert
	Charts     map[string][]string // queries by title
}

type logMetric struct {
	Filter string
	Labels []string
	Value  string
}

type alert struct{ Query, Lasting string }

var extracted = regexp.MustCompile(`^EXTRACT\(jsonPayload\.(\w+)\)$`)

func readMonitoring(t *testing.T) monitoring {
	t.Helper()
	m := monitoring{map[string]logMetric{}, map[string]alert{}, map[string][]string{}}

	for _, path := range files(t, "monitoring/policies/*.json") {
		var p monitoringapi.AlertPolicy
		strictly(t, path, &p)
		c := p.Conditions[0].ConditionPrometheusQueryLanguage
		m.Alerts[p.DisplayName] = alert{c.Query, c.Duration}
	}

	for _, path := range files(t, "monitoring/metrics/*.json") {
		var l logging.LogMetric
		strictly(t, path, &l)
		name := strings.TrimSuffix(filepath.Base(path), ".json")
		if l.Name != "taskguard/"+name {
			t.Errorf("%s is of the metric %s", path, l.Name)
		}
		field := extracted.ReplaceAllString(l.ValueExtractor, "$1")
		m.LogMetrics[name] = logMetric{l.Filter, slices.Sorted(maps.Keys(l.LabelExtractors)), field}
	}

	var board dashboards.Dashboard
	strictly(t, "monitoring/dashboard.json", &board)
	for _, tile := range board.MosaicLayout.Tiles {
		for _, set := range tile.Widget.XyChart.DataSets {
			m.Charts[tile.Widget.Title] = append(m.Charts[tile.Widget.Title], set.TimeSeriesQuery.PrometheusQuery)
		}
	}
	if min(len(m.LogMetrics), len(m.Alerts), len(m.Charts)) < 5 {
		t.Fatalf("%d log metrics, %d alerts, %d charts", len(m.LogMetrics), len(m.Alerts), len(m.Charts))
	}
	return m
}

// workersMetrics returns the log metrics without that of Cloud Scheduler's lines.
func workersMetrics(t *testing.T) map[string]logMetric {
	t.Helper()
	all := readMonitoring(t).LogMetrics
	delete(all, "exports")
	return all
}

// outcomes returns the outcomes of the worker's log line.
func outcomes() map[string]bool {
	all := map[string]bool{"recovered": true}
	for r := delivery.Completed; r <= delivery.Corrupted; r++ {
		all[r.String()] = true
	}
	return all
}

var payloadTest = regexp.MustCompile(`jsonPayload\.(\w+)(>=|>|=~|=|:)("[^"]*"|[\w*]+)`)

// A metric of a field that no line has stays at zero, and its alert never fires.
func TestMetrics_Fields(t *testing.T) {
	types := map[string]string{"message": "string"}
	for _, f := range delivery.LogFields() {
		types[f.Name] = f.Type
	}
	values := map[string][]string{
		"message": {"delivery", "rejected", "recovery", delivery.UncertainMessage},
		"code": {
			analysislock.AttemptsExhausted, analysislock.RunTimeExhausted,
			analysislock.NotStarted, analysislock.Crashed,
			delivery.CodeRunTimeout, delivery.CodeStalled,
		},
	}
	for name, m := range workersMetrics(t) {
		conditions := payloadTest.FindAllStringSubmatch(m.Filter, -1)
		if len(conditions) == 0 {
			t.Errorf("%s: no condition was found in %s", name, m.Filter)
		}
		for _, c := range conditions {
			field, value := c[1], strings.Trim(c[3], `"`)
			if types[field] == "" || strings.Contains(c[2], ">") != (types[field] == "integer") {
				t.Errorf("%s: %s of a field of type %q", name, c[0], types[field])
			}
			if values[field] != nil && !isOneOf(value, values[field]) {
				t.Errorf("%s: the field %s is never %s", name, field, value)
			}
		}
		for _, label := range m.Labels {
			if types[label] == "" {
				t.Errorf("%s: the worker writes no %s", name, label)
			}
		}
		if m.Value != "" && types[m.Value] != "integer" {
			t.Errorf("%s: %s is not a number", name, m.Value)
		}
	}
}

// isOneOf reports whether a regular expression, ^(a|b)$, has only names that exist.
func isOneOf(expression string, names []string) bool {
	for name := range strings.SplitSeq(strings.TrimSuffix(strings.TrimPrefix(expression, "^("), ")$"), "|") {
		if !slices.Contains(names, name) {
			return false
		}
	}
	return true
}

// With a filter that lets other lines through, an alert would fire always, or never.
func TestMetrics_Lines(t *testing.T) {
	const smoke = "smoke-test-b" // release.sh's
	type line = map[string]any
	for _, c := range []struct {
		message string
		fields  line
		want    string // without deliveries or recoveries, which count each line of the message
	}{
		{"listening", nil, ""},
		{"recovery", line{"abandoned": 0}, ""},
		{"recovery", line{"stuck": 1, "abandoned": 1, "oldest_ms": 0}, "abandoned oldest_ms stuck"},
		{"delivery", line{"acquire_ms": 0, "run_ms": 0, "attempt": 1}, "acquire_ms attempts run_ms"},
		{"delivery", line{"time_to_start_ms": 300_000, "time_to_ready_ms": 1}, "time_to_ready_ms time_to_start_ms"},
		{"delivery", line{"time_to_start_ms": 300_001}, "late_starts time_to_start_ms"},
		{"delivery", line{"code": "attempts_exhausted", "stolen": true}, "exhausted steals"},
		{"delivery", line{"code": "run_time_exhausted"}, "exhausted"},
		{"delivery", line{"code": "not_started"}, "exhausted"},
		{"delivery", line{"code": "crashed"}, "exhausted"},
		{"delivery", line{"code": "run_timeout", "lost": "taken", "follow_up": "booked"}, "follow_ups losses timeouts"},
		{"delivery", line{"code": "stalled", "asked_ms": 1_800_000}, "timeouts"},
		{"delivery", line{"code": "analyzer_failed", "asked_ms": 1_800_001}, "long_waits"},
		{"delivery", line{"asked_ms": 3_600_001}, "long_waits waits_over_1h"},
		{"delivery", line{"asked_ms": 14_400_001}, "long_waits waits_over_1h waits_over_4h"},
		{"delivery", line{"analysis_id": "a", "outcome": "not_found"}, ""},
		{"delivery", line{"analysis_id": smoke, "outcome": "unavailable"}, ""},
		{delivery.UncertainMessage, line{"analysis_id": "a"}, "uncertain"},
		{"rejected", line{"outcome": "not_found"}, "deliveries rejected"},
	} {
		got, all := map[string]bool{}, workersMetrics(t)
		entry := line{"message": c.message}
		maps.Copy(entry, c.fields)
		for name, m := range all {
			if counts(t, m.Filter, entry) {
				got[name] = true
			}
		}
		each := map[string]string{"delivery": "deliveries", "recovery": "recoveries"}[c.message]
		if each != "" && !got[each] {
			t.Errorf("%v does not count among the %s", entry, each)
		}
		delete(got, each)
		if names := strings.Join(sorted(got), " "); names != c.want {
			t.Errorf("%v counts as %s, want %s", entry, names, c.want)
		}
	}
	unknown := line{"message": "delivery", "analysis_id": smoke, "outcome": "not_found"}
	if counts(t, workersMetrics(t)["deliveries"].Filter, unknown) {
		t.Error("the calls of the smoke test count")
	}
}

var exclusion = regexp.MustCompile(` AND NOT \((.*?)\)`)

// counts reports whether a filter of the module lets a line of the worker through.
func counts(t *testing.T, filter string, line map[string]any) bool {
	t.Helper()
	if but := exclusion.FindStringSubmatch(filter); but != nil {
		return !counts(t, but[1], line) && counts(t, strings.Replace(filter, but[0], "", 1), line)
	}
	for term := range strings.SplitSeq(filter, " AND ") {
		if strings.HasPrefix(term, "resource.") {
			continue
		}
		c := payloadTest.FindStringSubmatch(term)
		if c == nil {
			t.Fatalf("unknown term %s", term)
		}
		value, there := line[c[1]]
		n, _ := value.(int)
		want := strings.Trim(c[3], `"`)
		least, _ := strconv.Atoi(want)
		holds := map[string]bool{
			"=": fmt.Sprint(value) == want, ">": n > least, ">=": n >= least, ":": true,
			"=~": regexp.MustCompile(strings.Trim(want, "*")).MatchString(fmt.Sprint(value)),
		}
		if !there || !holds[c[2]] {
			return false
		}
	}
	return true
}

// metric is a metric of PromQL.
type metric struct {
	resource     string
	labels       []string
	distribution bool
}

// metrics returns the metrics of Google and of the module.
func metrics(m monitoring) map[string]metric {
	const queue, service, job = "cloud_tasks_queue", "cloud_run_revision", "cloud_scheduler_job"
	all := map[string]metric{
		"cloudtasks_googleapis_com:queue_depth":               {queue, []string{"queue_id"}, false},
		"cloudtasks_googleapis_com:queue_task_attempt_count":  {queue, []string{"queue_id", "response_code"}, false},
		"cloudtasks_googleapis_com:queue_task_attempt_delays": {queue, []string{"queue_id"}, true},
		"run_googleapis_com:request_count": {
			service, []string{"service_name", "revision_name", "response_code", "response_code_class"}, false,
		},
		"run_googleapis_com:container_instance_count":      {service, []string{"service_name", "state"}, false},
		"run_googleapis_com:container_memory_utilizations": {service, []string{"service_name"}, true},
	}
	for name, l := range m.LogMetrics {
		labels := append([]string{"service_name", "revision_name"}, l.Labels...)
		all["logging_googleapis_com:user_taskguard_"+name] = metric{service, labels, l.Value != ""}
	}
	all["logging_googleapis_com:user_taskguard_exports"] = metric{job, []string{"job_id"}, false}
	return all
}

var (
	selector = regexp.MustCompile(`([a-z_]+_googleapis_com:\w+)\{([^}]*)\}`)
	matcher  = regexp.MustCompile(`^(\w+)(?:=|!=|=~|!~)"([^"]*)"$`)
	grouping = regexp.MustCompile(`by \(([^)]*)\)`)
	suffix   = regexp.MustCompile(`_(bucket|sum|count)$`)
)

// checkQuery fails where a PromQL query uses a metric, a label or an outcome that does
// not exist.
func checkQuery(t *testing.T, name string, known map[string]metric, query string) {
	t.Helper()
	labels := []string{"le"}
	selected := selector.FindAllStringSubmatch(query, -1)
	if strings.Count(query, "_googleapis_com:") != len(selected) {
		t.Errorf("%s: malformed: %s", name, query)
	}
	for _, s := range selected {
		m, plain := known[s[1]]
		if !plain {
			m = known[suffix.ReplaceAllString(s[1], "")]
		}
		if m.resource == "" || plain == m.distribution {
			t.Errorf("%s: %s is not measured", name, s[1])
		}
		labels = append(labels, m.labels...)
		for part := range strings.SplitSeq(s[2], ",") {
			c := matcher.FindStringSubmatch(part)
			switch {
			case c == nil, !slices.Contains(append(m.labels, "monitored_resource"), c[1]):
				t.Errorf("%s: %s matches no label of %s", name, part, s[1])
			case c[1] == "monitored_resource" && c[2] != m.resource:
				t.Errorf("%s: %s is not of %s", name, s[1], c[2])
			case c[1] == "outcome":
				for outcome := range strings.SplitSeq(c[2], "|") {
					if !outcomes()[outcome] {
						t.Errorf("%s: %s is not an outcome", name, outcome)
					}
				}
			}
		}
	}
	for _, g := range grouping.FindAllStringSubmatch(query, -1) {
		for label := range strings.SplitSeq(g[1], ", ") {
			if !slices.Contains(labels, label) {
				t.Errorf("%s is grouped by %s, which no metric has", name, label)
			}
		}
	}
}

func TestMetrics_Queries(t *testing.T) {
	m := readMonitoring(t)
	known := metrics(m)
	for name, a := range m.Alerts {
		checkQuery(t, name, known, a.Query)
		losses := strings.Contains(a.Query, "user_taskguard_losses{")
		if losses && !strings.Contains(a.Query, `,lost!="cancelled"}`) {
			t.Errorf("%s: a cancel by an operator counts as a loss: %s", name, a.Query)
		}
	}
	for title, queries := range m.Charts {
		for _, query := range queries {
			checkQuery(t, title, known, query)
		}
	}
}

func files(t *testing.T, pattern string) []string {
	t.Helper()
	paths, err := filepath.Glob(pattern)
	if err != nil || len(paths) == 0 {
		t.Fatalf("%s: %q, %v", pattern, paths, err)
	}
	return paths
}
