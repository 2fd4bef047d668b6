package docs

import (
	"cmp"
	"go/ast"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"taskguard/internal/testing/must"
)

// testName matches a test, and a subtest of it with underscores for spaces, as go test -run takes it.
var testName = regexp.MustCompile("\\b(Test[A-Z]\\w+)(?:/([^\\s`|]+))?")

// A test that a page names exists, so that readers can run it.
func TestPages_Tests(t *testing.T) {
	files := map[string]string{} // by the name of a test, which several packages may have
	for path, file := range sources(t) {
		for _, f := range testsOf(path, file) {
			files[f.Name.Name] += read(t, "../"+path)
		}
	}

	named := 0
	must.OK(t, filepath.WalkDir("..", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".md" {
			return err
		}
		for _, name := range testName.FindAllStringSubmatch(read(t, path), -1) {
			named++
			sentence := strings.TrimRight(strings.ReplaceAll(name[2], "_", " "), ".,;:')")
			if !strings.Contains(files[name[1]], sentence) || files[name[1]] == "" {
				t.Errorf("%s: there is no test %s", path, name[0])
			}
		}
		return nil
	}))
	if named < 50 {
		t.Errorf("the pages name %d tests", named)
	}
}

// command of a page, the Makefile or a job: its packages, and the pattern that selects tests.
var (
	goTest  = regexp.MustCompile("go test [^\n`|&]*")
	pattern = regexp.MustCompile(`-run '?([^' ]+)`)
	tested  = regexp.MustCompile(`\./([\w/-]*\w)`)
)

// A command selects tests that exist: with a name that has gone, go test passes without a test.
func TestPages_Run(t *testing.T) {
	all := map[string][]string{} // by folder
	for path, file := range sources(t) {
		for _, f := range testsOf(path, file) {
			all[filepath.Dir(path)] = append(all[filepath.Dir(path)], f.Name.Name)
		}
	}

	selected := 0
	must.OK(t, filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		names := map[string]bool{".md": true, "Makefile": true}
		if err != nil || !names[cmp.Or(filepath.Ext(path), d.Name())] {
			return err
		}
		for _, command := range goTest.FindAllString(strings.ReplaceAll(read(t, path), "$$", "$"), -1) {
			run := pattern.FindStringSubmatch(command)
			if len(run) == 0 || run[1] == "^$" {
				continue
			}
			first, _, _ := strings.Cut(run[1], "/")
			for _, folder := range tested.FindAllStringSubmatch(command, -1) {
				selected++
				if !slices.ContainsFunc(all[folder[1]], regexp.MustCompile(first).MatchString) {
					t.Errorf("%s: no test is selected by %s", path, command)
				}
			}
		}
		return nil
	}))
	if selected < 10 {
		t.Errorf("%d commands select tests", selected)
	}
}

// A test is found and read by somebody who has not written it: its name is TestType_Method or TestFeature, its
// sentence is that of a subtest, its lines fit on a page unless they are data, and a condition has at most two parts.
func TestTests_Reading(t *testing.T) {
	for path, file := range sources(t) {
		if !strings.HasSuffix(path, "_test.go") {
			continue
		}
		for _, f := range testsOf(path, file) {
			name := strings.TrimPrefix(f.Name.Name, "Test")
			if words(name) > 5 || strings.Count(name, "_") > 1 {
				t.Errorf("%s: %s is a sentence: t.Run has room for it", path, f.Name.Name)
			}
		}

		text := read(t, "../"+path)
		data := dataOf(file, text)
		for n, line := range strings.Split(text, "\n") {
			if columns(line) > widest && !data[n+1] {
				t.Errorf("%s:%d has over %d columns", path, n+1, widest)
			}
		}

		ast.Inspect(file, func(n ast.Node) bool {
			if condition, ok := n.(*ast.IfStmt); ok && operators(condition.Cond) > 1 {
				line := strings.Count(text[:condition.Cond.Pos()-file.FileStart], "\n") + 1
				t.Errorf("%s:%d has %d conditions", path, line, operators(condition.Cond)+1)
			}
			return true
		})
	}
}

