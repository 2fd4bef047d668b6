package operator_test

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"taskguard/internal/testing/must"
	"taskguard/lease"
	"taskguard/locks/operator"
)

func TestPool_Assign(t *testing.T) {
	run(t, "the random choice excludes operators in use", func(w *fixture) { // O1
		chosen := map[string]bool{}
		for _, session := range []string{"A", "B", "C", "D", "E", "F"} {
			chosen[w.assign(session, "").Operator.ID] = true
		}
		same(w, len(six), len(chosen))
		wantErr(w, w.try("G", ""), operator.ErrNoneFree)
	})

	run(t, "the current operator is kept until the target is free", func(w *fixture) { // X
		w.assign("A", "kana")
		w.assign("B", "dia")
		w.wantBusy("B")
		w.wantWritten("A=kana", "B=dia")
		same(w, false, w.assign("B", "alma").Kept)
		err := w.try("B", "x")
		same(w, true, errors.As(err, new(*operator.UnknownError)))
		same(w, true, strings.Contains(err.Error(), `"x"`))
		w.wantWritten("A=kana", "B=alma")
	})

	run(t, "an operator of two sessions is shared only until they assign", func(w *fixture) {
		entry := `{"data":"kana","updated_at":"2025-08-18T12:00:00.000Z"}`
		w.put(`{"storage":{"A":` + entry + `,"B":` + entry + `}}`)
		if a := w.assign("A", ""); a.Operator.ID == "kana" || a.Kept {
			w.Errorf("A got %+v; want another than kana", a)
		}
		if b := w.assign("B", ""); b.Operator.ID != "kana" || !b.Kept {
			w.Errorf("B got %+v; want to keep kana", b)
		}
	})

	// Another session writes between the reading and the writing: the decision is made again.
	run(t, "check and assignment are one step", func(w *fixture) { // X
		w.assign("B", "dia")
		taken := &between{w.file(), func() { w.assign("A", "kana") }}
		a, err := w.over(taken, "B").Assign(w.Context(), "kana")
		same(w, operator.Assignment{}, a)
		same(w, true, errors.As(err, new(*operator.BusyError)))
		w.wantWritten("A=kana", "B=dia")
		freed := &between{w.file(), func() { w.assign("A", "alma") }}
		must.Get(w.over(freed, "B").Assign(w.Context(), "kana"))(w)
		w.wantWritten("A=alma", "B=kana")
	})
}

func TestPool_Release(t *testing.T) { // C
	release := func(w *fixture, want string) {
		w.Helper()
		same(w, want, must.Get(w.pool("A").Release(w.Context()))(w).ID)
		w.wantWritten()
	}
	run(t, "without an operator", func(w *fixture) { release(w, "") })
	run(t, "with an operator", func(w *fixture) {
		w.assign("A", "kana")
		release(w, "kana")
		w.assign("B", "kana")
	})
	run(t, "other sessions keep theirs", func(w *fixture) {
		w.assign("A", "kana")
		w.assign("B", "dia")
		must.Get(w.pool("A").Release(w.Context()))(w)
		w.wantWritten("B=dia")
	})
	run(t, "with one that is no longer in the pool", func(w *fixture) {
		w.put(`{"storage":{"A":{"data":"retired"}}}`)
		release(w, "retired")
	})
	run(t, "clear frees every session's operator", func(w *fixture) {
		w.assign("A", "kana")
		w.assign("B", "alma")
		same(w, 2, must.Get(w.pool("C").Clear(w.Context()))(w))
		w.wantWritten()
	})
}

