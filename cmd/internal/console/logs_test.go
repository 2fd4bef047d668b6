package console_test

import (
	"html"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"taskguard/cmd/internal/console"
	"taskguard/internal/delivery"
	"taskguard/lease"
	"taskguard/lease/analysislock"
)

// queries returns the decoded queries of the links to Cloud Logging on a page, each on one line, and the projects.
func queries(t *testing.T, text string) (all, projects []string) {
	t.Helper()
	link := regexp.MustCompile(`href="https://console\.cloud\.google\.com/logs/query;query=([^?"]*)\?project=([^"]*)"`)
	for _, found := range link.FindAllStringSubmatch(text, -1) {
		query, err := url.PathUnescape(html.UnescapeString(found[1]))
		if err != nil {
			t.Fatal(err)
		}
		all, projects = append(all, strings.ReplaceAll(query, "\n", " ")), append(projects, found[2])
	}
	return all, projects
}

func TestLogs_TheAnalysisAndEachAttemptLinkTheirLines(t *testing.T) {
	began := time.Date(2026, 11, 30, 9, 0, 30, 0, time.UTC)
	const id = `a b+"c";d?e=1&f/%`
	a := analysis(id, "FAILED")
	a.Lock = lease.Lease{Token: 8, Finished: true}
	a.CreatedAt, a.UpdatedAt = began.Add(-time.Hour), began.Add(10*time.Minute)
	a.History = []analysislock.Attempt{
		{Number: 1, Token: 7, StartedAt: began, EndedAt: began.Add(time.Minute), Outcome: "retry"},
		{Number: 2, Token: 8, StartedAt: began.Add(5 * time.Minute)},
	}
	target := "/analysis?id=" + url.QueryEscape(id)

	got, projects := queries(t, page(t, open(t, newSource(a), console.Options{Every: quick, Project: "p-1"}), target))
	const of = `jsonPayload.analysis_id="a b+\"c\";d?e=1&f/%"`
	want := []string{
		of + ` timestamp>="2026-11-30T07:59:30Z" timestamp<="2026-11-30T09:11:30Z"`,
		of + ` timestamp>="2026-11-30T09:04:30Z"`, // it has no end
		of + ` timestamp>="2026-11-30T08:59:30Z" timestamp<="2026-11-30T09:02:30Z"`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("the links are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if !slices.Equal(projects, []string{"p-1", "p-1", "p-1"}) {
		t.Errorf("the projects are %q", projects)
	}
	hasNot(t, page(t, open(t, newSource(a), console.Options{Every: quick}), target), "console.cloud.google.com", "Logs")
}

func TestLogs_TheQueryUsesAFieldThatTheWorkerLogs(t *testing.T) {
	a := analysis("a", "QUEUED")
	got, _ := queries(t, page(t, open(t, newSource(a), console.Options{Every: quick, Project: "p"}), "/analysis?id=a"))
	field := strings.TrimPrefix(regexp.MustCompile(`jsonPayload\.\w+`).FindString(got[0]), "jsonPayload.")
	line := delivery.LogLine{Result: delivery.Result{ID: "a"}}
	for _, attr := range line.Attrs() {
		if attr.Key == field && attr.Value.String() == "a" {
			return
		}
	}
	t.Errorf("no line has the field %q: %v", field, line.Attrs())
}
