package mutants

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"go/build"
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

// generatedOf are the packages that are mutated, each with those whose tests are
// tried on it.
var generatedOf = map[string][]string{
	"lease":              {"lease", "lease/leasetest"},
	"lease/analysislock": {"lease/analysislock", "repo"},
	"repo":               {"repo"},
	"worker":             {"worker"},
	"worker/taskauth":    {"worker/taskauth"},
}

// switchboard is compiled into a mutated package.
const switchboard = `package %s

import (
	"os"
	"strconv"
	"sync/atomic"
)

var (
	mutatedID, _   = strconv.Atoi(os.Getenv("MUTANT"))
	mutatedLog     = os.Getenv("MUTANTS_REACHED")
	mutatedReached [%d]atomic.Bool
)

func mutated(id int) bool {
	if mutatedLog != "" && !mutatedReached[id].Swap(true) {
		// A process of another user cannot open it.
		if f, err := os.OpenFile(mutatedLog, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600); err == nil {
			_, _ = f.WriteString(strconv.Itoa(id) + " ")
			_ = f.Close()
		}
	}
	return id == mutatedID
}

func mutatedZero[T any](id int, v T) (zero T) {
	if mutated(id) {
		return zero
	}
	return v
}

func mutatedNumber[T any](id int, mutant, v T) T {
	if mutated(id) {
		return mutant
	}
	return v
}
`

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

func mutantsOf(t *testing.T, pkg string) map[string][]mutant {
	t.Helper()
	p, err := build.ImportDir(filepath.Join(root, pkg), 0)
	if err != nil {
		t.Fatal(err)
	}
	files, n := map[string][]mutant{}, 0
	for _, name := range p.GoFiles {
		file := path.Join(pkg, name)
		files[file] = generate(t, file, n)
		n += len(files[file])
	}
	return files
}

func TestEachAcceptedSurvivorIsAMutant(t *testing.T) {
	generated := map[string]bool{}
	for pkg := range generatedOf {
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
		t.Skip("takes half an hour: make mutants-generated")
	}
	accepted := survivors(t)
	for pkg, of := range generatedOf {
		t.Run(strings.ReplaceAll(pkg, "/", "_"), func(t *testing.T) {
			var total, caught atomic.Int32
			begun := time.Now()
			overlay, mutants := compile(t, pkg)
			covering := cover(t, of, overlay)
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
	dir, files := t.TempDir(), mutantsOf(t, pkg)
	for {
		replace, begins := map[string]string{}, map[string][]int{}
		write := func(file, text string) {
			original, err := filepath.Abs(filepath.Join(root, file))
			if err != nil {
				t.Fatal(err)
			}
			replace[original] = filepath.Join(dir, path.Base(file))
			if err := os.WriteFile(replace[original], []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		var all []mutant
		for file, mutants := range files {
			var text string
			text, begins[file] = insert(read(t, file), mutants)
			write(file, text)
			all = append(all, mutants...)
		}
		slices.SortFunc(all, func(a, b mutant) int { return cmp.Compare(a.id, b.id) })
		write(path.Join(pkg, "mutated.go"), fmt.Sprintf(switchboard, path.Base(pkg), all[len(all)-1].id+1))
		overlay, err := json.Marshal(map[string]any{"Replace": replace})
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(dir, "overlay.json")
		if err := os.WriteFile(file, overlay, 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), "go", "build", "-gcflags=-e", "-overlay="+file, "./"+pkg)
		cmd.Dir = root
		out, err := cmd.CombinedOutput()
		if err == nil {
			return file, all
		}
		dropped := map[int]bool{}
		for _, match := range regexp.MustCompile(`(?m)^(\S+\.go):(\d+):(\d+): `).FindAllStringSubmatch(string(out), -1) {
			file := path.Join(pkg, path.Base(match[1]))
			if len(files[file]) == 0 {
				t.Fatalf("%v\n%s", err, out)
			}
			text, _ := insert(read(t, file), files[file])
			line, _ := strconv.Atoi(match[2])
			column, _ := strconv.Atoi(match[3])
			offset := len(strings.Join(strings.SplitAfter(text, "\n")[:line-1], "")) + column - 1
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
		test := timed{pkg: pkg, binary: filepath.Join(t.TempDir(), "test")}
		cmd := exec.CommandContext(t.Context(), "go", "test", "-c", "-vet=off", "-overlay="+overlay, "-o", test.binary, "./"+pkg)
		cmd.Dir = root
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
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

// run runs the test's binary. A loop without an end gets no more than 4 GiB.
func (test timed) run(t *testing.T, env string, args ...string) (string, error) {
	t.Helper()
	args = append([]string{"-c", `ulimit -d 4194304; exec "$0" "$@"`, test.binary, "-test.short", "-test.failfast"}, args...)
	cmd := exec.CommandContext(t.Context(), "sh", args...)
	cmd.Dir, cmd.WaitDelay = filepath.Join(root, test.pkg), time.Second
	cmd.Env = append(slices.DeleteFunc(os.Environ(), ours), "TASKGUARD_NO_GOOGLE_EMULATOR=1", env)
	out, err := cmd.CombinedOutput()
	return string(out), err
}
