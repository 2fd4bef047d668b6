package docs

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
)

// requirements are the lines that SEEDS.md must answer: of each family its
// numbers, and what it calls C (kept) and X (defects not to be had).
func requirements() (ids []string) {
	numbered := func(family string, last int) {
		for n := 1; n <= last; n++ {
			ids = append(ids, fmt.Sprint(family, n))
		}
	}
	numbered("G", 10)
	numbered("X", 5)
	numbered("D", 9)
	numbered("P", 15)
	numbered("O", 10)
	numbered("R", 12)
	return append(ids, "G-C", "D-C", "D-X", "O-C", "O-X")
}

var requirement = regexp.MustCompile(`^\| ([A-Z]-?[A-Z0-9]+) \|`)

func TestSeeds_Requirements(t *testing.T) {
	page := read(t, "SEEDS.md")
	shown := map[string]int{}
	for line := range strings.Lines(page) {
		id := requirement.FindStringSubmatch(line)
		if id != nil {
			shown[id[1]] += len(testName.FindAllString(line, -1)) // TestPages_Tests looks for them
		}
	}
	for _, id := range requirements() {
		if shown[id] == 0 || !strings.Contains(page, "\n- "+strings.TrimPrefix(id, "-")+": ") {
			t.Errorf("SEEDS.md does not describe %s, or names no test for it", id)
		}
	}
}
