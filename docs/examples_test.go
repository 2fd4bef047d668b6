package docs

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

var fenced = regexp.MustCompile("(?ms)^```(go|js|python)\n(.*?)\n```$")

// What the pages show of an example is in the file that the example's test runs.
func TestExamples_Pages(t *testing.T) {
	files := map[string][]string{
		"go": {
			"examples/go/main.go", "../orchestrator/example_test.go", "../worker/example_test.go",
			"examples/library/kinds/kinds.go", "examples/library/echoservice/main.go", "examples/library/once/main.go",
			"examples/library/service/main.go", "examples/library/payments/main.go",
			"examples/library/charge/charge.go",
			"examples/library/charge/charge_test.go", "examples/library/longrun/main.go",
			"examples/ownlock/main.go", "examples/ownlock/move_test.go",
		},
		"js": {
			"examples/express/analyzer.js", "examples/express/resume.js", "examples/node/submit.js",
			"examples/node/analyzer.js", "../clients/node/examples/analysis.mjs",
			"../clients/node/examples/program.mjs",
			"../clients/node/examples/service.mjs",
		},
		"python": {
			"examples/fastapi/analyzer.py", "examples/fastapi/resume.py", "examples/python/count.py",
			"examples/python/pages.py", "examples/python/upload.py", "examples/python/large.py",
			"examples/python/submit.py", "examples/python/analyzer.py", "examples/python/endpoint.py",
			"examples/python/ratelimit.py", "examples/python/charge.py",
			"../clients/python/examples/analyzer.py", "../clients/python/examples/service.py",
		},
	}
	for _, page := range []string{
		"acts.md", "analyzer.md", "compare.md", "do.md", "from-express.md", "from-fastapi.md", "from-your-own-lock.md",
		"idempotent.md", "keys.md", "large-files.md", "library.md", "long.md", "payments.md", "pubsub.md",
		"rate-limits.md", "test-your-handler.md", "tutorial.md",
	} {
		text := read(t, page)
		shown := fenced.FindAllStringSubmatch(text, -1)
		for _, block := range shown {
			has := func(file string) bool { return strings.Contains(read(t, file), block[2]) }
			if !slices.ContainsFunc(files[block[1]], has) {
				t.Errorf("%s: %q do not have\n%s", page, files[block[1]], block[2])
			}
		}
		if n := strings.Count(text, "\n"); len(shown) == 0 || n > 250 {
			t.Errorf("%s shows %d examples in %d lines, want some in at most 250", page, len(shown), n)
		}
	}
}

var diffs = regexp.MustCompile("(?ms)^```diff\n--- (\\S+)\n\\+\\+\\+ (\\S+)\n(.*?)\n```$")

// A diff leads from one file of the examples to another. Its hunks are separated by lines of "@@".
func TestExamples_Diffs(t *testing.T) {
	for _, page := range []string{"from-go.md", "from-express.md", "from-fastapi.md"} {
		shown := diffs.FindAllStringSubmatch(read(t, page), -1)
		if len(shown) == 0 {
			t.Errorf("%s has no diff", page)
		}
		for _, diff := range shown {
			for hunk := range strings.SplitSeq(diff[3], "\n@@\n") {
				for sign, file := range map[string]string{"-": diff[1], "+": diff[2]} {
					if text := side(hunk, sign); !strings.Contains(read(t, "examples/"+file), text) {
						t.Errorf("%s: %s does not have\n%s", page, file, text)
					}
				}
			}
		}
	}
}

// side returns the lines of a hunk that one of the two files has: those with the sign, or with none.
func side(hunk, sign string) string {
	lines := []string{}
	for line := range strings.SplitSeq(hunk, "\n") {
		if mark := (line + " ")[:1]; mark == sign || mark == " " {
			lines = append(lines, (line + " ")[1:max(1, len(line))])
		}
	}
	return strings.Join(lines, "\n")
}

func TestExamples_Npm(t *testing.T) {
	for file, packages := range map[string]int{
		"examples/node/package-lock.json": 50, "examples/express/package-lock.json": 50,
		"../locks/document/server/web/testdata/package-lock.json": 1} {
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
