package mutants

import (
	"cmp"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// room is a file and the bugs that can be made in it.
type room struct {
	file string
	bugs []bug
}

// bug is one change of a file, or several at once, which compiles.
type bug struct {
	name   string   // what the program then does wrong
	pkg    string   // of the test
	test   string   // as go test -v names it, subtests and all
	oldNew []string // old, new, …: each old is in the file exactly once
}

// seed returns the bug that replaces each old by its new. A test of another package
// than the file's is written as "internal/proof.TestName".
func seed(name, test string, oldNew ...string) bug {
	b := bug{name: name, test: test, oldNew: oldNew}
	if i := strings.Index(test, ".Test"); i > 0 {
		b.pkg, b.test = test[:i], test[i+1:]
	}
	return b
}

// The proofs of internal/proof that must find a bug by themselves.
const (
	everyInterleaving = "internal/proof.TestNoInterleavingRunsTwiceOrLosesTheAnalysis"
	manySeeds         = "internal/proof.TestManySeedsLoseNothingAndFinishEachOnce"
)

// settings are what the tests run with.
var settings = []string{"TASKGUARD_NO_GOOGLE_EMULATOR=1"}

// seeded is a bug of the list with its file.
type seeded struct {
	bug
	id   int
	file string
}

func list() (all []seeded) {
	for _, part := range [][]room{leaseRooms, repoRooms, workerRooms, taskauthRooms, siblingRooms, workRooms, libraryRooms} {
		for _, r := range part {
			for _, b := range r.bugs {
				b.pkg = cmp.Or(b.pkg, path.Dir(r.file))
				all = append(all, seeded{b, len(all) + 1, r.file})
			}
		}
	}
	return all
}

// changes returns where in text the bug's changes begin, and each with its old and
// its new words, the last first.
func (b bug) changes(text string) (all []change, err error) {
	for c := range slices.Chunk(b.oldNew, 2) {
		if n := strings.Count(text, c[0]); n != 1 || c[0] == c[1] {
			return nil, fmt.Errorf("found %d times, want once, and a change: %q", n, c[0])
		}
		all = append(all, change{strings.Index(text, c[0]), c[0], c[1]})
	}
	slices.SortFunc(all, func(a, b change) int { return b.at - a.at })
	return all, nil
}

type change struct {
	at       int
	old, new string
}

func apply(text string, changes []change) string {
	for _, c := range changes {
		text = text[:c.at] + c.new + text[c.at+len(c.old):]
	}
	return text
}

func TestTheListIsTrue(t *testing.T) {
	names := map[string]bool{}
	for _, b := range list() {
		if names[b.name] {
			t.Errorf("two bugs are named %q", b.name)
		}
		names[b.name] = true
		if _, err := b.changes(read(t, b.file)); err != nil {
			t.Errorf("%s: %s: %v", b.file, b.name, err)
		}
		function, _, _ := strings.Cut(b.test, "/")
		if !declared(t, b.pkg, function) {
			t.Errorf("%s: no test %s in %s", b.name, function, b.pkg)
		}
	}
}

// declared reports whether a package has a test function of this name.
func declared(t *testing.T, pkg, function string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, pkg, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(files, func(file string) bool {
		text, err := os.ReadFile(file)
		return err == nil && strings.Contains(string(text), "\nfunc "+function+"(t *testing.T)")
	})
}

// switched returns the files with all bugs in them, each made by its number in
// the variable MUTANT: the body of a function begins with a copy that has the
// bug. The bugs outside of functions are returned apart.
func switched(t *testing.T, bugs []seeded) (files map[string]string, apart []seeded) {
	t.Helper()
	files = map[string]string{}
	byFile := map[string][]seeded{}
	for i := range bugs {
		byFile[bugs[i].file] = append(byFile[bugs[i].file], bugs[i])
	}
	for file, bugs := range byFile {
		text := read(t, file)
		tree, err := parser.ParseFile(token.NewFileSet(), file, text, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		copies := map[*ast.FuncDecl]string{}
		for i := range bugs {
			b := &bugs[i]
			changes, err := b.changes(text)
			if err != nil {
				t.Fatal(err)
			}
			in := map[*ast.FuncDecl][]change{}
			for _, c := range changes {
				f := around(tree, c)
				in[f] = append(in[f], c)
			}
			if in[nil] != nil {
				apart = append(apart, *b)
				continue
			}
			for f, changes := range in {
				from, to := int(f.Body.Lbrace), int(f.Body.Rbrace)-1
				for i := range changes {
					changes[i].at -= from
				}
				end := "}"
				if f.Type.Results == nil {
					end = "return }"
				}
				copies[f] += fmt.Sprintf("if mutated(%d) {%s\n%s\n", b.id, apply(text[from:to], changes), end)
			}
		}
		var insertions []change
		for f, s := range copies {
			insertions = append(insertions, change{int(f.Body.Lbrace), "", s})
		}
		slices.SortFunc(insertions, func(a, b change) int { return b.at - a.at })
		files[file] = apply(text, insertions)
		files[path.Join(path.Dir(file), "mutated.go")] = fmt.Sprintf(switchboard, tree.Name.Name, 1)
	}
	return files, apart
}

// around is the function whose body has all of c, or nil.
func around(tree *ast.File, c change) *ast.FuncDecl {
	for _, d := range tree.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Body != nil && int(f.Body.Lbrace) <= c.at && c.at+len(c.old) < int(f.Body.Rbrace) {
			return f
		}
	}
	return nil
}

func TestEachBugIsCaughtByItsTest(t *testing.T) {
	if v := os.Getenv("MUTANTS"); v == "" || v == "0" {
		t.Skip("takes minutes: set MUTANTS=1")
	}
	bugs := list()
	files, apart := switched(t, bugs)
	all := overlay(t, files)
	tests := map[string][]string{}
	for _, b := range bugs {
		tests[b.pkg] = append(tests[b.pkg], b.test)
	}
	dir, built := t.TempDir(), map[string]*sync.Once{}
	for pkg := range tests {
		built[pkg] = new(sync.Once)
	}
	compiled := func(t *testing.T, pkg string) (binary string) {
		built[pkg].Do(func() { buildTests(t, dir, pkg, all) })
		return binaryOf(dir, pkg)
	}
	ok := t.Run("without", func(t *testing.T) {
		for pkg, names := range tests {
			t.Run(pkg, func(t *testing.T) {
				t.Parallel()
				out, err := runTests(t, pkg, compiled(t, pkg), 0, names...)
				for _, name := range names {
					if got := judge(name, out, err); got != passed {
						t.Errorf("%s %s\n%s", name, got, end(out))
					}
				}
			})
		}
	})
	if !ok {
		t.Fatal("without any bug the tests do not pass")
	}
	var total, caught atomic.Int32
	t.Run("bugs", func(t *testing.T) {
		for _, b := range bugs {
			t.Run(b.name, func(t *testing.T) {
				t.Parallel()
				total.Add(1)
				var binary string
				if slices.ContainsFunc(apart, func(a seeded) bool { return a.id == b.id }) {
					changes, _ := b.changes(read(t, b.file))
					binary = buildTests(t, t.TempDir(), b.pkg, overlay(t, map[string]string{b.file: apply(read(t, b.file), changes)}))
				} else {
					binary = compiled(t, b.pkg)
				}
				out, err := runTests(t, b.pkg, binary, b.id, b.test)
				got := judge(b.test, out, err)
				if got == failed && b.pkg == "internal/proof" && !strings.Contains(out, "EXPLORE_REPLAY=") && !strings.Contains(out, "SIMULATE_SEED=") {
					got = "failed without a sequence or a seed"
				}
				if got != failed {
					t.Errorf("%s: its test %s %s, want that it failed\n%s", b.file, b.test, got, end(out))
					return
				}
				caught.Add(1)
				fmt.Printf("caught: %s: %s, by %s\n", b.file, b.name, b.test)
			})
		}
	})
	fmt.Printf("%d of %d caught, %d of them built apart\n", caught.Load(), total.Load(), len(apart))
}

// runTests runs these tests of a package with one bug, or without any.
func runTests(t *testing.T, pkg, binary string, id int, tests ...string) (string, error) {
	t.Helper()
	var patterns []string
	for _, test := range tests {
		elements := strings.Split(test, "/")
		for i, element := range elements {
			elements[i] = "^" + regexp.QuoteMeta(element) + "$"
		}
		patterns = append(patterns, strings.Join(elements, "/"))
	}
	slices.Sort(patterns)
	run := "-test.run=" + strings.Join(slices.Compact(patterns), "|")
	return execute(t, pkg, binary, append(settings, fmt.Sprint("MUTANT=", id)), "-test.v", "-test.timeout=2m", run)
}

// end is the last of a test's output.
func end(out string) string { return out[max(0, len(out)-4096):] }

// verdict is what became of a test.
type verdict string

const (
	passed verdict = "passed"
	failed verdict = "failed"
)

// judge reads the verdict on one test from the output of go test -v, and from
// whether it failed.
func judge(test, out string, err error) verdict {
	says := func(s string) bool { return strings.Contains(out, s) }
	switch {
	case says("panic: test timed out after "):
		return "hung"
	case !says("=== RUN   " + test + "\n"):
		return "did not run"
	case err == nil && says("--- PASS: "+test+" ("):
		return passed
	case err != nil && (says("--- FAIL: "+test+" (") || says("\npanic: ")):
		return failed
	}
	return "ended without a verdict"
}

func TestAVerdictIsTheNamedTestsOwn(t *testing.T) {
	exit := errors.New("exit status 1")
	const run = "=== RUN   TestA\n=== RUN   TestA/b\n"
	for out, c := range map[string]struct {
		err  error
		want verdict
	}{
		run + "--- PASS: TestA (0.00s)\n    --- PASS: TestA/b (0.00s)\nPASS\n":                         {nil, passed},
		run + "--- FAIL: TestA (0.00s)\n    --- FAIL: TestA/b (0.00s)\nFAIL\n":                         {exit, failed},
		run + "panic: boom\n\ngoroutine 1\nFAIL\n":                                                     {exit, failed},
		run + "--- PASS: TestA (0.00s)\n    --- SKIP: TestA/b (0.00s)\nPASS\n":                         {nil, "ended without a verdict"},
		run + "--- FAIL: TestA (0.00s)\n    --- PASS: TestA/b (0.00s)\nFAIL\n":                         {exit, "ended without a verdict"},
		"=== RUN   TestA\n=== RUN   TestA/bc\n    --- FAIL: TestA/bc (0.00s)\nFAIL\n":                  {exit, "did not run"},
		run + "panic: test timed out after 2m0s\n\trunning tests:\n\t\tTestA/b (2m0s)\nexit 2\nFAIL\n": {exit, "hung"},
	} {
		if got := judge("TestA/b", out, c.err); got != c.want {
			t.Errorf("it %s, want that it %s: %s", got, c.want, out)
		}
	}
}
