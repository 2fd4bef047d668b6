package console_test

import (
	"html"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"taskguard/internal/testing/must"

	"taskguard/cmd/internal/console"
	"taskguard/internal/delivery"
	"taskguard/lease/analysislock"
)

// logLinks returns the decoded queries of a page's links to Cloud Logging, each on one line.
func logLinks(t *testing.T, a analysislock.Analysis, project string) (all []string) {
	t.Helper()
	s := open(t, newSource(a), console.Options{Every: quick, Project: project})
	text := page(t, s, "/analysis?id="+url.QueryEscape(a.ID))
	contains(t, text, project != "", "Logs")
	for _, link := range found(text, `href="https://console\.cloud\.google\.com/logs/query;query=([^"]*)"`) {
		query := must.Get(url.PathUnescape(html.UnescapeString(link)))(t)
		all = append(all, strings.ReplaceAll(query, "\n", " "))
	}
	return all
}

func TestLogs(t *testing.T) {
	t.Run("an analysis and each attempt link their lines", func(t *testing.T) {
		began := time.Date(2026, 11, 30, 9, 0, 30, 0, time.UTC)
		a := ended(`a b+"c";d?e=1&f/%`, "FAILED")
		a.Lock.Token, a.CreatedAt, a.UpdatedAt = 8, began.Add(-time.Hour), began.Add(10*time.Minute)
		a.History = []analysislock.Attempt{
			{Number: 1, Token: 7, StartedAt: began, EndedAt: began.Add(time.Minute), Outcome: "retry"},
			{Number: 2, Token: 8, StartedAt: began.Add(5 * time.Minute)},
		}
		const id, project = `jsonPayload.analysis_id="a b+\"c\";d?e=1&f/%"`, "?project=p-1"
		equal(t, "links", strings.Join(logLinks(t, a, "p-1"), "\n"),
			id+` timestamp>="2026-11-30T07:59:30Z" timestamp<="2026-11-30T09:11:30Z"`+project+"\n"+
				id+` timestamp>="2026-11-30T09:04:30Z"`+project+"\n"+ // it has no end
				id+` timestamp>="2026-11-30T08:59:30Z" timestamp<="2026-11-30T09:02:30Z"`+project)
		equal(t, "without a project", len(logLinks(t, a, "")), 0)
	})
	t.Run("the query uses a field that the worker logs", func(t *testing.T) {
		field := found(logLinks(t, analysis("a", "QUEUED"), "p")[0], `jsonPayload\.(\w+)`)[0]
		line := delivery.LogLine{Result: delivery.Result{ID: "a"}}
		at := slices.IndexFunc(line.Attrs(), func(a slog.Attr) bool { return a.Key == field })
		equal(t, field, line.Attrs()[at].Value.String(), "a")
	})
}
