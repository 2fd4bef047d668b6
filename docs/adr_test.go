package docs

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var step = regexp.MustCompile(`(?m)^\*\*([A-Z][a-z]+)\.\*\* `)

// Each decision has the parts of the template, in the same order, and ARCHITECTURE.md links to it.
func TestDecisions(t *testing.T) {
	parts := func(file string) (names []string) {
		for _, m := range step.FindAllStringSubmatch(read(t, file), -1) {
			names = append(names, m[1])
		}
		return names
	}
	template := parts("adr/0000-template.md")
	all, err := filepath.Glob("adr/*.md")
	check(t, err)
	if len(template) < 3 || len(all) < 3 {
		t.Fatalf("the template has the parts %v, and there are %d files", template, len(all))
	}

	page := read(t, "ARCHITECTURE.md")
	for _, file := range all {
		t.Run(filepath.Base(file), func(t *testing.T) {
			// A decision may explain itself under further headings of this form.
			got := slices.DeleteFunc(parts(file), func(name string) bool { return !slices.Contains(template, name) })
			if !slices.Equal(got, template) {
				t.Errorf("its parts are %v, want %v", got, template)
			}
			if !strings.Contains(page, "("+file+")") {
				t.Error("ARCHITECTURE.md does not link to it")
			}
		})
	}
}
