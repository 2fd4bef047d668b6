package mutants

import (
	"bytes"
	"cmp"
	"fmt"
	"go/build"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// elsewhere has the packages whose tests are tried on a package too.
var elsewhere = map[string][]string{
	"lease":                  {"lease/leasetest"},
	"lease/analysislock":     {"repo", "worker"},
	"locks/document":         {"repo", "locks/document/server", "locks/project"},
	"lease/iso8601":          {"lease/analysislock"},
	"repo":                   {"worker"},
	"locks/operator":         {"cmd/operator-manager"},
	"internal/env":           {"worker", "cmd/internal/service", "cmd/internal/workerservice", "cmd/internal/doclockservice"},
	"cmd/internal/service":   {"cmd/internal/workerservice", "cmd/internal/doclockservice"},
	"internal/delivery":      {"worker"},
	"locks/document/server":  {"cmd/internal/doclockservice"},
	"cmd/internal/doctor":    {"cmd/taskguard"},
	"internal/lifecycle":     {"locks/document/server", "worker"},
	"internal/telemetry":     {"cmd/internal/service", "worker"},
	"emulator/cloudtasks":    {"internal/taskqueue"},
	"emulator/internal/wire": {"emulator/firestore"},
	"cmd/doclock":            {"cmd/internal/doclockservice"},
	"cmd/internal/cli":       {"cmd/internal/operate", "cmd/operator-manager", "cmd/taskguard"},
	"cmd/internal/hold":      {"cmd/taskguard"},
	"cmd/internal/local":     {"cmd/taskguard"},
	"cmd/internal/operate":   {"cmd/taskguard"},
	"worker":                 {"cmd/internal/workerservice"},
}

// generatedOf returns the packages that are mutated, all but those for tests and examples,
// each with the packages whose tests are tried on it.
func generatedOf(t *testing.T) map[string][]string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "./...")
	cmd.Dir = root
	list, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]string{}
	for _, pkg := range strings.Fields(string(list)) {
		pkg = strings.TrimPrefix(pkg, "taskguard/")
		if !regexp.MustCompile(`^docs|^internal/testing/|^deploy|/leasetest$`).MatchString(pkg) {
			all[pkg] = append([]string{pkg}, elsewhere[pkg]...)
		}
	}
	return all
}

// survivors returns the mutants that no test has to catch, with the reason of each.
func survivors(t *testing.T) map[string]string {
	t.Helper()
	reasons := map[string]string{}
	var names []string
	for line := range strings.Lines(read(t, "docs/mutants/survivors.txt")) {
		reason, isReason := strings.CutPrefix(line, "\t")
		switch line = strings.TrimSpace(line); {
		case isReason:
			for _, name := range names {
				reasons[name] = strings.TrimSpace(reason)
			}
			names = nil
		case line != "" && line[0] != '#':
			names = append(names, line)
		}
	}
	if len(names) > 0 {
		t.Errorf("without a reason: %q", names)
	}
	return reasons
}

