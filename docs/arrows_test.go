// Package docs tests that the documents in this folder, and deploy/, match the code.
package docs

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const firestoreClient = "cloud.google.com/go/firestore"

// rooms are the packages that each package may import, besides the standard
// library and other modules: docs/ARCHITECTURE.md's picture.
var rooms = map[string][]string{
	"lease":        {"lease"},
	"orchestrator": {},
	"repo":         {"lease"},
	"worker":       {"lease", "orchestrator", "worker"},
	"emulator":     {"emulator"},
	"cmd":          {"cmd", "worker", "repo", "lease", "orchestrator", "emulator"},
	"deploy":       {},                       // files, and a test of the example
	"docs":         {"docs", "orchestrator"}, // which runs the examples' analyzers
}

// example is an application's code, which uses Google's clients as any would.
const example = "taskguard/docs/examples/go"

var testOnly = []string{"taskguard/lease/leasetest", "taskguard/emulator/emulatortest", "taskguard/cmd/chromiumtest", "taskguard/cmd/doclock/echo", "taskguard/worker/proof", "taskguard/docs/examples/examplestest"}

func TestTheArrowsPointOneWay(t *testing.T) {
	for pkg, imports := range list(t, "{{join .Imports \" \"}}", "./...") {
		room, _, _ := strings.Cut(strings.TrimPrefix(pkg, "taskguard/"), "/")
		allowed, known := rooms[room]
		if !known {
			t.Errorf("%s is not in the table", pkg)
		}
		for _, imp := range imports {
			to, ours := strings.CutPrefix(imp, "taskguard/")
			toRoom, _, _ := strings.Cut(to, "/")
			switch {
			case ours && !slices.Contains(allowed, toRoom):
				t.Errorf("%s imports %s", pkg, imp)
			case room == "lease" && !ours && strings.Contains(imp, "."):
				t.Errorf("%s imports %s, which is not the standard library", pkg, imp)
			case (imp == firestoreClient || strings.HasPrefix(imp, firestoreClient+"/")) && room != "repo" && room != "emulator" && pkg != example:
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
	for pkg, deps := range list(t, "{{join .Deps \" \"}}", "./cmd/worker/...", "./cmd/doclock/...", "./cmd/operator-manager/...", "./cmd/cloudrun/...") {
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