func TestPool_Timeout(t *testing.T) { // O5, O6, C
	for name, use := range map[string]func(w *fixture, p *operator.Pool){
		"available":        func(w *fixture, p *operator.Pool) { must.Get(p.Available(w.Context()))(w) },
		"status":           func(w *fixture, p *operator.Pool) { must.Get(p.Status(w.Context()))(w) },
		"assign":           func(w *fixture, p *operator.Pool) { must.Get(p.Assign(w.Context(), ""))(w) },
		"a refused assign": func(w *fixture, _ *operator.Pool) { same(w, false, w.try("A", "dia") == nil) },
	} {
		run(t, "each use refreshes, and removes what has expired, "+name, func(w *fixture) {
			w.assign("stale", "angie")
			w.now = noon.Add(time.Hour)
			w.assign("A", "kana")
			w.now = noon.Add(4*time.Hour - time.Millisecond)
			w.assign("B", "dia")
			w.wantWritten("A=kana", "B=dia", "stale=angie")
			w.now = noon.Add(4 * time.Hour)
			use(w, w.pool("A"))
			w.wantWritten("A=kana", "B=dia")
			w.now = noon.Add(8*time.Hour - time.Millisecond)
			w.wantBusy("C")
			w.now = noon.Add(8 * time.Hour)
			w.assign("C", "kana")
		})
	}

	run(t, "one of a minute, for the session itself too", func(w *fixture) { // O6
		w.o.Timeout = time.Minute
		w.assign("A", "kana")
		w.now = noon.Add(time.Minute - time.Millisecond)
		w.wantBusy("B")
		w.now = noon.Add(time.Minute)
		same(w, "", must.Get(w.pool("A").Status(w.Context()))(w).Operator.ID)
	})

	for _, updated := range []string{`"9999-12-31T23:59:59Z"`, `"yesterday"`, `1755518400000`, `null`} {
		run(t, "an impossible updated_at neither ends nor keeps it, "+updated, func(w *fixture) {
			w.put(`{"storage":{"other":{"data":"kana","updated_at":` + updated + `}}}`)
			must.OK(w, os.Chtimes(w.path, noon, noon))
			w.wantBusy("B")
			w.now = noon.Add(4*time.Hour - time.Millisecond)
			w.wantBusy("B")
			w.now = noon.Add(4 * time.Hour)
			w.assign("B", "kana")
		})
	}
}

// The reservation of a dead process is dropped. O9
func TestPool_Alive(t *testing.T) {
	for session, process := range map[string]int{"4711": 4711, "0": 0, "-1": 0, "w0t0p0:8A1B": 0} {
		run(t, session, func(w *fixture) {
			alive := true
			w.o.Alive = func(pid int) bool { same(w, process, pid); return alive }
			w.assign(session, "kana")
			w.wantBusy("B")
			alive = false
			same(w, true, w.assign(session, "").Kept) // the session that asks is alive
			if process != 0 {
				w.assign("B", "kana")
			} else {
				w.wantBusy("B")
			}
		})
	}
}

func TestNew(t *testing.T) {
	type operators = []operator.Operator
	for name, c := range map[string]struct {
		session   string
		timeout   time.Duration
		operators operators
	}{
		"no session":          {"", 0, six},
		"a session not UTF-8": {"\xff", 0, six},
		"a negative timeout":  {"A", -1, six},
		"no operators":        {"A", 0, nil},
		"no id":               {"A", 0, operators{{Name: "x"}}},
		"an id twice":         {"A", 0, operators{{ID: "x"}, {ID: "x"}}},
		"an id not UTF-8":     {"A", 0, operators{{ID: "\xff"}}},
	} {
		run(t, name, func(w *fixture) {
			o := operator.Options{Timeout: c.timeout}
			if _, err := operator.New(w.file(), w.path, c.session, c.operators, o); err == nil {
				w.Error("no error")
			}
		})
	}
}

// The session is the terminal, or else the parent process. O4
func TestSessionID(t *testing.T) {
	for want, env := range map[string]map[string]string{
		"w0t0p0:1":         {"ITERM_SESSION_ID": "w0t0p0:1", "TERM_SESSION_ID": "T2"},
		"T2":               {"ITERM_SESSION_ID": "", "TERM_SESSION_ID": "T2"},
		"4711":             {"TERM_SESSION_ID": "", "TMUX": "/tmp/t,9,0"}, // each pane has a shell of its own
		"T3//tmp/t,9,0/%1": {"TERM_SESSION_ID": "T3", "TMUX": "/tmp/t,9,0", "TMUX_PANE": "%1"},
		"I/7.tty/2":        {"ITERM_SESSION_ID": "I", "STY": "7.tty", "WINDOW": "2"},
		"T4/calm/3":        {"TERM_SESSION_ID": "T4", "ZELLIJ_SESSION_NAME": "calm", "ZELLIJ_PANE_ID": "3"},
	} {
		getenv := func(name string) string { return env[name] }
		same(t, want, operator.SessionID(getenv, func() int { return 4711 }))
	}
}

func TestPool_Refused(t *testing.T) { // O8, R10
	for _, suffix := range []string{"", ".guard"} {
		run(t, "a link is not followed, state.json"+suffix, func(w *fixture) {
			must.OK(w, os.Symlink(w.path+".none", w.path+suffix))
			p, ctx := w.pool("A"), w.Context()
			_, assigned := p.Assign(ctx, "kana")
			_, available := p.Available(ctx)
			_, released := p.Release(ctx)
			_, cleared := p.Clear(ctx)
			for _, err := range []error{assigned, available, released, cleared} {
				wantErr(w, err, lease.ErrRefused)
			}
			if _, err := os.Stat(w.path + ".none"); err == nil {
				w.Error("something was written through it")
			}
		})
	}
}
