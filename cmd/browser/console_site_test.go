package browser

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"taskguard/cmd/internal/cli"
	"taskguard/cmd/internal/operate"
	"taskguard/internal/testing/emulatortest"
	"taskguard/lease/iso8601"
)

// site is a console and what it shows.
type site struct {
	*emulatortest.Backend
	t       *testing.T
	url     string
	profile *Profile
}

// newSite starts the console, with changes if flags has --write, until the test ends. It reads each
// second what a page shows, instead of each eight.
func newSite(t *testing.T, flags ...string) *site {
	t.Helper()
	b := emulatortest.Embedded(t)
	env := map[string]string{"GOOGLE_CLOUD_PROJECT": b.Project, "FIRESTORE_EMULATOR_HOST": b.Listen(t)}
	lookup := func(name string) (string, bool) { v, ok := env[name]; return v, ok }
	ctx, stop := context.WithCancel(context.Background())
	console := must(operate.NewConsole(ctx, cli.NewCall(cli.Command{}, nil, cli.Streams{}, lookup), operate.ConsoleOptions{
		Write: slices.Contains(flags, "--write"), Every: time.Second, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}))(t)
	l := must((&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0"))(t)
	ended := make(chan error, 1)
	go func() { ended <- console.Serve(ctx, l) }()
	t.Cleanup(func() { stop(); check(t, <-ended) })
	return &site{Backend: b, t: t, url: "http://" + l.Addr().String(), profile: NewProfile(t)}
}

// open opens a page of the console, which polls every second instead of every four, and in which
// scripts run before the page's own.
func (s *site) open(path string, scripts ...string) *Tab {
	s.t.Helper()
	const faster = `const wait = setTimeout; globalThis.setTimeout = (call, ms) => wait(call, ms / 4);`
	return s.profile.Open(s.url+path, append([]string{faster}, scripts...)...)
}

// analysis writes the analysis id as another program would: created and updated now,
// unless fields has these times.
func (s *site) analysis(id string, fields map[string]any) {
	s.t.Helper()
	all := map[string]any{"createdAt": ago(0), "updatedAt": ago(0)}
	maps.Copy(all, fields)
	s.Put(s.t, id, all)
}

// update changes fields as a worker does, with updatedAt.
func (s *site) update(id string, fields map[string]any) {
	s.t.Helper()
	fields["updatedAt"] = ago(0)
	s.Merge(s.t, id, fields)
}

// locked returns the fields of an analysis whose lock ends after left.
func locked(left time.Duration) map[string]any {
	return map[string]any{
		"status": "PROCESSING", "attempts": 3, "lockOwner": "taskguard-worker-00042-kib/0087244a81b5c3/9f2c4d", "lockToken": 7,
		"lockExpiresAt": iso8601.Format(time.Now().Add(left)), "progress": map[string]any{"fraction": 0.4, "message": words, "at": ago(3 * time.Second)},
		"history": []any{
			map[string]any{"attempt": 1, "token": 5, "owner": words, "startedAt": ago(time.Hour), "endedAt": ago(50 * time.Minute), "outcome": "retry", "code": "exit_1", "message": words[:256]},
			map[string]any{"attempt": 3, "token": 7, "owner": "w/2", "startedAt": ago(time.Minute)},
		},
	}
}

func ago(d time.Duration) string { return iso8601.Format(time.Now().Add(-d)) }

// words is a long text of a document that contains markup, traceback one whose last line is its
// meaning, and longID is longer than a column of the list.
var (
	words     = "<b>the</b> document's text is not \"UTF-8\" & cannot be read; " + strings.Repeat("a-very-long-word-without-a-place-to-break-it", 8)
	traceback = "Traceback (most recent call last):\n  File \"/app/analyze.py\", line 41, in main\n" + strings.Repeat("    step(document)\n", 12) + "KeyError: 'invoice_number'\n"
	longID    = "2026-11-21—Überweisung—" + strings.Repeat("0123456789", 20)
)

// withStates returns a site, with changes, that has an analysis in each state.
func withStates(t *testing.T) *site {
	t.Helper()
	s := newSite(t, "--write")
	failed := map[string]any{"code": "exit_1", "message": traceback}
	act := map[string]any{"charge": map[string]any{"state": "started", "token": 7, "at": ago(3 * time.Hour)}, "mail": map[string]any{"state": "done", "token": 7, "at": ago(4 * time.Hour)}}
	for id, fields := range map[string]map[string]any{
		"held": locked(5 * time.Minute), "stale": locked(-time.Minute), "foreign": {"status": "ARCHIVED"}, "without": {"input": "the input"},
		longID:      {"status": strings.Repeat("EINGEFROREN", 12), "attempts": 123456},
		"stuck":     {"status": "QUEUED", "updatedAt": "2020-01-01T00:00:00.000Z"},
		"waits":     {"status": "QUEUED", "attempts": 1, "nextAttemptAt": ago(-9 * time.Minute), "lastError": map[string]any{"code": "failed", "message": words}},
		"ready":     {"status": "READY", "attempts": 1, "input": "the input", "result": map[string]any{"words": 5}, "lockToken": 3, "finishedBy": "a/b/c"},
		"failed":    {"status": "FAILED", "attempts": 10, "checkpoint": "page 7", "lastError": failed, "error": map[string]any{"code": "attempts_exhausted", "message": "attempt 10 was the last: " + traceback}},
		"uncertain": {"status": "FAILED", "lockToken": 7, "error": map[string]any{"code": "effect_uncertain", "message": "act charge"}, "openEffects": 1, "effects": act},
		"malformed": {"status": "PROCESSING", "lockOwner": "unknown", "lockToken": "seven", "lockExpiresAt": "tomorrow"},
	} {
		s.analysis(id, fields)
	}
	return s
}

// row returns a script for the row of the analysis id.
func row(id string) string { return fmt.Sprintf(`document.querySelector('#rows [data-id=%q]')`, id) }
