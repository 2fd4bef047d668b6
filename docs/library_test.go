package docs

import (
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

	"taskguard/worker"
)

// The linter holds the comments of types, functions, methods, constants and variables. It
// does not look at fields, the methods of interfaces, and examples.
func TestEveryExportedFieldHasACommentAndEveryPackageAnExample(t *testing.T) {
	var packages []string
	for path, words := range list(t, "{{.Name}} {{.Dir}} {{join .GoFiles \",\"}} {{join .TestGoFiles \",\"}},{{join .XTestGoFiles \",\"}}", "./...") {
		if len(words) < 4 || words[0] == "main" || strings.Contains(path, "/internal/") || strings.HasPrefix(path, "taskguard/cmd/") || strings.HasPrefix(path, "taskguard/locks/document/server") {
			continue
		}
		fset := token.NewFileSet()
		parse := func(names string) (files []*ast.File) {
			for _, name := range strings.FieldsFunc(names, func(r rune) bool { return r == ',' }) {
				file := must(parser.ParseFile(fset, filepath.Join(words[1], name), nil, parser.ParseComments))(t)
				files = append(files, file)
			}
			return files
		}
		pkg := must(doc.NewFromFiles(fset, parse(words[2]), path))(t)
		if len(pkg.Consts)+len(pkg.Vars)+len(pkg.Funcs)+len(pkg.Types) == 0 {
			continue // only tests
		}
		packages = append(packages, path)
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

// go doc shows of an alias only its comment.
func TestTheCommentOfAnAliasNamesEveryField(t *testing.T) {
	structs := map[string]reflect.Type{
		"Fields": reflect.TypeFor[worker.Fields](), "Job": reflect.TypeFor[worker.Job](), "Policy": reflect.TypeFor[worker.Policy](),
		"PanicError": reflect.TypeFor[worker.PanicError](), "PermanentError": reflect.TypeFor[worker.PermanentError](),
		"Queue": reflect.TypeFor[worker.Queue](), "Recovery": reflect.TypeFor[worker.Recovery](),
		"RetryAfterError": reflect.TypeFor[worker.RetryAfterError](),
		"UncertainError":  reflect.TypeFor[worker.UncertainError](),
	}
	fset, sources := token.NewFileSet(), must(filepath.Glob("../worker/*.go"))(t)
	var files []*ast.File
	for _, name := range sources {
		files = append(files, must(parser.ParseFile(fset, name, nil, parser.ParseComments))(t))
	}
	pkg := must(doc.NewFromFiles(fset, files, "taskguard/worker"))(t)

	for _, typ := range pkg.Types {
		spec, _ := typ.Decl.Specs[0].(*ast.TypeSpec)
		if !spec.Assign.IsValid() {
			continue
		}
		target, known := structs[typ.Name]
		delete(structs, typ.Name)
		if !known {
			t.Errorf("the alias %s is not in this test", typ.Name)
			continue
		}
		for _, field := range reflect.VisibleFields(target) {
			if field.IsExported() && !mentions(typ.Doc, field.Name) {
				t.Errorf("go doc worker.%s does not show the field %s", typ.Name, field.Name)
			}
		}
		for method := range target.Methods() {
			if typ.Name == "Job" && !mentions(typ.Doc, method.Name) {
				t.Errorf("go doc worker.%s does not show the method %s", typ.Name, method.Name)
			}
		}
	}
	if len(structs) > 0 {
		t.Errorf("they are no aliases: %v", structs)
	}
}

// The durations have the same defaults as the variables.
func TestThePageOfTheLibraryListsTheOptionsAndTheirDefaults(t *testing.T) {
	defaults := must(worker.FromEnv(func(name string) (string, bool) { return "iam", name == "TASK_AUTH" }))(t).Filled()
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
		if d, ok := value.(time.Duration); ok && d != 0 && !strings.Contains(row, strings.TrimSuffix(strings.TrimSuffix(d.String(), "0s"), "0m")) {
			t.Errorf("library.md has for %s the default %q, want %v", field.Name, row, d)
		}
	}
}

// A kind cannot give its own fields the names that the page lists as the guard's.
func TestThePageOfTheLibraryListsTheNamesThatBelongToTheGuard(t *testing.T) {
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
