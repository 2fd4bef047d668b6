// Package docs tests that the documents in this folder, and deploy/, match the code.
package docs

import (
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"
)

const firestoreClient = "cloud.google.com/go/firestore"

// rooms are the packages that the packages with a prefix may import, besides their own room,
// the standard library and other modules: docs/ARCHITECTURE.md's picture. The longest
// prefix counts.
var rooms = map[string][]string{
	"lease":        {},
	"orchestrator": {},
	"repo":         {"lease"},
	"internal":     {"lease", "orchestrator"}, // what answers requests
	"worker":       {"internal", "lease", "orchestrator", "repo", "internal/cloudrun"},
	"emulator":     {"internal/wire"},
	"deploy":       {}, // files, and a test of the example
	"docs":         {"orchestrator", "worker"},

	"internal/wire":           {},
	"internal/cloudrun":       {"internal", "lease", "repo"},
	"internal/console":        {"internal", "lease", "repo"},
	"internal/doctor":         {"internal", "lease", "orchestrator", "worker", "internal/cloudrun", "internal/workerservice", "internal/doclockservice"},
	"internal/workerservice":  {"internal", "lease", "orchestrator", "repo", "worker", "internal/cloudrun"},
	"internal/doclockservice": {"internal", "lease", "repo", "internal/cloudrun"},
	"cmd":                     {"internal", "lease", "orchestrator", "repo", "worker", "emulator", "internal/cloudrun", "internal/console", "internal/doctor", "internal/workerservice", "internal/doclockservice"},

	// Only for tests.
	"internal/emulatortest": {"emulator"},
	"internal/examplestest": {"orchestrator"},
	"internal/proof":        {},
}

// roomOf returns the longest prefix of rooms that the path of a package of ours has.
func roomOf(pkg string) (room string, known bool) {
	for at := strings.TrimPrefix(pkg, "taskguard/"); ; at = path.Dir(at) {
		if _, known := rooms[at]; known || at == "." {
			return at, known
		}
	}
}

// example is an application's code, which uses Google's clients as any would.
const example = "taskguard/docs/examples/go"

var testOnly = []string{"taskguard/lease/leasetest", "taskguard/internal/emulatortest", "taskguard/internal/proof", "taskguard/internal/examplestest"}

func TestTheArrowsPointOneWay(t *testing.T) {
	for pkg, imports := range list(t, "{{join .Imports \" \"}}", "./...") {
		room, known := roomOf(pkg)
		if !known {
			t.Errorf("%s is not in the table", pkg)
		}
		for _, imp := range imports {
			ours := strings.HasPrefix(imp, "taskguard/")
			to, _ := roomOf(imp)
			switch {
			case ours && to != room && !slices.Contains(rooms[room], to):
				t.Errorf("%s imports %s", pkg, imp)
			case room == "lease" && !ours && strings.Contains(imp, "."):
				t.Errorf("%s imports %s, which is not the standard library", pkg, imp)
			case (imp == firestoreClient || strings.HasPrefix(imp, firestoreClient+"/")) && room != "repo" && room != "emulator" && room != "internal/emulatortest" && pkg != example:
				t.Errorf("%s imports the Firestore client; only repo may", pkg)
			}
		}
	}
}

func TestTestOnlyPackagesAreInNoBinary(t *testing.T) {
	for pkg, deps := range list(t, "{{join .Deps \" \"}}", "./cmd/...") {
		if slices.Contains(testOnly, pkg) {
			continue
		}
		for _, dep := range deps {
			if slices.Contains(testOnly, dep) || dep == "testing" {
				t.Errorf("%s depends on %s", pkg, dep)
			}
		}
	}
}

func TestTheServicesCarryNoEmulator(t *testing.T) {
	for pkg, deps := range list(t, "{{join .Deps \" \"}}", "./cmd/worker/...", "./cmd/doclock/...", "./cmd/operator-manager/...", "./worker/...") {
		for _, dep := range deps {
			if strings.HasPrefix(dep, "taskguard/emulator") {
				t.Errorf("%s depends on %s", pkg, dep)
			}
		}
	}
}

// list asks the go command about the packages of the patterns, by import path.
func list(t *testing.T, format string, patterns ...string) map[string][]string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"list", "-f", "{{.ImportPath}} " + format}, patterns...)...)
	cmd.Dir = ".."
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	all := map[string][]string{}
	for line := range strings.Lines(string(out)) {
		words := strings.Fields(line)
		all[words[0]] = words[1:]
	}
	if len(all) == 0 {
		t.Fatal("go list names no package")
	}
	return all
}
