package docs

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

var fenced = regexp.MustCompile("(?ms)^```(go|js|python)\n(.*?)\n```$")

// What guide.md shows of an example is in the file that the example's test runs.
func TestTheGuideShowsTheExamplesAsTheyAre(t *testing.T) {
	files := map[string][]string{
		"go":     {"examples/go/main.go", "../orchestrator/example_test.go"},
		"js":     {"examples/node/submit.js", "examples/node/analyzer.js"},
		"python": {"examples/python/submit.py", "examples/python/analyzer.py"},
	}
	shown := fenced.FindAllStringSubmatch(read(t, "guide.md"), -1)
	for _, block := range shown {
		if !slices.ContainsFunc(files[block[1]], func(file string) bool { return strings.Contains(read(t, file), block[2]) }) {
			t.Errorf("%q do not have\n%s", files[block[1]], block[2])
		}
	}
	if len(shown) == 0 {
		t.Error("guide.md shows no example")
	}
}

func TestTheLockFilesOfNpmHaveNoURL(t *testing.T) {
	for file, packages := range map[string]int{"examples/node/package-lock.json": 50, "../internal/doclock/web/testdata/package-lock.json": 1} {
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
