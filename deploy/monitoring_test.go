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
	if len(m.LogMetrics) < 5 || len(m.Alerts) < 5 || len(m.Charts) < 5 {
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
func TestLogMetricsUseTheFieldsThatTheWorkerWrites(t *testing.T) {
	types := map[string]string{"message": "string"}
	for _, f := range delivery.LogFields() {
		types[f.Name] = f.Type
	}
	codes := []string{
		analysislock.AttemptsExhausted, analysislock.RunTimeExhausted, analysislock.NotStarted, analysislock.Crashed,
		delivery.CodeRunTimeout, delivery.CodeStalled,
	}
	for name, m := range workersMetrics(t) {
		for _, c := range payloadTest.FindAllStringSubmatch(m.Filter, -1) {
			field, value := c[1], strings.Trim(c[3], `"`)
			wrong := types[field] == "" || strings.Contains(c[2], ">") != (types[field] == "integer") ||
				field == "message" && value != "^(delivery|rejected)$" && value != "rejected" && value != "recovery" && value != delivery.UncertainMessage || field == "code" && !isOneOf(value, codes)
			if wrong {
				t.Errorf("%s: %s of a field of type %q", name, c[0], types[field])
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
func TestLogMetricsCountTheseLinesAndNoOthers(t *testing.T) {
	type line = map[string]any
	for _, c := range []struct {
		line line
		want []string
	}{
		{line{"message": "listening"}, nil},
		{line{"message": "recovery", "found": 0}, []string{"recoveries"}},
		{line{"message": "recovery", "found": 3, "stuck": 1}, []string{"recoveries", "stuck"}},
		{line{"message": "recovery", "found": 0, "abandoned": 1}, []string{"abandoned", "recoveries"}},
		{line{"message": "recovery", "found": 0, "abandoned": 0}, []string{"recoveries"}},
		{line{"message": "delivery"}, []string{"deliveries"}},
		{line{"message": "delivery", "analysis_id": "a", "acquire_ms": 0, "run_ms": 0, "attempt": 1}, []string{"acquire_ms", "attempts", "deliveries", "run_ms"}},
		{line{"message": "delivery", "time_to_start_ms": 300_000, "time_to_ready_ms": 1}, []string{"deliveries", "time_to_ready_ms", "time_to_start_ms"}},
		{line{"message": "delivery", "time_to_start_ms": 300_001}, []string{"deliveries", "late_starts", "time_to_start_ms"}},
		{line{"message": "recovery", "found": 0, "oldest_ms": 0}, []string{"oldest_ms", "recoveries"}},
		{line{"message": "delivery", "code": "attempts_exhausted", "stolen": true}, []string{"deliveries", "exhausted", "steals"}},
		{line{"message": "delivery", "code": "run_time_exhausted"}, []string{"deliveries", "exhausted"}},
		{line{"message": "delivery", "code": "run_timeout", "lost": "taken", "follow_up": "booked"}, []string{"deliveries", "follow_ups", "losses", "timeouts"}},
		{line{"message": "delivery", "code": "stalled", "asked_ms": 1_800_000}, []string{"deliveries", "timeouts"}},
		{line{"message": "delivery", "code": "analyzer_failed", "asked_ms": 1_800_001}, []string{"deliveries", "long_waits"}},
		{line{"message": "delivery", "outcome": "retry", "asked_ms": 3_600_001}, []string{"deliveries", "long_waits", "waits_over_1h"}},
		{line{"message": "delivery", "asked_ms": 14_400_001}, []string{"deliveries", "long_waits", "waits_over_1h", "waits_over_4h"}},
		{line{"message": "delivery", "code": "not_started"}, []string{"deliveries", "exhausted"}},
		{line{"message": "delivery", "code": "crashed"}, []string{"deliveries", "exhausted"}},
		{line{"message": "delivery", "analysis_id": "a", "outcome": "not_found"}, []string{"deliveries"}},
		{line{"message": "delivery", "analysis_id": "smoke-test-b", "outcome": "not_found"}, nil},
		{line{"message": delivery.UncertainMessage, "analysis_id": "a"}, []string{"uncertain"}},
		{line{"message": "rejected", "outcome": "not_found"}, []string{"deliveries", "rejected"}},
		{line{"message": "delivery", "analysis_id": "smoke-test-b", "outcome": "unavailable"}, []string{"deliveries"}}, // it is a 5xx of the service, too
	} {
		got := map[string]bool{}
		for name, m := range workersMetrics(t) {
			if counts(t, m.Filter, c.line) {
				got[name] = true
			}
		}
		if all := sorted(got); !slices.Equal(all, c.want) {
			t.Errorf("%v counts as %q, want %q", c.line, all, c.want)
		}
	}
	if release := read(t, "release.sh"); !strings.Contains(release, `"analysis_id\":\"smoke-test-$BUILD`) {
		t.Error("the smoke test requests another analysis")
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
			"=": fmt.Sprint(value) == want, "=~": regexp.MustCompile(strings.Trim(want, "*")).MatchString(fmt.Sprint(value)),
			">": n > least, ">=": n >= least, ":": true,
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
		"run_googleapis_com:request_count":                    {service, []string{"service_name", "revision_name", "response_code", "response_code_class"}, false},
		"run_googleapis_com:container_instance_count":         {service, []string{"service_name", "state"}, false},
		"run_googleapis_com:container_memory_utilizations":    {service, []string{"service_name"}, true},
	}
	for name, l := range m.LogMetrics {
		all["logging_googleapis_com:user_taskguard_"+name] = metric{service, append([]string{"service_name", "revision_name"}, l.Labels...), l.Value != ""}
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
	if strings.Count(query, "_googleapis_com:") != len(selected) || strings.Count(query, "(") != strings.Count(query, ")") {
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
			case c == nil, c[1] == "monitored_resource" && c[2] != m.resource, c[1] != "monitored_resource" && !slices.Contains(m.labels, c[1]):
				t.Errorf("%s: %s matches no label of %s", name, part, s[1])
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

func TestAlertsAndChartsQueryWhatIsMeasured(t *testing.T) {
	m := readMonitoring(t)
	known := metrics(m)
	for name, a := range m.Alerts {
		checkQuery(t, name, known, a.Query)
		if strings.Contains(a.Query, "user_taskguard_losses{") && !strings.Contains(a.Query, `,lost!="cancelled"}`) {
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
