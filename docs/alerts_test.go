package docs

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/zclconf/go-cty/cty"
)

var (
	selector  = regexp.MustCompile(`([a-z_]+_googleapis_com):(\w+)\{([^}]*)\}`)
	matcher   = regexp.MustCompile(`^(\w+)(=|!=|=~)"([^"]*)"$`)
	grouping  = regexp.MustCompile(`by \(([^)]*)\)`)
	suffix    = regexp.MustCompile(`_(bucket|sum|count)$`)
	resources = map[string][]string{"cloud_run_revision": {"service_name"}, "cloud_tasks_queue": {"queue_id"}}
)

// googles are the metrics of Google's that are asked for, with their labels.
var googles = map[string]metric{
	"cloudtasks_googleapis_com:queue_depth":               {of: "cloud_tasks_queue"},
	"cloudtasks_googleapis_com:queue_task_attempt_count":  {of: "cloud_tasks_queue", labels: []string{"response_code"}},
	"cloudtasks_googleapis_com:queue_task_attempt_delays": {of: "cloud_tasks_queue", distribution: true},
	"run_googleapis_com:request_count":                    {of: "cloud_run_revision", labels: []string{"response_code", "response_code_class"}},
	"run_googleapis_com:container_instance_count":         {of: "cloud_run_revision", labels: []string{"state"}},
	"run_googleapis_com:container_memory_utilizations":    {of: "cloud_run_revision", distribution: true},
}

type metric struct {
	of           string // its monitored resource
	labels       []string
	distribution bool
}

// metrics are Google's and the module's, by PromQL's names.
func metrics(t *testing.T, m *terraform) map[string]metric {
	t.Helper()
	all := maps.Clone(googles)
	for _, v := range m.instances(t, "google_logging_metric") {
		one := metric{of: "cloud_run_revision", distribution: !v.GetAttr("value_extractor").IsNull()}
		for label := range v.GetAttr("label_extractors").AsValueMap() {
			one.labels = append(one.labels, label)
		}
		all["logging_googleapis_com:user_"+strings.ReplaceAll(text(t, v.GetAttr("name")), "/", "_")] = one
	}
	return all
}

// asks says what is wrong with what a PromQL query asks for, and adds the metrics
// that it does ask for.
func asks(known map[string]metric, query string, used map[string]bool) (problems []string) {
	selected := selector.FindAllStringSubmatch(query, -1)
	if len(selected) == 0 || strings.Count(query, "_googleapis_com:") != len(selected) {
		problems = append(problems, "a metric without a monitored resource")
	}
	if strings.Count(query, "(") != strings.Count(query, ")") {
		problems = append(problems, "unbalanced")
	}
	var labels []string
	for _, s := range selected {
		name := s[1] + ":" + s[2]
		m, plain := known[name]
		if !plain {
			name = suffix.ReplaceAllString(name, "")
			m = known[name]
		}
		if m.of == "" || plain == m.distribution {
			problems = append(problems, s[1]+":"+s[2]+" is not measured")
			continue
		}
		used[name] = true
		labels = append(append(labels, m.labels...), resources[m.of]...)
		for _, part := range strings.Split(s[3], ",") {
			problems = append(problems, matches(m, part)...)
		}
	}
	for _, g := range grouping.FindAllStringSubmatch(query, -1) {
		for _, label := range strings.Split(g[1], ", ") {
			if label != "le" && !slices.Contains(labels, label) {
				problems = append(problems, "grouped by "+label+", which no metric has")
			}
		}
	}
	return problems
}

// matches says what is wrong with one label's matcher.
func matches(m metric, part string) (problems []string) {
	c := matcher.FindStringSubmatch(part)
	switch {
	case c == nil:
		return []string{part + " is no matcher"}
	case c[1] == "monitored_resource":
		if c[3] != m.of {
			problems = append(problems, part+" has no such metric")
		}
	case !slices.Contains(append(resources[m.of], m.labels...), c[1]):
		problems = append(problems, part+" is on a label that the metric lacks")
	case c[1] == "outcome":
		for value := range strings.SplitSeq(c[3], "|") {
			if !outcomes()[value] {
				problems = append(problems, value+" is no outcome")
			}
		}
	}
	return problems
}

