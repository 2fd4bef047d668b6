package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"taskguard/internal/testing/emulatortest"
	"taskguard/lease"
)

// asProgram makes the test binary behave as operator-manager itself.
const asProgram = "OPERATOR_MANAGER_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	emulatortest.Isolate()
	os.Exit(m.Run())
}

// terminal is where one session's commands are typed.
type terminal struct {
	*testing.T
	env   map[string]string
	flags []string
}

// outcome is the result of one command.
type outcome struct {
	code     int
	out, err string
}

// newState is a state file that terminals may share.
func newState(t *testing.T) string { return filepath.Join(t.TempDir(), "state.json") }

// open is a terminal of that session, with the operators of the sample.
func open(t *testing.T, state, session string) terminal {
	return terminal{t, map[string]string{"TERM_SESSION_ID": session}, []string{"--operators", "operators.json", "--state", state}}
}

func (t terminal) run(args ...string) outcome {
	t.Helper()
	var out, errs bytes.Buffer
	code := run(t.Context(), append(t.flags, args...), surroundings{
		out: &out, err: &errs, hostname: os.Hostname,
		getenv: func(name string) string { return t.env[name] },
	})
	return outcome{code, out.String(), errs.String()}
}

// prints fails unless the command is done and prints exactly that.
func (t terminal) prints(want string, args ...string) {
	t.Helper()
	if got := t.run(args...); got != (outcome{0, want + "\n", ""}) {
		t.Errorf("%v: %+v; want %q", args, got, want)
	}
}

// refuses fails unless the command exits with 1, and prints exactly that on standard
// error.
func (t terminal) refuses(want string, args ...string) {
	t.Helper()
	if got := t.run(args...); got != (outcome{1, "", want + "\n"}) {
		t.Errorf("%v: %+v; want 1 and %q", args, got, want)
	}
}

// program is the same command as a process of its own, as a shell starts it.
func (t terminal) program(args ...string) *exec.Cmd {
	t.Helper()
	exe := must(os.Executable())(t)
	return t.in(exec.Command(exe, append(t.flags, args...)...))
}

