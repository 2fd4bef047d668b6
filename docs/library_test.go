package docs

import (
	"cmp"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"taskguard/internal/testing/must"
	"taskguard/worker"
)

// The linter holds the comments of types, functions, methods, constants and variables. It does not look at fields, the
// methods of interfaces, and examples.
func TestLibrary_Packages(t *testing.T) {
	var packages []string
	format := "{{.Name}} {{.Dir}} {{join .GoFiles \",\"}} {{join .TestGoFiles \",\"}},{{join .XTestGoFiles \",\"}}"
	for path, words := range list(t, format, "./...") {
		if len(words) < 4 || words[0] == "main" {
			continue
		}
		own := begins(path, []string{"taskguard/cmd/", "taskguard/locks/document/server"})
		if own || strings.Contains(path, "/internal/") {
			continue
		}
		fset := token.NewFileSet()
		parse := func(names string) (files []*ast.File) {
			for _, name := range strings.FieldsFunc(names, func(r rune) bool { return r == ',' }) {
				file := must.Get(parser.ParseFile(fset, filepath.Join(words[1], name), nil, parser.ParseComments))(t)
				files = append(files, file)
			}
			return files
		}
		pkg := must.Get(doc.NewFromFiles(fset, parse(words[2]), path))(t)
		if len(pkg.Consts)+len(pkg.Vars)+len(pkg.Funcs)+len(pkg.Types) == 0 {
			continue // only tests
		}
		packages = append(packages, path)
		if len(doc.Examples(parse(words[3])...)) == 0 {
			t.Errorf("%s has no example", path)
		}
		for _, typ := range pkg.Types {
			for _, name := range fieldsWithout(typ) {
				t.Errorf("%s.%s.%s has no comment, and that of %s does not name it", path, typ.Name, name, typ.Name)
			}
		}
	}
	_, table, _ := strings.Cut(read(t, "library.md"), "\n## Packages\n")
	var listed []string
	for _, name := range regexp.MustCompile("`(taskguard/[a-z0-9/]+)`").FindAllStringSubmatch(table, -1) {
		listed = append(listed, name[1])
	}
	slices.Sort(packages)
	slices.Sort(listed)
	if !slices.Equal(listed, packages) {
		t.Errorf("library.md lists the packages %q, want %q", listed, packages)
	}
}

// fieldsWithout returns the exported fields and methods of a type without a comment.
func fieldsWithout(typ *doc.Type) (names []string) {
	spec, _ := typ.Decl.Specs[0].(*ast.TypeSpec)
	ast.Inspect(spec.Type, func(n ast.Node) bool {
		field, ok := n.(*ast.Field)
		if !ok || cmp.Or(field.Doc, field.Comment) != nil {
			return true
		}
		for _, name := range field.Names {
			if name.IsExported() && !mentions(typ.Doc, name.Name) {
				names = append(names, name.Name)
			}
		}
		return true
	})
	return names
}

// The durations have the same defaults as the variables.
func TestLibrary_Options(t *testing.T) {
	env := func(name string) (string, bool) { return "iam", name == "TASK_AUTH" }
	defaults := must.Get(worker.FromEnv(env))(t).Filled()
	_, table, _ := strings.Cut(read(t, "library.md"), "\n| option | default | |\n")
	table, _, _ = strings.Cut(table, "\n\n")
	rows := map[string]string{}
	for row := range strings.Lines(table) {
		cells := strings.Split(row, "|")
		for name := range strings.SplitSeq(strings.Trim(cells[1], " "), ", ") {
			rows[strings.Trim(name, "`")] = cells[2]
		}
	}
	for _, field := range reflect.VisibleFields(reflect.TypeFor[worker.Options]()) {
		row, ok := rows[field.Name]
		if !ok {
			t.Errorf("library.md does not list the option %s", field.Name)
		}
		value := reflect.ValueOf(defaults).FieldByIndex(field.Index).Interface()
		d, _ := value.(time.Duration)
		short := strings.TrimSuffix(strings.TrimSuffix(d.String(), "0s"), "0m")
		if d != 0 && !strings.Contains(row, short) {
			t.Errorf("library.md has for %s the default %q, want %v", field.Name, row, d)
		}
	}
}

// A kind cannot give its own fields the names that the page lists as the guard's.
func TestLibrary_Fields(t *testing.T) {
	_, list, _ := strings.Cut(read(t, "library.md"), "**These names belong to the guard**")
	_, list, _ = strings.Cut(list, ": ")
	list, _, _ = strings.Cut(list, ". [")
	names := regexp.MustCompile("`(\\w+)`").FindAllStringSubmatch(list, -1)
	for _, name := range names {
		if err := (worker.Fields{Error: name[1]}).Check(); err == nil {
			t.Errorf("an error may have the name %s, which belongs to the guard", name[1])
		}
	}
	if len(names) < 20 {
		t.Errorf("library.md lists %d names: %q", len(names), list)
	}
}

// mentions reports whether a comment contains the name as a word.
func mentions(comment, name string) bool {
	return slices.Contains(strings.FieldsFunc(comment, func(r rune) bool { return !unicode.IsLetter(r) }), name)
}
