package local

import (
	"strings"
	"testing"
)

func TestExportsAreForAShell(t *testing.T) {
	text := exports(map[string]string{"A": "projects/p/q:1", "B": "it's $x"}, "go run ./cmd/taskguard")
	for _, want := range []string{"export A=projects/p/q:1\n", `export B='it'\''s $x'` + "\n", "  go run ./cmd/taskguard submit FILE… --wait\n", "requeue ID, delete ID, recover "} {
		if !strings.Contains(text, want) {
			t.Errorf("%s lacks %s", text, want)
		}
	}
}
