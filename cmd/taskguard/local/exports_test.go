package local

import (
	"strings"
	"testing"
)

func TestExportsAreForAShell(t *testing.T) {
	text := exports(map[string]string{"A": "projects/p/q:1", "B": "it's $x"}, "./tg")
	for _, want := range []string{"export A=projects/p/q:1\n", `export B='it'\''s $x'` + "\n", "  ./tg submit FILE… --wait\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("%s lacks %s", text, want)
		}
	}
	for arg0, want := range map[string]string{
		"./bin/taskguard": "./bin/taskguard", "/opt/a b/taskguard": "'/opt/a b/taskguard'",
		"/tmp/go-build123/b001/exe/taskguard": "go run ./cmd/taskguard",
	} {
		if got := programName(arg0); got != want {
			t.Errorf("%s: %s, want %s", arg0, got, want)
		}
	}
}
