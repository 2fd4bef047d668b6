package docs

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// The linter holds the comments of types, functions, methods, constants and variables. It
// does not look at fields, the methods of interfaces, and examples.
func TestEveryExportedFieldHasACommentAndEveryPackageAnExample(t *testing.T) {
	packages := 0
	for path, words := range list(t, "{{.Name}} {{.Dir}} {{join .GoFiles \",\"}} {{join .TestGoFiles \",\"}},{{join .XTestGoFiles \",\"}}", "./...") {
		if len(words) < 4 || words[0] == "main" || strings.Contains(path, "/internal/") || strings.HasPrefix(path, "taskguard/cmd/") {
			continue
		}
		fset := token.NewFileSet()
		parse := func(names string) (files []*ast.File) {
			for _, name := range strings.FieldsFunc(names, func(r rune) bool { return r == ',' }) {
				file, err := parser.ParseFile(fset, filepath.Join(words[1], name), nil, parser.ParseComments)
				if err != nil {
					t.Fatal(err)
				}
				files = append(files, file)
			}
			return files
		}
		pkg, err := doc.NewFromFiles(fset, parse(words[2]), path)
		if err != nil {
			t.Fatal(err)
		}
		if len(pkg.Consts)+len(pkg.Vars)+len(pkg.Funcs)+len(pkg.Types) == 0 {
			continue // only tests
		}
		packages++
		if len(doc.Examples(parse(words[3])...)) == 0 {
			t.Errorf("%s has no example", path)
		}
		for _, typ := range pkg.Types {
			ast.Inspect(typ.Decl, func(n ast.Node) bool {
				var fields *ast.FieldList
				switch n := n.(type) {
				case *ast.StructType:
					fields = n.Fields
				case *ast.InterfaceType:
					fields = n.Methods
				default:
					return true
				}
				for _, field := range fields.List {
					for _, name := range field.Names {
						if field.Doc == nil && field.Comment == nil && name.IsExported() && !mentions(typ.Doc, name.Name) {
							t.Errorf("%s.%s.%s has no comment, and that of %s does not name it", path, typ.Name, name.Name, typ.Name)
						}
					}
				}
				return true
			})
		}
	}
	if packages < 10 {
		t.Errorf("%d packages with exported names were found; want them all", packages)
	}
}

// mentions reports whether a comment contains the name as a word.
func mentions(comment, name string) bool {
	return slices.Contains(strings.FieldsFunc(comment, func(r rune) bool { return !unicode.IsLetter(r) }), name)
}
