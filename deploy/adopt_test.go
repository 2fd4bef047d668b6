package deploy

import (
	"fmt"
	"strings"
	"testing"
)

// worker counts the rest of the page's numbers.
func TestTheCostsOfStandingStillAreThoseOfTheModule(t *testing.T) {
	m := readMonitoring(t)
	want := fmt.Sprintf("log metrics: %d, and alert policies with one condition: %d |", len(m.LogMetrics), len(m.Alerts))
	if page := read(t, "../docs/adopt.md"); !strings.Contains(page, want) {
		t.Errorf("adopt.md lacks %q", want)
	} else if n := strings.Count(page, "\n"); n > 150 {
		t.Errorf("adopt.md has %d lines", n)
	}
}
