package deploy

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/function"
	"github.com/zclconf/go-cty/cty/function/stdlib"
)

// providerSchema returns the provider's arguments by path, as the checked-in list has
// them, and the version that the list is of.
func providerSchema(t *testing.T) (version string, kinds map[string]string) {
	t.Helper()
	paths, err := filepath.Glob(moduleFolder + "/testdata/schema-google-*.txt")
	if err != nil || len(paths) != 1 {
		t.Fatalf("%q, %v", paths, err)
	}
	kinds = map[string]string{}
	for line := range strings.Lines(read(t, paths[0])) {
		if path, kind, ok := strings.Cut(strings.TrimSpace(line), " "); ok && path != "#" {
			kinds[path] = kind
		}
	}
	return strings.TrimSuffix(strings.TrimPrefix(filepath.Base(paths[0]), "schema-google-"), ".txt"), kinds
}

// Terraform's own validation needs the provider, which these tests do not have.
func TestModule_Arguments(t *testing.T) {
	version, kinds := providerSchema(t)
	lowest := `version = "~> ` + strings.TrimSuffix(version, ".0") + `"`
	if !strings.Contains(read(t, moduleFolder+"/versions.tf"), lowest) {
		t.Errorf("the list is of version %s, which is not the lowest that versions.tf allows", version)
	}
	used := 0
	for _, b := range parseModule(t) {
		if b.Type == "resource" || b.Type == "data" {
			root := strings.TrimSuffix(b.name(), "."+b.Labels[1])
			for _, wrong := range misused(kinds, root, b.Body, &used) {
				t.Errorf("%s: the provider's %s", b.name(), wrong)
			}
		}
		for _, name := range references(b.Body) {
			if m := attributeRead.FindStringSubmatch(name); len(m) == 3 && kinds[m[1]+"."+m[2]] == "" {
				t.Errorf("%s refers to %s, which the provider does not have", b.name(), name)
			}
		}
	}
	if used < 200 {
		t.Errorf("only %d arguments and blocks were compared", used)
	}
}

var attributeRead = regexp.MustCompile(`^((?:data\.)?google_\w+)\.\w+\.(\w+)`)

var metaArguments = []string{"count", "depends_on", "for_each", "lifecycle"}

// misused returns what is wrong with the arguments and blocks of a body.
func misused(kinds map[string]string, path string, body *hclsyntax.Body, used *int) (wrong []string) {
	given := map[string]bool{}
	resource := strings.Count(strings.TrimPrefix(path, "data."), ".") == 0
	for name := range body.Attributes {
		if resource && slices.Contains(metaArguments, name) {
			continue
		}
		given[name] = true
		*used++
		if kind := kinds[path+"."+name]; kind != "required" && kind != "optional" {
			wrong = append(wrong, fmt.Sprintf("%s.%s is no argument, but %q", path, name, kind))
		}
	}
	for _, b := range body.Blocks {
		name, inner := b.Type, b.Body
		if name == "lifecycle" && resource {
			for _, ignored := range inner.Attributes["ignore_changes"].Expr.(*hclsyntax.TupleConsExpr).Exprs {
				traversal, _ := hcl.AbsTraversalForExpr(ignored)
				if field := path + "." + dotted(traversal); kinds[field] == "" {
					wrong = append(wrong, field+" to ignore does not exist")
				}
			}
			continue
		}
		if name == "dynamic" {
			name, inner = b.Labels[0], inner.Blocks[0].Body
		}
		given[name] = true
		*used++
		if kind := kinds[path+"."+name]; !strings.HasSuffix(kind, " block") {
			wrong = append(wrong, fmt.Sprintf("%s.%s is no block, but %q", path, name, kind))
		}
		wrong = append(wrong, misused(kinds, path+"."+name, inner, used)...)
	}
	for field, kind := range kinds {
		name, inside := strings.CutPrefix(field, path+".")
		required := strings.HasPrefix(kind, "required") && !strings.Contains(name, ".")
		if missing := required && !given[name]; inside && missing {
			wrong = append(wrong, field+" is required")
		}
	}
	return wrong
}

// Of two deployments in a project, each name that is calculated is its own.
func TestModule_TwoDeployments(t *testing.T) {
	one, other := moduleNames(t, "taskguard"), moduleNames(t, "staging")
	if len(one) < 10 {
		t.Errorf("only %d names: %v", len(one), one)
	}
	for what, name := range one {
		if other[what] == name {
			t.Errorf("%s: both deployments call it %s", what, name.AsString())
		}
	}
}

// moduleNames evaluates local.names of a deployment that chooses only the variable name.
func moduleNames(t *testing.T, name string) map[string]cty.Value {
	t.Helper()
	none := cty.NullVal(cty.String)
	variables := map[string]cty.Value{"var": cty.ObjectVal(map[string]cty.Value{
		"name": cty.StringVal(name), "database": none, "doclock_database": none, "queue": none,
	})}
	functions := map[string]function.Function{"coalesce": stdlib.CoalesceFunc, "merge": stdlib.MergeFunc}
	for _, b := range parseModule(t) {
		if names := b.Body.Attributes["names"]; b.Type == "locals" && names != nil {
			v, problems := names.Expr.Value(&hcl.EvalContext{Variables: variables, Functions: functions})
			if problems.HasErrors() {
				t.Fatal(problems)
			}
			return v.AsValueMap()
		}
	}
	t.Fatal("the module has no local.names")
	return nil
}

// A name without the variable is in the way of a second deployment in the project.
func TestModule_Prefix(t *testing.T) {
	for _, b := range parseModule(t) {
		if b.Type != "resource" {
			continue
		}
		_, body, _ := strings.Cut(b.text, "{")
		for line := range strings.Lines(body) {
			_, value, _ := strings.Cut(line, ` = `)
			if strings.Contains(value, `"`) && strings.Contains(strings.ToLower(value), "taskguard") {
				t.Errorf("%s has a name of its own: %s", b.name(), line)
			}
		}
	}
}
