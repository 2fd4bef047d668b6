package operator_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"taskguard/lease"
	"taskguard/locks/operator"
)

func TestTheRandomChoiceExcludesOperatorsInUse(t *testing.T) { // O1
	w := newFixture(t)
	chosen := map[string]bool{}
	for _, session := range []string{"A", "B", "C", "D", "E", "F"} {
		chosen[w.assign(session, "").Operator.ID] = true
	}
	if len(chosen) != len(six) {
		t.Errorf("got %v; want each of six", chosen)
	}
	if _, err := w.pool("G").Assign(t.Context(), ""); !errors.Is(err, operator.ErrNoneFree) {
		t.Errorf("err = %v; want none free", err)
	}
}

func TestReleasingWithoutAnOperatorSucceeds(t *testing.T) { // C
	w := newFixture(t)
	for _, want := range []string{"", "kana", "retired"} {
		if was, err := w.pool("A").Release(t.Context()); err != nil || was.ID != want {
			t.Errorf("%+v, %v; want %q", was, err, want)
		}
		w.wantWritten()
		switch want {
		case "":
			w.assign("A", "kana")
		case "kana":
			w.put(`{"storage":{"A":{"data":"retired"}}}`) // no longer in the pool
		}
	}
	w.assign("B", "kana")
}

func TestClearFreesEverySessionsOperator(t *testing.T) { // C
	w := newFixture(t)
	w.assign("A", "kana")
	w.assign("B", "alma")
	if n, err := w.pool("C").Clear(t.Context()); n != 2 || err != nil {
		t.Errorf("%d, %v; want 2", n, err)
	}
	w.wantWritten()
}

