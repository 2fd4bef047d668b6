package mutants

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// mutant is a generated change of a few words. All mutants of a package are
// compiled into one test binary, and the variable MUTANT makes one of them: each
// consists of text that is inserted into a line, so that `a < b` becomes
// `(mutated(7) && (a <= b) || !mutated(7) && (a < b))`.
type mutant struct {
	name          string // file, function, what is changed and its line: unique
	id            int
	start, end    int // of what it encloses in the file
	before, after string
}

// swaps has the operators that are replaced, and by which. An equality and a
// condition are negated instead.
var swaps = map[token.Token]token.Token{
	token.LSS: token.LEQ, token.LEQ: token.LSS, token.GTR: token.GEQ, token.GEQ: token.GTR,
	token.LAND: token.LOR, token.LOR: token.LAND,
	token.ADD: token.SUB, token.SUB: token.ADD, token.MUL: token.ADD, token.QUO: token.MUL,
}

// generator makes the mutants of one file.
type generator struct {
	file, text string
	fset       *token.FileSet
	function   string     // whose body is walked
	stack      []ast.Node // from the declaration to the node at hand
	mutants    []mutant   // the outer before the inner
	names      map[string]int
}

// generate returns a file's mutants: a condition negated, an operator replaced, a
// statement left out, or a result replaced by its type's zero value. It numbers
// them from number on.
func generate(t *testing.T, file string, number int) []mutant {
	t.Helper()
	g := generator{file: file, text: read(t, file), fset: token.NewFileSet(), names: map[string]int{}}
	g.mutants = make([]mutant, number)
	tree, err := parser.ParseFile(g.fset, file, g.text, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	for _, decl := range tree.Decls {
		g.function = ""
		if f, ok := decl.(*ast.FuncDecl); ok {
			if g.function = f.Name.Name; f.Recv != nil {
				g.function = strings.TrimLeft(g.of(f.Recv.List[0].Type), "*") + "." + g.function
			}
		}
		ast.Inspect(decl, func(n ast.Node) bool {
			if c, ok := n.(*ast.GenDecl); ok && c.Tok == token.CONST {
				return false
			}
			if n == nil {
				g.stack = g.stack[:len(g.stack)-1]
				return true
			}
			g.stack = append(g.stack, n)
			g.visit(n)
			return true
		})
	}
	return g.mutants[number:]
}

func (g *generator) visit(n ast.Node) {
	switch n := n.(type) {
	case *ast.IfStmt:
		g.negate(n.Cond)
	case *ast.ForStmt:
		g.negate(n.Cond)
	case *ast.CaseClause:
		if s, ok := g.parent(2).(*ast.SwitchStmt); ok && s.Tag == nil {
			for _, cond := range n.List {
				g.negate(cond)
			}
		}
	case *ast.BinaryExpr:
		g.operator(n)
	case *ast.ReturnStmt:
		if len(n.Results) > 0 {
			g.zero(n)
		}
	case *ast.ExprStmt, *ast.DeferStmt, *ast.GoStmt, *ast.SendStmt, *ast.IncDecStmt, *ast.AssignStmt:
		if a, ok := n.(*ast.AssignStmt); ok && a.Tok == token.DEFINE {
			return
		}
		switch p := g.parent(1).(type) {
		case *ast.CommClause:
			if p.Comm == n {
				return
			}
		case *ast.BlockStmt, *ast.CaseClause:
		default:
			return
		}
		if text := g.of(n); text != "defer cancel()" && text != "cancel()" { // without it, the program does not compile
			g.add(n, "without", "if !mutated(§) { ", " }")
		}
	}
}

func (g *generator) operator(n *ast.BinaryExpr) {
	replaced := fmt.Sprintf("(%s) %s (%s)", g.of(n.X), swaps[n.Op], g.of(n.Y))
	change := fmt.Sprintf("%s for %s", swaps[n.Op], n.Op)
	switch n.Op {
	case token.ADD:
		if strings.Contains(g.of(n), `"`) {
			return // strings have no other operator
		}
		g.add(n, change, "mutatedNumber(§, "+replaced+", ", ")")
	case token.LAND, token.LOR:
		g.add(n, change, "(mutated(§) && ("+replaced+") || !mutated(§) && (", "))")
		g.negate(n.X)
		g.negate(n.Y)
	case token.LSS, token.LEQ, token.GTR, token.GEQ:
		g.add(n, change, "(mutated(§) && ("+replaced+") || !mutated(§) && (", "))")
	case token.EQL, token.NEQ:
		g.add(n, "not", "(mutated(§) != (", "))")
	case token.SUB, token.MUL, token.QUO:
		g.add(n, change, "mutatedNumber(§, "+replaced+", ", ")")
	}
}

// negate negates a condition, but for the operators of which operator makes that.
func (g *generator) negate(cond ast.Expr) {
	switch b, ok := cond.(*ast.BinaryExpr); {
	case cond == nil:
	case ok && slices.Contains([]token.Token{token.EQL, token.NEQ, token.LAND, token.LOR}, b.Op):
	default:
		g.add(cond, "not", "(mutated(§) != (", "))")
	}
}

// zero replaces the error that a function returns by nil, or where it returns
// none each other result. What the expression calls is called all the same.
func (g *generator) zero(n *ast.ReturnStmt) {
	var types []string
	for i := 1; types == nil; i++ {
		var function *ast.FuncType
		switch around := g.parent(i).(type) {
		case *ast.FuncDecl:
			function = around.Type
		case *ast.FuncLit:
			function = around.Type
		default:
			continue
		}
		for _, field := range function.Results.List {
			types = append(types, slices.Repeat([]string{g.of(field.Type)}, max(1, len(field.Names)))...)
		}
	}
	last := len(types) - 1
	for i, e := range n.Results {
		text := g.of(e)
		switch _, binary := e.(*ast.BinaryExpr); {
		case len(types) != len(n.Results), binary && types[i] == "bool":
		case text == "nil", text == `""`, text == "0", strings.HasSuffix(text, "{}"):
		case i < last && types[last] == "error" && g.of(n.Results[last]) != "nil":
		case text == "false":
			g.add(e, "not", "(mutated(§) != (", "))")
		default:
			g.add(e, "zero for", "mutatedZero["+types[i]+"](§, ", ")")
		}
	}
}

func (g *generator) parent(i int) ast.Node  { return g.stack[len(g.stack)-1-i] }
func (g *generator) offset(p token.Pos) int { return g.fset.Position(p).Offset }
func (g *generator) of(n ast.Node) string   { return g.text[g.offset(n.Pos()):g.offset(n.End())] }
func firstLine(s string) string             { s, _, _ = strings.Cut(s, "\n"); return strings.TrimSpace(s) }
func (g *generator) add(n ast.Node, change, before, after string) {
	line := firstLine(g.text[strings.LastIndexByte(g.text[:g.offset(n.Pos())], '\n')+1:])
	m := mutant{name: fmt.Sprintf("%s %s: %s %s", g.file, g.function, change, firstLine(g.of(n))), after: after}
	if line != firstLine(g.of(n)) {
		m.name += " in " + line
	}
	if g.names[m.name]++; g.names[m.name] > 1 {
		m.name += fmt.Sprintf(" #%d", g.names[m.name])
	}
	m.id, m.start, m.end = len(g.mutants)+1, g.offset(n.Pos()), g.offset(n.End())
	m.before = strings.ReplaceAll(before, "§", strconv.Itoa(m.id))
	g.mutants = append(g.mutants, m)
}

// insert returns a file's text with these mutants in it, and where each begins.
func insert(text string, mutants []mutant) (string, []int) {
	at := map[int]string{}
	for _, m := range mutants {
		at[m.start] += m.before
	}
	for _, m := range slices.Backward(mutants) {
		at[m.end] += m.after
	}
	var all strings.Builder
	from, begins := 0, map[int]int{}
	for _, offset := range slices.Sorted(maps.Keys(at)) {
		all.WriteString(text[from:offset])
		begins[offset], from = all.Len(), offset
		all.WriteString(at[offset])
	}
	all.WriteString(text[from:])
	starts := make([]int, len(mutants))
	for i, m := range mutants {
		starts[i] = begins[m.start]
		begins[m.start] += len(m.before)
	}
	return all.String(), starts
}
