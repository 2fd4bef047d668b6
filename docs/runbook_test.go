package docs

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/zclconf/go-cty/cty"

	"taskguard/worker"
)

// runbook is each section of the runbook by its heading.
func runbook(t *testing.T) map[string]string {
	t.Helper()
	page, err := readFolder("operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(page, "\n## Runbook\n")
	all, _, _ := strings.Cut(after, "\n## ")
	sections := map[string]string{}
	for _, s := range strings.Split(all, "\n### ")[1:] {
		heading, _, _ := strings.Cut(s, "\n")
		sections[heading] = s
	}
	return sections
}

var (
	promql     = regexp.MustCompile("(?s)```promql\n(.*?)\n```")
	causes     = regexp.MustCompile(`(?m)^(\d)\. `)
	anyCommand = regexp.MustCompile("`(?:taskguard|gcloud|terraform) [a-z]")
	// What an alert asks that fires where lines are missing.
	absence        = regexp.MustCompile(`unless sum\(increase\(logging_[^>]*> 0$|vector\(0\)\) < 1`)
	crossReference = regexp.MustCompile(`\[([^]]*)\]\(#[^)]*\)`)
)

// tells is what a notification of the alert says.
func tells(t *testing.T, policy cty.Value) string {
	t.Helper()
	return text(t, policy.GetAttr("documentation").Index(cty.Zero).GetAttr("content"))
}

// Who is woken finds the alert's name, what it asked, why it may be, and what to do.
func TestEveryAlertHasItsSectionInTheRunbook(t *testing.T) {
	m := planned(t, everything)
	sections, policies := runbook(t), m.instances(t, "google_monitoring_alert_policy")
	asked := alerts(t, m)
	if diff := cmp.Diff(sortedTexts(slices.Collect(maps.Keys(asked))), sortedTexts(slices.Collect(maps.Keys(sections)))); diff != "" {
		t.Errorf("-alerts +sections:\n%s", diff)
	}
	for name, s := range sections {
		q := promql.FindStringSubmatch(s)
		if q == nil {
			t.Errorf("%s shows no query", name)
		} else if diff := cmp.Diff(asked[name], q[1]); diff != "" {
			t.Errorf("%s: -asked +shown:\n%s", name, diff)
		}
		for i, c := range causes.FindAllStringSubmatch(s, -1) {
			if c[1] != fmt.Sprint(i+1) {
				t.Errorf("%s: cause %d is numbered %s", name, i+1, c[1])
			}
		}
		if absence.MatchString(asked[name]) && !strings.Contains(s, "`LOG_LEVEL` above info, or `LOG_FORMAT=text`") {
			t.Errorf("%s is about lines that are missing, and does not say that they may not be written", name)
		}
		if !strings.Contains(s, "\n1. ") || !anyCommand.MatchString(s) {
			t.Errorf("%s has no cause or no command", name)
		}
	}
	for address, v := range policies {
		told := tells(t, v)
		shown := crossReference.ReplaceAllString(sections[text(t, v.GetAttr("display_name"))], "$1 (docs/operations.md)")
		shown = strings.ReplaceAll(shown, "--location=REGION", "--location=europe-west1 --project=my-project")
		if strings.TrimSpace(told) != strings.TrimSpace(shown) {
			t.Errorf("%s tells something else than the runbook:\n%s", address, cmp.Diff(shown, told))
		}
		if n := utf8.RuneCountInString(told); n > 8192 || len(told) > 10240 {
			t.Errorf("%s tells %d characters, and 8192 can be told", address, n)
		}
	}
}

// On a telephone there is no page to look up what a name stands for.
func TestANotificationHoldsTheDeploymentsOwnNamesAndFigures(t *testing.T) {
	m := planned(t, with(everything, map[string]cty.Value{
		"project": cty.StringVal("theirs"), "region": cty.StringVal("us-east1"), "queue": cty.StringVal("work"), "backlog_tasks": cty.NumberIntVal(7),
	}))
	commands, asked := 0, alerts(t, m)
	for address, v := range m.instances(t, "google_monitoring_alert_policy") {
		told := tells(t, v)
		if q := asked[text(t, v.GetAttr("display_name"))]; !strings.Contains(told, "```promql\n"+q+"\n```") {
			t.Errorf("%s asks %s, and tells\n%s", address, q, told)
		}
		for _, wrong := range []string{"REGION", "europe-west1", "my-project", "](#", "=analyses", " analyses --", "1000"} {
			if strings.Contains(told, wrong) {
				t.Errorf("%s tells of %q:\n%s", address, wrong, told)
			}
		}
		for _, c := range regexp.MustCompile("`gcloud (tasks|scheduler) [^`]*`").FindAllString(told, -1) {
			if commands++; !strings.Contains(c, " --location=us-east1 --project=theirs") || strings.HasPrefix(c, "`gcloud tasks") && !strings.Contains(c, "work") {
				t.Errorf("%s: %s acts on something else", address, c)
			}
		}
	}
	if commands < 8 {
		t.Errorf("%d commands: does this test still see?", commands)
	}
}

var (
	invoked         = regexp.MustCompile("`taskguard ([a-z]+)")
	commandDeclared = regexp.MustCompile(`\n\t\t\{Name: "([a-z]+)", `)
	variableNamed   = regexp.MustCompile("`(worker_[a-z_]+|max_[a-z_]+|run_timeout_minutes|operators|create_database)")
	// Without a service it looks at this terminal's environment.
	bareDoctor = regexp.MustCompile("taskguard doctor`|taskguard doctor\\n")
)

// A page read in an emergency names no command, field or variable that is not there.
func TestOperationsNamesWhatExists(t *testing.T) {
	page, err := readFolder("operations.md")
	if err != nil {
		t.Fatal(err)
	}
	source, err := readFolder("../cmd/taskguard/main.go")
	if err != nil {
		t.Fatal(err)
	}
	has := map[string]bool{}
	for _, c := range commandDeclared.FindAllStringSubmatch(source, -1) {
		has[c[1]] = true
	}
	for _, c := range invoked.FindAllStringSubmatch(page, -1) {
		if c[1] != "commands" && !has[c[1]] {
			t.Errorf("there is no taskguard %s", c[1])
		}
	}
	if bareDoctor.MatchString(page) {
		t.Error("doctor is not told the service")
	}
	variables := planned(t, required).variables
	for _, v := range variableNamed.FindAllStringSubmatch(page, -1) {
		if _, ok := variables[v[1]]; !ok {
			t.Errorf("the module has no variable %s", v[1])
		}
	}
	fields := map[string]bool{"message": true}
	for _, f := range worker.LogFields() {
		fields[f.Name] = true
	}
	for _, f := range payloadField.FindAllStringSubmatch(page, -1) {
		if !fields[f[1]] {
			t.Errorf("the worker writes no %s", f[1])
		}
	}
	_, line, _ := strings.Cut(page, "\n## The log line\n")
	line, _, _ = strings.Cut(line, "\n## ")
	line, _, _ = strings.Cut(line, "INFO is")
	for row := range strings.Lines(line) {
		if !strings.HasPrefix(row, "| `") {
			continue
		}
		for _, name := range regexp.MustCompile("`(\\w+)`").FindAllStringSubmatch(strings.Split(row, "|")[1], -1) {
			if !fields[name[1]] {
				t.Errorf("the worker writes no %s", name[1])
			}
			delete(fields, name[1])
		}
	}
	if len(has) < 5 || len(fields) > 3 { // message, lock_owner
		t.Errorf("%d commands, %v not in the table: does this test still see?", len(has), slices.Collect(maps.Keys(fields)))
	}
}
