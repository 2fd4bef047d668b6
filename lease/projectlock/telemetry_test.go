package projectlock_test

import (
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"taskguard/lease/leasetest"
	"taskguard/lease/projectlock"
)

// P8.
func TestEachLineHasItsFields(t *testing.T) {
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
		"readonly-entered":  "leaseId reason retry strategy",
		"warning":           "lateMs leaseId strategy warning",
	}
	play(t, true, func(s *stage) {
		sink := projectlock.NewTelemetry(s.dir, slog.New(slog.DiscardHandler))
		s.Subscribe(sink.Record)
		ls := s.acquired(s.Locker, projectlock.AcquireOptions{})
		time.Sleep(21 * time.Second)
		if _, err := s.Renew(s.Context(), ls); err != nil {
			s.Fatal(err)
		}
		s.remote.SetPlan(leasetest.Always(leasetest.Refuse))
		wantCode(s.T, s.Release(s.Context(), ls, projectlock.ReleaseOptions{}), projectlock.ReleaseFailed, true)
		s.remote.SetPlan(nil)
		if err := s.Release(s.Context(), ls, projectlock.ReleaseOptions{Force: true}); err != nil {
			s.Fatal(err)
		}
		seen := map[string]bool{}
		for i, l := range readLines(s.T, s.dir) {
			kind := strings.TrimPrefix(l["type"].(string), "autosave.lock.")
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
	play(t, false, func(s *stage) {
		sink := projectlock.NewTelemetry(s.dir, slog.New(slog.DiscardHandler))
		s.Subscribe(sink.Record)
		s.acquired(s.Locker, projectlock.AcquireOptions{})
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

func TestAFailingSinkFailsNoLockAndSaysSoOnce(t *testing.T) {
	for name, obstruct := range map[string]func(dir string) error{
		"a file in its place": func(dir string) error {
			return errors.Join(os.Mkdir(dir+"/project", 0o700), os.WriteFile(dir+"/project/autosave", nil, 0o600))
		},
		"a link out of the project": func(dir string) error {
			return errors.Join(os.Mkdir(dir+"/project", 0o700), os.Mkdir(dir+"/logs", 0o700), os.Symlink("../logs", dir+"/project/autosave"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, true, func(s *stage) {
				if err := obstruct(s.dir); err != nil {
					s.Fatal(err)
				}
				sink := projectlock.NewTelemetry(s.dir, slog.New(slog.NewTextHandler(s.log, nil)))
				s.Subscribe(sink.Record)
				full(s)
				if n := strings.Count(s.log.String(), "telemetry is incomplete"); n != 1 {
					s.Errorf("said %d times; want once\n%s", n, s.log)
				}
				if entries, err := os.ReadDir(s.dir + "/logs"); err == nil && len(entries) > 0 {
					s.Errorf("it wrote to %v", entries)
				}
			})
		})
	}
}
