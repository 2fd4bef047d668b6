// Package docs tests that the documents in this folder match the code.
package docs

import (
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const firestoreClient = "cloud.google.com/go/firestore"

// floors are the rooms of docs/ARCHITECTURE.md's picture, from the ground up. A package
// imports its own room and the floors below.
var floors = [][]string{
	{"internal/text", "internal/clock", "internal/children"},
	{"lease", "orchestrator", "emulator"},
	{"internal"},
	{"locks"},
	{"repo"},
	{"worker"},
	{"cmd/internal"},
	{"cmd"},
	{"internal/testing"},
	{"clients", "deploy", "docs", "worker/workertest"}, // tests, and examples of applications
}

// floorOf returns the room of a package of ours, by the longest prefix of its path, and the
// room's floor; -1: it has none.
func floorOf(pkg string) (room string, floor int) {
	for room = strings.TrimPrefix(pkg, "taskguard/"); room != "."; room = path.Dir(room) {
		floor := slices.IndexFunc(floors, func(rooms []string) bool { return slices.Contains(rooms, room) })
		if floor >= 0 {
			return room, floor
		}
	}
	return room, -1
}

// examples are applications, which use Google's clients as any would.
var examples = []string{"taskguard/docs/examples/go", "taskguard/docs/examples/ownlock"}

// testOnly are the prefixes of the packages that only tests may import.
var testOnly = []string{"taskguard/lease/leasetest", "taskguard/worker/workertest", "taskguard/internal/testing/"}

// begins reports whether pkg begins with one of the prefixes.
func begins(pkg string, prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(pkg, prefix) })
}

func TestImports_Floors(t *testing.T) {
	for pkg, imports := range list(t, "{{join .Imports \" \"}}", "./...") {
		room, floor := floorOf(pkg)
		if floor < 0 {
			t.Errorf("%s is on no floor", pkg)
		}

		for _, imported := range imports {
			to, below := floorOf(imported)
			ours := strings.HasPrefix(imported, "taskguard/")
			client := strings.HasPrefix(imported+"/", firestoreClient+"/")
			mayUse := room == "repo" || room == "emulator"
			switch {
			case ours && to != room && below >= floor:
				t.Errorf("%s imports %s, which is not below it", pkg, imported)
			case room == "lease" && !ours && strings.Contains(imported, "."):
				t.Errorf("%s imports %s, which is not the standard library", pkg, imported)
			case client && !mayUse && !begins(pkg, append(examples, testOnly...)):
				t.Errorf("%s imports the Firestore client; only repo may", pkg)
			}
		}
	}
}

// An application that imports worker links neither exporters nor what only our programs use.
func TestImports_Unused(t *testing.T) {
	for _, tc := range []struct{ packages, unused []string }{
		{[]string{"./cmd/..."}, append(slices.Clone(testOnly), "testing")},
		{
			[]string{"./cmd/worker/...", "./cmd/doclock/...", "./cmd/operator-manager/...", "./worker"},
			[]string{"taskguard/emulator"},
		},
		{[]string{"./worker"}, []string{
			"taskguard/cmd/", "go.opentelemetry.io/otel/sdk", "go.opentelemetry.io/otel/exporters/",
			"go.opentelemetry.io/proto/otlp", "github.com/KimMachineGun/automemlimit",
			"github.com/grpc-ecosystem/grpc-gateway",
		}},
	} {
		for pkg, deps := range list(t, "{{join .Deps \" \"}}", tc.packages...) {
			for _, dep := range deps {
				if begins(dep, tc.unused) {
					t.Errorf("%s depends on %s", pkg, dep)
				}
			}
		}
	}
}

// list asks the go command about the packages of the patterns, by import path.
func list(t *testing.T, format string, patterns ...string) map[string][]string {
	t.Helper()
	args := append([]string{"list", "-f", "{{.ImportPath}} " + format}, patterns...)
	cmd := exec.CommandContext(t.Context(), "go", args...)
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

var direct = regexp.MustCompile(`(?m)^\t(\S+) v\S+$`) // and not "// indirect"

func TestDependencies(t *testing.T) {
	table := read(t, "dependencies.md")
	modules := direct.FindAllStringSubmatch(read(t, "../go.mod"), -1)
	for _, m := range modules {
		if !strings.Contains(table, "`"+m[1]+"`") {
			t.Errorf("dependencies.md gives no reason for %s", m[1])
		}
	}
	if len(modules) < 10 {
		t.Errorf("%d modules", len(modules))
	}
	for _, named := range regexp.MustCompile("`([a-z.]+/[^`]+)`").FindAllStringSubmatch(table, -1) {
		if !strings.Contains(read(t, "../go.mod"), named[1]+" ") {
			t.Errorf("dependencies.md lists %s, which is not in go.mod", named[1])
		}
	}
}