func TestEveryUseRefreshesAndRemovesExpiredReservations(t *testing.T) { // O5, O6, C
	for name, use := range map[string]func(p *operator.Pool, ctx ctx) error{
		"available": func(p *operator.Pool, ctx ctx) error { _, err := p.Available(ctx); return err },
		"status":    func(p *operator.Pool, ctx ctx) error { _, err := p.Status(ctx); return err },
		"assign":    func(p *operator.Pool, ctx ctx) error { _, err := p.Assign(ctx, ""); return err },
		"a refused assign": func(p *operator.Pool, ctx ctx) error {
			if _, err := p.Assign(ctx, "dia"); err == nil {
				return errors.New("assigned")
			}
			return nil
		},
	} {
		w := newFixture(t)
		w.assign("stale", "angie")
		w.now = noon.Add(time.Hour)
		w.assign("A", "kana")
		w.now = noon.Add(4*time.Hour - time.Millisecond)
		w.assign("B", "dia")
		w.wantWritten("A=kana", "B=dia", "stale=angie")
		w.now = noon.Add(4 * time.Hour)
		if err := use(w.pool("A"), t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		w.wantWritten("A=kana", "B=dia")
		w.now = noon.Add(8*time.Hour - time.Millisecond)
		w.wantBusy("C")
		w.now = noon.Add(8 * time.Hour)
		w.assign("C", "kana")
	}
}

func TestTheCurrentOperatorIsKeptUntilTheTargetIsFree(t *testing.T) { // X
	w := newFixture(t)
	w.assign("A", "kana")
	w.assign("B", "dia")
	w.wantBusy("B")
	w.wantWritten("A=kana", "B=dia")
	if a := w.assign("B", "alma"); a.Kept {
		t.Errorf("%+v; want a new one", a)
	}
	w.wantWritten("A=kana", "B=alma")
	var unknown *operator.UnknownError
	_, err := w.pool("B").Assign(t.Context(), "x")
	if !errors.As(err, &unknown) || err.Error() != `operator: no operator "x"` {
		t.Errorf("err = %v; want unknown", err)
	}
	w.wantWritten("A=kana", "B=alma")
}

func TestAPoolNeedsASessionATimeoutAndOperatorsOfDifferentIDs(t *testing.T) {
	w := newFixture(t)
	for name, c := range map[string]struct {
		session   string
		timeout   time.Duration
		operators []operator.Operator
	}{
		"no session": {operators: six}, "a session not UTF-8": {session: "\xff", operators: six},
		"a negative timeout": {session: "A", timeout: -1, operators: six},
		"no operators":       {session: "A"},
		"no id":              {session: "A", operators: []operator.Operator{{Name: "x"}}},
		"an id twice":        {session: "A", operators: []operator.Operator{{ID: "x"}, {ID: "x"}}},
		"an id not UTF-8":    {session: "A", operators: []operator.Operator{{ID: "\xff"}}},
	} {
		if _, err := operator.New(w.file(), w.path, c.session, c.operators, operator.Options{Timeout: c.timeout}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestAnOperatorOfTwoSessionsIsSharedOnlyUntilTheyAssign(t *testing.T) {
	w := newFixture(t)
	entry := `{"data":"kana","updated_at":"2025-08-18T12:00:00.000Z"}`
	w.put(`{"storage":{"A":` + entry + `,"B":` + entry + `}}`)
	if a := w.assign("A", ""); a.Operator.ID == "kana" || a.Kept {
		t.Errorf("A got %+v; want another than kana", a)
	}
	if b := w.assign("B", ""); b.Operator.ID != "kana" || !b.Kept {
		t.Errorf("B got %+v; want to keep kana", b)
	}
}

// Another session writes between the reading and the writing: the decision is made again.
func TestCheckAndAssignmentAreOneStep(t *testing.T) { // X
	w := newFixture(t)
	w.assign("B", "dia")
	a, err := w.over(&between{w.file(), func() { w.assign("A", "kana") }}, "B").Assign(t.Context(), "kana")
	if !errors.As(err, new(*operator.BusyError)) || a != (operator.Assignment{}) {
		t.Errorf("%+v, %v; want it busy", a, err)
	}
	w.wantWritten("A=kana", "B=dia")
	must(w.over(&between{w.file(), func() { w.assign("A", "alma") }}, "B").Assign(t.Context(), "kana"))(t)
	w.wantWritten("A=alma", "B=kana")
}

func TestAReservationEndsAtExactlyItsTimeout(t *testing.T) { // O6
	for timeout, want := range map[time.Duration]time.Duration{0: 4 * time.Hour, time.Minute: time.Minute} {
		w := newFixture(t)
		w.o.Timeout = timeout
		w.assign("A", "kana")
		w.now = noon.Add(want - time.Millisecond)
		w.wantBusy("B")
		w.now = noon.Add(want)
		if s, err := w.pool("A").Status(t.Context()); err != nil || s.Operator.ID != "" {
			t.Errorf("its own session still has it: %+v, %v", s, err)
		}
		w.assign("B", "kana")
		w.wantWritten("B=kana")
	}
}

func TestTheReservationOfADeadProcessIsDropped(t *testing.T) { // O9
	for session, process := range map[string]int{
		"4711": 4711, "0": 0, "-1": 0, "w0t0p0:8A1B": 0,
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
				w.wantBusy("B")
			}
		}
	}
}

func TestAnImpossibleUpdatedAtNeitherEndsNorKeepsAReservation(t *testing.T) {
	for _, updated := range []string{`"9999-12-31T23:59:59Z"`, `"yesterday"`, `1755518400000`, `null`} {
		w := newFixture(t)
		w.put(`{"storage":{"other":{"data":"kana","updated_at":` + updated + `}}}`)
		check(t, os.Chtimes(w.path, noon, noon))
		w.wantBusy("B")
		w.now = noon.Add(4*time.Hour - time.Millisecond)
		w.wantBusy("B")
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
		{map[string]string{"TMUX": "/tmp/tmux-0/default,9,0", "TMUX_PANE": "%1"}, "4711"}, // each pane has a shell of its own
		{map[string]string{"TERM_SESSION_ID": "T2", "TMUX": "/tmp/t,9,0", "TMUX_PANE": "%1"}, "T2//tmp/t,9,0/%1"},
		{map[string]string{"ITERM_SESSION_ID": "I", "STY": "7.tty", "WINDOW": "2"}, "I/7.tty/2"},
		{map[string]string{"TERM_SESSION_ID": "T2", "ZELLIJ_SESSION_NAME": "calm", "ZELLIJ_PANE_ID": "3"}, "T2/calm/3"},
		{nil, "4711"},
	} {
		got := operator.SessionID(func(name string) string { return c.env[name] }, func() int { return 4711 })
		if got != c.want {
			t.Errorf("%v: %q; want %q", c.env, got, c.want)
		}
	}
}

func (w *fixture) wantContent(want string) {
	w.Helper()
	got, err := os.ReadFile(w.path)
	if err != nil || string(got) != want {
		w.Errorf("the file holds\n%s(%v); want\n%s", got, err, want)
	}
}

func TestTheStateFileByteForByte(t *testing.T) { // O3
	w := newFixture(t)
	w.assign("w0t1p0:9F<&>", "tsukuyomi")
	w.now = noon.Add(1234567 * time.Microsecond)
	w.assign("4711", "angie")
	w.wantContent(`{"storage":{` +
		`"4711":{"data":"angie","updated_at":"2025-08-18T12:00:01.234Z"},` +
		`"w0t1p0:9F<&>":{"data":"tsukuyomi","updated_at":"2025-08-18T12:00:00.000Z"}}}` + "\n")
}

func TestFieldsOfOtherProgramsSurvive(t *testing.T) { // O3
	w := newFixture(t)
	w.put(`{"version": 2, "storage": {
  "A": {"data": "kana", "updated_at": "2025-08-18T11:00:00Z", "pid": 7},
  "B": {"updated_at": "2025-08-18T11:00:00+00:00", "note": {"x": [1, 2.50]}, "data": "dia"}
}, "zz": null}`)
	w.assign("A", "")
	w.assign("A", "alma")
	w.wantContent(`{"storage":{` +
		`"A":{"data":"alma","pid":7,"updated_at":"2025-08-18T12:00:00.000Z"},` +
		`"B":{"data":"dia","note":{"x":[1,2.50]},"updated_at":"2025-08-18T11:00:00+00:00"}},"version":2,"zz":null}` + "\n")
}

func TestAMissingFileIsCreatedForTheUserOnly(t *testing.T) { // O8, O9
	w := newFixture(t)
	must(w.pool("A").Available(t.Context()))(t)
	w.wantContent(`{"storage":{}}` + "\n")
	for _, path := range []string{w.path, w.path + ".guard"} {
		if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
			t.Errorf("%s: mode %v, %v; want 0600", path, info.Mode(), err)
		}
	}
	if err := os.Chmod(w.path, 0o644); err != nil { //nolint:gosec // as others may have made it
		t.Fatal(err)
	}
	w.assign("A", "kana")
	if info, err := os.Stat(w.path); err != nil || info.Mode() != 0o600 {
		t.Errorf("mode %v, %v after a write; want 0600", info.Mode(), err)
	}
}

func TestACorruptFileIsReplacedAndItsContentKept(t *testing.T) { // O8
	for name, content := range map[string]string{
		"empty":             "",
		"truncated":         `{"storage":{"A":{"data":"ka`,
		"no object":         `[1,2]`,
		"null":              `null`,
		"storage is no map": `{"storage":"x"}`,
		"a number":          `{"storage":{"B":7}}`,
		"a null":            `{"storage":{"B":null}}`,
		"no session":        `{"storage":{"":{"data":"kana"}}}`,
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t)
			var replaced []int
			w.o.Corrupt = func(bytes int) { replaced = append(replaced, bytes) }
			w.put(content)
			w.assign("A", "kana")
			w.assign("A", "dia")
			w.wantWritten("A=dia")
			if len(replaced) > 1 || (len(replaced) == 1) != (content != "") {
				t.Errorf("replaced files of %v bytes; want one, and none of an empty file", replaced)
			}
			aside, err := os.ReadFile(w.path + ".corrupt")
			if string(aside) != content || (err == nil) != (content != "") {
				t.Errorf("aside: %q, %v; want %q", aside, err, content)
			}
		})
	}
}

