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
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return &site{Backend: b, t: t, url: "http://" + l.Addr().String(), profile: NewProfile(t)}
}

// pollFaster is a script that makes a page poll every second instead of every four.
const pollFaster = `const wait = setTimeout;
	globalThis.setTimeout = (call, ms) => wait(call, ms / 4);`

// open opens a page of the console in which scripts run before the page's own.
func (s *site) open(path string, scripts ...string) *Tab {
	s.t.Helper()
	return s.profile.Open(s.url+path, append([]string{pollFaster}, scripts...)...)
}

// analysis writes the analysis id as another program would: created and updated now,
// unless fields has these times.
func (s *site) analysis(id string, fields map[string]any) {
	s.t.Helper()
	now := iso8601.Format(time.Now())
	all := map[string]any{"createdAt": now, "updatedAt": now}
	maps.Copy(all, fields)
	s.Put(s.t, id, all)
}

// update changes fields as a worker does, with updatedAt.
func (s *site) update(id string, fields map[string]any) {
	s.t.Helper()
	all := map[string]any{"updatedAt": iso8601.Format(time.Now())}
	maps.Copy(all, fields)
	s.Merge(s.t, id, all)
}

// locked returns the fields of an analysis whose lock ends after left.
func locked(left time.Duration) map[string]any {
	return map[string]any{
		"status": "PROCESSING", "attempts": 1, "lockOwner": "taskguard-worker-00042-kib/0087244a81b5c3/9f2c4d", "lockToken": 7,
		"lockHeartbeatAt": iso8601.Format(time.Now()), "lockExpiresAt": iso8601.Format(time.Now().Add(left)),
	}
}

// reported adds to fields what a run has reported, and its attempts.
func reported(fields map[string]any) map[string]any {
	at := func(ago time.Duration) string { return iso8601.Format(time.Now().Add(-ago)) }
	fields["progress"] = map[string]any{"fraction": 0.4, "message": words, "at": at(3 * time.Second)}
	fields["history"] = []any{
		map[string]any{"attempt": 1, "token": 5, "owner": words, "startedAt": at(time.Hour), "endedAt": at(50 * time.Minute), "outcome": "retry", "code": "exit_1", "message": words[:256]},
		map[string]any{"attempt": 2, "token": 6, "owner": "w/2", "startedAt": at(20 * time.Minute)},
		map[string]any{"attempt": 3, "token": 7, "owner": fields["lockOwner"], "startedAt": at(time.Minute)},
	}
	return fields
}

// words is a long text of a document that contains markup.
var words = "<b>the</b> document's text is not \"UTF-8\" & cannot be read; " + strings.Repeat("a-very-long-word-without-a-place-to-break-it", 8)

// traceback is a message whose last line is its meaning.
var traceback = "Traceback (most recent call last):\n  File \"/app/analyze.py\", line 41, in main\n" + strings.Repeat("    step(document)\n", 12) + "KeyError: 'invoice_number'\n"

// longID is longer than a column of the list.
var longID = "2026-11-21—Überweisung—" + strings.Repeat("0123456789", 20)

// withStates returns a site with an analysis in each state, and one with a long id.
func withStates(t *testing.T, flags ...string) *site {
	t.Helper()
	s := newSite(t, flags...)
	for id, fields := range map[string]map[string]any{
		"held":    reported(locked(5 * time.Minute)),
		"stale":   locked(-time.Minute),
		"foreign": {"status": "ARCHIVED"},
		"without": {"input": "the input"},
		longID:    {"status": strings.Repeat("EINGEFROREN", 12), "attempts": 123456},
		"queued": {
			"status": "QUEUED", "input": map[string]any{"text": "the input"}, "attempts": 1,
			"lastError": map[string]any{"code": "failed", "message": words},
		},
		"ready": {
			"status": "READY", "attempts": 1, "result": map[string]any{"words": 5, "top": "the result"}, "lockToken": 3, "finishedBy": "a/b/c",
		},
		"failed": {
			"status": "FAILED", "attempts": 10, "lockToken": 10, "checkpoint": "page 7", "lastError": map[string]any{"code": "exit_1", "message": traceback},
			"error": map[string]any{"code": "attempts_exhausted", "message": "attempt 10 was the last: " + traceback},
		},
		"malformed": {"status": "PROCESSING", "lockOwner": "unknown", "lockToken": "seven", "lockExpiresAt": "tomorrow"},
	} {
		s.analysis(id, fields)
	}
	return s
}

// row returns a script for the row of the analysis id.
func row(id string) string {
	return fmt.Sprintf(`document.querySelector('#rows [data-id=%q]')`, id)
}
