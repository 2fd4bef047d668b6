package project_test

import (
	"context"
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

	"taskguard/lease/leasetest"
	"taskguard/locks/document"
	"taskguard/locks/project"
)

// P13, seed 000 §5.
func TestWithoutARemoteStoreTheFileIsTakenAtOnce(t *testing.T) {
	inBubble(t, false, func(s *fixture) {
		began := time.Now()
		ls := s.acquired(s.Locker, project.AcquireOptions{})
		if waited := time.Since(began); waited != 0 {
			s.Errorf("waited %v; want nothing (R2)", waited)
		}
		if ls.Strategy != project.FileLock || !ls.ViaFallback || ls.TTL != 30*time.Second {
			s.Errorf("%+v; want the file lock of 30 s, as a fallback", ls)
		}
		s.wantEvents("attempt web-lock 0, error web-lock-unsupported false, waiting 0s, fallback-engaged file-lock",
			"attempt file-lock 0, acquired file-lock, renew-scheduled 10s")
		s.wantState(project.HeartbeatQueued)
	})
}

func TestAConflictOverTheFileEndsInReadOnly(t *testing.T) {
	inBubble(t, false, func(s *fixture) {
		other := s.another(false)
		s.acquired(other, project.AcquireOptions{})
		var infos []project.ReadonlyInfo
		_, err := s.Acquire(s.Context(), project.AcquireOptions{OnReadonly: func(i project.ReadonlyInfo) { infos = append(infos, i) }})
		wantCode(s.T, err, project.FallbackConflict, false)
		e := theError(err)
		if held := (*document.HeldError)(nil); !errors.As(err, &held) || e.Context["retry"] != 2 {
			s.Errorf("%v, context %v; want who holds it as the cause, and retry 2", err, e.Context)
		}
		s.wantEvents("attempt web-lock 0, error web-lock-unsupported false, waiting 0s, fallback-engaged file-lock",
			"attempt file-lock 0, warning fallback-degraded, error fallback-conflict true, waiting 500ms",
			"attempt file-lock 1, warning fallback-degraded, error fallback-conflict true, waiting 1s",
			"attempt file-lock 2, warning fallback-degraded, error fallback-conflict false",
			"readonly-entered fallback-conflict")
		s.wantState(project.Readonly)
		if len(infos) != 1 || infos[0].Reason != project.FallbackConflict || infos[0].LastError != e {
			s.Errorf("onReadonly got %+v; want the conflict, once", infos)
		}
		s.wantHeld(other)
	})
}

func TestARenewalThatFailsTwiceSucceedsWithRetryRising(t *testing.T) {
	inBubble(t, true, func(s *fixture) {
		ls := s.acquired(s.Locker, project.AcquireOptions{})
		time.Sleep(10 * time.Second)
		s.reported()
		s.remote.SetPlan(leasetest.On(leasetest.Swap, leasetest.Refuse, leasetest.Refuse))
		next, err := s.Renew(s.Context(), ls)
		if err != nil || !next.ExpiresAt.After(ls.ExpiresAt) || next.RenewAttempt != 0 {
			s.Errorf("%+v, %v; want it extended", next, err)
		}
		s.wantEvents("attempt web-lock 0, error renew-failed true, waiting 500ms, attempt web-lock 1",
			"error renew-failed true, waiting 1s, attempt web-lock 2, renewed 2, renew-scheduled 10s")
	})
}

// The first attempt releases the lock, and its reply is lost.
func TestAReleaseThatFailsIsTriedAgainAndReleases(t *testing.T) {
	inBubble(t, true, func(s *fixture) {
		ls := s.acquired(s.Locker, project.AcquireOptions{})
		s.reported()
		s.remote.SetPlan(leasetest.Any(leasetest.On(leasetest.Swap, leasetest.DropAfter), leasetest.On(leasetest.Load, leasetest.None, leasetest.Unavailable)))
		s.released(s.Locker, ls)
		s.wantEvents("release-requested, attempt web-lock 0, release-failed 0 false, error release-failed true",
			"waiting 500ms, attempt web-lock 1, released 3.5s")
		s.wantState(project.Idle)
	})
}

func TestALockIsAcquiredRenewedAndReleasedInFull(t *testing.T) {
	inBubble(t, true, func(s *fixture) {
		err := s.WithProjectLock(s.Context(), project.AcquireOptions{}, func(context.Context, project.Lease) error {
			time.Sleep(15 * time.Second)
			return nil
		})
		if err != nil {
			s.Fatal(err)
		}
		s.wantEvents("attempt web-lock 0, acquired web-lock, renew-scheduled 10s, attempt web-lock 0, renewed 0",
			"renew-scheduled 10s, release-requested, attempt web-lock 0, released 15s")
		s.wantState(project.Idle)
		if _, err := os.Stat(filepath.Join(s.dir, "project")); err == nil {
			s.Error("the project's directory was touched, without need")
		}
	})
}

