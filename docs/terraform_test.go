package docs

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/hcl/v2/hclwrite"
	"github.com/zclconf/go-cty/cty"
)

func terraformFiles(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, pattern := range []string{"/*.tf", "/*/*.tf"} {
		paths, err := filepath.Glob(moduleFolder + pattern)
		if err != nil || len(paths) == 0 {
			t.Fatalf("%s: %d files, %v", pattern, len(paths), err)
		}
		all = append(all, paths...)
	}
	return all
}

func TestTerraformIsFormatted(t *testing.T) {
	for _, path := range terraformFiles(t) {
		parseTerraform(t, path)
		src, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(hclwrite.Format(src), src) {
			t.Errorf("%s: terraform fmt would change it", path)
		}
	}
}

// The module is evaluated whole, so that a name that is not there is found.
func TestEveryTerraformReferenceResolves(t *testing.T) {
	for name, given := range map[string]map[string]cty.Value{"the smallest": required, "everything": everything, "another's database": oneDatabase, "an application": beside} {
		m := planned(t, given)
		for local := range m.locals {
			m.of(t, "local."+local)
		}
		for _, b := range m.blocks["resource"] {
			m.of(t, strings.Join(b.Labels, "."))
			if depends := b.Body.Attributes["depends_on"]; depends != nil {
				for _, ref := range depends.Expr.Variables() {
					if _, _, err := m.refer(ref); err != nil {
						t.Error(err)
					}
				}
			}
		}
		for _, b := range m.blocks["output"] {
			if _, err := m.evaluate(b.Body.Attributes["value"].Expr, nil); err != nil {
				t.Errorf("output %s: %v", b.Labels[0], err)
			}
		}
		if refused := m.refusals(t); len(refused) > 0 {
			t.Errorf("%s is refused: %q", name, refused)
		}
	}
}

func TestEveryTerraformVariableIsUsedAndEveryNameIsDescribed(t *testing.T) {
	m := parseModule(t)
	used := map[string]bool{}
	for kind, blocks := range m.blocks {
		for _, b := range blocks {
			if kind != "variable" { // its own validation is no use
				references(b.Body, used)
			}
		}
	}
	for _, b := range slices.Concat(m.blocks["variable"], m.blocks["output"]) {
		name := b.Labels[0]
		about := b.Body.Attributes["description"]
		if about == nil {
			t.Errorf("%s %s has no description", b.Type, name)
		} else if s, _ := about.Expr.Value(nil); !strings.HasSuffix(s.AsString(), ".") {
			t.Errorf("%s %s: its description is no sentence: %q", b.Type, name, s.AsString())
		}
		if b.Type == "variable" && !used["var."+name] {
			t.Errorf("variable %s is not used", name)
		}
	}
	for name := range m.locals {
		if !used["local."+name] {
			t.Errorf("local %s is not used", name)
		}
	}
}

// references adds the first two names of every reference in body.
func references(body *hclsyntax.Body, to map[string]bool) {
	for _, a := range body.Attributes {
		for _, ref := range a.Expr.Variables() {
			if len(ref) < 2 {
				continue
			}
			if second, ok := ref[1].(hcl.TraverseAttr); ok {
				to[ref.RootName()+"."+second.Name] = true
			}
		}
	}
	for _, b := range body.Blocks {
		references(b.Body, to)
	}
}

func TestTheExampleGivesTheModuleWhatItNeedsInTenLines(t *testing.T) {
	path := moduleFolder + "/example/main.tf"
	src, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(src, []byte("\n")); n > 10 {
		t.Errorf("%d lines", n)
	}
	used(t, path)
}

// used is the module as a configuration uses it, which tells the environment that
// docs/operations.md asks for.
func used(t *testing.T, path string) *terraform {
	t.Helper()
	given, outputs := map[string]cty.Value{}, []string{}
	declared := slices.Collect(maps.Keys(planned(t, required).variables))
	for _, b := range parseTerraform(t, path).Blocks {
		if b.Type == "output" {
			outputs = append(outputs, b.Labels[0])
		}
		if b.Type != "module" {
			continue
		}
		for name, a := range b.Body.Attributes {
			if name == "source" {
				continue
			}
			if given[name], _ = a.Expr.Value(nil); !slices.Contains(declared, name) {
				t.Errorf("the module has no variable %s", name)
			}
		}
	}
	if !slices.Contains(outputs, "environment") {
		t.Errorf("%s has the outputs %q, and no environment", path, outputs)
	}
	m := planned(t, given)
	if refused := m.refusals(t); len(refused) > 0 {
		t.Errorf("refused: %q", refused)
	}
	return m
}

// The caller of a module says which provider, and Terraform which version.
func TestTheModulePinsItsProviderAndConfiguresNone(t *testing.T) {
	m := parseModule(t)
	if n := len(m.blocks["provider"]); n > 0 {
		t.Errorf("%d provider blocks", n)
	}
	for _, b := range m.blocks["terraform"][0].Body.Blocks {
		google, _ := b.Body.Attributes["google"].Expr.Value(nil)
		if got := google.GetAttr("version").AsString(); got != "~> 7.0" {
			t.Errorf("google's version is %s", got)
		}
	}
}

