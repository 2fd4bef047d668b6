package docs

import (
	"go/ast"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

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
