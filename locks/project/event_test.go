package project_test

import (
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"taskguard/internal/testing/must"
	"taskguard/lease/leasetest"
	"taskguard/locks/project"
)

func TestSubscribe(t *testing.T) {
	inBubble(t, "unsubscribe is idempotent", true, func(s *fixture) { // P2
		calls := 0
		unsubscribe := s.Subscribe(func(project.Event) { calls++ })
		ls := s.acquired(s.Locker, options{})
		unsubscribe()
		unsubscribe()
		s.released(s.Locker, ls)
		same(s, 3, calls)
		same(s, 6, len(s.reported())) // of the other listener
	})

	inBubble(t, "events that a listener causes are delivered afterwards", true, func(s *fixture) {
		s.holdRemote()
		var end func()
		end = s.Subscribe(func(e project.Event) {
			if e.Type != project.ReadonlyEntered {
				return
			}
			end()
			s.memory.Delete(room)
			s.wantState(project.Readonly)
			s.reset()
			s.acquired(s.Locker, options{})
		})
		var last []string
		unsubscribe := s.Subscribe(func(e project.Event) { last = append(last, string(e.Type)) })
		s.refused(s.Locker, once(), project.AcquireDenied)
		unsubscribe() // the end of trust is an event too
		same(s, "lock:attempt lock:error lock:readonly-entered lock:attempt lock:acquired lock:renew-scheduled",
			strings.Join(last, " "))
	})
}

// telemetry writes the events to the project's telemetry, too.
func (s *fixture) telemetry(log *slog.Logger) { s.Subscribe(project.NewTelemetry(s.dir, log).Record) }

func TestTelemetry(t *testing.T) {
	want := map[string]string{
		"attempt":           "leaseId retry strategy",
		"acquired":          "expiresAt leaseId strategy",
		"renewed":           "expiresAt leaseId retry strategy",
		"renew-scheduled":   "leaseId nextHeartbeatInMs strategy",
		"error":             "code leaseId retry retryable strategy",
		"waiting":           "leaseId retry strategy waitMs",
		"release-requested": "force leaseId strategy",
		"release-failed":    "force leaseId retry strategy",
		"released":          "durationMs leaseId strategy",
		"readonly-entered":  "alias leaseId reason retry strategy",
		"warning":           "lateMs leaseId strategy warning",
	}
	inBubble(t, "each event is a line with its fields", true, func(s *fixture) { // P8, P13
		s.telemetry(slog.New(slog.DiscardHandler))
		ls := s.acquired(s.Locker, options{})
		time.Sleep(21 * time.Second)
		s.renewed(ls)
		s.remote.SetPlan(leasetest.Always(leasetest.Refuse))
		wantCode(s, s.Release(s.Context(), ls, release{}), project.ReleaseFailed, true)
		s.remote.SetPlan(nil)
		must.OK(s, s.forced(ls))
		same(s, 0o600, must.Get(os.Stat(s.telemetryFile()))(s).Mode())
		if text := string(must.Get(os.ReadFile(s.telemetryFile()))(s)); strings.Contains(text, "lease: ") {
			s.Errorf("the text of an error: %s", text)
		}

		lines, seen := s.lines(), map[string]bool{}
		same(s, len(s.events), len(lines))
		for i, l := range lines {
			kind := strings.TrimPrefix(string(s.events[i].Type), "lock:")
			same(s, "autosave.lock."+kind+" of autosave", l["type"].(string)+" of "+l["feature"].(string))
			for _, common := range []string{"type", "feature", "time"} {
				delete(l, common)
			}
			fields := want[kind]
			if i == 0 {
				fields = "retry strategy" // there is no lease yet
			}
			same(s, kind+": "+fields, kind+": "+strings.Join(slices.Sorted(maps.Keys(l)), " "))
			seen[kind] = true
		}
		same(s, len(want), len(seen))
	})

	inBubble(t, "only the lock and the log are under project", false, func(s *fixture) { // P10
		s.telemetry(slog.New(slog.DiscardHandler))
		s.acquired(s.Locker, options{})
		var got []string
		must.OK(s, filepath.WalkDir(s.dir, func(path string, _ os.DirEntry, err error) error {
			rel, relErr := filepath.Rel(s.dir, path)
			got = append(got, rel)
			return errors.Join(err, relErr)
		}))
		same(s, ". project project/.lock project/.lock.guard project/autosave project/autosave/lock-2000-01-01.jsonl",
			strings.Join(got, " "))
		same(s, 0o600, must.Get(os.Stat(s.lockFile()))(s).Mode())
	})

	inBubble(t, "a failure is logged once and harms no lock", true, func(s *fixture) {
		log := &strings.Builder{}
		must.OK(s, os.WriteFile(s.dir+"/project", nil, 0o600))
		s.telemetry(slog.New(slog.NewTextHandler(log, nil)))
		s.acquired(s.Locker, options{})
		same(s, 1, strings.Count(log.String(), "telemetry is incomplete"))
	})

	t.Run("no file is kept open", func(t *testing.T) {
		defer debug.SetGCPercent(debug.SetGCPercent(-1)) // the collector closes a file too
		sink := project.NewTelemetry(t.TempDir(), slog.New(slog.DiscardHandler))
		open := func() int {
			files, _ := filepath.Glob("/proc/self/fd/*")
			return len(files)
		}
		before := open()
		for range 20 {
			sink.Record(project.Event{Type: project.Attempt})
		}
		if n := open() - before; n >= 20 {
			t.Errorf("%d files are open after 20 events", n)
		}
	})
}

// telemetryFile returns the only file of the project's telemetry.
func (s *fixture) telemetryFile() string {
	s.Helper()
	names := must.Get(filepath.Glob(filepath.Join(s.dir, "project", "autosave", "*.jsonl")))(s)
	if len(names) != 1 {
		s.Fatalf("%v; want one file", names)
	}
	return names[0]
}

// lines returns the lines of the project's telemetry.
func (s *fixture) lines() (lines []map[string]any) {
	s.Helper()
	for text := range strings.Lines(string(must.Get(os.ReadFile(s.telemetryFile()))(s))) {
		var l map[string]any
		must.OK(s, json.Unmarshal([]byte(text), &l))
		lines = append(lines, l)
	}
	return lines
}