// alerts are the queries by the alert's display name.
func alerts(t *testing.T, m *terraform) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, v := range m.instances(t, "google_monitoring_alert_policy") {
		name := text(t, v.GetAttr("display_name"))
		if n := v.GetAttr("conditions").LengthInt(); n != 1 {
			t.Errorf("%s has %d conditions: with PromQL Google takes one", name, n)
		}
		promql := v.GetAttr("conditions").Index(cty.Zero).GetAttr("condition_prometheus_query_language").Index(cty.Zero)
		all[name] = text(t, promql.GetAttr("query"))
		if lasting := text(t, promql.GetAttr("duration")); !regexp.MustCompile(`^\d+s$`).MatchString(lasting) {
			t.Errorf("%s lasts %s", name, lasting)
		}
		if promql.GetAttr("disable_metric_validation").False() {
			t.Errorf("%s: the first apply would fail, for a metric some minutes old is unknown", name)
		}
	}
	return all
}

func TestAlertsAndChartsAskForWhatIsMeasured(t *testing.T) {
	m := planned(t, everything)
	known, used := metrics(t, m), map[string]bool{}
	for name, q := range alerts(t, m) {
		for _, problem := range asks(known, q, used) {
			t.Errorf("%s: %s\n\t%s", name, problem, q)
		}
	}
	for _, chart := range charts(t, m) {
		for _, set := range chart.XyChart.DataSets {
			q := set.TimeSeriesQuery.PrometheusQuery
			for _, problem := range asks(known, q, used) {
				t.Errorf("chart %s: %s\n\t%s", chart.Title, problem, q)
			}
		}
	}
	for _, name := range sortedTexts(slices.Collect(maps.Keys(known))) {
		if !used[name] {
			t.Errorf("%s is measured, and nobody looks", name)
		}
	}
}

// The smallest that an alert compares with, and in which direction: what a slip of
// the hand would turn around, in the module and the runbook alike.
func TestAlertsFireInTheRightDirection(t *testing.T) {
	comparison := regexp.MustCompile(`[<>]=? ([\d.]+( \*)?|sum)`)
	got := map[string][]string{}
	for name, q := range alerts(t, planned(t, everything)) {
		got[strings.TrimPrefix(name, "Taskguard: ")] = comparison.FindAllString(q, -1)
	}
	want := map[string][]string{
		"tasks wait":                    {"> 600000"},
		"the backlog grows":             {"> 1000", "> sum"},
		"tasks are not sent":            {"> 0", "> 0"},
		"tasks do not arrive":           {"> 0", "> 0"},
		"Firestore is out of reach":     {"> 5"},
		"analyses fail":                 {"> 5", "> 0.1 *"},
		"attempts are exhausted":        {"> 0"},
		"locks are lost":                {"> 3"},
		"analyses are stuck":            {"> 0", "> 300000"},
		"recovery has stopped":          {"< 1"},
		"no instance is free":           {"> 5"},
		"tasks can never succeed":       {"> 0"},
		"the worker dies or is cut off": {"> 5", "> 0.1 *"},
		"the document lock fails":       {"> 5"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// Cloud Run's metrics and those of log lines come by ways of their own: what one has
// and the other not yet is no difference.
func TestAnAlertSubtractsOnlyWhatHasArrivedOnBothWays(t *testing.T) {
	window, settled := regexp.MustCompile(`\[\d+m\]`), regexp.MustCompile(`\[15m\] offset 5m`)
	subtracts := 0
	for name, q := range alerts(t, planned(t, everything)) {
		if !strings.Contains(q, " - ") {
			continue
		}
		subtracts++
		if all, late := len(window.FindAllString(q, -1)), len(settled.FindAllString(q, -1)); late != all {
			t.Errorf("%s: %d of %d windows end 5 minutes ago\n\t%s", name, late, all, q)
		}
	}
	if subtracts == 0 {
		t.Error("no alert subtracts: does this test still see?")
	}
}

// It counts none as an alarm: the job must call before it is made, and a new log
// metric needs some minutes to count.
func TestRecoveryHasTimeToBegin(t *testing.T) {
	m := planned(t, required)
	if on := dependsOn(m, "google_monitoring_alert_policy.taskguard"); !slices.Contains(on, "google_cloud_scheduler_job.recover") {
		t.Errorf("the alerts depend on %q, not on recovery's job", on)
	}
	for _, v := range m.instances(t, "google_monitoring_alert_policy") {
		lasting, err := time.ParseDuration(text(t, v.GetAttr("conditions").Index(cty.Zero).GetAttr("condition_prometheus_query_language").Index(cty.Zero).GetAttr("duration")))
		if err != nil || strings.Contains(text(t, v.GetAttr("display_name")), "recovery") && lasting < 15*time.Minute {
			t.Errorf("%v, %v", lasting, err)
		}
	}
}

func TestOnlyADocumentLockThatIsThereHasAnAlert(t *testing.T) {
	for name := range alerts(t, planned(t, required)) {
		if strings.Contains(name, "document lock") {
			t.Errorf("%s, and there is none", name)
		}
	}
}
