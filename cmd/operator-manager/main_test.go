package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"taskguard/internal/testing/must"
	"taskguard/lease"
)

func TestOperatorManager(t *testing.T) { // O1, O2, O7
	t.Run("two sessions share the operators", func(t *testing.T) {
		state := newState(t)
		one, two := open(t, state, "1st"), open(t, state, "2nd")
		one.done("つくよみちゃん", "assign", "tsukuyomi")
		two.done(": angie, alma, akane, dia, kana\n", "available")
		two.refused("つくよみちゃん", "assign", "tsukuyomi")
		one.done(": tsukuyomi, angie, alma, akane, dia, kana\n", "available")
		one.done("つくよみちゃん", "assign")
		two.done("tsukuyomi  他セッションで使用中", "status")
		two.done("angie      利用可能", "status")
		one.done("つくよみちゃん (tsukuyomi、", "status")
		one.done("つくよみちゃん", "refresh")
		two.refused("", "refresh")
		one.done("つくよみちゃん", "release")
		one.done("ありません", "release")
		two.done("つくよみちゃん", "assign", "tsukuyomi")
		one.done("1", "clear")
		two.refused("absent", "assign", "absent")
	})

	t.Run("each command answers in JSON", func(t *testing.T) { // C
		x := open(t, newState(t), "<1>")
		const kana = `{"operator":{"id":"kana","name":"かな"},`
		x.done(`{"wasAssigned":false}`, "release", "--json")
		x.done(kana+`"kept":false}`, "assign", "kana", "--json")
		x.done(kana+`"kept":true}`, "--json", "assign")
		x.done(kana+`"refreshed":true}`, "refresh", "--json")
		x.done(`{"expiresAt":"20`, "status", "--json")
		x.done(kana[1:]+`"operators":[{"id":"tsukuyomi",`, "status", "--json")
		x.done(`{"id":"kana","name":"かな","state":"own"}],"session":"<1>"}`, "status", "--json")
		x.done(kana+`"wasAssigned":true}`, "release", "--json")
		x.done(`{"cleared":0}`, "clear", "--json")
	})

	t.Run("wrong usage exits 2 with one line", func(t *testing.T) {
		x := open(t, newState(t), "1")
		for _, args := range [][]string{
			{}, {"--json"}, {"assing"}, {"assign", "--force"},
			{"assign", "kana", "dia"}, {"release", "kana"}, {"assign", ""},
		} {
			got := x.run(args...)
			if want := (outcome{exitUsage, "", got.err}); got != want || strings.Count(got.err, "\n") != 1 {
				t.Errorf("%q: %+v", args, got)
			}
		}
	})

	t.Run("help lists the commands and flags", func(t *testing.T) {
		x := terminal{t, map[string]string{}, nil}
		for _, args := range [][]string{{"help"}, {"--help"}, {"assign", "-h"}} {
			for _, c := range commands {
				x.done("\n  "+c.name, args...)
			}
			x.done("-json", args...)
		}
	})
}

func TestOperatorSession(t *testing.T) { // O4
	state := newState(t)
	one := open(t, state, "1st")
	one.done("かな", "assign", "kana")
	one.refused("かな", "assign", "kana", "--session", "2nd")
	open(t, state, "2nd").done("かな", "assign", "--session", "1st")
	if got := one.run("assign", "--session", "\xff"); got.code != exitUsage {
		t.Errorf("%+v; want a session of odd bytes refused", got)
	}
	one.env["ITERM_SESSION_ID"] = "w0t0p0"
	one.refused("かな", "assign", "kana")
}

func TestOperatorState(t *testing.T) {
	t.Run("a failed update has its reason", func(t *testing.T) { // O8
		for err, want := range map[error]string{lease.ErrUnavailable: "2秒", syscall.EIO: "LC_ALL=en"} {
			got := (&call{state: "S"}).message(fmt.Errorf("x: %w", err))
			if !strings.Contains(got, "状態ファイル S ") || !strings.Contains(got, want) {
				t.Errorf("%v: %q; want %s", err, got, want)
			}
		}
		if got := (&call{english: true}).message(syscall.EIO); !strings.Contains(got, syscall.EIO.Error()) {
			t.Errorf("in English: %q", got)
		}
	})

	t.Run("a file that cannot be written is named", func(t *testing.T) { // O8
		missing, link := filepath.Join(t.TempDir(), "none", "state.json"), newState(t)
		must.OK(t, os.Symlink("target", link))
		for _, state := range []string{missing, link} {
			for _, c := range commands {
				open(t, state, "1").refused(filepath.Dir(state), c.name)
			}
		}
	})

	t.Run("it is in tmp for the user alone", func(t *testing.T) { // O3, R10
		host := fmt.Sprintf("operator-manager-test-%d", os.Getpid())
		path := "/tmp/coeiroink-operators-" + host + ".json"
		t.Cleanup(func() { must.OK(t, errors.Join(os.Remove(path), os.Remove(path+".guard"))) })
		code := run(t.Context(), []string{"assign", "kana"}, surroundings{
			out: io.Discard, err: t.Output(), hostname: func() (string, error) { return host, nil },
			getenv: func(string) string { return "" },
		})
		info := must.Get(os.Stat(path))(t)
		if code != exitDone || info.Mode() != 0o600 {
			t.Errorf("exit %d, mode %v", code, info.Mode())
		}
	})
}

