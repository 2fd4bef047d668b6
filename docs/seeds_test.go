package docs

import (
	"fmt"
	"os"
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

var (
	requirement = regexp.MustCompile(`^\| ([A-Z]-?[A-Z0-9]+) \|`)
	design      = regexp.MustCompile("(?m)^\\| [^|]*\\(seed 00([0-4])\\) \\| ([GDPO]) \\| \\[[^|]*\\) \\| ((?:`[a-z/-]+`(?:, )?)+) \\| [^|]+ \\| [^|]{20,} \\|$")
)

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

	designs := ""
	for _, row := range design.FindAllStringSubmatch(page, -1) {
		designs += row[1] + row[2]
		for name := range strings.SplitSeq(row[3], ", ") {
			if _, err := os.Stat("../" + strings.Trim(name, "`")); err != nil {
				t.Errorf("seed 00%s: %v", row[1], err)
			}
		}
	}
	if want := "0P1P2D3G4O"; designs != want {
		t.Errorf("SEEDS.md has the designs %s, want %s", designs, want)
	}
}
