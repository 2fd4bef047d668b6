// Package deploy tests that the files of a deployment match each other and the code.
package deploy

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	run "google.golang.org/api/run/v1"
	"sigs.k8s.io/yaml"

	"taskguard/internal/testing/must"
)

// strictly decodes a YAML file and fails on a field that into does not have.
func strictly(t *testing.T, path string, into any) {
	t.Helper()
	if err := yaml.UnmarshalStrict([]byte(read(t, path)), into, yaml.DisallowUnknownFields); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

func service(t *testing.T, file string) (s run.Service, c *run.Container) {
	t.Helper()
	path := file
	if file == "sidecar" {
		text, err := exec.CommandContext(t.Context(), "bash", path+"/service.sh").Output()
		if path = filepath.Join(t.TempDir(), file); err != nil || os.WriteFile(path, text, 0o600) != nil {
			t.Fatal(err)
		}
	}
	strictly(t, path, &s)
	return s, s.Spec.Template.Spec.Containers[0]
}

func environmentOf(c *run.Container) map[string]string {
	env := map[string]string{}
	for _, e := range c.Env {
		if env[e.Name] = e.Value; e.ValueFrom != nil {
			env[e.Name] = strings.Repeat("secret", 8)
		}
	}
	return env
}

func read(t *testing.T, path string) string {
	t.Helper()
	return string(must.Get(os.ReadFile(path))(t))
}

// pages returns the pages of this folder, one after the other.
func pages(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, path := range files(t, "*.md") {
		all.WriteString(read(t, path) + "\n")
	}
	return all.String()
}

func sorted(names map[string]bool) []string { return slices.Sorted(maps.Keys(names)) }
