//go:build unix

package operatorpool_test

import (
	"maps"
	"strconv"
	"testing"
	"time"

	"taskguard/lease/operatorpool"
)

func TestTheFiveOperationsOfTheStorage(t *testing.T) { // O5
	w := newWorld(t)
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
	for session, s := range map[string]*operatorpool.Storage[string]{"A": a, "B": b} {
		if err := s.Store(t.Context(), "of "+session); err != nil {
			t.Fatal(err)
		}
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
	operations := map[string]func(s *operatorpool.Storage[string], ctx ctx) error{
		"store":         func(s *operatorpool.Storage[string], ctx ctx) error { return s.Store(ctx, "x") },
		"remove":        func(s *operatorpool.Storage[string], ctx ctx) error { _, err := s.Remove(ctx); return err },
		"other entries": func(s *operatorpool.Storage[string], ctx ctx) error { _, err := s.OtherEntries(ctx); return err },
		"restore":       func(s *operatorpool.Storage[string], ctx ctx) error { _, _, err := s.Restore(ctx); return err },
		"refresh":       func(s *operatorpool.Storage[string], ctx ctx) error { _, err := s.Refresh(ctx); return err },
	}
	for name, operate := range operations {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.put(state("stale", "kana", "2025-08-18T08:00:00.000Z"))
			if err := operate(w.storage("A"), t.Context()); err != nil {
				t.Fatal(err)
			}
			if _, there := w.written()["stale"]; there {
				t.Error("the stale entry is still there")
			}
		})
	}
}

func TestAReservationTimesOutAfterFourHoursExactly(t *testing.T) { // O6
	w := newWorld(t)
	w.assign("A", "kana")
	w.now = noon.Add(4*time.Hour - time.Millisecond)
	w.wantBusy("B", "kana")
	w.now = noon.Add(4 * time.Hour)
	if _, ok, err := w.storage("A").Restore(t.Context()); ok || err != nil {
		t.Errorf("its own session still has it: %v, %v", ok, err)
	}
	w.assign("B", "kana")
	w.wantWritten("B=kana")
}

func TestTheTimeoutIsWhatItIsSetTo(t *testing.T) { // O6
	w := newWorld(t)
	w.o.Timeout = time.Minute
	w.assign("A", "kana")
	w.now = noon.Add(time.Minute - time.Millisecond)
	w.wantBusy("B", "kana")
	w.now = noon.Add(time.Minute)
	w.assign("B", "kana")
	w.o.Timeout = -1
	if _, err := operatorpool.NewStorage(w.file(), w.path, "A", w.o); err == nil {
		t.Error("a negative timeout is taken")
	}
}

func TestADeadProcesssReservationIsDropped(t *testing.T) { // O9
	for _, c := range []struct {
		session string
		asked   int // zero: it is named after no process
	}{
		{"4711", 4711}, {"1", 1}, {"2147483647", 2147483647},
		{"0", 0}, {"-1", 0}, {"+5", 0}, {"007", 0}, {" 5", 0}, {"5.0", 0}, {"2147483648", 0}, {"4294967297", 0},
		{"99999999999999999999", 0}, {"w0t0p0:8A1B", 0}, {"٣", 0},
	} {
		for _, alive := range []bool{true, false} {
			t.Run(c.session+" alive "+strconv.FormatBool(alive), func(t *testing.T) {
				w := newWorld(t)
				w.o.Alive = func(pid int) bool {
					if pid != c.asked {
						t.Errorf("asked for process %d; want %d", pid, c.asked)
					}
					return alive
				}
				w.assign(c.session, "kana")
				if a := w.assign(c.session, ""); !a.Kept { // one that asks lives, whatever is said of it
					t.Errorf("its own is dropped: %+v", a)
				}
				if c.asked != 0 && !alive {
					w.assign("B", "kana")
				} else {
					w.wantBusy("B", "kana")
				}
			})
		}
	}
}

func TestAnUpdatedAtFromTheFutureCountsAsNow(t *testing.T) {
	w := newWorld(t)
	w.put(state("other", "kana", "9999-12-31T23:59:59Z"))
	w.wantBusy("B", "kana")
	w.now = noon.Add(4*time.Hour - time.Millisecond)
	w.wantBusy("B", "kana")
	w.now = noon.Add(4 * time.Hour)
	w.assign("B", "kana")
}

