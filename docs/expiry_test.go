package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"taskguard/internal/testing/must"
)

// comparisons are the methods that compare two times. Operators compare durations.
var comparisons = []string{"Before", "After", "Compare"}

func TestExpiry(t *testing.T) {
	judged := 0
	for path, file := range sources(t) {
		proofs := begins(path, []string{"lease/leasetest/", "internal/testing/proof/"})
		if proofs || strings.HasSuffix(path, "_test.go") {
			continue
		}
		for _, name := range expiriesCompared(file) {
			if judged++; path != "lease/rules.go" {
				t.Errorf("%s compares %s with another time: only lease/rules.go judges expiry", path, name)
			}
		}
	}
	if judged == 0 {
		t.Error("no compared expiry was found")
	}
}

// expiriesCompared returns the names in n that look like an expiry and are compared.
func expiriesCompared(n ast.Node) (names []string) {
	ast.Inspect(n, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			if method, ok := n.Fun.(*ast.SelectorExpr); ok && slices.Contains(comparisons, method.Sel.Name) {
				names = append(names, expiries(append(n.Args, method.X)...)...)
			}
		case *ast.BinaryExpr:
			if slices.Contains([]token.Token{token.LSS, token.LEQ, token.GTR, token.GEQ}, n.Op) {
				names = append(names, expiries(n.X, n.Y)...)
			}
		}
		return true
	})
	return names
}

// expiries returns the names in exprs that look like an expiry.
func expiries(exprs ...ast.Expr) (names []string) {
	for _, e := range exprs {
		ast.Inspect(e, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok && strings.Contains(strings.ToLower(id.Name), "expir") {
				names = append(names, id.Name)
			}
			return true
		})
	}
	return names
}

// sources returns the Go files of the module, parsed, by path.
func sources(t *testing.T) map[string]*ast.File {
	t.Helper()
	files, set := map[string]*ast.File{}, token.NewFileSet()
	err := filepath.WalkDir("..", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") {
			return err
		}
		file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution|parser.ParseComments)
		files[strings.TrimPrefix(filepath.ToSlash(path), "../")] = file
		return err
	})
	must.OK(t, err)
	return files
}
