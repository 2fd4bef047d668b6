package mutants

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
)

// root is the module's, from this package's folder.
const root = "../.."

// timeout is of one test, which takes a few seconds at most. One that hangs
// counts as not caught.
const timeout = "2m"

// home is the package of the test that catches b, a bug of file.
func (b bug) home(file string) string {
	if b.pkg != "" {
		return b.pkg
	}
	return filepath.ToSlash(filepath.Dir(file))
}

// make returns the text of a file with b in it.
func (b bug) make(text string) (string, error) {
	for change := range slices.Chunk(append([]string{b.old, b.new}, b.and...), 2) {
		if n := strings.Count(text, change[0]); n != 1 {
			return "", fmt.Errorf("found %d times, want once: %q", n, change[0])
		}
		if change[0] == change[1] {
			return "", errors.New("it changes nothing")
		}
		text = strings.Replace(text, change[0], change[1], 1)
	}
	return text, nil
}

func TestTheListIsTrue(t *testing.T) {
	names := map[string]bool{}
	for _, r := range rooms() {
		text := read(t, r.file)
		for _, b := range r.bugs {
			if names[b.name] {
				t.Errorf("two bugs are named %q", b.name)
			}
			names[b.name] = true
			if _, err := b.make(text); err != nil {
				t.Errorf("%s: %s: %v", r.file, b.name, err)
			}
			for _, e := range b.env {
				if !ours(e) {
					t.Errorf("%s: %q is none of the searches' variables", b.name, e)
				}
			}
			function, _, _ := strings.Cut(b.test, "/")
			if !declared(t, b.home(r.file), function) {
				t.Errorf("%s: no test %s in %s", b.name, function, b.home(r.file))
			}
		}
	}
	if len(names) == 0 {
		t.Error("the list is empty")
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// declared reports whether a package has a test function of this name.
func declared(t *testing.T, pkg, function string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, pkg, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "\nfunc "+function+"(t *testing.T)") {
			return true
		}
	}
	return false
}

func TestEachBugIsCaughtByItsTest(t *testing.T) {
	if v := os.Getenv("MUTANTS"); v == "" || v == "0" {
		t.Skip("takes minutes: set MUTANTS=1")
	}
	if !t.Run("without", withoutBugs) {
		t.Fatal("without any bug the tests do not pass")
	}
	var total, caught atomic.Int32
	t.Run("bugs", func(t *testing.T) {
		for _, r := range rooms() {
			for _, b := range r.bugs {
				t.Run(b.name, func(t *testing.T) {
					t.Parallel()
					total.Add(1)
					got, out := try(t, r.file, b)
					if got != failed || !strings.Contains(out, b.says) {
						t.Errorf("%s: its test %s %s, want that it failed and says %q\n%s", r.file, b.test, got, b.says, end(out))
						return
					}
					caught.Add(1)
					fmt.Printf("caught: %s: %s, by %s\n", r.file, b.name, b.test)
				})
			}
		}
	})
	fmt.Printf("%d of %d caught\n", caught.Load(), total.Load())
}

// withoutBugs wants every test of the list to pass, each package's in one go
// for each environment.
func withoutBugs(t *testing.T) {
	type place struct{ pkg, env string }
	tests := map[place][]string{}
	for _, r := range rooms() {
		for i := range r.bugs {
			b := &r.bugs[i]
			at := place{b.home(r.file), strings.Join(b.env, " ")}
			tests[at] = append(tests[at], b.test)
		}
	}
	for at, names := range tests {
		t.Run(strings.TrimSpace(at.pkg+" "+at.env), func(t *testing.T) {
			t.Parallel()
			out, err := goTest(t, at.pkg, strings.Fields(at.env), names)
			for _, name := range names {
				if got := judge(name, out, err); got != passed {
					t.Errorf("%s %s", name, got)
				}
			}
			if t.Failed() {
				t.Log(end(out))
			}
		})
	}
}

// try makes b, runs its test, and says what came of it.
func try(t *testing.T, file string, b bug) (verdict, string) {
	t.Helper()
	text, err := b.make(read(t, file))
	if err != nil {
		t.Fatal(err)
	}
	original, err := filepath.Abs(filepath.Join(root, file))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	replacement, overlay := filepath.Join(dir, filepath.Base(file)), filepath.Join(dir, "overlay.json")
	instead, err := json.Marshal(map[string]map[string]string{"Replace": {original: replacement}})
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{replacement: []byte(text), overlay: instead} {
		if err := os.WriteFile(name, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	out, err := goTest(t, b.home(file), b.env, []string{b.test}, "-overlay="+overlay)
	return judge(b.test, out, err), out
}

// end is the last of what a test said.
func end(out string) string { return out[max(0, len(out)-4096):] }

// ours reports whether NAME=value, or a NAME, is for explore or simulate.
func ours(e string) bool {
	return strings.HasPrefix(e, "EXPLORE_") || strings.HasPrefix(e, "SIMULATE_")
}

// goTest runs these tests of a package and returns what was said. Of the
// variables of explore and simulate they see those of env alone.
func goTest(t *testing.T, pkg string, env, tests []string, flags ...string) (string, error) {
	t.Helper()
	patterns := make([]string, len(tests))
	for i, test := range tests {
		elements := strings.Split(test, "/")
		for j, element := range elements {
			elements[j] = "^" + regexp.QuoteMeta(element) + "$"
		}
		patterns[i] = strings.Join(elements, "/")
	}
	args := append([]string{"test", "-count=1", "-v", "-vet=off", "-timeout=" + timeout, "-run=" + strings.Join(patterns, "|")}, flags...)
	cmd := exec.CommandContext(t.Context(), "go", append(args, "./"+pkg)...)
	cmd.Dir = root
	cmd.Env = append(slices.DeleteFunc(os.Environ(), ours), "TASKGUARD_NO_GOOGLE_EMULATOR=1", "MUTANTS=")
	cmd.Env = append(cmd.Env, env...)
	out, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return string(out), err
}
