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
)

// comparisons are how Go code asks which of two times comes first.
var comparisons = []string{"Before", "After", "Compare"}

func TestExpiryIsJudgedByTheRulesAlone(t *testing.T) {
	judged := 0
	for path, file := range sources(t) {
		if strings.HasSuffix(path, "_test.go") || strings.HasPrefix(path, "lease/leasetest/") {
			continue
		}
		for _, name := range expiriesCompared(file) {
			if judged++; path != "lease/rules.go" {
				t.Errorf("%s compares %s with another time: only lease/rules.go judges expiry", path, name)
			}
		}
	}
	if judged == 0 {
		t.Error("no expiry is judged anywhere: does this test still see?")
	}
}

func TestAComparedExpiryIsSeen(t *testing.T) {
	for expr, want := range map[string]bool{
		"now.Before(l.ExpiresAt)":          true,
		"l.ExpiresAt.After(now)":           true,
		"c.Doc.Lock.ExpiresAt.Compare(at)": true,
		"expiry.Before(time.Now())":        true,
		"l.ExpiresAt.Equal(meant)":         false,
		"l.HeartbeatAt.Before(now)":        false,
	} {
		parsed, err := parser.ParseExpr(expr)
		if err != nil {
			t.Fatal(err)
		}
		if got := len(expiriesCompared(parsed)) > 0; got != want {
			t.Errorf("%s: seen %v, want %v", expr, got, want)
		}
	}
}

// expiriesCompared names what in n is an expiry, by its name, and is compared.
func expiriesCompared(n ast.Node) (names []string) {
	ast.Inspect(n, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		method, ok := call.Fun.(*ast.SelectorExpr)
		if !ok || !slices.Contains(comparisons, method.Sel.Name) {
			return true
		}
		for _, side := range append([]ast.Expr{method.X}, call.Args...) {
			if name := lastName(side); strings.Contains(strings.ToLower(name), "expir") {
				names = append(names, name)
			}
		}
		return true
	})
	return names
}

// lastName is b of a.b, and of a.b().
func lastName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	case *ast.CallExpr:
		return lastName(e.Fun)
	}
	return ""
}

// sources are the Go files of the module, parsed, by their paths.
func sources(t *testing.T) map[string]*ast.File {
	t.Helper()
	files, set := map[string]*ast.File{}, token.NewFileSet()
	err := filepath.WalkDir("..", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") {
			return err
		}
		file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
		files[strings.TrimPrefix(filepath.ToSlash(path), "../")] = file
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}