// in is cmd in the terminal's environment.
func (t terminal) in(cmd *exec.Cmd) *exec.Cmd {
	for _, v := range os.Environ() {
		if !regexp.MustCompile(`^(I?TERM_SESSION_ID|LANG|LC_[A-Z]+)=`).MatchString(v) {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(cmd.Env, asProgram+"=1")
	for name, value := range t.env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	return cmd
}

func TestTwoTerminalsAsInTheSeed(t *testing.T) { // O1, O2
	state := newState(t)
	one, two := open(t, state, "1st"), open(t, state, "2nd")
	one.prints("つくよみちゃんを割り当てました", "assign", "tsukuyomi")
	two.prints("利用可能なオペレータ: angie, alma, akane, dia, kana", "available")
	two.refuses("エラー: つくよみちゃんは他のセッションで使用中です", "assign", "tsukuyomi")
	one.prints("利用可能なオペレータ: tsukuyomi, angie, alma, akane, dia, kana", "available")
	one.prints("つくよみちゃんを割り当てました", "assign")
	if got := two.run("status"); got.code != 0 || !strings.Contains(got.out, "オペレータは割り当てられていません\n") ||
		!strings.Contains(got.out, "tsukuyomi  他セッションで使用中  つくよみちゃん\n") || !strings.Contains(got.out, "angie      利用可能") {
		t.Errorf("%+v", got)
	}
	if got := one.run("status"); !strings.Contains(got.out, "現在のオペレータ: つくよみちゃん (tsukuyomi、") || strings.Contains(got.out, "他セッション") {
		t.Errorf("%+v", got)
	}
	one.prints("つくよみちゃんの期限を更新しました", "refresh")
	two.refuses("エラー: オペレータは割り当てられていません", "refresh")
	one.prints("つくよみちゃんを解放しました", "release")
	one.prints("割り当てられたオペレータはありません", "release")
	two.prints("つくよみちゃんを割り当てました", "assign", "tsukuyomi")
	one.prints("すべての割り当てを解除しました (1件)", "clear")
	two.refuses("エラー: absentというオペレータはいません", "assign", "absent")
}

func TestEachCommandAsJSON(t *testing.T) { // C
	x := open(t, newState(t), "<1>")
	x.prints(`{"wasAssigned":false}`, "release", "--json")
	x.prints(`{"operator":{"id":"kana","name":"かな"},"kept":false}`, "assign", "kana", "--json")
	x.prints(`{"operator":{"id":"kana","name":"かな"},"kept":true}`, "--json", "assign")
	x.prints(`{"operator":{"id":"kana","name":"かな"},"refreshed":true}`, "refresh", "--json")
	if got := x.run("status", "--json"); got.code != 0 || !strings.Contains(got.out, `"operator":{"id":"kana","name":"かな"},"operators":[{"id":"tsukuyomi","name":"つくよみちゃん","state":"available"},`) ||
		!strings.Contains(got.out, `{"id":"kana","name":"かな","state":"own"}],"session":"<1>"}`) || !strings.Contains(got.out, `{"expiresAt":"20`) {
		t.Errorf("%+v", got)
	}
	x.prints(`{"operator":{"id":"kana","name":"かな"},"wasAssigned":true}`, "release", "--json")
	x.prints(`{"cleared":0}`, "clear", "--json")
}

func TestWrongUsageIsReportedOnce(t *testing.T) {
	x := open(t, newState(t), "1")
	for name, args := range map[string][]string{
		"no command": {}, "only a flag": {"--json"},
		"unknown command": {"assing"}, "unknown flag": {"assign", "--force"}, "too many": {"assign", "kana", "dia"},
		"an argument to release": {"release", "kana"}, "an empty id": {"assign", ""},
	} {
		out, err := x.program(args...).Output()
		exit := &exec.ExitError{}
		if !errors.As(err, &exit) || exit.ExitCode() != 2 || len(out) > 0 || strings.Count(string(exit.Stderr), "\n") != 1 || !japanese(strings.TrimPrefix(string(exit.Stderr), "エラー: ")) {
			t.Errorf("%s: %v; %s%s", name, err, out, exit.Stderr)
		}
	}
}

func TestAStateThatCannotBeWrittenIsAClearError(t *testing.T) { // O8
	for err, want := range map[error]string{
		syscall.EACCES:       "状態ファイル S を更新できませんでした: 権限がありません",
		lease.ErrUnavailable: "状態ファイル S を更新できませんでした: 2秒以内に終わりませんでした。他のプログラムが使用中かもしれません",
		syscall.EIO:          "状態ファイル S を更新できませんでした: 詳細は LC_ALL=en を付けて実行すると表示されます",
	} {
		if got := (&call{state: "S"}).message(fmt.Errorf("x: %w", err)); got != want {
			t.Errorf("%q; want %q", got, want)
		}
	}
	if got := (&call{english: true}).message(syscall.EIO); got != "the state file was not updated: input/output error" {
		t.Errorf("%q", got)
	}
	missing, link := filepath.Join(t.TempDir(), "none", "state.json"), newState(t)
	check(t, os.Symlink("target", link))
	for _, state := range []string{missing, link} {
		for _, c := range commands {
			if got := open(t, state, "1").run(c.name); got.code != 1 || got.out != "" || !strings.Contains(got.err, filepath.Dir(state)) {
				t.Errorf("%s: %+v", c.name, got)
			}
		}
	}
}

func TestHelpListsTheCommandsAndFlags(t *testing.T) {
	x := terminal{t, map[string]string{}, nil}
	for _, args := range [][]string{{"help"}, {"--help"}, {"assign", "-h"}} {
		got := x.run(args...)
		for _, c := range commands {
			if got.code != 0 || strings.Count(got.out, "\n  "+c.name) != 1 || !strings.Contains(got.out, c.japanese) || !strings.Contains(got.out, "\n終了コード 0") || !strings.Contains(got.out, "-json") {
				t.Errorf("%v: %+v", args, got)
			}
		}
	}
}

func TestTheTextsAreInTheLanguageOfTheLocale(t *testing.T) { // O2, O10
	state := newState(t)
	one, two := open(t, state, "1st"), open(t, state, "2nd")
	for locale, english := range map[[3]string]bool{
		{}: false, {"", "", "C.UTF-8"}: false, {"", "", "POSIX"}: false, {"", "", "ja_JP.UTF-8"}: false, {"", "", "ja"}: false,
		{"", "", "en_US.UTF-8"}: true, {"", "", "de_DE"}: true, {"", "en_GB", "ja_JP"}: true, {"ja_JP", "en_GB", "en_GB"}: false,
	} {
		one.env["LC_ALL"], one.env["LC_MESSAGES"], one.env["LANG"] = locale[0], locale[1], locale[2]
		want := "かなを割り当てました"
		if english {
			want = "assigned kana (かな)"
		}
		one.prints(want, "assign", "kana")
	}
	one.env = map[string]string{"TERM_SESSION_ID": "1st", "LANG": "en_US.UTF-8"}
	two.env["LANG"] = "en"
	two.refuses("error: kana (かな) is in use by another session", "assign", "kana")
	two.refuses("error: unknown operator: absent", "assign", "absent")
	two.refuses("error: no operator is assigned", "refresh")
	two.prints("no operator is assigned", "release")
	two.prints("available operators: tsukuyomi, angie, alma, akane, dia", "available")
	one.prints("extended kana (かな)", "refresh")
	for _, args := range [][]string{{"help"}, {"status", "--operators", operatorsEnglish(t)}, {"assing"}, {"--force"}, {"release", "kana"}} {
		if got := one.run(args...); got.code == exitFailed || japanese(got.out+got.err) {
			t.Errorf("%v: %+v", args, got)
		}
	}
	one.prints("released kana (かな)", "release")
	one.prints("cleared all assignments (0)", "clear")
}

// japanese reports whether text, without the name of kana, has Japanese letters.
func japanese(text string) bool {
	return strings.ContainsFunc(strings.ReplaceAll(text, "かな", ""), func(r rune) bool { return r > 0x2fff })
}

// failing is an output that nothing can be written to.
type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, syscall.EIO }

// In Japanese no text has an English sentence behind it, and in English none is Japanese.
func TestTheTextsOfErrorsAreInOneLanguage(t *testing.T) { // O2, O8
	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		check(t, os.WriteFile(path, []byte(content), 0o600))
		return path
	}
	link := filepath.Join(dir, "link")
	check(t, os.Symlink("target", link))
	held, old := file("held.lock", ""), time.Now().Add(-time.Hour)
	check(t, os.Chtimes(held, old, old))
	noHost := func() (string, error) { return "", errors.New("no such host") }
	english := regexp.MustCompile(`[a-z]+ [a-z]+`)

	for name, c := range map[string]struct {
		args []string
		out  io.Writer
		want string
	}{
		"no directory":        {[]string{"status", "--state", dir + "/none/s"}, nil, "ファイルまたはディレクトリがありません"},
		"a link":              {[]string{"status", "--state", link}, nil, "シンボリックリンク"},
		"no directory's file": {[]string{"status", "--state", file("f", "") + "/s"}, nil, "ディレクトリではありません"},
		"a corrupt file":      {[]string{"status", "--state", file("corrupt", "[1]")}, nil, "壊れていたため"},
		"no hostname":         {[]string{"status"}, nil, "--state を指定"},
		"no operators' file":  {[]string{"status", "--operators", dir + "/none"}, nil, "ファイルまたはディレクトリがありません"},
		"no JSON":             {[]string{"status", "--operators", file("o1", "{")}, nil, "内容が正しくありません"},
		"an operator twice":   {[]string{"status", "--operators", file("o2", `{"operators":[{"id":"a"},{"id":"a"}]}`)}, nil, "内容が正しくありません"},
		"a wrong timeout":     {[]string{"status", "--operators", file("o3", `{"operatorTimeout": -1}`), "--state", dir + "/s"}, nil, "operatorTimeout"},
		"an unknown flag":     {[]string{"status", "--loud", "x"}, nil, `"--loud"`},
		"a flag's value":      {[]string{"status", "--json=x"}, nil, `"--json=x"`},
		"a flag without one":  {[]string{"status", "--state"}, nil, `"--state"`},
		"no flag's name":      {[]string{"---"}, nil, `フラグ`},
		"a file as its lock":  {[]string{"assign", "--state", strings.TrimSuffix(held, ".lock")}, nil, "held.lock を取得できません"},
		"no output":           {[]string{"assign", "--state", dir + "/s"}, failing{}, "実行は完了しましたが"},
	} {
		for _, locale := range []string{"ja_JP.UTF-8", "en_US.UTF-8"} {
			file("corrupt", "[1]") // the command before has replaced it
			var errs bytes.Buffer
			env := map[string]string{"LANG": locale, "TERM_SESSION_ID": "1"}
			run(t.Context(), c.args, surroundings{
				out: cmp.Or(c.out, io.Discard), err: &errs, hostname: noHost,
				getenv: func(name string) string { return env[name] },
			})
			text := strings.ReplaceAll(errs.String(), dir, "")
			wrong := english.MatchString(text) || !strings.Contains(text, c.want)
			if locale != "ja_JP.UTF-8" {
				wrong = text == "" || japanese(strings.ReplaceAll(text, "つくよみちゃん", ""))
			}
			if wrong {
				t.Errorf("%s, %s: %q", name, locale, text)
			}
		}
	}
}