func TestAnUnreadableUpdatedAtCountsAsTheFilesLastWrite(t *testing.T) {
	for name, updated := range map[string]string{
		"words": `"yesterday"`, "a number": `1755518400000`, "null": `null`, "an object": `{}`, "empty": `""`,
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.put(`{"storage":{"other":{"data":"kana","updated_at":` + updated + `}}}`)
			w.touch(noon.Add(-time.Hour))
			w.wantBusy("B", "kana")
			w.now = noon.Add(3*time.Hour - time.Millisecond) // although the file was written since
			w.wantBusy("B", "kana")
			w.now = noon.Add(3 * time.Hour)
			w.assign("B", "kana")
		})
	}
	w := newWorld(t)
	w.put(`{"storage":{"other":{"data":"kana"}}}`)
	w.touch(noon.AddDate(50, 0, 0)) // nor does that make it live for ever
	w.wantBusy("B", "kana")
	w.now = noon.Add(4 * time.Hour)
	w.assign("B", "kana")
}

func TestISOTimesOfAnyPrecisionAreRead(t *testing.T) {
	for _, updated := range []string{
		"2025-08-18T12:00:00Z", "2025-08-18T12:00Z", "2025-08-18T12:00:00.0Z", "2025-08-18T12:00:00.000000000Z", "2025-08-18T12:00:00.000000000000Z",
		"2025-08-18T21:00:00.000+09:00", "2025-08-18T21:00:00+0900", "2025-08-18T21:00+09:00", "2025-08-18T12:00:00", "20250818T120000Z", "2025-08-18T12:00:00,0Z", "2025-08-18t12:00:00z",
	} {
		w := newWorld(t)
		w.put(state("other", "kana", updated))
		w.now = noon.Add(4*time.Hour - time.Millisecond)
		w.wantBusy("B", "kana")
		w.now = noon.Add(4 * time.Hour)
		if _, err := w.pool("B").Assign(t.Context(), "kana"); err != nil {
			t.Errorf("%s: %v", updated, err)
		}
	}
}

func TestTheStorageHoldsAnyValue(t *testing.T) { // O5
	type voice struct {
		Character string
		Style     int
	}
	w := newWorld(t)
	open := func(session string) *operatorpool.Storage[voice] {
		f, err := operatorpool.Open[voice](w.path)
		if err != nil {
			t.Fatal(err)
		}
		s, err := operatorpool.NewStorage(f, w.path, session, operatorpool.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	want := voice{"tsukuyomi", 3}
	if err := open("A").Store(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	if got, ok, err := open("A").Restore(t.Context()); got != want || !ok || err != nil {
		t.Errorf("%+v, %v, %v", got, ok, err)
	}
}

// A value of another kind belongs to another program, for as long as any.
func TestAValueThatIsNoneOfOursIsKeptForItsTime(t *testing.T) {
	w := newWorld(t)
	w.put(`{"storage":{"A":{"data":{"character":"kana"},"updated_at":"2025-08-18T12:00:00Z"}}}`)
	if others, err := w.storage("B").OtherEntries(t.Context()); len(others) != 0 || err != nil {
		t.Errorf("others: %v, %v", others, err)
	}
	if v, ok, err := w.storage("A").Restore(t.Context()); v != "" || ok || err != nil {
		t.Errorf("restore: %q, %v, %v", v, ok, err)
	}
	w.wantContent(`{"storage":{"A":{"data":{"character":"kana"},"updated_at":"2025-08-18T12:00:00Z"}}}` + "\n")
}

func TestASessionNeedsAName(t *testing.T) {
	w := newWorld(t)
	for _, session := range []string{"", "\xff"} {
		if _, err := operatorpool.NewStorage(w.file(), w.path, session, w.o); err == nil {
			t.Errorf("%q is taken", session)
		}
	}
}

func TestASessionIsTheTerminalsElseTheParents(t *testing.T) { // O4
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
		got := operatorpool.SessionID(func(name string) (string, bool) { v, ok := c.env[name]; return v, ok }, func() int { return 4711 })
		if got != c.want {
			t.Errorf("%v: %q; want %q", c.env, got, c.want)
		}
	}
}
