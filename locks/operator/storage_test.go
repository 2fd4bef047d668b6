package operator_test

import (
	"maps"
	"testing"
	"time"

	"taskguard/locks/operator"
)

func TestTheFiveOperationsOfTheStorage(t *testing.T) { // O5
	w := newFixture(t)
	a, b := w.storage("A"), w.storage("B")
	if _, ok, err := a.Restore(t.Context()); ok || err != nil {
		t.Errorf("restore of none: %v, %v", ok, err)
	}
	if ok, err := a.Refresh(t.Context()); ok || err != nil {
		t.Errorf("refresh of none: %v, %v", ok, err)
	}
	if ok, err := a.Remove(t.Context()); ok || err != nil {
		t.Errorf("remove of none: %v, %v", ok, err)
	}
	for session, s := range map[string]*operator.Storage{"A": a, "B": b} {
		check(t, s.Store(t.Context(), "of "+session))
	}
	if v, ok, err := a.Restore(t.Context()); v != "of A" || !ok || err != nil {
		t.Errorf("restore: %q, %v, %v", v, ok, err)
	}
	if others, err := a.OtherEntries(t.Context()); err != nil || !maps.Equal(others, map[string]string{"B": "of B"}) {
		t.Errorf("other entries: %v, %v", others, err)
	}
	if ok, err := a.Refresh(t.Context()); !ok || err != nil {
		t.Errorf("refresh: %v, %v", ok, err)
	}
	if ok, err := a.Remove(t.Context()); !ok || err != nil {
		t.Errorf("remove: %v, %v", ok, err)
	}
	w.wantWritten("B=of B") // sessions are isolated (O9)
}

func TestEachOperationCleansUpFirstAndWritesTheStateBack(t *testing.T) { // O5, O6
	operations := map[string]func(s *operator.Storage, ctx ctx) error{
		"store":         func(s *operator.Storage, ctx ctx) error { return s.Store(ctx, "x") },
		"remove":        func(s *operator.Storage, ctx ctx) error { _, err := s.Remove(ctx); return err },
		"other entries": func(s *operator.Storage, ctx ctx) error { _, err := s.OtherEntries(ctx); return err },
		"restore":       func(s *operator.Storage, ctx ctx) error { _, _, err := s.Restore(ctx); return err },
		"refresh":       func(s *operator.Storage, ctx ctx) error { _, err := s.Refresh(ctx); return err },
	}
	for name, operate := range operations {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t)
			w.put(state("stale", "kana", "2025-08-18T08:00:00.000Z"))
			check(t, operate(w.storage("A"), t.Context()))
			if _, there := w.written()["stale"]; there {
				t.Error("the stale entry is still there")
			}
		})
	}
}

func TestAReservationEndsAtExactlyItsTimeout(t *testing.T) { // O6
	for timeout, want := range map[time.Duration]time.Duration{0: 4 * time.Hour, time.Minute: time.Minute} {
		w := newFixture(t)
		w.o.Timeout = timeout
		w.assign("A", "kana")
		w.now = noon.Add(want - time.Millisecond)
		w.wantBusy("B", "kana")
		w.now = noon.Add(want)
		if _, ok, err := w.storage("A").Restore(t.Context()); ok || err != nil {
			t.Errorf("its own session still has it: %v, %v", ok, err)
		}
		w.assign("B", "kana")
		w.wantWritten("B=kana")
	}
	w := newFixture(t)
	if _, err := operator.NewStorage(w.file(), w.path, "A", operator.Options{Timeout: -1}); err == nil {
		t.Error("a negative timeout was accepted")
	}
}

func TestTheReservationOfADeadProcessIsDropped(t *testing.T) { // O9
	for session, process := range map[string]int{
		"4711": 4711, "2147483647": 2147483647, "0": 0, "-1": 0, "007": 0, "2147483648": 0, "w0t0p0:8A1B": 0,
	} {
		for _, alive := range []bool{true, false} {
			w := newFixture(t)
			w.o.Alive = func(pid int) bool {
				if pid != process {
					t.Errorf("%s: asked for process %d; want %d", session, pid, process)
				}
				return alive
			}
			w.assign(session, "kana")
			if a := w.assign(session, ""); !a.Kept { // the session that asks is alive
				t.Errorf("%s: its own is dropped: %+v", session, a)
			}
			if process != 0 && !alive {
				w.assign("B", "kana")
			} else {
				w.wantBusy("B", "kana")
			}
		}
	}
}

func TestAnImpossibleUpdatedAtNeitherEndsNorKeepsAReservation(t *testing.T) {
	for _, updated := range []string{`"9999-12-31T23:59:59Z"`, `"yesterday"`, `1755518400000`, `null`} {
		w := newFixture(t)
		w.put(`{"storage":{"other":{"data":"kana","updated_at":` + updated + `}}}`)
		w.touch(noon)
		w.wantBusy("B", "kana")
		w.now = noon.Add(4*time.Hour - time.Millisecond)
		w.wantBusy("B", "kana")
		w.now = noon.Add(4 * time.Hour)
		w.assign("B", "kana")
	}
}

func TestTheSessionIsTheTerminalOrElseTheParentProcess(t *testing.T) { // O4
	both := map[string]string{"ITERM_SESSION_ID": "w0t0p0:1", "TERM_SESSION_ID": "T2"}
	for _, c := range []struct {
		env  map[string]string
		want string
	}{
		{both, "w0t0p0:1"},
		{map[string]string{"ITERM_SESSION_ID": "", "TERM_SESSION_ID": "T2"}, "T2"},
		{map[string]string{"TERM_SESSION_ID": ""}, "4711"},
		{nil, "4711"},
	} {
		got := operator.SessionID(func(name string) string { return c.env[name] }, func() int { return 4711 })
		if got != c.want {
			t.Errorf("%v: %q; want %q", c.env, got, c.want)
		}
	}
}
