package delivery

import (
	"strings"
	"testing"
)

// Any program can write the owner of a lock.
func TestLogLine_HeldBy(t *testing.T) {
	line := LogLine{Result: Result{Next: Next{HeldBy: strings.Repeat("x", MaxText+1)}}}
	for _, field := range line.Attrs() {
		if field.Key == "held_by" && len(field.Value.String()) == MaxText {
			return
		}
	}
	t.Errorf("%.200v has no held_by of %d bytes", line.Attrs(), MaxText)
}