func importDir(t *testing.T, pkg string) *build.Package {
	t.Helper()
	p, err := build.ImportDir(filepath.Join(root, pkg), 0)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func mutantsOf(t *testing.T, pkg string) map[string][]mutant {
	t.Helper()
	files, n := map[string][]mutant{}, 0
	for _, name := range importDir(t, pkg).GoFiles {
		file := path.Join(pkg, name)
		files[file] = generate(t, file, n)
		n += len(files[file])
	}
	return files
}

func TestEachAcceptedSurvivorIsAMutant(t *testing.T) {
	generated := map[string]bool{}
	for pkg := range generatedOf(t) {
		for _, mutants := range mutantsOf(t, pkg) {
			for _, m := range mutants {
				generated[m.name] = true
			}
		}
	}
	for name := range survivors(t) {
		if !generated[name] {
			t.Errorf("survivors.txt: the code has changed, delete %q", name)
		}
	}
}

func TestGeneratedMutantsAreCaught(t *testing.T) {
	if os.Getenv("MUTANTS_GENERATED") == "" {
		t.Skip("takes hours: make mutants-generated")
	}
	accepted := survivors(t)
	packages := generatedOf(t)
	for _, pkg := range slices.Sorted(maps.Keys(packages)) {
		t.Run(strings.ReplaceAll(pkg, "/", "_"), func(t *testing.T) {
			var total, caught atomic.Int32
			begun := time.Now()
			overlay, mutants := compile(t, pkg)
			if len(mutants) == 0 {
				return // it has only comments, tests or files to embed
			}
			if n, _ := strconv.Atoi(os.Getenv("MUTANTS_SAMPLE")); n > 0 {
				each := (len(mutants) + n - 1) / n
				mutants = slices.DeleteFunc(mutants, func(m mutant) bool { return m.id%each != 0 })
			}
			covering := cover(t, packages[pkg], overlay)
			t.Run("mutants", func(t *testing.T) {
				for _, m := range mutants {
					t.Run(m.name, func(t *testing.T) {
						t.Parallel()
						switch tests := covering[m.id]; {
						case catches(t, m, tests):
							caught.Add(1)
						case accepted[m.name] == "":
							t.Errorf("passes its %d tests: %s", len(tests), m.name)
						}
						total.Add(1)
					})
				}
			})
			fmt.Printf("%s: %d of %d caught in %v\n", pkg, caught.Load(), total.Load(), time.Since(begun).Round(time.Second))
			if caught.Load()*100 < total.Load()*95 {
				t.Error("fewer than 95 % are caught")
			}
		})
	}
}

// compile returns the overlay that makes all mutants of a package, but for those
// that do not compile.
func compile(t *testing.T, pkg string) (string, []mutant) {
	t.Helper()
	files := mutantsOf(t, pkg)
	for {
		texts, begins := map[string]string{}, map[string][]int{}
		var all []mutant
		for file, mutants := range files {
			texts[file], begins[file] = insert(read(t, file), mutants)
			all = append(all, mutants...)
		}
		slices.SortFunc(all, func(a, b mutant) int { return cmp.Compare(a.id, b.id) })
		if len(all) == 0 {
			return "", nil
		}
		texts[path.Join(pkg, "mutated.go")] = fmt.Sprintf(switchboard, importDir(t, pkg).Name, all[len(all)-1].id+1)
		file := overlay(t, texts)
		cmd := exec.CommandContext(t.Context(), "go", "build", "-gcflags=-e", "-o", os.DevNull, "-overlay="+file, "./"+pkg)
		cmd.Dir = root
		out, err := cmd.CombinedOutput()
		if err == nil {
			return file, all
		}
		dropped := map[int]bool{}
		for _, match := range regexp.MustCompile(`(?m)^(\S+\.go):(\d+):(?:(\d+):)? `).FindAllStringSubmatch(string(out), -1) {
			file := path.Join(pkg, path.Base(match[1]))
			if len(files[file]) == 0 {
				t.Fatalf("%v\n%s", err, out)
			}
			text, _ := insert(read(t, file), files[file])
			line, _ := strconv.Atoi(match[2])
			lines := strings.SplitAfter(text, "\n")
			offset := len(strings.Join(lines[:line], "")) - 1 // the compiler leaves out a large column
			if column, err := strconv.Atoi(match[3]); err == nil {
				offset = len(strings.Join(lines[:line-1], "")) + column - 1
			}
			for i, m := range slices.Backward(files[file]) {
				if begins[file][i] <= offset {
					dropped[m.id] = true
					fmt.Println("does not compile:", m.name)
					break
				}
			}
		}
		if len(dropped) == 0 {
			t.Fatalf("%v\n%s", err, out)
		}
		for file := range files {
			files[file] = slices.DeleteFunc(files[file], func(m mutant) bool { return dropped[m.id] })
		}
	}
}

// timed is a test function of a package and how long it takes.
type timed struct {
	pkg, binary, name string
	took              time.Duration
}

// cover returns for each mutant the tests of these packages that reach it, the
// fastest first.
func cover(t *testing.T, pkgs []string, overlay string) map[int][]timed {
	t.Helper()
	covering := map[int][]timed{}
	for _, pkg := range pkgs {
		test := timed{pkg: pkg, binary: buildTests(t, t.TempDir(), pkg, overlay)}
		list, err := test.run(t, "", "-test.list=^(Test|Fuzz|Example)")
		if err != nil {
			t.Fatalf("%v\n%s", err, list)
		}
		for _, test.name = range strings.Fields(list) {
			reached, begun := filepath.Join(t.TempDir(), "reached"), time.Now()
			if out, err := test.run(t, "MUTANTS_REACHED="+reached, "-test.run=^"+test.name+"$"); err != nil {
				t.Fatalf("without any mutant: %v\n%s", err, end(out))
			}
			test.took = time.Since(begun)
			ids, _ := os.ReadFile(reached) // none where the test reaches none
			for _, id := range bytes.Fields(ids) {
				if n, _ := strconv.Atoi(string(id)); !slices.Contains(covering[n], test) {
					covering[n] = append(covering[n], test)
				}
			}
		}
	}
	for _, tests := range covering {
		slices.SortFunc(tests, func(a, b timed) int { return cmp.Compare(a.took, b.took) })
	}
	return covering
}

// catches runs tests on a mutant until one fails or hangs, as many at once as
// take a second.
func catches(t *testing.T, m mutant, tests []timed) bool {
	t.Helper()
	for len(tests) > 0 {
		pattern, took, n := tests[0].name, tests[0].took, 1
		for ; n < len(tests) && tests[n].pkg == tests[0].pkg && took+tests[n].took < time.Second; n++ {
			pattern, took = pattern+"|"+tests[n].name, took+tests[n].took
		}
		limit := 10*time.Second + 3*took
		if _, err := tests[0].run(t, fmt.Sprintf("MUTANT=%d", m.id), "-test.run=^("+pattern+")$", "-test.timeout="+limit.String()); err != nil {
			return true
		}
		tests = tests[n:]
	}
	return false
}

func (test timed) run(t *testing.T, env string, args ...string) (string, error) {
	t.Helper()
	// TestOnARealProject refuses to run alone without its project.
	return execute(t, test.pkg, test.binary, []string{"FIRESTORE_EMULATOR_HOST=", env}, append([]string{"-test.short", "-test.failfast", "-test.skip=RealProject"}, args...)...)
}