// operatorsEnglish is a file of an operator without a Japanese name.
func operatorsEnglish(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "o.json")
	check(t, os.WriteFile(path, []byte(`{"operators":[{"id":"kana","name":"かな"},{"id":"x"}]}`), 0o600))
	return path
}

// O10: as the seed types it, in an empty directory, or with its own file, which names no operators.
func TestWithoutAListTheSeedsOperatorsAreBuiltIn(t *testing.T) {
	x := terminal{t, map[string]string{"ITERM_SESSION_ID": "s1"}, []string{"--state", newState(t)}}
	cmd := x.program("assign", "tsukuyomi")
	cmd.Dir, cmd.Env = t.TempDir(), append(cmd.Env, "OPERATORS_FILE=")
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != "つくよみちゃんを割り当てました\n" {
		t.Errorf("%v: %s", err, out)
	}
	x.env["OPERATORS_FILE"] = filepath.Join(t.TempDir(), "o.json")
	check(t, os.WriteFile(x.env["OPERATORS_FILE"], []byte(`{"operatorTimeout": 3600000}`), 0o600))
	x.prints("つくよみちゃんを割り当てました", "assign", "tsukuyomi")
	if o, timeout, err := readOperators(x.env["OPERATORS_FILE"]); err != nil || len(o) != 6 || timeout != time.Hour {
		t.Errorf("%v, %v, %v", o, timeout, err)
	}
}