// P8, P13.
func TestEachEventIsATelemetryLineWithItsFields(t *testing.T) {
	want := map[string]string{
		"attempt":           "retry strategy",
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
	inBubble(t, true, func(s *fixture) {
		sink := project.NewTelemetry(s.dir, slog.New(slog.DiscardHandler))
		s.Subscribe(sink.Record)
		ls := s.acquired(s.Locker, project.AcquireOptions{})
		time.Sleep(21 * time.Second)
		s.renewed(ls)
		s.remote.SetPlan(leasetest.Always(leasetest.Refuse))
		wantCode(s.T, s.Release(s.Context(), ls, project.ReleaseOptions{}), project.ReleaseFailed, true)
		s.remote.SetPlan(nil)
		check(s, s.Release(s.Context(), ls, project.ReleaseOptions{Force: true}))
		lines, seen := readLines(s.T, s.dir), map[string]bool{}
		if len(lines) != len(s.events) {
			s.Fatalf("%d lines; want one for each of %d events", len(lines), len(s.events))
		}
		for i, l := range lines {
			kind := strings.TrimPrefix(string(s.events[i].Type), "lock:")
			if l["type"] != "autosave.lock."+kind || l["feature"] != "autosave" {
				s.Errorf("line %d: %v of %v; want %s", i, l["type"], l["feature"], kind)
			}
			delete(l, "type")
			delete(l, "feature")
			delete(l, "time")
			fields := want[kind]
			if kind == "attempt" && i > 0 {
				fields = "leaseId " + fields
			}
			if got := strings.Join(slices.Sorted(maps.Keys(l)), " "); got != fields {
				s.Errorf("%s has %s; want %s", kind, got, fields)
			}
			seen[kind] = true
		}
		if len(seen) != len(want) {
			s.Errorf("seen %v; want each of %d", slices.Collect(maps.Keys(seen)), len(want))
		}
	})
}

// P10.
func TestOnlyTheLockAndItsLogAreUnderProject(t *testing.T) {
	inBubble(t, false, func(s *fixture) {
		sink := project.NewTelemetry(s.dir, slog.New(slog.DiscardHandler))
		s.Subscribe(sink.Record)
		s.acquired(s.Locker, project.AcquireOptions{})
		var got []string
		err := filepath.WalkDir(s.dir, func(path string, _ os.DirEntry, err error) error {
			rel, relErr := filepath.Rel(s.dir, path)
			got = append(got, rel)
			return errors.Join(err, relErr)
		})
		want := []string{".", "project", "project/.lock", "project/.lock.guard", "project/autosave", "project/autosave/lock-2000-01-01.jsonl"}
		if err != nil || !slices.Equal(got, want) {
			s.Errorf("%q, %v; want %q", got, err, want)
		}
		info, err := os.Stat(s.lockFile())
		if err != nil || info.Mode() != 0o600 {
			s.Errorf("mode %v, %v; want 0600", info.Mode(), err)
		}
	})
}

func TestAFailureOfTheTelemetryIsLoggedOnceAndHarmsNoLock(t *testing.T) {
	inBubble(t, true, func(s *fixture) {
		log := &strings.Builder{}
		check(s, os.WriteFile(s.dir+"/project", nil, 0o600))
		s.Subscribe(project.NewTelemetry(s.dir, slog.New(slog.NewTextHandler(log, nil))).Record)
		s.acquired(s.Locker, project.AcquireOptions{})
		if n := strings.Count(log.String(), "telemetry is incomplete"); n != 1 {
			s.Errorf("%d warnings; want one", n)
		}
	})
}

func TestTheTelemetryKeepsNoFileOpen(t *testing.T) {
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
}

// readLines returns the telemetry lines of the project in dir.
func readLines(t *testing.T, dir string) (lines []map[string]any) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "project", "autosave", "*.jsonl"))
	if err != nil || len(names) != 1 {
		t.Fatalf("%v, %v; want one file", names, err)
	}
	data := must(os.ReadFile(names[0]))(t)
	for text := range strings.Lines(string(data)) {
		var l map[string]any
		if err := json.Unmarshal([]byte(text), &l); err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		lines = append(lines, l)
	}
	return lines
}
