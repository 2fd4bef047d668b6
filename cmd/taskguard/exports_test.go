package main

import (
	"slices"
	"strings"
	"testing"
)

func TestLocalSaysHowToStartThisProgramAgain(t *testing.T) {
	for arg0, want := range map[string]string{
		"taskguard": "taskguard", "./bin/taskguard": "./bin/taskguard", "/opt/a b/taskguard": "'/opt/a b/taskguard'",
		"/tmp/go-build123/b001/exe/taskguard": "go run ./cmd/taskguard",
	} {
		if got := invocation(arg0); got != want {
			t.Errorf("%s: %s, want %s", arg0, got, want)
		}
	}
}

func TestExportsAreForAShell(t *testing.T) {
	text := exports([]variable{{"A", "projects/p/q:1"}, {"B", "it's $x"}}, "./tg")
	for _, want := range []string{"export A=projects/p/q:1\n", `export B='it'\''s $x'` + "\n", "  ./tg submit FILE… --wait\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("%s lacks %s", text, want)
		}
	}
	if strings.Contains(text, "#") {
		t.Errorf("%s warns of nothing", text)
	}
}

func TestExportsThatAWorkerRefusesAreNamed(t *testing.T) {
	all := []variable{{firestoreEmulator, "127.0.0.1:1"}, {"ANALYSES_COLLECTION", "a/b"}}
	if got := refused(all); !slices.Equal(got, []string{"ANALYSES_COLLECTION"}) {
		t.Errorf("refused %q, want ANALYSES_COLLECTION", got)
	}
	if text := exports(all, "tg"); !strings.Contains(text, "  # for taskguard; cmd/worker of this version refuses ANALYSES_COLLECTION\n") {
		t.Errorf("%s lacks the warning", text)
	}
}
