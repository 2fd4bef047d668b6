package browser

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"taskguard/cmd/chromiumtest"
)

// words is a long text of a document, with what a page might take for its own.
var words = "<b>the</b> document's text is not \"UTF-8\" & cannot be read; " + strings.Repeat("a-very-long-word-without-a-place-to-break-it", 8)

// states is an analysis in each state, and how a page names its state and its lock.
var states = []struct {
	id, state, lock string
	fields          func() map[string]any
}{
	{"queued", "QUEUED", "free", func() map[string]any {
		return map[string]any{"status": "QUEUED", "input": map[string]any{"text": "the-secret-input"}, "lastError": map[string]any{"code": "failed", "message": words}, "attempts": 1}
	}},
	{"held", "PROCESSING", "held", func() map[string]any { return locked(5 * time.Minute) }},
	{"stale", "PROCESSING", "stale", func() map[string]any { return locked(-time.Minute) }},
	{"ready", "READY", "free", func() map[string]any {
		return map[string]any{"status": "READY", "attempts": 1, "result": map[string]any{"words": 5, "top": "the-secret-result"}, "lockToken": 3, "finishedBy": "a/b/c"}
	}},
	{"failed", "FAILED", "free", func() map[string]any {
		return map[string]any{"status": "FAILED", "attempts": 10, "lockToken": 10, "error": map[string]any{"code": "attempts_exhausted", "message": words}}
	}},
	{"foreign", "ARCHIVED", "free", func() map[string]any { return map[string]any{"status": "ARCHIVED"} }},
	{"without", "no status", "free", func() map[string]any { return map[string]any{"input": "the-secret-input"} }},
	{"malformed", "PROCESSING", "malformed", func() map[string]any {
		return map[string]any{"status": "PROCESSING", "lockOwner": "somebody", "lockToken": "seven", "lockExpiresAt": "tomorrow"}
	}},
}

// longID fits no column.
var longID = "2026/11/21—Überweisung—" + strings.Repeat("0123456789", 20)

// withStates is a site with an analysis in each state, and one with a long id.
func withStates(t *testing.T, flags ...string) *site {
	t.Helper()
	s := newSite(t, flags...)
	for _, c := range states {
		s.analysis(c.id, c.fields())
	}
	s.analysis(strings.ReplaceAll(longID, "/", "-"), map[string]any{"status": strings.Repeat("EINGEFROREN", 12), "attempts": 123456})
	return s
}

// row is a script for the row of the analysis id.
func row(id string) string {
	return fmt.Sprintf(`document.querySelector('#rows [data-id=%q]')`, id)
}

func TestEveryStateOfAnAnalysisIsThereByName(t *testing.T) {
	s := withStates(t, "--write")
	b := chromiumtest.NewProfile(t).Open(s.url)
	b.Is(`document.getElementById('live').dataset.live === 'live'`)
	b.Is(fmt.Sprintf(`document.querySelectorAll('#rows > tr').length === %d`, len(states)+1))
	for _, c := range states {
		for part, want := range map[string]string{".cell-state bdi": c.state, ".cell-lock .word": c.lock} {
			if got := b.Eval(row(c.id) + `.querySelector('` + part + `').innerText`); got != fmt.Sprintf("%q", want) {
				t.Errorf("%s: %s says %s, want %q", c.id, part, got, want)
			}
		}
		if got := b.Eval(row(c.id) + `.checkVisibility()`); got != "true" {
			t.Errorf("%s is not to be seen", c.id)
		}
	}
	for id, want := range map[string]string{"held": "left", "failed": "attempts_exhausted", "queued": "last: failed", "malformed": "lockToken"} {
		if got := b.Eval(row(id) + `.innerText.replace(/\s+/g, ' ')`); !strings.Contains(got, want) {
			t.Errorf("%s says %s, want %q in it", id, got, want)
		}
	}
	if got := b.Eval(`document.querySelector('b:not(.pills b)')`); got != "null" {
		t.Errorf("a document's text is markup: %s", got)
	}
}