func TestACorruptFileThatCannotBeKeptIsLeftUnchanged(t *testing.T) { // O8
	w := newFixture(t)
	w.path = filepath.Join(t.TempDir(), strings.Repeat("x", 248)) // with .corrupt, a name is too long
	w.put("[1,2]")
	if _, err := w.pool("A").Assign(t.Context(), "kana"); !errors.Is(err, syscall.ENAMETOOLONG) {
		t.Errorf("err = %v; want one of the copy's name", err)
	}
	w.wantContent("[1,2]")
}

func TestALinkIsNotFollowed(t *testing.T) { // O8, R10
	for _, suffix := range []string{"", ".guard"} {
		w := newFixture(t)
		check(t, os.Symlink(w.path+".none", w.path+suffix))
		p := w.pool("A")
		_, assigned := p.Assign(t.Context(), "kana")
		_, available := p.Available(t.Context())
		_, status := p.Status(t.Context())
		_, released := p.Release(t.Context())
		_, cleared := p.Clear(t.Context())
		for _, got := range []error{assigned, available, status, released, cleared} {
			if !errors.Is(got, lease.ErrRefused) || !strings.Contains(got.Error(), w.path) {
				t.Errorf("a link %s: %v; want a refusal that names the path", suffix, got)
			}
		}
		if _, err := os.Stat(w.path + ".none"); err == nil {
			t.Errorf("a link %s: something was written through it", suffix)
		}
	}
}

func TestAMissingDirectoryIsAClearError(t *testing.T) { // O8
	file := filepath.Join(t.TempDir(), "file")
	check(t, os.WriteFile(file, nil, 0o600))
	for _, path := range []string{filepath.Join(t.TempDir(), "none", "state.json"), filepath.Join(file, "state.json"), "/", "..", ""} {
		if _, err := operator.Open(path); err == nil {
			t.Errorf("%q: no error", path)
		}
	}
}

func TestContentionIsAClearErrorAfterOneShortWait(t *testing.T) { // O8
	w := newFixture(t)
	w.assign("A", "kana")
	held := must(os.Open(w.path + ".guard"))(t)
	check(t, syscall.Flock(int(held.Fd()), syscall.LOCK_EX))
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		_, err := w.pool("A").Assign(context.Background(), "dia")
		if !errors.Is(err, lease.ErrUnavailable) || !strings.Contains(err.Error(), "another program holds "+w.path+".guard") {
			t.Errorf("err = %v; want one that names the guard", err)
		}
		if waited := time.Since(start); waited != 2*time.Second {
			t.Errorf("waited %v; want 2 s", waited)
		}
	})
	w.wantWritten("A=kana")
	check(t, held.Close())
	w.assign("A", "dia")
}

// The file is never absent, so that no program can believe that it is the first.
func TestTheFileIsReplacedAndNeverRemoved(t *testing.T) { // X
	w := newFixture(t)
	w.assign("A", "kana")
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				if _, err := os.Stat(w.path); err != nil {
					t.Errorf("absent: %v", err)
					return
				}
			}
		}
	})
	for range 20 {
		w.assign("A", "")
	}
	close(stop)
	wg.Wait()
}
