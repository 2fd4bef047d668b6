package terraform

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"taskguard/internal/testing/must"
)

var (
	exampleSource   = regexp.MustCompile(`source( +)= "../.."`)
	exampleProvider = regexp.MustCompile(`(?m)^provider "google" .*\n`)
	exampleModule   = regexp.MustCompile(`(?m)^module "(\w+)"`)
)

// Two deployments in one project that had a name in common would overwrite each other.
func TestModule_Examples(t *testing.T) {
	paths, err := filepath.Glob("examples/*/main.tf")
	if err != nil || len(paths) != 4 {
		t.Fatalf("%q, %v", paths, err)
	}
	for _, path := range paths {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			namesDiffer(t, path)
		})
	}
}

func namesDiffer(t *testing.T, path string) {
	t.Helper()
	main := exampleProvider.ReplaceAllString(text(t, path), "")
	main = exampleSource.ReplaceAllString(main, `source$1= "./deploy/terraform"`)
	modules := exampleModule.FindAllStringSubmatch(main, -1)
	for _, m := range modules {
		main += fmt.Sprintf("\noutput \"names_%s\" { value = module.%[1]s.names }\n", m[1])
	}
	all := map[string]struct{ Value any }{}
	outputs(t, configuration(t, "main.tf", main), &all)
	if env, _ := all["environment"].Value.(string); !strings.Contains(env, "export TASK_QUEUE='projects/my-project/") {
		t.Errorf("%s: the environment is %q", path, env)
	}
	taken := map[any]string{}
	for _, m := range modules {
		names, _ := all["names_"+m[1]].Value.([]any)
		for _, name := range names {
			if taken[name] != "" && taken[name] != m[1] {
				t.Errorf("%s: %s and %s have the name %s", path, taken[name], m[1], name)
			}
			taken[name] = m[1]
		}
	}
	if len(taken) < 30*len(modules) {
		t.Errorf("%s: %d names of %d modules", path, len(taken), len(modules))
	}
}

// outputs applies the configuration of a folder and decodes its outputs.
func outputs(t *testing.T, folder string, into any) {
	t.Helper()
	if out, err := terraform(t, folder, "apply", "-auto-approve", "-no-color"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	state := struct{ Outputs any }{into}
	must.OK(t, json.Unmarshal([]byte(text(t, filepath.Join(folder, "terraform.tfstate"))), &state))
}
