package docs

import (
	"strings"
	"testing"
)

// The pages show the program, and the kind that replaces it, as their tests run them.
func TestThePagesShowALockOfYourOwnAsItIs(t *testing.T) {
	page := read(t, "compare.md")
	for name, file := range map[string]string{"compare.md": "main.go", "from-your-own-lock.md": "move_test.go"} {
		code, text := read(t, "examples/ownlock/"+file), read(t, name)
		shown := fenced.FindAllStringSubmatch(text, -1)
		for _, block := range shown {
			if !strings.Contains(code, block[2]) {
				t.Errorf("%s: %s does not have\n%s", name, file, block[2])
			}
		}
		if lines := strings.Count(text, "\n"); len(shown) == 0 || lines > 250 {
			t.Errorf("%s shows %d parts of %s in %d lines", name, len(shown), file, lines)
		}
	}

	// The rows of the page are the rows of the test.
	for _, said := range []string{"183 runs in a week", "`FAILED` after 10 attempts"} {
		if !strings.Contains(page, said) {
			t.Errorf("the page does not say %q", said)
		}
	}
	if test := read(t, "examples/ownlock/main_test.go"); !strings.Contains(test, `outcome{"PROCESSING", nil, 183, 1}`) ||
		!strings.Contains(test, `outcome{"FAILED", nil, 10, 1}`) {
		t.Error("the test has other numbers of runs than the page")
	}
}
