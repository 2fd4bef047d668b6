package docs

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

var fenced = regexp.MustCompile("(?ms)^```(go|js|python)\n(.*?)\n```$")

// What the pages show of an example is in the file that the example's test runs.
func TestThePagesShowTheExamplesAsTheyAre(t *testing.T) {
	files := map[string][]string{
		"go": {
			"examples/go/main.go", "../orchestrator/example_test.go", "../worker/example_test.go",
			"examples/library/kinds/kinds.go", "examples/library/echoservice/main.go", "examples/library/once/main.go",
			"examples/library/service/main.go", "examples/library/payments/main.go",
			"examples/library/charge/charge.go", "examples/library/charge/charge_test.go",
		},
		"js": {"examples/node/submit.js", "examples/node/analyzer.js", "../clients/node/examples/analysis.mjs",
			"../clients/node/examples/program.mjs", "../clients/node/examples/service.mjs"},
		"python": {"examples/python/submit.py", "examples/python/analyzer.py", "examples/python/endpoint.py",
			"../clients/python/examples/analyzer.py", "../clients/python/examples/service.py"},
	}
	for page, most := range map[string]int{"analyzer.md": 250, "guide.md": 1000, "library.md": 320, "payments.md": 120, "acts.md": 120} {
		text := read(t, page)
		shown := fenced.FindAllStringSubmatch(text, -1)
		for _, block := range shown {
			if !slices.ContainsFunc(files[block[1]], func(file string) bool { return strings.Contains(read(t, file), block[2]) }) {
				t.Errorf("%s: %q do not have\n%s", page, files[block[1]], block[2])
			}
		}
		if n := strings.Count(text, "\n"); len(shown) == 0 || n > most {
			t.Errorf("%s shows %d examples in %d lines, want some in at most %d", page, len(shown), n, most)
		}
	}
}

func TestTheLockFilesOfNpmHaveNoURL(t *testing.T) {
	for file, packages := range map[string]int{"examples/node/package-lock.json": 50, "../locks/document/server/web/testdata/package-lock.json": 1} {
		lock := read(t, file)
		if n := strings.Count(lock, `"integrity": "sha512-`); n < packages {
			t.Errorf("%s: %d packages have a checksum", file, n)
		}
		for line := range strings.Lines(lock) {
			if strings.Contains(line, "://") {
				t.Errorf("%s has a URL; jq 'del(.packages[].funding, .packages[].resolved)' removes it:\n%s", file, line)
			}
		}
	}
}
