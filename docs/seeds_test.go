package docs

import (
	"fmt"
	"go/ast"
	"os"
	"regexp"
	"strings"
	"testing"
)

// requirements are the lines that SEEDS.md must answer: of each family its
// numbers, and what it calls C (kept) and X (defects not to be had).
func requirements() (ids []string) {
	numbered := func(family string, last int) {
		for n := 1; n <= last; n++ {
			ids = append(ids, fmt.Sprint(family, n))
		}
	}
	numbered("G", 10)
	numbered("X", 5)
	numbered("D", 7)
	numbered("P", 15)
	numbered("O", 10)
	numbered("R", 10)
	return append(ids, "G-C", "D-C", "D-X", "O-C", "O-X")
}

var (
	requirement = regexp.MustCompile(`^\| ([A-Z]-?[A-Z0-9]+) \|`)
	testName    = regexp.MustCompile(`\bTest[A-Z]\w+`)
)

func TestEveryRequirementNamesATestThatExists(t *testing.T) {
	exists := map[string]bool{}
	for path, file := range sources(t) {
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && strings.HasSuffix(path, "_test.go") {
				exists[f.Name.Name] = true
			}
		}
	}
	page, err := os.ReadFile("SEEDS.md")
	if err != nil {
		t.Fatal(err)
	}
	shown := map[string]int{}
	for line := range strings.Lines(string(page)) {
		id := requirement.FindStringSubmatch(line)
		for _, name := range testName.FindAllString(line, -1) {
			switch {
			case !exists[name]:
				t.Errorf("no test is called %s:\n%s", name, line)
			case id == nil:
			default:
				shown[id[1]]++
			}
		}
	}
	for _, id := range requirements() {
		if shown[id] == 0 {
			t.Errorf("SEEDS.md names no test for %s", id)
		}
	}
}
