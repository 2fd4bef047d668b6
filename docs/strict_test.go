package docs

import (
	"encoding/json"
	"os"
	"testing"

	"google.golang.org/api/run/v1"
	"sigs.k8s.io/yaml"
)

// strictly decodes a YAML file and fails on a field that into does not know.
func strictly(t *testing.T, path string, into any) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict(data, into, yaml.DisallowUnknownFields); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	var written any
	if err := yaml.Unmarshal(data, &written); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	if data, err = json.Marshal(into); err != nil {
		t.Fatal(err)
	}
	var understood any
	if err := json.Unmarshal(data, &understood); err != nil {
		t.Fatal(err)
	}
	sameNames(t, path, written, understood)
}

// sameNames wants each name of a to be one of b's, letter for letter: Go's decoder
// takes waitfor for waitFor, and the API does not.
func sameNames(t *testing.T, at string, a, b any) {
	t.Helper()
	switch a := a.(type) {
	case map[string]any:
		of, _ := b.(map[string]any)
		for name, value := range a {
			if _, ok := of[name]; !ok && value != "" && value != false && value != 0.0 {
				t.Errorf("%s: %s is no name of a field", at, name)
			}
			sameNames(t, at+"."+name, value, of[name])
		}
	case []any:
		of, _ := b.([]any)
		for i := range min(len(a), len(of)) {
			sameNames(t, at, a[i], of[i])
		}
	}
}

func TestTheServiceFilesNameTheirFieldsAsTheAPIDoes(t *testing.T) {
	for _, path := range []string{"../deploy/service.yaml", "../deploy/doclock.yaml", "../deploy/sidecar/service.yaml"} {
		var s run.Service
		strictly(t, path, &s)
		if s.Spec == nil || s.Spec.Template == nil || len(s.Spec.Template.Spec.Containers) == 0 {
			t.Errorf("%s describes no container", path)
		}
	}
}