// testsOf returns the tests of a file.
func testsOf(path string, file *ast.File) (all []*ast.FuncDecl) {
	if !strings.HasSuffix(path, "_test.go") {
		return nil
	}
	for _, decl := range file.Decls {
		f, ok := decl.(*ast.FuncDecl)
		if !ok || f.Name.Name == "TestMain" {
			continue
		}
		if strings.HasPrefix(f.Name.Name, "Test") {
			all = append(all, f)
		}
	}
	return all
}

// words counts the words of a name in capitals; WMS is one.
func words(name string) (n int) {
	was := rune('a')
	for _, r := range name {
		if unicode.IsUpper(r) && !unicode.IsUpper(was) {
			n++
		}
		was = r
	}
	return n
}

// dataOf returns the lines that are data: those of a literal of several lines, or of over 80 columns, and the output
// of an example.
func dataOf(file *ast.File, text string) map[int]bool {
	lines := map[int]bool{}
	for _, comment := range file.Comments {
		first := strings.Count(text[:comment.Pos()-file.FileStart], "\n") + 1
		for n := 0; strings.Contains(comment.Text(), "utput:") && n < len(comment.List); n++ {
			lines[first+n] = true
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		literal, ok := n.(*ast.BasicLit)
		if !ok || literal.Kind != token.STRING {
			return true
		}
		first := strings.Count(text[:literal.Pos()-file.FileStart], "\n") + 1
		last := first + strings.Count(literal.Value, "\n")
		for line := first; line <= last && (last > first || columns(literal.Value) > 80); line++ {
			lines[line] = true
		}
		return true
	})
	return lines
}

// operators counts the && and || of a condition.
func operators(condition ast.Expr) (n int) {
	ast.Inspect(condition, func(node ast.Node) bool {
		b, ok := node.(*ast.BinaryExpr)
		if ok && slices.Contains([]token.Token{token.LAND, token.LOR}, b.Op) {
			n++
		}
		_, isFunction := node.(*ast.FuncLit)
		return !isFunction
	})
	return n
}

const (
	longFunction = 25  // lines
	widest       = 120 // columns, with tabs of 4
)

// notProduct matches the files that only tests and readers of examples see.
var notProduct = regexp.MustCompile(`_test\.go$|^docs/examples/|^internal/testing/|^lease/leasetest/`)

// The product's code is read in paragraphs: at most one long function in four has none, and
// at most 40 lines are wider than a page. -v prints which.
func TestProduct_Reading(t *testing.T) {
	long, solid, wide := 0, 0, 0
	for path, file := range sources(t) {
		if notProduct.MatchString(path) {
			continue
		}

		text := read(t, "../"+path)
		for n, line := range strings.Split(text, "\n") {
			if columns(line) > widest {
				wide++
				t.Logf("%s:%d has over %d columns", path, n+1, widest)
			}
		}

		for _, decl := range file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok {
				continue
			}
			function := text[f.Pos()-file.FileStart : f.End()-file.FileStart]
			lines := strings.Count(function, "\n") + 1
			if lines < longFunction {
				continue
			}
			if long++; !strings.Contains(function, "\n\n") {
				solid++
				t.Logf("%s: %s has %d lines and no paragraph", path, f.Name.Name, lines)
			}
		}
	}

	t.Logf("of %d long functions %d have no paragraph; %d lines are wide", long, solid, wide)
	if most := long / 4; long == 0 || max(solid-most, wide-40) > 0 {
		t.Errorf("of %d long functions %d have no paragraph, want at most a quarter; %d lines are wide, want at most 40",
			long, solid, wide)
	}
}

// columns returns how wide a line is shown.
func columns(line string) int { return utf8.RuneCountInString(strings.ReplaceAll(line, "\t", "    ")) }
