package docs

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/ext/typeexpr"
	"github.com/hashicorp/hcl/v2/hclparse"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
)

const moduleFolder = "../deploy/terraform"

// terraform is the module, which is evaluated as Terraform plans it: with the
// variables' defaults unless others are given, and with a stand-in for what only
// Google would know.
type terraform struct {
	blocks    map[string][]*hclsyntax.Block // by kind
	locals    map[string]hclsyntax.Expression
	variables map[string]cty.Value
	known     map[string]cty.Value // of what has been evaluated, by address
	asked     []string             // addresses under way
}

// parseModule parses every file of the module.
func parseModule(t *testing.T) *terraform {
	t.Helper()
	paths, err := filepath.Glob(moduleFolder + "/*.tf")
	if err != nil || len(paths) == 0 {
		t.Fatalf("%d files, %v", len(paths), err)
	}
	m := &terraform{
		blocks: map[string][]*hclsyntax.Block{}, locals: map[string]hclsyntax.Expression{},
		variables: map[string]cty.Value{}, known: map[string]cty.Value{},
	}
	for _, path := range paths {
		for _, b := range parseTerraform(t, path).Blocks {
			m.blocks[b.Type] = append(m.blocks[b.Type], b)
			if b.Type != "locals" {
				continue
			}
			for name, a := range b.Body.Attributes {
				m.locals[name] = a.Expr
			}
		}
	}
	return m
}

func parseTerraform(t *testing.T, path string) *hclsyntax.Body {
	t.Helper()
	f, diags := hclparse.NewParser().ParseHCLFile(path)
	if diags.HasErrors() {
		t.Fatal(diags)
	}
	return f.Body.(*hclsyntax.Body)
}

// The smallest use of the module, one of everything, and one with an application.
var (
	zeroDigest  = "@sha256:" + strings.Repeat("0", 64)
	required    = map[string]cty.Value{"project": cty.StringVal("my-project"), "worker_image": cty.StringVal("worker" + zeroDigest)}
	everything  = with(required, map[string]cty.Value{"doclock_image": cty.StringVal("doclock" + zeroDigest), "session_secret": cty.StringVal("taskguard-session"), "otlp_endpoint": cty.StringVal("http://collector:4318"), "submitters": texts("serviceAccount:api@my-project.iam.gserviceaccount.com"), "operators": texts("group:oncall@example.com"), "build_source_bucket": cty.StringVal("my-project_cloudbuild")})
	beside      = with(required, map[string]cty.Value{"app": cty.ObjectVal(map[string]cty.Value{"image": cty.StringVal("app" + zeroDigest), "env": cty.MapVal(map[string]cty.Value{"APP_PORT": cty.StringVal("9000"), "APP_SLOTS": cty.StringVal("10")})})})
	oneDatabase = with(required, map[string]cty.Value{"create_database": cty.False, "database": cty.StringVal("theirs")})
)

func texts(s string) cty.Value { return cty.ListVal([]cty.Value{cty.StringVal(s)}) }

func with(values, more map[string]cty.Value) map[string]cty.Value {
	all := maps.Clone(values)
	maps.Copy(all, more)
	return all
}

// planned is the module with these values of its variables. Their validations
// are another matter: see refusals.
func planned(t *testing.T, given map[string]cty.Value) *terraform {
	t.Helper()
	m := parseModule(t)
	for _, b := range m.blocks["variable"] {
		name := b.Labels[0]
		of, defaults, diags := typeexpr.TypeConstraintWithDefaults(b.Body.Attributes["type"].Expr)
		if diags.HasErrors() {
			t.Fatal(diags)
		}
		v, ok := given[name]
		if a := b.Body.Attributes["default"]; !ok && a != nil {
			v, diags = a.Expr.Value(nil)
			ok = !diags.HasErrors()
		}
		if !ok {
			t.Fatalf("variable %s has no value: %v", name, diags)
		}
		if defaults != nil && !v.IsNull() {
			v = defaults.Apply(v)
		}
		v, err := convert.Convert(v, of)
		if err != nil {
			t.Fatalf("variable %s: %v", name, err)
		}
		m.variables[name] = v
	}
	return m
}

// evaluate is the value of an expression; extra are names of its own, such as each.
func (m *terraform) evaluate(expr hclsyntax.Expression, extra map[string]cty.Value) (cty.Value, error) {
	scope := map[string]map[string]cty.Value{}
	for _, ref := range expr.Variables() {
		root := ref.RootName()
		if _, own := extra[root]; own {
			continue
		}
		name, value, err := m.refer(ref)
		if err != nil {
			return cty.NilVal, err
		}
		if scope[root] == nil {
			scope[root] = map[string]cty.Value{}
		}
		if root == "data" {
			value = cty.ObjectVal(map[string]cty.Value{"this": value})
		}
		scope[root][name] = value
	}
	ctx := &hcl.EvalContext{Variables: map[string]cty.Value{}, Functions: terraformFunctions()}
	for root, names := range scope {
		ctx.Variables[root] = cty.ObjectVal(names)
	}
	maps.Copy(ctx.Variables, extra)
	v, diags := expr.Value(ctx)
	if diags.HasErrors() {
		return cty.NilVal, diags
	}
	return v, nil
}

// refer is the value of the first two names of a reference.
func (m *terraform) refer(ref hcl.Traversal) (name string, v cty.Value, err error) {
	if len(ref) < 2 {
		return "", cty.NilVal, fmt.Errorf("%s alone refers to nothing", ref.RootName())
	}
	second, ok := ref[1].(hcl.TraverseAttr)
	if !ok {
		return "", cty.NilVal, fmt.Errorf("%s needs a name", ref.RootName())
	}
	address := ref.RootName() + "." + second.Name
	if v, done := m.known[address]; done {
		return second.Name, v, nil
	}
	if slices.Contains(m.asked, address) {
		return "", cty.NilVal, fmt.Errorf("%s refers to itself by %v", address, m.asked)
	}
	m.asked = append(m.asked, address)
	v, err = m.resolve(ref.RootName(), second.Name)
	m.asked = m.asked[:len(m.asked)-1]
	if err != nil {
		return "", cty.NilVal, err
	}
	m.known[address] = v
	return second.Name, v, nil
}

func (m *terraform) resolve(root, name string) (cty.Value, error) {
	address := root + "." + name
	switch root {
	case "var":
		if v, ok := m.variables[name]; ok {
			return v, nil
		}
	case "local":
		if expr, ok := m.locals[name]; ok {
			return m.evaluate(expr, nil)
		}
	case "path":
		return cty.StringVal(moduleFolder), nil
	case "data":
		return cty.ObjectVal(map[string]cty.Value{"number": cty.StringVal("123456789012")}), nil
	default:
		for _, b := range m.blocks["resource"] {
			if b.Labels[0] == root && b.Labels[1] == name {
				return m.resource(b)
			}
		}
	}
	return cty.NilVal, fmt.Errorf("%s is not declared", address)
}
