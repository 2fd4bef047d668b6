package chaos

import (
	"encoding/json"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"taskguard/internal/taskqueue"
	"taskguard/internal/testing/emulatortest"
	"taskguard/internal/testing/must"
)

// judgeStored checks that workers have stored and enqueued only what the list of what versions share has: the fields of
// the documents, and the names of the tasks.
func (c *chaos) judgeStored(t *testing.T) {
	t.Helper()
	fields := emulatortest.ReadStored(t, repository, "analysis")
	forms := emulatortest.ReadStored(t, repository, "task")
	names := map[string]map[string]string{} // the form of each name, by analysis
	for i := range c.analyses {
		writes, certain := c.proxy.history(id(i))
		for j := range writes {
			for _, line := range writes[j].stored {
				if !slices.Contains(fields, line) {
					t.Errorf("%s: %s is not in %s", id(i), line, emulatortest.StoredFile)
				}
			}
		}
		if certain {
			names[id(i)] = namesOf(id(i), writes, forms)
		}
	}

	c.queue.proxy.mu.Lock() // a killed worker's call may still be on its way
	defer c.queue.proxy.mu.Unlock()
	for _, task := range c.queue.proxy.tasks {
		var body struct {
			Analysis string `json:"analysis_id"`
		}
		must.OK(t, json.Unmarshal(task.GetHttpRequest().GetBody(), &body))
		if names[body.Analysis] == nil {
			continue
		}
		form := names[body.Analysis][path.Base(task.GetName())]
		if form == "" {
			t.Errorf("%s: %s names no task as %s", body.Analysis, emulatortest.StoredFile, task.GetName())
		}
		c.counts["tasks named "+figure(form)]++
	}
}

// namesOf returns the names of all tasks that these writes allow, each with the first word of its form. A form is the
// purpose, the names of fields, and a suffix that begins with "-".
func namesOf(id string, writes []write, forms []string) map[string]string {
	values := map[string][]string{
		"id":            {id},
		"lockToken":     {"0"},                                  // recovery enqueues what has no token yet
		"lockExpiresAt": {time.Time{}.Format(time.RFC3339Nano)}, // a lock that was lost may have no owner
	}
	for i := range writes {
		for field, v := range writes[i].fields {
			text := v.GetStringValue()
			if at, err := time.Parse(time.RFC3339, text); err == nil && field == "lockExpiresAt" {
				text = at.Format(time.RFC3339Nano)
			}
			if field == "lockToken" {
				text = strconv.FormatInt(v.GetIntegerValue(), 10)
			}
			if !slices.Contains(values[field], text) {
				values[field] = append(values[field], text)
			}
		}
	}

	names := map[string]string{}
	for _, form := range forms {
		words := strings.Fields(form)
		purpose, suffix := words[0], ""
		if last := words[len(words)-1]; strings.HasPrefix(last, "-") {
			words, suffix = words[:len(words)-1], last
		}
		all := [][]string{{purpose}}
		for _, field := range words[1:] {
			var longer [][]string
			for _, parts := range all {
				for _, v := range values[field] {
					longer = append(longer, append(slices.Clone(parts), v))
				}
			}
			all = longer
		}
		for _, parts := range all {
			names[taskqueue.Name(parts...)+suffix] = purpose
		}
	}
	return names
}