func TestASessionIsNamedByFlagOrTerminal(t *testing.T) { // O4
	state := newState(t)
	one := open(t, state, "1st")
	one.prints("かなを割り当てました", "assign", "kana")
	one.refuses("エラー: かなは他のセッションで使用中です", "assign", "kana", "--session", "2nd")
	open(t, state, "2nd").prints("かなを割り当てました", "assign", "--session", "1st")
	if got := one.run("assign", "--session", "\xff"); got.code != exitUsage || !strings.Contains(got.err, "--session") {
		t.Errorf("%+v; want it refused", got)
	}
	one.env["ITERM_SESSION_ID"] = "w0t0p0"
	one.refuses("エラー: かなは他のセッションで使用中です", "assign", "kana")
}

func TestTextOfFilesIsEscapedForTheTerminal(t *testing.T) {
	x := open(t, newState(t), "1")
	x.flags[1] = filepath.Join(t.TempDir(), "o.json")
	check(t, os.WriteFile(x.flags[1], []byte(`{"operators":[{"id":"a\u001b[2J","name":"n\u202e\n"}]}`), 0o600))
	x.prints(`利用可能なオペレータ: a\x1b[2J`, "available")
	x.prints("n\\u202e\nを割り当てました", "assign")
	y := open(t, x.flags[3], "2")
	y.flags[1] = x.flags[1]
	y.refuses("エラー: n\\u202e\nは他のセッションで使用中です", "assign", "a\x1b[2J")
	for _, o := range []outcome{x.run("status"), x.run("assign", "\x1b[2J"), x.run("\x1b"), x.run("release", "\x1b"), x.run("status", "--operators", "\x1b")} {
		if strings.ContainsAny(o.out+o.err, "\x1b\u202e") {
			t.Errorf("%+q", []string{o.out, o.err})
		}
	}
}

func TestTheDefaultStateFileIsInTmp(t *testing.T) { // O3, R10
	host := fmt.Sprintf("operator-manager-test-%d", os.Getpid())
	path := "/tmp/coeiroink-operators-" + host + ".json"
	t.Cleanup(func() {
		if err := errors.Join(os.Remove(path), os.Remove(path+".guard")); err != nil {
			t.Error(err)
		}
	})
	var out bytes.Buffer
	code := run(t.Context(), []string{"assign", "kana"}, surroundings{
		out: &out, err: t.Output(), hostname: func() (string, error) { return host, nil },
		getenv: func(string) string { return "" },
	})
	info, err := os.Stat(path)
	if code != 0 || err != nil || info.Mode() != 0o600 {
		t.Errorf("%d, %v, %v", code, info, err)
	}
}

// check fails the test on an error.
func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// must returns the value of a call that has to succeed.
func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		check(t, err)
		return v
	}
}
