package console

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"time"
)

// logMargin widens the time range of a log query: lines are written shortly before and after an attempt, by
// another clock.
const logMargin = time.Minute

// logsLink returns the address of the Logs Explorer with the lines of the analysis id from one time until another;
// a zero time: no limit. It returns "" without a project.
func logsLink(project, id string, from, until time.Time) string {
	if project == "" {
		return ""
	}
	query := `jsonPayload.analysis_id=` + quoted(id)
	if !from.IsZero() {
		query += fmt.Sprintf("\ntimestamp>=%q", from.Add(-logMargin).UTC().Format(time.RFC3339))
	}
	if !until.IsZero() {
		query += fmt.Sprintf("\ntimestamp<=%q", until.Add(logMargin).UTC().Format(time.RFC3339))
	}
	return "https://console.cloud.google.com/logs/query;query=" + escaped(query) + "?project=" + escaped(project)
}

// escaped escapes a value for a path: a plus sign is none there.
func escaped(value string) string { return strings.ReplaceAll(url.QueryEscape(value), "+", "%20") }

// quoted returns text as a string of the Logging query language, whose escapes are those of JSON.
func quoted(text string) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(text) // a string has no error
	return strings.TrimSpace(b.String())
}

// logs returns the address of the log lines of the analysis in that time.
func (r row) logs(from, until time.Time) string { return logsLink(r.Project, r.ID, from, until) }

// Logs returns the address of all log lines of the analysis. Until it is finished, it has no end.
func (r row) Logs() string {
	from, until := r.CreatedAt, time.Time{}
	if r.Lock.Finished {
		until = r.UpdatedAt
	}
	return r.logs(from, until)
}