// What contradicts itself is refused when it is planned, by a sentence that says why.
func TestTheModuleRefusesWhatContradictsItself(t *testing.T) {
	for name, c := range map[string]struct {
		given map[string]cty.Value
		says  string
	}{
		"an image by tag":              {map[string]cty.Value{"worker_image": cty.StringVal("worker:latest")}, "digest"},
		"a secret without an image":    {map[string]cty.Value{"session_secret": cty.StringVal("s")}, "needs doclock_image"},
		"a run longer than a dispatch": {map[string]cty.Value{"run_timeout_minutes": cty.NumberFloatVal(29.5)}, "29 at most"},
		"a run of no time":             {map[string]cty.Value{"run_timeout_minutes": cty.NumberIntVal(0)}, "29 at most"},
		"a heartbeat too slow":         {map[string]cty.Value{"lock_heartbeat_seconds": cty.NumberIntVal(140)}, "two heartbeats"},
		"a heartbeat of no time":       {map[string]cty.Value{"lock_heartbeat_seconds": cty.NumberIntVal(0)}, "positive"},
		"half an attempt":              {map[string]cty.Value{"max_attempts": cty.NumberFloatVal(1.5)}, "whole number"},
		"too few instances":            {map[string]cty.Value{"worker_max_instances": cty.NumberIntVal(9)}, "429"},
		"too many dispatches":          {map[string]cty.Value{"max_concurrent_dispatches": cty.NumberIntVal(101)}, "429"},
		"more idle than all":           {map[string]cty.Value{"worker_min_instances": cty.NumberIntVal(11)}, "idle"},
		"a variable set twice":         {map[string]cty.Value{"worker_env": cty.MapVal(map[string]cty.Value{"LOCK_TTL": cty.StringVal("1s")})}, "sets this variable itself"},
		"an emulator":                  {map[string]cty.Value{"worker_env": cty.MapVal(map[string]cty.Value{"FIRESTORE_EMULATOR_HOST": cty.StringVal("h:1")})}, "Not in production"},
		"lines that nobody sees":       {map[string]cty.Value{"worker_env": cty.MapVal(map[string]cty.Value{"LOG_LEVEL": cty.StringVal("Warn")})}, "info or debug"},
		"errors alone":                 {map[string]cty.Value{"worker_env": cty.MapVal(map[string]cty.Value{"LOG_LEVEL": cty.StringVal("error")})}, "info or debug"},
		"an application by tag":        {application(map[string]cty.Value{"image": cty.StringVal("app:latest")}), "digest"},
		"an application on our port":   {application(map[string]cty.Value{"port": cty.NumberIntVal(8080)}), "not the worker's"},
		"an application's set twice":   {application(map[string]cty.Value{"secrets": secretOf("APP_PORT", "s", "1")}), "plain value and a secret"},
		"doclock's set twice":          {map[string]cty.Value{"doclock_env": cty.MapVal(map[string]cty.Value{"TASK_AUTH": cty.StringVal("none")})}, "sets this variable itself"},
		"a member without a kind":      {map[string]cty.Value{"submitters": cty.ListVal([]cty.Value{cty.StringVal("a@b.c")})}, "member"},
		"an operator without a kind":   {map[string]cty.Value{"operators": texts("a@b.c")}, "member"},
		"a value and a secret":         {map[string]cty.Value{"worker_secrets": cty.MapVal(map[string]cty.Value{"ANALYZER": cty.ObjectVal(map[string]cty.Value{"secret": cty.StringVal("s"), "version": cty.StringVal("1")})})}, "plain value"},
		"calls from nowhere":           {map[string]cty.Value{"worker_ingress": cty.StringVal("none")}, "INGRESS_TRAFFIC_ALL"},
		"a queue's full name":          {map[string]cty.Value{"queue": cty.StringVal("projects/p/locations/l/queues/q")}, "queue's name"},
		"a collector without scheme":   {map[string]cty.Value{"otlp_endpoint": cty.StringVal("localhost:4318")}, "http or https"},
	} {
		refused := planned(t, with(required, c.given)).refusals(t)
		if len(refused) != 1 || !strings.Contains(refused[0], c.says) {
			t.Errorf("%s: %q, want one that says %q", name, refused, c.says)
		}
	}
}

// application is that of beside, changed.
func application(more map[string]cty.Value) map[string]cty.Value {
	return map[string]cty.Value{"app": cty.ObjectVal(with(beside["app"].AsValueMap(), more))}
}

func secretOf(variable, name, version string) cty.Value {
	return cty.MapVal(map[string]cty.Value{variable: cty.ObjectVal(map[string]cty.Value{"secret": cty.StringVal(name), "version": cty.StringVal(version)})})
}

func TestAnAnalyzerThatIsNamedGoesBeforeTheApplicationAndDebugIsALevel(t *testing.T) {
	m := planned(t, with(beside, map[string]cty.Value{
		"analyzer":   cty.StringVal("http://localhost:9000/other"),
		"worker_env": cty.MapVal(map[string]cty.Value{"LOG_LEVEL": cty.StringVal("DEBUG")}),
	}))
	if refused := m.refusals(t); len(refused) > 0 {
		t.Errorf("refused: %q", refused)
	}
	if got := text(t, m.of(t, "local.analyzer")); got != "http://localhost:9000/other" {
		t.Errorf("the analyzer is %s", got)
	}
}