func TestOperatorLanguage(t *testing.T) { // O2, O8, O10
	t.Run("it is that of the locale", func(t *testing.T) {
		x := open(t, newState(t), "1st")
		const japanese, english = "かなを", "kana (かな)"
		for locale, want := range map[[3]string]string{
			{}:                          japanese,
			{"", "", "C.UTF-8"}:         japanese,
			{"", "", "POSIX"}:           japanese,
			{"", "", "ja_JP.UTF-8"}:     japanese,
			{"", "", "ja"}:              japanese,
			{"", "", "en_US.UTF-8"}:     english,
			{"", "", "de_DE"}:           english,
			{"", "en_GB", "ja_JP"}:      english,
			{"ja_JP", "en_GB", "en_GB"}: japanese,
		} {
			x.env["LC_ALL"], x.env["LC_MESSAGES"], x.env["LANG"] = locale[0], locale[1], locale[2]
			x.done(want, "assign", "kana")
		}
	})

	t.Run("in English nothing is Japanese", func(t *testing.T) {
		state := newState(t)
		one, two := open(t, state, "1st"), open(t, state, "2nd")
		one.env["LANG"], two.env["LANG"] = "en", "en"
		one.done("kana", "assign", "kana")
		two.refused("kana", "assign", "kana")
		file := written(t, `{"operators":[{"id":"kana","name":"かな"},{"id":"x"}]}`)
		for _, args := range [][]string{
			{"assign", "kana"}, {"assign", "absent"}, {"refresh"}, {"release"}, {"available"}, {"clear"},
			{"help"}, {"status", "--operators", file}, {"assing"}, {"--force"}, {"release", "kana"},
		} {
			for _, x := range []terminal{two, one} {
				if got := x.run(args...); japanese(got.out + got.err) {
					t.Errorf("%v: %+v", args, got)
				}
			}
		}
	})

	t.Run("an error is in one language", errorsHaveOneLanguage)
}

// japanese reports whether text, without names of operators, has Japanese letters.
func japanese(text string) bool {
	text = strings.NewReplacer("かな", "", "つくよみちゃん", "").Replace(text)
	return strings.ContainsFunc(text, func(r rune) bool { return r > 0x2fff })
}

// failing is an output that nothing can be written to.
type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, syscall.EIO }

func errorsHaveOneLanguage(t *testing.T) {
	dir := t.TempDir()
	file := func(name, content string) {
		must.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	file("json", "{")
	file("wrong", `{"operatorTimeout": -1}`)
	file("held.lock", "")
	old := time.Now().Add(-time.Hour)
	must.OK(t, os.Chtimes(dir+"/held.lock", old, old))
	must.OK(t, os.Symlink("target", dir+"/link"))
	words := regexp.MustCompile(`[a-z]+ [a-z]+`)

	for args, want := range map[string]string{
		"status --state DIR/link":                    "シンボリックリンク",
		"status --state DIR/corrupt":                 "DIR/corrupt",
		"status":                                     "--state", // without a name of this machine
		"status --operators DIR/json":                "DIR/json",
		"status --operators DIR/wrong --state DIR/s": "operatorTimeout",
		"status --loud x":                            `"--loud"`,
		"status --state":                             `"--state"`,
		"---":                                        "---",
		"assign --state DIR/held":                    "DIR/held.lock",
		"assign --state DIR/s":                       "出力",
	} {
		errorIn := func(locale string) string {
			file("corrupt", "[1]") // the command before has replaced it
			var errs bytes.Buffer
			env := map[string]string{"LANG": locale, "TERM_SESSION_ID": "1"}
			s := surroundings{
				out: io.Discard, err: &errs, getenv: func(name string) string { return env[name] },
				hostname: func() (string, error) { return "", errors.ErrUnsupported },
			}
			if want == "出力" {
				s.out = failing{}
			}
			run(t.Context(), strings.Fields(strings.ReplaceAll(args, "DIR", dir)), s)
			return strings.ReplaceAll(errs.String(), dir, "DIR")
		}
		if text := errorIn("ja_JP.UTF-8"); words.MatchString(text) || !strings.Contains(text, want) {
			t.Errorf("%s: %q; want it in Japanese, with %s", args, text, want)
		}
		if text := errorIn("en_US.UTF-8"); text == "" || japanese(text) {
			t.Errorf("%s: %q; want it in English", args, text)
		}
	}
}

func TestTerminal_Escapes(t *testing.T) {
	x := open(t, newState(t), "1")
	x.flags[1] = written(t, `{"operators":[{"id":"a\u001b[2J","name":"n\u202e\n"}]}`)
	x.done(`a\x1b[2J`, "available")
	x.done(`n\u202e`, "assign")
	y := open(t, x.flags[3], "2")
	y.flags[1] = x.flags[1]
	y.refused(`n\u202e`, "assign", "a\x1b[2J")
	for _, args := range [][]string{
		{"status"}, {"assign", "\x1b[2J"}, {"\x1b"}, {"release", "\x1b"}, {"status", "--operators", "\x1b"},
	} {
		if got := x.run(args...); strings.ContainsAny(got.out+got.err, "\x1b\u202e") {
			t.Errorf("%q: %+q", args, got.out+got.err)
		}
	}
}
